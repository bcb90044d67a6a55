"""What `mol_bench` searches: random items, trained ones, or those of a folder.

random   An item has a vector of a cluster; its components are that vector with
         noise of its own, and so are a query's, which is near one item. The
         logits of a pair so agree up to the noise. The gates are random, plus
         what follows the logits.
trained  A model of `models.mol`, trained here with `in_batch_softmax` and
         `load_balancing` to find an item by a rotated and noisy view of its
         vector; queries are views that it was not trained on.
a folder What `save` wrote: the items and queries of another experiment.
"""

from __future__ import annotations

import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tqdm
from flax import nnx

from nnn_jax import files, losses
from nnn_jax.core import mixture
from nnn_jax.indexes import mixture as mixture_index
from nnn_jax.models import mol

_VECTOR_DIM = 64
_HIDDEN = 128


class World(NamedTuple):
  """Attributes: targets `[num_queries]`, the items that queries are about."""

  params: mixture.MixtureParams
  queries: mixture.QuerySide
  items: mixture.CachedItems
  targets: np.ndarray


class Shape(NamedTuple):
  """P_Q x P_X x dim."""

  num_query_components: int
  num_item_components: int
  dim: int

  @classmethod
  def parse(cls, text: str) -> Shape:
    """Reads "8x8x32"."""
    return cls(*map(int, text.split("x")))


def _unit(x: np.ndarray) -> np.ndarray:
  return x / np.linalg.norm(x, axis=-1, keepdims=True)


def _vectors(rng: np.random.Generator, num: int, dim: int) -> np.ndarray:
  """Unit vectors around the centres of clusters of about 50."""
  centres = rng.standard_normal((max(num // 50, 4), dim), np.float32)
  rows = centres[rng.integers(len(centres), size=num)]
  return _unit(rows + 0.7 * rng.standard_normal((num, dim), np.float32))


def random_world(
  shape: Shape,
  num_docs: int,
  num_queries: int,
  *,
  noise: float,
  follow: float,
  dtype: str,
) -> World:
  """See the module.

  Args:
    shape: Of the components.
    num_docs: Items.
    num_queries: Queries.
    noise: Norm of a component's own part, relative to the shared one.
    follow: Of the gates' logits, per SiLU(s / 5).
    dtype: To store items in.
  """
  rng = np.random.default_rng(0)
  num_query, num_item, dim = shape
  pairs = num_query * num_item
  vectors = _vectors(rng, num_docs, dim)

  def around(rows, num):
    own = rng.standard_normal((len(rows), num, dim), np.float32)
    return _unit(rows[:, None] + noise * own / dim**0.5)

  components = np.empty((num_docs, num_item, dim), np.float32)
  for start in range(0, num_docs, 65_536):
    some = slice(start, start + 65_536)
    components[some] = around(vectors[some], num_item)
  items = mixture.ItemSide(
    components, 0.3 * rng.standard_normal((num_docs, pairs), np.float32)
  )
  targets = rng.integers(num_docs, size=num_queries)
  own = rng.standard_normal((num_queries, dim), np.float32)
  views = _unit(vectors[targets] + 0.6 * own / dim**0.5)
  queries = mixture.QuerySide(
    around(views, num_query),
    rng.standard_normal((num_queries, pairs), np.float32),
  )
  hidden = 0.02 * rng.standard_normal((pairs, _HIDDEN), np.float32)
  output = 0.1 * rng.standard_normal((_HIDDEN, pairs), np.float32)
  # SiLU(s / 5) - SiLU(-s / 5) = s / 5, as far as the hidden layer has room.
  paired = min(pairs, _HIDDEN // 2)
  one = np.arange(paired)
  for sign, at in ((1, one), (-1, one + paired)):
    hidden[one, at] += sign / 5
    output[at, one] += sign * follow
  params = mixture.MixtureParams(
    hidden,
    0.1 * rng.standard_normal(_HIDDEN, np.float32),
    output,
    0.1 * rng.standard_normal(pairs, np.float32),
    0.05,
  )
  index = mixture_index.build(items, dtype=jnp.dtype(dtype))
  return _on_device(World(params, queries, index, targets))


def trained_world(
  shape: Shape,
  num_docs: int,
  num_queries: int,
  *,
  num_steps: int,
  dtype: str,
  noise: float = 0.5,
) -> World:
  """See the module.

  Args:
    shape: Of the components.
    num_docs: Items.
    num_queries: Queries.
    num_steps: Of AdamW, of 128 pairs.
    dtype: To store items in.
    noise: Norm of a view's own part, relative to the item's vector.
  """
  rng = np.random.default_rng(0)
  vectors = _vectors(rng, num_docs, _VECTOR_DIM)
  rotation, _ = np.linalg.qr(rng.normal(size=(_VECTOR_DIM, _VECTOR_DIM)))
  rotation = rotation.astype(np.float32)

  def view(rows):
    own = rng.standard_normal((len(rows), _VECTOR_DIM), np.float32)
    return _unit(vectors[rows] + noise * own / _VECTOR_DIM**0.5) @ rotation

  # Of size 1 per coordinate, as layers expect.
  scale = np.float32(_VECTOR_DIM**0.5)
  config = mol.MolConfig(
    query_dim=_VECTOR_DIM,
    item_dim=_VECTOR_DIM,
    num_query_components=shape.num_query_components,
    num_item_components=shape.num_item_components,
    component_dim=shape.dim,
  )
  graphdef, weights = nnx.split(mol.Mol(config, rngs=nnx.Rngs(0)))
  optimizer = optax.adamw(1e-3)

  def loss_fn(weights, queries, items, ids, key):
    model = nnx.merge(graphdef, weights)
    rngs = nnx.Rngs(dropout=key)
    queries = model.queries(queries[:, None], rngs=rngs)
    scores, gates = model(queries, model.items(items, rngs=rngs), rngs=rngs)
    own = jnp.arange(len(ids))
    balance = losses.load_balancing(gates[own, own])
    return jnp.mean(losses.in_batch_softmax(scores, ids)) + 1e-3 * balance

  @jax.jit
  def step(weights, state, *batch):
    gradients = jax.grad(loss_fn)(weights, *batch)
    updates, state = optimizer.update(gradients, state, weights)
    return optax.apply_updates(weights, updates), state

  state = optimizer.init(weights)
  for i in tqdm.trange(num_steps, desc="training"):
    rows = rng.integers(num_docs, size=128)
    batch = scale * view(rows), scale * vectors[rows], rows.astype(np.int32)
    weights, state = step(weights, state, *batch, jax.random.key(i))
  model = nnx.merge(graphdef, weights)

  side = jax.jit(lambda model, items: model.items(items))
  parts = [
    jax.tree.map(np.asarray, side(model, scale * vectors[start : start + 8192]))
    for start in range(0, num_docs, 8192)
  ]
  items = mixture.ItemSide(
    *(np.concatenate(arrays) for arrays in zip(*parts, strict=True))
  )
  del parts
  targets = rng.integers(num_docs, size=num_queries)
  queries = model.queries(scale * view(targets))
  index = mixture_index.build(items, dtype=jnp.dtype(dtype))
  return _on_device(World(model.params(), queries, index, targets))


def save(folder: pathlib.Path, world: World) -> None:
  """Writes a world for `load`; the folder appears whole or not at all."""
  with files.new_folder(folder) as new:
    mixture_index.save(world.items, new / "items.npz")
    arrays = world.params._asdict() | {
      "components": world.queries.components,
      "query_gate": world.queries.gate,
      "targets": world.targets,
    }
    with (new / "queries.npz").open("wb") as file:
      values: dict[str, Any] = {k: np.asarray(a) for k, a in arrays.items()}
      np.savez(file, **values)


def load(folder: pathlib.Path) -> World:
  """Reads what `save` wrote."""
  with np.load(folder / "queries.npz") as file:
    arrays = dict(file)
  queries = mixture.QuerySide(arrays["components"], arrays["query_gate"])
  params = mixture.MixtureParams(
    **{name: arrays[name] for name in mixture.MixtureParams._fields}
  )
  index = mixture_index.load(folder / "items.npz")
  return _on_device(World(params, queries, index, arrays["targets"]))


def _on_device(world: World) -> World:
  params, queries, items = jax.tree.map(jnp.asarray, world[:3])
  return World(params, queries, items, np.asarray(world.targets))
