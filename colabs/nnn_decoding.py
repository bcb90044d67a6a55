# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # NNN decoding: what it sees that a ranking by similarity does not
#
# Dense retrieval scores each document alone. NNN decoding explains the query
# with a few documents *together*,
#
# $$\operatorname*{argmin}_{w \ge 0}\; \tfrac12 \lVert U^\top w - v \rVert^2
# + \lambda_1 \lVert w \rVert_1 + \tfrac{\lambda_2}{2} \lVert w \rVert^2,$$
#
# and retrieves those with $w_i > 0$ (arXiv 2606.17910). First the paper's
# three-document example, drawn; then real text.

# %%
# In a fresh Colab: clone the repository, then install it with what loads an
# encoder and data. On your machine `make demo` has done so.
# %pip install -q "./nnn_jax[train]"

# %%
from functools import partial

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from nnn_jax.decoders import dense, mmr, nnn
from nnn_jax.solvers import fista

# %% [markdown]
# ## Proposition 1
#
# Three documents, one query. Documents 2 and 3 (rows 1 and 2) together make up
# the query; document 1 (row 0) is close to it, but only repeats what document 2
# says.

# %%
corpus = jnp.asarray([[1, 0, 0], [0.5**0.5, 0.5**0.5, 0], [0, 0, 1]])
query = jnp.asarray([2 / 3, 2 / 3, 1 / 3])
config = nnn.NnnConfig(solver=fista.Fista(num_steps=1000))

print("dense:", dense.decode((), query, corpus, k=2).indices)
result = nnn.decode(nnn.NnnParams(0.1, 0.03), query, corpus, k=2, config=config)
print("NNN:  ", result.indices, "weights", result.aux.weights.dense(3))

# %% [markdown]
# For which penalties is the support exactly {2, 3}? The proposition says: for
# $\lambda_1 < 1/3$ and $\lambda_2 \le \lambda_1 (1 - 1/\sqrt2) / (2/3 -
# \lambda_1)$. Penalties are traced, so 10,000 pairs are one compilation and one
# call.

# %%
l1, l2 = jnp.meshgrid(jnp.linspace(0.0, 0.7, 100), jnp.linspace(0.0, 0.5, 100))
sweep = jax.vmap(
  lambda l1, l2: nnn.decode(
    nnn.NnnParams(l1, l2), query, corpus, k=1, config=config
  ).aux.weights.dense(3)
)
support = np.asarray(sweep(l1.ravel(), l2.ravel()) > 0) @ [1, 2, 4]

sets = {0: "{}", 2: "{2}", 3: "{1, 2}", 6: "{2, 3}", 7: "{1, 2, 3}"}
kinds = sorted(set(support.tolist()))
image = np.searchsorted(kinds, support).reshape(l1.shape)
fig, ax = plt.subplots(figsize=(6, 4))
mesh = ax.pcolormesh(l1, l2, image, cmap=plt.get_cmap("viridis", len(kinds)))
bar = fig.colorbar(mesh, ax=ax, ticks=np.arange(len(kinds)))
bar.ax.set_yticklabels([sets.get(kind, str(kind)) for kind in kinds])
bar.set_label("support")
edge = np.linspace(0, 1 / 3, 100)
ax.plot(
  edge, edge * (1 - 0.5**0.5) / (2 / 3 - edge), "w--", label="Proposition 1"
)
ax.axvline(1 / 3, color="w", ls=":", label="$\\lambda_1 = 1/3$")
ax.set(xlabel="$\\lambda_1$", ylabel="$\\lambda_2$", ylim=(0, 0.5))
ax.legend(loc="upper right")
plt.show()

# %% [markdown]
# ## Real text
#
# The documentation of the installed numpy and scipy: every document is a
# function, and a query asks for several at once. The encoder is a pretrained
# MiniLM, frozen.

# %%
from nnn_jax import metrics, retriever
from nnn_jax.data import pipeline
from nnn_jax.models.bi_encoder import BiEncoder
from nnn_jax.training import selection

dataset = pipeline.load("api_docs")
print(pipeline.describe(dataset))
encoder = BiEncoder.from_pretrained(
  "minilm", query_length=48, document_length=64
)
documents = encoder.encode_documents(dataset.doc_texts)

# %%
text = (
  "I want to solve a system of linear equations, then take the Fourier "
  "transform of the solution and plot a histogram of its magnitudes."
)
vector = encoder.encode_queries([text])[0]
for name, result in {
  "dense": dense.decode((), vector, documents, k=6),
  "MMR": mmr.decode(mmr.MmrParams(0.6), vector, documents, k=6),
  "NNN": nnn.decode(nnn.NnnParams(0.1, 0.1), vector, documents, k=6),
}.items():
  print(name, [dataset.doc_ids[row] for row in result.indices])

# %% [markdown]
# One query proves nothing. On labelled queries, with each decoder's parameters
# chosen on validation queries and measured on test queries:


# %%
def embed(split, limit=300):
  queries = dataset.splits[split]
  labels = queries.labels(len(dataset.doc_ids))[:limit]
  return encoder.encode_queries(queries.texts[:limit]), labels


validation, test = embed("validation"), embed("test")
for name, decode, candidates, config in [
  ("dense", dense.decode, [()], dense.DenseConfig()),
  ("MMR", mmr.decode, selection.trade_off_grid(), mmr.MmrConfig()),
  ("NNN", nnn.decode, selection.penalty_grid(), nnn.NnnConfig()),
]:
  select = partial(selection.select, decode, candidates, config=config)
  best, _ = select(validation[0], documents, validation[1])
  indices = retriever.rank(
    decode, best, test[0], documents, k=10, config=config
  )
  values = metrics.evaluate(indices, test[1], ks=(5, 10))
  print(
    f"{name:6} {best!s:40} Recall@5 {values['recall@5']:.3f} "
    f"Comp@5 {values['comp@5']:.3f} Comp@10 {values['comp@10']:.3f}"
  )

# %% [markdown]
# ## Training through it
#
# A decoder is a pure function: `jax.grad` reaches the query, the corpus and the
# penalties. `python -m experiments.train` trains an encoder this way.


# %%
def loss(params, queries, corpus, relevant):
  return retriever.weights_loss(
    nnn.decode, params, queries, corpus, relevant, config=nnn.NnnConfig()
  )


params = nnn.NnnParams(jnp.asarray(0.1), jnp.asarray(0.1))
gradient = jax.grad(loss, argnums=(0, 1, 2))(
  params,
  validation[0][:8],
  documents,
  dataset.splits["validation"].rows()[:8],
)
print("d loss / d penalties:", gradient[0])
print("|d loss / d queries|:", jnp.linalg.norm(gradient[1]))
print("|d loss / d corpus|: ", jnp.linalg.norm(gradient[2]))
