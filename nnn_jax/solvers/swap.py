"""Swap polish: exchange one chosen entry for another while that pays.

With h the slope of f_1 at a choice, exchanging i for j changes F by

  h_j - h_i + 2 penalty K_ij,   and K_ij <= sqrt(D_i D_j).

So only entries near the threshold of h can take part: pairs of the lowest
chosen and the highest others are searched, and all pairs only where the bound
says that another might pay. Exchanges are made within a block of the best
entries, whose h is kept up to date in Gram form; one product with K brings
every h up to date. What is returned cannot be improved by any single exchange:
in F it is within 2 penalty total max_i D_i of the optimum where no similarity
is negative.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from nnn_jax.core import topk
from nnn_jax.solvers import quadratic

# How many entries on each side of the threshold are searched first. On pools of
# 1,000 text embeddings no more had to be.
_NEAR_INSIDE, _NEAR_OUTSIDE = 64, 128


class Polished(NamedTuple):
  """The end of a polish.

  Attributes:
    indices: `[k]` int32, in increasing order; -1 where fewer were given.
    value: F.
    num_swaps: int32.
    optimal: bool, no single exchange raises F, up to rounding.
  """

  indices: jax.Array
  value: jax.Array
  num_swaps: jax.Array
  optimal: jax.Array


class _State(NamedTuple):
  chosen: jax.Array
  slope: jax.Array
  num_swaps: jax.Array
  search_all: jax.Array
  done: jax.Array


def polish(
  problem: quadratic.Problem,
  indices: jax.Array,
  *,
  block_size: int = 16,
  max_swaps: int = 1_000,
) -> Polished:
  """Exchanges entries, the best pair first, until none pays.

  Args:
    problem: The instance.
    indices: `[k]` int32, distinct and allowed; -1 is none.
    block_size: Static: of how many chosen, and how many others, exchanges are
      made before every slope is brought up to date.
    max_swaps: A safeguard; a few are usual.
  """
  k, size = indices.shape[0], problem.gain.shape[0]
  # -1 would be the last entry; beyond the end is dropped.
  places = jnp.where(indices < 0, size, indices)
  chosen = jnp.zeros(size, bool).at[places].set(True, mode="drop")
  twice = 2.0 * problem.penalty
  diagonal = problem.similarity.diagonal
  largest = jnp.max(jnp.where(problem.allowed, diagonal, 0.0))
  x = chosen.astype(problem.gain.dtype)
  given = (indices >= 0).astype(x.dtype)
  product = problem.similarity.columns(jnp.maximum(indices, 0), given)
  slope = quadratic.slope(problem, x, product, loading=1.0)
  rounding = jnp.finfo(slope.dtype).eps * jnp.max(
    jnp.where(problem.allowed, jnp.abs(slope), 0.0)
  )
  floor = 16.0 * rounding

  def search(state, num_inside, num_outside):
    """A block with the best pair of so many, and whether others may pay."""
    outside = problem.allowed & ~state.chosen
    low, inside_rows = topk.top_k(-state.slope, num_inside, where=state.chosen)
    high, outside_rows = topk.top_k(state.slope, num_outside, where=outside)
    gain = problem.similarity.block(inside_rows, outside_rows)
    gain = high[None, :] + low[:, None] + twice * gain  # -inf where missing.
    _, i = topk.top_k(jnp.max(gain, axis=1), min(block_size, num_inside))
    _, j = topk.top_k(jnp.max(gain, axis=0), min(block_size, num_outside))
    # A pair that was not looked at has its first entry above the last one
    # here, or its second below.
    unseen = jnp.asarray(-jnp.inf, slope.dtype)
    if num_inside < k:
      unseen = jnp.maximum(unseen, high[0] + low[-1])
    if num_outside < size - k:
      unseen = jnp.maximum(unseen, high[-1] + low[0])
    rows = jnp.concatenate(
      [
        jnp.where(i < 0, -1, inside_rows[i]),
        jnp.where(j < 0, -1, outside_rows[j]),
      ]
    )
    pad = (0, 2 * block_size - rows.shape[0])
    rows = jnp.pad(rows, pad, constant_values=-1)
    return rows, unseen + twice * largest <= floor

  everything = (k, size - k)
  near = (min(_NEAR_INSIDE, k), min(_NEAR_OUTSIDE, size - k))

  def exchange(state: _State) -> _State:
    if near == everything:
      rows, searched = search(state, *everything)
    else:
      rows, searched = jax.lax.cond(
        state.search_all,
        lambda state: search(state, *everything),
        lambda state: search(state, *near),
        state,
      )
    exists = rows >= 0
    rows = jnp.maximum(rows, 0)
    before = state.chosen[rows] & exists
    gram = problem.similarity.block(rows, rows)
    gram = twice * gram * (1.0 - jnp.eye(rows.shape[0], dtype=gram.dtype))
    member, num_swaps = _exchange_in_block(
      gram, state.slope[rows], before, exists, floor, max_swaps
    )
    change = member.astype(x.dtype) - before.astype(x.dtype)
    moved = problem.similarity.columns(rows, change)
    own = quadratic.scatter(rows, change * diagonal[rows], size)
    improved = num_swaps > 0
    total = state.num_swaps + num_swaps
    after = state.chosen.astype(x.dtype) + quadratic.scatter(rows, change, size)
    return _State(
      after > 0.5,
      state.slope - twice * (moved - own),
      total,
      ~improved & ~searched,
      ~improved & (searched | state.search_all),
    )

  no = jnp.zeros((), bool)
  end = _State(chosen, slope, jnp.zeros((), jnp.int32), no, ~no)
  if k < size:
    end = jax.lax.while_loop(
      lambda state: ~state.done & (state.num_swaps < max_swaps),
      exchange,
      end._replace(done=no),
    )
  _, indices = topk.top_k(end.chosen.astype(slope.dtype), k, where=end.chosen)
  # h = gain - 2 penalty sum K counts each pair twice, F once.
  value = 0.5 * jnp.sum((problem.gain + end.slope) * end.chosen)
  return Polished(indices, value, end.num_swaps, end.done & (floor >= 0))


def _exchange_in_block(gram, slope, member, exists, floor, max_swaps):
  """Best exchanges among the rows of a block, until none pays.

  Args:
    gram: `[rows, rows]`, 2 penalty K with a zero diagonal.
    slope: `[rows]`.
    member: `[rows]` bool, chosen.
    exists: `[rows]` bool.
    floor: What an exchange must gain.
    max_swaps: At most so many.

  Returns:
    (member, number of exchanges).
  """
  size = slope.shape[0]

  def gains(slope, member):
    gain = slope[None, :] - slope[:, None] + gram
    pair = member[:, None] & (exists & ~member)[None, :]
    return jnp.where(pair, gain, -jnp.inf)

  def body(state):
    slope, member, _, place, count = state
    i, j = place // size, place % size
    slope = slope + gram[i] - gram[j]
    member = member.at[i].set(False).at[j].set(True)
    gain = gains(slope, member)
    place = jnp.argmax(gain)
    return slope, member, gain.ravel()[place], place, count + 1

  gain = gains(slope, member)
  place = jnp.argmax(gain)
  start = (slope, member, gain.ravel()[place], place, jnp.zeros((), jnp.int32))
  end = jax.lax.while_loop(
    lambda s: (s[2] > floor) & (s[4] < max_swaps), body, start
  )
  return end[1], end[4]
