"""Exact non-negative elastic net by working sets.

A pass over the corpus gives every document's correlation s = corpus r with the
residual. Documents with s_j > l1 violate optimality; the worst join a working
set of fixed capacity, the problem restricted to it is solved to the dtype's
precision in Gram form, and the next pass looks for violators again. The first
pass, at w = 0, is dense retrieval; a few passes end with a certificate, where
FISTA pays two products a step and stays short of the optimum.

The restricted problem is solved by an active-set method: on the free rows F,
those with weight or with negative gradient g, the Newton step

  w_F - a (G_FF + l2 I)^-1 g_F,   a <= 1 the longest that keeps w >= 0,

is taken; rows that reach zero leave F. A full step solves the problem on F, and
rows with negative gradient join again. The objective falls from full step to
full step, so no F comes twice; it ends when the set is optimal to rounding.

References: arXiv 2606.17910 (names such a solver as future work); Lawson and
Hanson (1974), Solving Least Squares Problems, chapter 23.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from nnn_jax.core import checks, gradients, linalg, topk
from nnn_jax.solvers import elastic_net

# A bound on Newton steps a restricted solve; ten are usual, and one more for
# each row that has to leave where the system is singular.
_MAX_NEWTON_STEPS = 500


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkingSet:
  """Static choices.

  Attributes:
    capacity: Documents that the working set holds (at most num_docs are used).
      The support of the optimum must fit: otherwise the answer is the optimum
      over the set, kkt_violation shows it and `exact` is False.
    tol: Stop when no correlation exceeds l1 by more than tol times the
      query's largest correlation.
    max_passes: At most so many rounds of a corpus pass and a restricted solve.
  """

  capacity: int = 128
  tol: float = 1e-6
  max_passes: int = 50
  # How many rounds there are depends on the data: nothing to unroll.
  differentiable_by: ClassVar[tuple[type, ...]] = (gradients.Implicit,)

  def __post_init__(self):
    for name in ("capacity", "max_passes"):
      if getattr(self, name) < 1:
        raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}.")
    if not self.tol > 0:
      raise ValueError(f"tol must be > 0, got {self.tol}.")

  def solve(
    self, problem: elastic_net.Problem, *, gradient: gradients.Gradient
  ) -> elastic_net.Solution:
    """Returns the optimum, or the best on a set that proved too small.

    Raises:
      ValueError: While tracing, for a gradient other than `Implicit`.
    """
    checks.check_choice("gradient", gradient, self.differentiable_by)
    solution = self._search(jax.lax.stop_gradient(problem))
    return elastic_net.attach(problem, solution, gradient=gradient)

  def _search(self, problem: elastic_net.Problem) -> elastic_net.Solution:
    query, corpus, l1, l2, where = problem
    capacity = min(self.capacity, corpus.shape[0])

    def allowed(values):
      return values if where is None else jnp.where(where, values, -jnp.inf)

    def worst(correlation, weights):
      """The largest violation among documents without weight."""
      excess = jnp.where(weights > 0, -jnp.inf, allowed(correlation - l1))
      return jnp.max(excess)

    def more_to_do(state):
      return state.violation > tol

    def search(state):
      # The support stays; the largest correlations fill the set, those below
      # l1 too: they are the likeliest to be needed next.
      priority = jnp.where(
        state.weights > 0, jnp.inf, allowed(state.correlation)
      )
      best, rows = topk.top_k(priority, capacity)
      members = linalg.rows(corpus, rows)
      support = _solve_restricted(
        linalg.matmul(members, members.T),
        linalg.matmul(members, query),
        l1,
        l2,
        jnp.where(best > -jnp.inf, state.weights[rows], 0.0),
        best > -jnp.inf,
      )
      weights = jnp.zeros_like(state.weights).at[rows].max(support)
      residual = query - linalg.matmul(support, members)
      correlation = linalg.matmul(corpus, residual)
      passes = state.num_passes + 1
      full = jnp.all(support > 0) & (capacity < corpus.shape[0])
      violation = worst(correlation, weights)
      stop = full | (passes > self.max_passes)
      return _State(
        weights, correlation, passes, jnp.where(stop, -jnp.inf, violation)
      )

    # Zeros made from the corpus inherit its sharding.
    weights = jnp.zeros_like(corpus[:, 0], dtype=query.dtype)
    correlation = linalg.matmul(corpus, query)
    tol = self.tol * jnp.max(allowed(correlation))
    start = _State(
      weights,
      correlation,
      jnp.ones((), jnp.int32),
      worst(correlation, weights),
    )
    end = jax.lax.while_loop(more_to_do, search, start)
    return elastic_net.Solution(end.weights, end.correlation, end.num_passes)


class _State(NamedTuple):
  weights: jax.Array
  correlation: jax.Array
  num_passes: jax.Array
  violation: jax.Array


class _Restricted(NamedTuple):
  weights: jax.Array
  free: jax.Array
  violation: jax.Array
  num_steps: jax.Array
  done: jax.Array


def _solve_restricted(gram, target, l1, l2, weights, allowed):
  """argmin_{w >= 0} w.G w / 2 - target.w + l1 sum(w) + l2/2 ||w||^2.

  Args:
    gram: `[capacity, capacity]`.
    target: `[capacity]`, corpus query on the set.
    l1: Scalar.
    l2: Scalar.
    weights: `[capacity]`, where to start.
    allowed: `[capacity]` bool; False holds a weight at zero.
  """
  floor = 4.0 * jnp.finfo(gram.dtype).eps * jnp.max(jnp.abs(target))

  def slope(w):
    return linalg.matmul(gram, w) + l2 * w + l1 - target

  def open_rows(w, g):
    return allowed & ((w > 0) | (g < -floor))

  def step(state):
    w, free, old_violation, num_steps, _ = state
    factor = elastic_net.free_factor(gram, l2, free)
    move = jax.scipy.linalg.cho_solve(
      (factor, True), jnp.where(free, slope(w), 0.0)
    )
    shrinking = free & (move > 0)
    # Rows at zero that would turn negative leave before anything moves.
    stuck = shrinking & (w <= 0)
    ratio = jnp.where(shrinking, w / jnp.where(shrinking, move, 1.0), jnp.inf)
    length = jnp.minimum(1.0, jnp.min(ratio))
    hit = stuck | (shrinking & (ratio <= length) & (length < 1.0))
    w_next = jnp.where(hit, 0.0, jnp.maximum(w - length * move, 0.0))

    g = slope(w_next)
    violation = jnp.max(
      jnp.where(allowed, jnp.where(w_next > 0, jnp.abs(g), -g), 0.0)
    )
    reopened = open_rows(w_next, g)
    solved = ~jnp.any(hit)
    stalled = jnp.all(reopened == free) & (violation > 0.5 * old_violation)
    return _Restricted(
      w_next,
      jnp.where(solved, reopened, free & ~hit),
      jnp.where(solved, violation, old_violation),
      num_steps + 1,
      solved & ((violation <= floor) | stalled),
    )

  start = _Restricted(
    weights,
    open_rows(weights, slope(weights)),
    jnp.asarray(jnp.inf, gram.dtype),
    jnp.zeros((), jnp.int32),
    jnp.zeros((), bool),
  )
  end = jax.lax.while_loop(
    lambda state: ~state.done & (state.num_steps < _MAX_NEWTON_STEPS),
    step,
    start,
  )
  return end.weights
