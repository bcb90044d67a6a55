"""Exact top-k: ties by lowest index, NaN never first, sharded axes merged."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from nnn_jax import types
from nnn_jax.core import sharding


def top_k(
  scores: types.Array, k: int, *, where: types.Array | None = None
) -> tuple[jax.Array, jax.Array]:
  """The k best scores, best first.

  Args:
    scores: `[num_docs]`. NaN ranks as -inf.
    k: Static, at most num_docs.
    where: `[num_docs]` bool; False leaves a document out.

  Returns:
    (scores `[k]`, indices `[k]` int32). Where fewer than k documents have a
    score above -inf the rest is (-inf, -1).

  >>> values, indices = top_k(jnp.asarray([1.0, jnp.nan, 3.0, 3.0]), 4)
  >>> indices.tolist()
  [2, 3, 0, -1]
  """
  scores = jnp.asarray(scores)
  keep = ~jnp.isnan(scores)
  if where is not None:
    keep = keep & where
  scores = jnp.where(keep, scores, -jnp.inf)
  # lax.top_k ranks -0.0 below 0.0, which are a tie; XLA drops a plain + 0.0.
  scores += jax.lax.stop_gradient(jnp.where(scores == 0, -scores, 0.0))
  mesh = jax.sharding.get_abstract_mesh()
  shards = mesh.shape.get(sharding.DOCS_AXIS, 1)
  if shards > 1 and scores.shape[0] % shards == 0:
    values, indices = _sharded_top_k(scores, k, mesh)
  else:
    values, indices = jax.lax.top_k(scores, k)
  indices = jnp.where(values == -jnp.inf, -1, indices.astype(jnp.int32))
  return values, indices


def _sharded_top_k(scores, k, mesh):
  """Top-k of each shard, then of the shards' winners."""
  axis = sharding.DOCS_AXIS
  spec = jax.sharding.PartitionSpec(axis)
  shard_size = scores.shape[0] // mesh.shape[axis]

  @partial(jax.shard_map, mesh=mesh, in_specs=spec, out_specs=(spec, spec))
  def local(block):
    values, indices = jax.lax.top_k(block, min(k, shard_size))
    return values, indices + jax.lax.axis_index(axis) * shard_size

  values, indices = local(scores)
  # Shards are concatenated in row order, so equal scores keep the lowest index.
  values, winners = jax.lax.top_k(values, k)
  return values, indices[winners]
