"""Exact top-k: ties by lowest index, NaN never first, sharded axes merged."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from nnn_jax import types
from nnn_jax.core import sharding

# Measured in `experiments.bench.topk_bench`: a first level of maxima over
# blocks of 32 pays at 10,000 to 100,000 documents and small k. At a million it
# does not (results/cost.md): to be mended, or bounded.
_BLOCK = 32
_MIN_BLOCKS = 256
_MIN_BLOCKS_PER_K = 4


def top_k(
  scores: types.Array,
  k: int,
  *,
  where: types.Array | None = None,
  recall_target: float | None = None,
) -> tuple[jax.Array, jax.Array]:
  """The k best scores, best first.

  Args:
    scores: `[num_docs]`. NaN ranks as -inf.
    k: Static, at most num_docs.
    where: `[num_docs]` bool; False leaves a document out.
    recall_target: None is exact. Else the expected share of the true top-k
      that `lax.approx_max_k` finds; faster on TPU, no faster on CPU.

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
  if recall_target is None:
    local = _local_top_k
  else:
    local = partial(jax.lax.approx_max_k, recall_target=recall_target)
  mesh = jax.sharding.get_abstract_mesh()
  shards = mesh.shape.get(sharding.DOCS_AXIS, 1)
  if shards > 1 and scores.shape[0] % shards == 0:
    values, indices = _sharded_top_k(scores, k, mesh, local)
  else:
    values, indices = local(scores, k)
  indices = jnp.where(values == -jnp.inf, -1, indices.astype(jnp.int32))
  return values, indices


def _local_top_k(scores, k):
  """Exact, on one device; two levels where that is faster.

  Each of the k best documents lies in one of the k blocks with the largest
  maxima (ties by lowest block): had its block k others before it, each of them
  would hold a document before it. So only those blocks are sorted.
  """
  num_blocks = scores.shape[0] // _BLOCK
  if num_blocks < max(_MIN_BLOCKS, _MIN_BLOCKS_PER_K * k):
    return _lax_top_k(scores, k)
  num_blocks += scores.shape[0] % _BLOCK > 0
  padding = num_blocks * _BLOCK - scores.shape[0]
  blocks = jnp.pad(scores, (0, padding), constant_values=-jnp.inf)
  blocks = blocks.reshape(num_blocks, _BLOCK)
  _, winners = _local_top_k(jax.lax.stop_gradient(blocks.max(axis=1)), k)
  # In row order, so that equal scores keep the lowest index.
  winners = jnp.sort(winners)
  values, at = _lax_top_k(blocks[winners].ravel(), k)
  return values, winners[at // _BLOCK] * _BLOCK + at % _BLOCK


def _lax_top_k(scores, k):
  # XLA sorts everything, five times slower, if the caller's next operation is a
  # slice of the result, such as values[-1]: keep them apart.
  # One barrier each: XLA fails on a barrier of the pair in sharded programs.
  values, indices = jax.lax.top_k(scores, k)
  keep = jax.lax.optimization_barrier
  return keep(values), keep(indices)


def _sharded_top_k(scores, k, mesh, local_top_k):
  """Top-k of each shard, then of the shards' winners."""
  axis = sharding.DOCS_AXIS
  spec = jax.sharding.PartitionSpec(axis)
  shard_size = scores.shape[0] // mesh.shape[axis]

  @partial(jax.shard_map, mesh=mesh, in_specs=spec, out_specs=(spec, spec))
  def local(block):
    values, indices = local_top_k(block, min(k, shard_size))
    return values, indices + jax.lax.axis_index(axis) * shard_size

  values, indices = local(scores)
  # Shards are concatenated in row order, so equal scores keep the lowest index.
  values, winners = _lax_top_k(values, k)
  return values, indices[winners]
