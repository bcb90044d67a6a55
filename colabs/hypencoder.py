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
# # Hypencoder
#
# A bi-encoder makes a vector of a query and scores a document $x$ by an inner
# product, so what a query asks for is one side of a hyperplane. A Hypencoder
# makes the weights of a small network (arXiv 2502.05364):
#
# $$s(x) = w^\top \mathrm{LN}(\mathrm{relu}(W_2 \ldots x + b_1 \ldots))$$
#
# Here: what that can rank, training one, and searching with it.

# %%
# In a fresh Colab: clone the repository, then install it.
# %pip install -q "./nnn_jax[train]"

# %%
import functools

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import optax
from flax import nnx

from nnn_jax import losses
from nnn_jax.core import qnet
from nnn_jax.decoders import dense, hypencoder
from nnn_jax.indexes import clusters, neighbours
from nnn_jax.models import hyperhead

# %% [markdown]
# ## Exclusive-or
#
# "Exactly one of two properties": no line separates the corners that are asked
# for. Two units do, each the relu of a difference.

# %%
network = hypencoder.QNet(
  matrices=(jnp.asarray([[1.0, -1.0], [-1.0, 1.0]]),),
  biases=(jnp.zeros(2),),
  output=jnp.ones(2),
)
axis = jnp.linspace(-0.5, 1.5, 100)
plane = jnp.stack(jnp.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
surface = qnet.scores(network, plane, layer_norm=False).reshape(100, 100)
corners = jnp.asarray([[0, 0], [0, 1], [1, 0], [1, 1]])
fig, ax = plt.subplots(figsize=(4, 3))
fig.colorbar(ax.contourf(axis, axis, surface, levels=12))
ax.scatter(*corners.T, c=["white", "red", "red", "white"], edgecolors="black")
ax.set(title="score; red is relevant")
plt.show()

# %% [markdown]
# ## Training
#
# Documents have some of 12 properties, seen through a rotation with noise. A
# query names two and asks for exactly one of them. `Hyperhead` reads the
# query's two tokens and makes the network; the bi-encoder reads the same and
# makes a vector, with a network for the documents besides.

# %%
NUM_DOCS, DIM, NUM_PROPERTIES = 2_000, 32, 12
keys = jax.random.split(jax.random.key(0), 4)
has = jax.random.bernoulli(keys[0], 0.3, (NUM_DOCS, NUM_PROPERTIES))
rotation, _ = jnp.linalg.qr(jax.random.normal(keys[1], (DIM, DIM)))
documents = jnp.where(has, 1.0, -1.0) @ rotation[:NUM_PROPERTIES]
documents += 0.1 * jax.random.normal(keys[2], documents.shape)
pairs = jnp.stack(jnp.triu_indices(NUM_PROPERTIES, 1), axis=1)
pairs = jax.random.permutation(keys[3], pairs)
train_pairs, test_pairs = pairs[:54], pairs[54:]
relevant = has[:, pairs[:, 0]].T ^ has[:, pairs[:, 1]].T


class Hypencoder(nnx.Module):
  def __init__(self, rngs):
    self.table = nnx.Embed(NUM_PROPERTIES, 32, rngs=rngs)
    config = hyperhead.HyperheadConfig(
      token_dim=32, dim=DIM, widths=(32, 32), query_stddev=1.0, change=0.5
    )
    self.head = hyperhead.Hyperhead(config, rngs=rngs)

  def queries(self, pairs):
    return self.head(self.table(pairs), jnp.ones(pairs.shape))

  def scores(self, pairs, documents):
    nets = self.queries(pairs)
    return jax.vmap(qnet.scores, in_axes=(0, None))(nets, documents)


class BiEncoder(nnx.Module):
  def __init__(self, rngs):
    self.table = nnx.Embed(NUM_PROPERTIES, 64, rngs=rngs)
    self.query, self.document = (
      nnx.Sequential(
        nnx.Linear(width, 256, rngs=rngs),
        jax.nn.gelu,
        nnx.Linear(256, 128, rngs=rngs),
      )
      for width in (64, DIM)
    )

  def queries(self, pairs):
    # A sum, as the order of the two says nothing.
    return self.query(self.table(pairs).sum(axis=1))

  def documents(self, documents):
    return self.document(documents)

  def scores(self, pairs, documents):
    return self.queries(pairs) @ self.documents(documents).T


def fit(model, steps=400):
  graphdef, params = nnx.split(model)
  optimizer = optax.adam(optax.cosine_decay_schedule(3e-3, steps))

  def loss_fn(params, key):
    rows = jax.random.randint(key, (256,), 0, NUM_DOCS)
    scores = nnx.merge(graphdef, params).scores(train_pairs, documents[rows])
    labels = relevant[:54, rows]
    return losses.info_nce(scores, labels, temperature=1.0).mean()

  @jax.jit
  def run(params):
    def step(state, key):
      grads = jax.grad(loss_fn)(state[0], key)
      updates, moments = optimizer.update(grads, state[1], state[0])
      return (optax.apply_updates(state[0], updates), moments), None

    state = params, optimizer.init(params)
    state, _ = jax.lax.scan(
      step, state, jax.random.split(jax.random.key(1), steps)
    )
    return state[0]

  return nnx.merge(graphdef, run(params))


def precision(indices):
  return jnp.take_along_axis(relevant[54:], indices, axis=1).mean()


model, peer = fit(Hypencoder(nnx.Rngs(0))), fit(BiEncoder(nnx.Rngs(0)))
nets = model.queries(test_pairs)
batch = jax.vmap(
  functools.partial(hypencoder.decode, (), k=10), in_axes=(0, None)
)
exact = batch(nets, documents)
theirs = jax.vmap(functools.partial(dense.decode, (), k=10), in_axes=(0, None))(
  peer.queries(test_pairs), peer.documents(documents)
)
print(f"precision@10 on {len(test_pairs)} pairs that were not trained on:")
print(f"network    {precision(exact.indices):.3f}")
print(f"bi-encoder {precision(theirs.indices):.3f}")

# %% [markdown]
# ## Searching
#
# No index of inner products serves: the searches score the centres of clusters,
# or walk a graph of neighbouring documents, and score less than all of them.
# With a network this small scoring all of them is fast, too.

# %%
grouped = clusters.build(documents)
graph = neighbours.build(documents, num_entries=32)
searches = {
  "clusters": [
    (hypencoder.Clusters(num_probes=n), grouped) for n in (2, 4, 8, 16, 32)
  ],
  "graph": [
    (hypencoder.Graph(beam=beam, max_steps=16), graph) for beam in (1, 2, 4, 8)
  ],
}
fig, ax = plt.subplots(figsize=(5, 3))
for name, settings in searches.items():
  shares, recalls = [], []
  for search, index in settings:
    config = hypencoder.HypencoderConfig(search=search)
    decode = functools.partial(hypencoder.decode, (), k=10, config=config)
    result = jax.jit(jax.vmap(decode, in_axes=(0, None)))(nets, index)
    found = exact.indices[:, :, None] == result.indices[:, None, :]
    shares.append(float(result.aux.num_scored.mean()) / NUM_DOCS)
    recalls.append(float(found.any(axis=2).mean()))
  ax.plot(shares, recalls, "o-", label=name)
ax.set(xlabel="share of documents scored", ylabel="recall of the exact ten")
ax.legend()
plt.show()

# %% [markdown]
# A Hypencoder of texts starts as a bi-encoder, by the `skip` of its network:
# `python -m experiments.train --config=configs/api_docs.py
# --stages=dense,hypencoder --workdir=runs/demo`.
