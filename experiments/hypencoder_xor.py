r"""What a query's own network can rank and an inner product cannot.

  python -m experiments.hypencoder_xor --config=configs/hypencoder_xor.py \
    --workdir=runs/xor

A synthetic world: a document has some of 24 latent attributes, seen through a
random rotation in 64 dimensions with noise; a query names two attributes and
asks for the first alone (SINGLE), both (AND), or exactly one of them (XOR). The
same query features go through a network that makes the weights of a q-net, and,
for the bi-encoders, a vector; the bi-encoder's documents go through a network
of their own. All are trained with cross-entropy over a set of documents with
the relevant ones as targets, for the same steps. Queries of the test are pairs
that were not trained on; documents are new too.

Printed, and written as `xor.json`: precision@10 by kind of query and seed, that
of exclusive-or on the pairs and documents of training, and parameters.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tqdm
from absl import app, flags, logging
from flax import nnx
from ml_collections import config_flags

from experiments import report
from nnn_jax import losses
from nnn_jax.core import qnet
from nnn_jax.decoders import dense, hypencoder
from nnn_jax.models import hyperhead

_NUM_ATTRIBUTES, _DIM, _K = 24, 64, 10
_KINDS = ("SINGLE", "AND", "XOR")


@dataclasses.dataclass(frozen=True, kw_only=True)
class World:
  """Documents, and queries about them.

  Attributes:
    documents: `[num_docs, 64]`.
    queries: `[num_queries, 3]` int: kind and two attributes.
    relevant: `[num_queries, num_docs]` bool.
  """

  documents: np.ndarray
  queries: np.ndarray
  relevant: np.ndarray


def make_worlds(seed: int, num_docs: int = 2_000) -> tuple[World, World]:
  """A world to train on and one to test on, of one rotation."""
  rng = np.random.default_rng(seed)
  rotation = np.linalg.qr(rng.normal(size=(_DIM, _DIM)))[0][:_NUM_ATTRIBUTES]
  pairs = np.array(
    [
      (a, b)
      for a in range(_NUM_ATTRIBUTES)
      for b in range(_NUM_ATTRIBUTES)
      if a < b
    ]
  )
  pairs = rng.permutation(pairs)
  cut = len(pairs) * 4 // 5
  worlds = []
  for some in (pairs[:cut], pairs[cut:]):
    has = rng.random((num_docs, _NUM_ATTRIBUTES)) < 0.3
    signs = np.where(has, 1.0, -1.0)
    noise = rng.normal(size=(num_docs, _DIM))
    documents = (signs @ rotation + 0.1 * noise).astype(np.float32)
    kinds = np.tile(np.arange(3), len(some))
    queries = np.column_stack([kinds, np.repeat(some, 3, axis=0)])
    first, second = has[:, queries[:, 1]].T, has[:, queries[:, 2]].T
    relevant = np.choose(
      queries[:, :1], [first, first & second, first ^ second]
    )
    worlds.append(
      World(documents=documents, queries=queries, relevant=relevant)
    )
  return worlds[0], worlds[1]


class QueryFeatures(nnx.Module):
  """Three tokens: the kind of a query, and its attributes."""

  def __init__(self, width: int, rngs: nnx.Rngs):
    self.table = nnx.Embed(3 + _NUM_ATTRIBUTES, width, rngs=rngs)
    self.place = nnx.Embed(3, width, rngs=rngs)
    self.mix = nnx.Linear(3 * width, 3 * width, rngs=rngs)

  def __call__(self, queries: jax.Array) -> jax.Array:
    """Maps `[batch, 3]` to states `[batch, 3, width]`."""
    offsets = jnp.asarray([0, 3, 3])
    states = (
      self.table(queries + offsets[None]) + self.place.embedding[...][None]
    )
    # Tokens see each other, as in a text encoder.
    flat = states.reshape(states.shape[0], -1)
    return states + jax.nn.gelu(self.mix(flat)).reshape(states.shape)


class Hypernetwork(nnx.Module):
  """A query -> its q-net; documents are as they are."""

  def __init__(self, rngs: nnx.Rngs, width: int = 64):
    self.features = QueryFeatures(width, rngs)
    config = hyperhead.HyperheadConfig(
      token_dim=width, dim=_DIM, widths=(32, 32), query_stddev=1.0, change=0.5
    )
    self.head = hyperhead.Hyperhead(config, rngs=rngs)

  def queries(self, queries: jax.Array) -> qnet.QNet:
    """The networks of a batch."""
    return self.head(self.features(queries), jnp.ones(queries.shape))

  def scores(self, queries: jax.Array, documents: jax.Array) -> jax.Array:
    """`[batch, num_docs]`."""
    nets = self.queries(queries)
    return jax.vmap(lambda net: qnet.scores(net, documents))(nets)

  def rank(self, queries: jax.Array, documents: jax.Array) -> jax.Array:
    """`[batch, 10]` rows."""
    decode = partial(hypencoder.decode, (), corpus=documents, k=_K)
    return jax.vmap(lambda net: decode(net).indices)(self.queries(queries))


class TwoEncoders(nnx.Module):
  """A query and a document -> vectors; the score is their inner product."""

  def __init__(self, rngs: nnx.Rngs, dim: int, width: int = 256):
    self.features = QueryFeatures(64, rngs)
    self.query = _mlp(3 * 64, width, dim, rngs)
    self.document = _mlp(_DIM, width, dim, rngs)

  def vectors(self, queries: jax.Array) -> jax.Array:
    """The queries' `[batch, dim]`."""
    return self.query(self.features(queries).reshape(queries.shape[0], -1))

  def scores(self, queries: jax.Array, documents: jax.Array) -> jax.Array:
    """`[batch, num_docs]`."""
    return self.vectors(queries) @ self.document(documents).T

  def rank(self, queries: jax.Array, documents: jax.Array) -> jax.Array:
    """`[batch, 10]` rows."""
    decode = partial(dense.decode, (), corpus=self.document(documents), k=_K)
    return jax.vmap(lambda q: decode(q).indices)(self.vectors(queries))


def _mlp(dim: int, hidden: int, out: int, rngs: nnx.Rngs) -> nnx.Sequential:
  return nnx.Sequential(
    nnx.Linear(dim, hidden, rngs=rngs),
    jax.nn.gelu,
    nnx.Linear(hidden, hidden, rngs=rngs),
    jax.nn.gelu,
    nnx.Linear(hidden, out, rngs=rngs),
  )


MODELS: dict[str, Callable[[nnx.Rngs], Any]] = {
  "q-net 64-32-32-1": Hypernetwork,
  "bi-encoder, 64": partial(TwoEncoders, dim=64),
  "bi-encoder, 256": partial(TwoEncoders, dim=256),
}


def train(model: Any, world: World, *, num_steps: int, seed: int) -> Any:
  """Cross-entropy over 256 documents a step; the trained model."""
  graphdef, params = nnx.split(model)
  optimizer = optax.adam(optax.cosine_decay_schedule(2e-3, num_steps))

  @jax.jit
  def step(params, opt_state, queries, documents, relevant):
    def loss_fn(params):
      scores = nnx.merge(graphdef, params).scores(queries, documents)
      return jnp.mean(losses.info_nce(scores, relevant, temperature=1.0))

    grads = jax.grad(loss_fn)(params)
    updates, opt_state = optimizer.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state

  opt_state = optimizer.init(params)
  for i in tqdm.trange(num_steps, mininterval=5.0):
    rng = np.random.default_rng((seed, i))
    queries = rng.integers(0, len(world.queries), 64)
    documents = rng.integers(0, len(world.documents), 256)
    params, opt_state = step(
      params,
      opt_state,
      world.queries[queries],
      world.documents[documents],
      world.relevant[np.ix_(queries, documents)],
    )
  return nnx.merge(graphdef, params)


def precision(model: Any, world: World) -> dict[str, float]:
  """Mean precision@10 of each kind of query."""
  graphdef, params = nnx.split(model)
  rank = jax.jit(lambda params, *x: nnx.merge(graphdef, params).rank(*x))
  indices = np.asarray(rank(params, world.queries, world.documents))
  hits = np.take_along_axis(world.relevant, indices, axis=1).mean(axis=1)
  return {
    kind: float(hits[world.queries[:, 0] == i].mean())
    for i, kind in enumerate(_KINDS)
  }


def run(name: str, *, seed: int, num_steps: int) -> dict[str, Any]:
  """Trains one model and measures it on the test world."""
  world, test = make_worlds(seed)
  model = MODELS[name](nnx.Rngs(seed))
  size = sum(x.size for x in jax.tree.leaves(nnx.state(model, nnx.Param)))
  model = train(model, world, num_steps=num_steps, seed=seed)
  row = {"model": name, "parameters": size, "seed": seed}
  trained = precision(model, world)["XOR"]
  return row | precision(model, test) | {"XOR, trained pairs": trained}


def main(argv: Sequence[str]) -> None:
  """Entry point."""
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {argv[1:]}")
  rows, config = [], _CONFIG.value
  for name in MODELS:
    for seed in config.seeds:
      rows.append(run(name, seed=seed, num_steps=config.num_steps))
      logging.info("%s", rows[-1])
  print(report.markdown_table(rows, list(rows[0])))
  report.write_json(pathlib.Path(_WORKDIR.value) / "xor.json", rows)


if __name__ == "__main__":
  _CONFIG = config_flags.DEFINE_config_file("config", None, "Settings.")
  _WORKDIR = flags.DEFINE_string(
    "workdir", None, "Where results go.", required=True
  )
  flags.mark_flag_as_required("config")
  logging.set_verbosity(logging.INFO)
  app.run(main)
