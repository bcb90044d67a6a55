"""Swap polish: exchange one chosen entry for another while that pays.

With h the slope of f_1 at a choice, exchanging i for j changes F by

  h_j - h_i + 2 penalty K_ij,   and K_ij <= sqrt(D_i D_j).

So only entries near the threshold of h can take part: a block of the lowest
chosen and the highest others is searched, its h kept up to date in Gram form,
and one product with K brings every h up to date. Where the bound says that a
pair outside of the block might pay, all pairs are searched. What is returned
cannot be improved by any single exchange: in F it is within 2 penalty total
max_i D_i of the optimum where no similarity is negative.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from nnn_jax.core import topk
from nnn_jax.solvers import quadratic


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
  optimal: jax.Array


def polish(
  problem: quadratic.Problem,
  indices: jax.Array,
  *,
  block_size: int = 32,
  max_swaps: int = 1_000,
) -> Polished:
  """Exchanges entries, the best pair first, until none pays.

  Args:
    problem: The instance.
    indices: `[k]` int32, distinct and allowed; -1 is none.
    block_size: Static: how many chosen, and how many others, a block holds.
    max_swaps: A safeguard; a few are usual.
  """
  k, size = indices.shape[0], problem.gain.shape[0]
  # -1 would be the last entry; beyond the end is dropped.
  places = jnp.where(indices < 0, size, indices)
  chosen = jnp.zeros(size, bool).at[places].set(True, mode="drop")
  twice = 2.0 * problem.penalty
  diagonal = problem.similarity.diagonal()
  largest = jnp.max(jnp.where(problem.allowed, diagonal, 0.0))
  num_inside, num_outside = min(block_size, k), min(block_size, size - k)
  x = chosen.astype(problem.gain.dtype)
  slope = quadratic.slope(
    problem, x, problem.similarity.product(x), loading=1.0
  )
  rounding = jnp.finfo(slope.dtype).eps * jnp.max(
    jnp.where(problem.allowed, jnp.abs(slope), 0.0)
  )
  floor = 16.0 * rounding

  def near_threshold(state):
    """The block, and whether no pair outside of it can pay."""
    outside = problem.allowed & ~state.chosen
    low, inside_rows = topk.top_k(-state.slope, num_inside, where=state.chosen)
    high, outside_rows = topk.top_k(state.slope, num_outside, where=outside)
    # A pair outside of the block has its first entry above the block's last,
    # or its second below.
    beyond_inside = high[0] + low[-1] if num_inside < k else -jnp.inf
    beyond_outside = high[-1] + low[0] if num_outside < size - k else -jnp.inf
    best = jnp.maximum(beyond_inside, beyond_outside)
    searched = best + twice * largest <= floor
    return jnp.concatenate([inside_rows, outside_rows]), searched

  def all_pairs(state):
    """A block with the best pair of all in it."""
    _, rows = topk.top_k(state.chosen.astype(slope.dtype), k)
    member = state.chosen[rows]
    outside = problem.allowed & ~state.chosen
    gain = twice * problem.similarity.block(rows, jnp.arange(size))
    gain = gain + state.slope[None, :] - state.slope[rows][:, None]
    gain = jnp.where(member[:, None] & outside[None, :], gain, -jnp.inf)
    _, inside = topk.top_k(jnp.max(gain, axis=1), num_inside)
    _, outside_rows = topk.top_k(jnp.max(gain, axis=0), num_outside)
    inside_rows = jnp.where(inside < 0, -1, rows[inside])
    return jnp.concatenate([inside_rows, outside_rows]), jnp.ones((), bool)

  def exchange(state: _State) -> _State:
    rows, searched = jax.lax.cond(
      state.search_all, all_pairs, near_threshold, state
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
    optimal = ~improved & searched
    after = state.chosen.astype(x.dtype) + quadratic.scatter(rows, change, size)
    return _State(
      after > 0.5,
      state.slope - twice * (moved - own),
      total,
      ~improved & ~searched,
      optimal,
    )

  none = jnp.zeros((), bool)
  end = _State(
    chosen, slope, jnp.zeros((), jnp.int32), none, none | (k == size)
  )
  end = jax.lax.while_loop(
    lambda state: ~state.optimal & (state.num_swaps < max_swaps), exchange, end
  )
  _, indices = topk.top_k(end.chosen.astype(slope.dtype), k, where=end.chosen)
  # h = gain - 2 penalty sum K counts each pair twice, F once.
  value = 0.5 * jnp.sum((problem.gain + end.slope) * end.chosen)
  return Polished(indices, value, end.num_swaps, end.optimal)


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
