"""Exact non-negative elastic net by working sets.

A pass over the corpus gives every document's correlation s = corpus r with the
residual. Documents with s_j > l1 violate optimality; the worst join a working
set of fixed capacity, the problem restricted to it is solved to the dtype's
precision in Gram form, and the next pass looks for violators again. The first
pass, at w = 0, is dense retrieval; a few passes end with a certificate, where
FISTA pays two products a step and stays short of the optimum.

The restricted problem is solved by projected Newton steps: with gradient g and
the free set F = {w_i > 0 or g_i < 0},

  w' = [w - a (G_FF + l2 I)^-1 g_F]_+,   a in {1, 1/2, 1/4, ...}

with the step that lowers the objective most; a projected gradient step stands
beside them, so that every step makes progress. It stops when the set is optimal
to rounding.

References: arXiv 2606.17910 (names such a solver as future work); Bertsekas
(1982), Projected Newton methods for optimization problems with simple
constraints.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from nnn_jax.core import checks, gradients, linalg, topk
from nnn_jax.solvers import elastic_net

# Step lengths that the line search tries, halving from 1.
_NUM_HALVINGS = 10
# A bound on Newton steps a restricted solve; ten are usual, and one for each row
# that has to leave where the system is singular.
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
    return elastic_net.attach(problem, solution, capacity=gradient.capacity)

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
  eps = jnp.finfo(gram.dtype).eps
  halvings = 0.5 ** jnp.arange(_NUM_HALVINGS, dtype=gram.dtype)
  # The Frobenius norm bounds the largest eigenvalue.
  gradient_step = 1.0 / (jnp.linalg.norm(gram) + l2 + eps)

  def slope(w):
    return linalg.matmul(gram, w) + l2 * w + l1 - target

  def violation(w, g):
    return jnp.max(
      jnp.where(allowed, jnp.where(w > 0, jnp.abs(g), -g), 0.0), initial=0.0
    )

  def step(state):
    w, count, _ = state
    g = slope(w)
    free = allowed & ((w > 0) | (g < 0))
    g_free = jnp.where(free, g, 0.0)
    factor = elastic_net.free_factor(gram, l2, free)
    newton = jax.scipy.linalg.cho_solve((factor, True), g_free)
    # The step at which the first weight reaches zero: at l2 = 0 with more free
    # rows than dimensions the Newton step is unbounded, and only this one fits.
    blocking = (w > 0) & (newton > 0)
    ratio = jnp.where(blocking, w / jnp.where(blocking, newton, 1.0), 1.0)
    to_boundary = (1.0 + 4.0 * eps) * jnp.min(ratio)
    lengths = jnp.append(halvings, to_boundary)
    moves = jnp.concatenate(
      [lengths[:, None] * newton[None, :], gradient_step * g_free[None, :]]
    )
    candidates = jnp.maximum(w[None, :] - moves, 0.0)
    change = candidates - w[None, :]
    # The change of the objective, without cancellation.
    curvature = linalg.matmul(change, gram) + l2 * change
    gain = jnp.sum(change * (g[None, :] + 0.5 * curvature), axis=1)
    best = jnp.argmin(gain)
    w_next = jnp.where(gain[best] < 0, candidates[best], w)
    g_next = slope(w_next)
    done = (gain[best] >= 0) | (violation(w_next, g_next) <= floor)
    return w_next, count + 1, done

  floor = 4.0 * eps * jnp.max(jnp.abs(target))
  start = (weights, jnp.zeros((), jnp.int32), jnp.zeros((), bool))
  weights, _, _ = jax.lax.while_loop(
    lambda state: ~state[2] & (state[1] < _MAX_NEWTON_STEPS), step, start
  )
  return weights
