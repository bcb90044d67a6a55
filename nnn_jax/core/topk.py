"""Exact top-k: ties by lowest index, NaN never first, sharded axes merged."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from nnn_jax import types
from nnn_jax.core import control, sharding

# Measured in `experiments.bench.topk_bench`: a first level of maxima over
# blocks of 32 pays from 10,000 documents on, for small k.
_BLOCK = 32
_MIN_BLOCKS = 256
_MIN_BLOCKS_PER_K = 6
_SPARE_BLOCKS = 8


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
  if recall_target is None:
    local = partial(_local_top_k, k=k)
  else:
    local = partial(_approximate_top_k, k=k, recall_target=recall_target)
  mesh = jax.sharding.get_abstract_mesh()
  shards = mesh.shape.get(sharding.DOCS_AXIS, 1)
  if shards > 1 and scores.shape[0] % shards == 0:
    values, indices = _sharded_top_k(scores, k, where, mesh, local)
  else:
    values, indices = local(scores, where)
  return values, jnp.where(values == -jnp.inf, -1, indices.astype(jnp.int32))


def _ranked(scores, where):
  """Scores in an order that lax.top_k takes: no NaN, one zero."""
  keep = ~jnp.isnan(scores)
  if where is not None:
    keep = keep & where
  scores = jnp.where(keep, scores, -jnp.inf)
  # lax.top_k ranks -0.0 below 0.0, which are a tie; XLA drops a plain + 0.0.
  return scores + jax.lax.stop_gradient(jnp.where(scores == 0, -scores, 0.0))


def _local_top_k(scores, where, k):
  """Exact, on one device; two levels where that is faster."""
  num_blocks = scores.shape[0] // _BLOCK
  if num_blocks < max(_MIN_BLOCKS, _MIN_BLOCKS_PER_K * k):
    return _lax_top_k(_ranked(scores, where), k)
  order = jax.lax.stop_gradient(scores)
  indices = _two_level_indices(order, where, k)
  return _ranked(scores[indices], None if where is None else where[indices]), (
    indices
  )


def _two_level_indices(scores, where, k):
  """Rows of the k best, by maxima of blocks.

  Block j holds the rows j, j + num_blocks, j + 2 num_blocks, and so on: the
  maxima of all blocks are then maxima of whole vectors, which need no copy of
  the scores without NaN, and take a sixth of the time of maxima over
  neighbours. Each of the k best documents lies in a block whose maximum is at
  least the k-th largest one. With some to spare all of these blocks are looked
  at; where more are tied, every document is.
  """
  num_docs, num_blocks = scores.shape[0], scores.shape[0] // _BLOCK

  def part(array, i):
    if array is None:
      return None
    return jax.lax.slice(array, (i * num_blocks,), ((i + 1) * num_blocks,))

  maxima = _ranked(part(scores, 0), part(where, 0))
  for i in range(1, _BLOCK):
    maxima = jnp.maximum(maxima, _ranked(part(scores, i), part(where, i)))
  maxima = jax.lax.optimization_barrier(maxima)
  best, winners = _lax_top_k(maxima, k + _SPARE_BLOCKS)
  winners = jnp.sort(winners).astype(jnp.int32)
  # In row order, so that equal scores keep the lowest index; then the rows
  # that fill no block.
  offsets = num_blocks * jnp.arange(_BLOCK, dtype=jnp.int32)
  candidates = jnp.concatenate(
    [
      (offsets[:, None] + winners[None, :]).ravel(),
      jnp.arange(_BLOCK * num_blocks, num_docs, dtype=jnp.int32),
    ]
  )
  allowed = None if where is None else where[candidates]
  _, at = _lax_top_k(_ranked(scores[candidates], allowed), k)
  least = best[k - 1]
  tied = jnp.sum(maxima >= least, dtype=jnp.int32) > k + _SPARE_BLOCKS

  def look_at_all(indices):
    # The barrier ties the work to the state: XLA would do it in any case, ahead
    # of the loop.
    everything, _ = jax.lax.optimization_barrier((scores, indices))
    _, indices = _lax_top_k(_ranked(everything, where), k)
    return indices.astype(jnp.int32)

  return control.when(tied & (least > -jnp.inf), look_at_all, candidates[at])


def _approximate_top_k(scores, where, k, recall_target):
  return jax.lax.approx_max_k(
    _ranked(scores, where), k, recall_target=recall_target
  )


def _lax_top_k(scores, k):
  # XLA sorts everything, five times slower, if the caller's next operation is a
  # slice of the result, such as values[-1]: keep them apart.
  # One barrier each: XLA fails on a barrier of the pair in sharded programs.
  values, indices = jax.lax.top_k(scores, k)
  keep = jax.lax.optimization_barrier
  return keep(values), keep(indices)


def _sharded_top_k(scores, k, where, mesh, local_top_k):
  """Top-k of each shard, then of the shards' winners."""
  axis = sharding.DOCS_AXIS
  spec = jax.sharding.PartitionSpec(axis)
  shard_size = scores.shape[0] // mesh.shape[axis]
  if where is None:
    where = jnp.ones_like(scores, bool)

  @partial(
    jax.shard_map, mesh=mesh, in_specs=(spec, spec), out_specs=(spec, spec)
  )
  def local(block, where):
    values, indices = local_top_k(block, where, k=min(k, shard_size))
    return values, indices + jax.lax.axis_index(axis) * shard_size

  values, indices = local(scores, where)
  # Shards are concatenated in row order, so equal scores keep the lowest index.
  values, winners = _lax_top_k(values, k)
  return values, indices[winners]
