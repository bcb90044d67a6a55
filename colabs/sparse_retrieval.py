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
# # Learned sparse vectors
#
# A sparse encoder gives a text a weight for each term of a vocabulary, for its
# own words and for others that it implies (SPLADE, arXiv 2107.05720). Seismic
# (arXiv 2404.18812) searches such vectors: each term has a list of the
# documents with the largest weights, cut into blocks of like documents, and a
# block whose summary scores low is skipped. Here: the encoder before training,
# the index, what it skips, and a gradient through the answer.

# %%
# In a fresh Colab: clone the repository, then install it.
# %pip install -q "./nnn_jax[train]"

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from flax import nnx

from nnn_jax import losses
from nnn_jax.decoders import seismic
from nnn_jax.indexes import sparse, sparse_blocks
from nnn_jax.models import fetch, pretrained, sparse_head

# %% [markdown]
# ## An encoder
#
# On a pretrained MiniLM. Before training, a token's own term has the weight
# that we choose, and terms whose embedding is close share it: *cars* finds
# *car*.

# %%
encoder, tokenizer = pretrained.load(str(fetch.minilm()))
texts = [
  "The engine of a car burns fuel",
  "Cars and engines",
  "A cat sleeps on the sofa",
  "Kittens play with wool",
]
tokens = tokenizer(texts, max_length=16)
used = np.setdiff1d(np.unique(tokens.ids[tokens.mask != 0]), [101, 102])
head = sparse_head.SparseHead(
  encoder,
  used,
  np.ones(len(used)),
  sparse_head.SparseHeadConfig(sharpness=4.0),
)
model = sparse_head.SparseRetriever(
  model=head, tokenizer=tokenizer, query_length=16, document_length=16
)
weights = np.asarray(head(tokens.ids, tokens.mask))
print(f"{len(used)} terms; weights of each text: {(weights > 0).sum(axis=1)}")
print(np.round(weights @ weights.T, 1))

# %% [markdown]
# Training pulls the scores of relevant documents up and the FLOPS regulariser
# pushes terms out that many texts have; `experiments.train --stages=sparse`
# does it. One step by hand:

# %%
graphdef, params = nnx.split(head)


def loss(params):
  w = nnx.merge(graphdef, params)(tokens.ids, tokens.mask)
  scores = w[1:3] @ w[jnp.asarray([0, 3])].T  # Cars to engine, cat to kittens.
  labels = jnp.eye(2, dtype=bool)
  ranking = jnp.mean(losses.info_nce(scores, labels, temperature=1.0))
  return ranking + 1e-3 * losses.flops(w)


value, gradient = jax.value_and_grad(loss)(params)
smaller = jax.tree.map(lambda p, g: p - 1e-3 * g, params, gradient)
print(f"loss {value:.4f}, after one step {loss(smaller):.4f}")

# %% [markdown]
# ## An index
#
# Vectors of a larger corpus, generated: 4,000 documents of 300 topics, with
# weights that fall off as SPLADE's do.

# %%
rng = np.random.default_rng(0)
VOCAB, NUM_DOCS, NUM_TERMS = 2_000, 4_000, 40
topics = [rng.permutation(VOCAB)[:60] for _ in range(300)]


def vectors(num, num_terms):
  rows = [
    rng.choice(topics[rng.integers(300)], num_terms, replace=False)
    for _ in range(num)
  ]
  values = rng.gamma(1.0, 1.0, (num, num_terms)) / np.arange(1, num_terms + 1)
  return np.asarray(rows, np.int32), values.astype(np.float32)


documents = sparse.from_lists(*vectors(NUM_DOCS, NUM_TERMS), VOCAB)
index = sparse_blocks.build(documents)
queries = seismic.SparseVector(*vectors(100, 15))

# %% [markdown]
# The walk reads the lists of the `cut` largest weights of a query and skips a
# block if its summary scores below `heap_factor` times the tenth best score.
# Smaller is more thorough.


# %%
def search(method):
  config = seismic.SeismicConfig(search=method)
  return jax.vmap(
    lambda query: seismic.decode((), query, index, k=10, config=config)
  )(queries)


exact = np.asarray(search(seismic.Exact()).indices)
factors = [2.0, 1.5, 1.2, 1.0, 0.8, 0.6, 0.4]
recall, scored = [], []
for factor in factors:
  found = search(seismic.Sequential(cut=8, heap_factor=factor))
  hits = [
    np.isin(a, b).mean()
    for a, b in zip(exact, np.asarray(found.indices), strict=True)
  ]
  recall.append(np.mean(hits))
  scored.append(np.mean(found.aux.num_scored) / NUM_DOCS)

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5))
left.plot(100 * np.asarray(scored), 100 * np.asarray(recall), "o-")
left.set(xlabel="documents scored (%)", ylabel="recall of the exact ten (%)")
ordered = -np.sort(-vectors(1_000, NUM_TERMS)[1], axis=1)
shares = np.cumsum(ordered, axis=1) / ordered.sum(axis=1, keepdims=True)
right.plot(np.arange(1, NUM_TERMS + 1), 100 * shares.mean(axis=0))
right.set(xlabel="largest entries", ylabel="share of a vector's sum (%)")
figure.tight_layout()
plt.show()

# %% [markdown]
# ## A gradient through the answer
#
# The scores that come back are differentiable in the query's values (and in the
# documents'): the gradient of the best score is the best document's weights at
# the query's terms.


# %%
def best_score(values):
  query = seismic.SparseVector(queries.indices[0], values)
  return seismic.decode((), query, index, k=1).scores[0]


print(np.round(jax.grad(best_score)(jnp.asarray(queries.values[0])), 2))
