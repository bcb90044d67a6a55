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
# # Diversity-aware selection
#
# Of the sets $R$ of $k$ documents, the one with the largest
#
# $$J(R) = \theta \, \operatorname{mean}_{i \in R} c_i + (1 - \theta)
# \left(1 - \operatorname{mean}_{i \ne j \in R} u_i \cdot u_j\right)$$
#
# is relevant and diverse (arXiv 2604.02554). MMR looks for such a set one
# document at a time. Here: what it misses, a certificate, and learning.

# %%
# In a fresh Colab: clone the repository, then install it.
# %pip install -q "./nnn_jax[train]"

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

from nnn_jax import losses, metrics
from nnn_jax.core import linalg
from nnn_jax.decoders import diversity, mmr
from nnn_jax.solvers import relaxation, selection

# %% [markdown]
# ## Copies
#
# Six orthogonal documents, each twice, all as relevant. The published
# Frank-Wolfe start sees no difference between them and stops at once, with
# three pairs of copies. Rounding and single exchanges leave that point.

# %%
corpus = jnp.repeat(jnp.eye(6), 2, axis=0)
scores = diversity.Scores(jnp.full(12, 0.5))  # As from a reranker.
for method in (selection.Published(), selection.Polished()):
  config = diversity.DiversityConfig(method=method, certificate=True)
  result = diversity.decode((0.5,), scores, corpus, k=6, config=config)
  print(
    f"{type(method).__name__:9} {result.indices} "
    f"ILAD {metrics.ilad(result.indices, corpus, k=6):.2f} "
    f"J {result.aux.objective:.3f}, no set above {result.aux.upper_bound:.3f}"
  )

# %% [markdown]
# ## The trade-off
#
# Random clusters. `trade_off` is traced, so a sweep is one compilation.

# %%
keys = jax.random.split(jax.random.key(0), 4)
centres = jax.random.normal(keys[0], (20, 64))
places = jax.random.randint(keys[1], (500,), 0, 20)
noise = jax.random.normal(keys[2], (500, 64))
corpus = linalg.normalize(centres[places] + noise + 0.5)
query = linalg.normalize(corpus[0] + corpus[1])

k = 25
fig, ax = plt.subplots(figsize=(5, 4))
for name, decode in {"MMR": mmr.decode, "diversity": diversity.decode}.items():
  points = []
  for trade_off in jnp.linspace(0.1, 0.9, 9):
    rows = decode((trade_off,), query, corpus, k=k).indices
    points.append(
      (
        float((corpus[rows] @ query).mean()),
        float(metrics.ilad(rows, corpus, k=k)),
      )
    )
  ax.plot(*zip(*points, strict=True), "o-", label=name)
ax.set(xlabel="mean relevance", ylabel="ILAD")
ax.legend()
plt.show()

# %% [markdown]
# ## Learning through it
#
# The selection is a step function of the scores: its derivative is zero. The
# Fenchel-Young loss has the relaxation's, and is convex in the scores.

# %%
labels = jnp.zeros(500, bool).at[rows].set(True)
relevance = corpus @ query
value, gradient = jax.value_and_grad(losses.fenchel_young)(
  relevance, labels, corpus, trade_off=0.5
)
print(f"loss {value:.3f}, |gradient| {jnp.linalg.norm(gradient):.3f}")

config = diversity.DiversityConfig(gradient=relaxation.Concave())


def weight_of_labelled(query):
  weights = diversity.decode((0.5,), query, corpus, k=k, config=config).aux
  return weights.weights[labels].sum()


print(
  "|d weight / d query|:", jnp.linalg.norm(jax.grad(weight_of_labelled)(query))
)
