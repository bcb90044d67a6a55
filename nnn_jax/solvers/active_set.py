"""Exact non-negative elastic net on a few documents, in Gram form.

  argmin_{w >= 0}  1/2 w . G w - target . w + l1 sum(w) + l2/2 ||w||^2

On a set F of free rows, the rows with weight and those with the most negative
gradient g, the Newton step

  w_F - a (G_FF + l2 I)^-1 g_F,   a <= 1 the longest that keeps w >= 0,

is taken; rows that reach zero leave F. A full step solves the problem on F, and
rows with negative gradient join again. The objective falls from full step to
full step, so no F comes twice; it ends when w is optimal to rounding.

Reference: Lawson and Hanson (1974), Solving Least Squares Problems, chapter 23.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from nnn_jax.core import linalg
from nnn_jax.solvers import elastic_net

# A bound on Newton steps; ten are usual, and one more for each row that has to
# leave where the system is singular.
_MAX_STEPS = 500


class _State(NamedTuple):
  weights: jax.Array
  violation: jax.Array
  num_steps: jax.Array
  done: jax.Array


class _Free(NamedTuple):
  """Rows that may move: where they are, and which places are taken."""

  at: jax.Array
  taken: jax.Array


def solve(
  gram: jax.Array,
  target: jax.Array,
  l1: jax.Array,
  l2: jax.Array,
  weights: jax.Array,
  *,
  allowed: jax.Array,
  capacity: int,
) -> jax.Array:
  """Returns the optimal weights `[size]`.

  Args:
    gram: `[size, size]`.
    target: `[size]`, corpus query on the set.
    l1: Scalar.
    l2: Scalar.
    weights: `[size]`, where to start.
    allowed: `[size]` bool; False holds a weight at zero.
    capacity: Static; the size of F. Once so many weights are positive the
      search stops, short of the optimum.

  >>> w = solve(
  ...   jnp.eye(2), jnp.asarray([1.0, 0.2]), 0.5, 1.0,
  ...   jnp.zeros(2), allowed=jnp.ones(2, bool), capacity=2,
  ... )
  >>> w.round(4).tolist()  # (1 - l1) / (1 + l2); the other stays below l1.
  [0.25, 0.0]
  """
  floor = 4.0 * jnp.finfo(gram.dtype).eps * jnp.max(jnp.abs(target))

  def slope(w):
    return linalg.matmul(gram, w) + l2 * w + l1 - target

  def joins(w, g):
    return allowed & (w <= 0) & (g < -floor)

  def choose(w, g):
    """The rows with weight, then the most negative gradients."""
    order = jnp.where(w > 0, jnp.inf, jnp.where(joins(w, g), -g, -jnp.inf))
    best, at = jax.lax.top_k(order, capacity)
    return _Free(at, best > -jnp.inf)

  def step(carry):
    (w, old_violation, num_steps, _), (at, taken) = carry
    factor = elastic_net.free_factor(gram[at][:, at], l2, taken)
    some = w[at]
    move = jax.scipy.linalg.cho_solve(
      (factor, True), jnp.where(taken, slope(w)[at], 0.0)
    )
    shrinking = taken & (move > 0)
    # Rows at zero that would turn negative leave before anything moves.
    stuck = shrinking & (some <= 0)
    ratio = jnp.where(
      shrinking, some / jnp.where(shrinking, move, 1.0), jnp.inf
    )
    length = jnp.minimum(1.0, jnp.min(ratio))
    hit = stuck | (shrinking & (ratio <= length) & (length < 1.0))
    moved = jnp.where(hit, 0.0, jnp.maximum(some - length * move, 0.0))
    w = w.at[at].set(jnp.where(taken, moved, some))

    g = slope(w)
    violation = jnp.max(
      jnp.where(allowed, jnp.where(w > 0, jnp.abs(g), -g), 0.0)
    )
    solved = ~jnp.any(hit)
    # The same rows again, and no better for it: this is the rounding.
    stalled = ~jnp.any(joins(w, g)) & (violation > 0.5 * old_violation)
    full = jnp.sum(w > 0) >= capacity
    state = _State(
      w,
      jnp.where(solved, violation, old_violation),
      num_steps + 1,
      solved & ((violation <= floor) | stalled | full),
    )
    again = choose(w, g)
    free = _Free(
      jnp.where(solved, again.at, at),
      jnp.where(solved, again.taken, taken & ~hit),
    )
    return state, free

  g = slope(weights)
  start = _State(
    weights,
    jnp.asarray(jnp.inf, gram.dtype),
    jnp.zeros((), jnp.int32),
    ~jnp.any((weights > 0) | joins(weights, g)),
  )
  end, _ = jax.lax.while_loop(
    lambda carry: ~carry[0].done & (carry[0].num_steps < _MAX_STEPS),
    step,
    (start, choose(weights, g)),
  )
  return end.weights
