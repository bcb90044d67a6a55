"""The non-negative elastic net: the problem, and how optimal an answer is.

  argmin_{w >= 0}  1/2 ||corpus^T w - query||^2 + l1 sum(w) + l2/2 ||w||^2

With residual r = query - corpus^T w and correlation s = corpus r, w is optimal
if and only if s_i = l1 + l2 w_i where w_i > 0 and s_j <= l1 where w_j = 0.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from nnn_jax.core import gradients, linalg, topk


class Problem(NamedTuple):
  """One instance, in the compute dtype.

  Attributes:
    query: `[dim]`.
    corpus: `[num_docs, dim]`, in its storage dtype.
    l1: Scalar >= 0.
    l2: Scalar >= 0.
    where: `[num_docs]` bool or None: False holds a weight at zero.
  """

  query: jax.Array
  corpus: jax.Array
  l1: jax.Array
  l2: jax.Array
  where: jax.Array | None = None


class Solution(NamedTuple):
  """What a solver returns.

  Attributes:
    weights: `[num_docs]` >= 0.
    correlation: `[num_docs]`, corpus (query - corpus^T weights).
    num_passes: int32, products with the corpus that it took; a product with
      the Gram matrix counts as one.
  """

  weights: jax.Array
  correlation: jax.Array
  num_passes: jax.Array


class Solver(Protocol):
  """A frozen, hashable dataclass that solves a `Problem`.

  Attributes:
    differentiable_by: The kinds of `gradients.Gradient` that are sound for it,
      the default first.
  """

  differentiable_by: ClassVar[tuple[type, ...]]

  def solve(
    self, problem: Problem, *, gradient: gradients.Gradient
  ) -> Solution:
    """Solves, differentiable as `gradient` says."""
    ...


class Optimality(NamedTuple):
  """How far weights are from the optimum.

  Attributes:
    kkt_violation: max |s_i - l1 - l2 w_i| on the support and max(s_j - l1, 0)
      off it; zero at the optimum only.
    duality_gap: An upper bound on objective(weights) - min objective.
  """

  kkt_violation: jax.Array
  duality_gap: jax.Array


def correlation(problem: Problem, weights: jax.Array) -> jax.Array:
  """Returns s = corpus (query - corpus^T weights), `[num_docs]`."""
  residual = problem.query - linalg.matmul(weights, problem.corpus)
  return linalg.matmul(problem.corpus, residual)


def objective(problem: Problem, weights: jax.Array) -> jax.Array:
  """1/2 ||corpus^T w - query||^2 + l1 sum(w) + l2/2 ||w||^2."""
  residual = problem.query - linalg.matmul(weights, problem.corpus)
  return (
    0.5 * jnp.sum(residual**2)
    + problem.l1 * jnp.sum(weights)
    + 0.5 * problem.l2 * jnp.sum(weights**2)
  )


def optimality(
  problem: Problem, weights: jax.Array, correlation: jax.Array
) -> Optimality:
  """Certifies weights from their correlation (no further corpus pass).

  The gap is primal minus dual at two dual points, the residual r (finite for
  l2 > 0) and r scaled until corpus r <= l1; the smaller one counts. Both are
  written as sums of non-negative terms, so they do not cancel in float32.
  """
  _, _, l1, l2, where = problem
  excess = correlation - l1
  if where is not None:
    excess = jnp.where(where, excess, -jnp.inf)
  violation = jnp.where(
    weights > 0, jnp.abs(excess - l2 * weights), jnp.maximum(excess, 0.0)
  )

  positive = excess > 0
  tiny = jnp.finfo(weights.dtype).tiny
  off = jnp.where(weights > 0, weights * (0.5 * l2 * weights - excess), 0.0)
  on = (l2 * weights - excess) ** 2 / (2.0 * jnp.maximum(l2, tiny))
  gap_at_residual = jnp.sum(jnp.where(positive, on, off))

  top = jnp.max(excess) + l1
  scale = jnp.where(top > l1, l1 / jnp.maximum(top, tiny), 1.0)
  residual = problem.query - linalg.matmul(weights, problem.corpus)
  slack = jnp.where(weights > 0, l1 - scale * (excess + l1), 0.0)
  gap_scaled = 0.5 * (1.0 - scale) ** 2 * jnp.sum(residual**2) + jnp.sum(
    weights * (slack + 0.5 * l2 * weights)
  )
  gap = jnp.where(l2 > 0, jnp.minimum(gap_at_residual, gap_scaled), gap_scaled)
  return Optimality(jnp.max(violation), gap)


def attach(
  problem: Problem, solution: Solution, *, gradient: gradients.Gradient
) -> Solution:
  """Makes a solution differentiable as `gradient` says.

  For `Unroll` it is already. For `Implicit` it becomes so through its
  optimality conditions: on the support A the optimum solves

    (G_AA + l2 I) w_A = corpus_A query - l1.

  One Newton step from the solution, with the matrix held constant, changes
  nothing in value and has the implicit function's derivative: with cotangent g
  and (G_AA + l2 I) y = g_A,

    d query = corpus_A^T y,  d l1 = -sum y,  d l2 = -y . w_A,
    d corpus_A = y r^T - w_A (corpus_A^T y)^T.

  Only the rows of the support are touched, so under `jax.vmap` the corpus's
  cotangent is one scatter of `[batch, capacity, dim]`.

  Args:
    problem: What was solved; its leaves carry the derivative.
    solution: The optimum; a constant to `Implicit`.
    gradient: The policy.
  """
  if isinstance(gradient, gradients.Unroll):
    return solution
  weights, values, num_passes = jax.lax.stop_gradient(solution)
  support, rows = topk.top_k(weights, min(gradient.capacity, weights.shape[0]))
  active = support > 0
  corpus = linalg.rows(problem.corpus, rows)
  factor = free_factor(
    jax.lax.stop_gradient(linalg.matmul(corpus, corpus.T)),
    jax.lax.stop_gradient(problem.l2),
    active,
  )
  residual = problem.query - linalg.matmul(support, corpus)
  condition = linalg.matmul(corpus, residual)
  condition = condition - problem.l1 - problem.l2 * support
  step = jax.scipy.linalg.cho_solve(
    (factor, True), jnp.where(active, condition, 0.0)
  )
  support = support + (step - jax.lax.stop_gradient(step))
  weights = weights.at[rows].set(support)
  values = _known_correlation(values, problem.query, problem.corpus, weights)
  return Solution(weights, values, num_passes)


def free_factor(gram: jax.Array, l2: jax.Array, free: jax.Array) -> jax.Array:
  """Cholesky factor of gram + l2 I on the free rows, of I elsewhere.

  A ridge of rounding size keeps duplicate rows at l2 = 0 solvable.
  """
  diagonal = jnp.diagonal(gram)
  ridge = 10.0 * jnp.finfo(gram.dtype).eps * jnp.max(diagonal)
  system = jnp.where(free[:, None] & free[None, :], gram, 0.0)
  system = system + jnp.diag(jnp.where(free, l2 + ridge, 1.0))
  return jnp.linalg.cholesky(system)


@jax.custom_jvp
def _known_correlation(value, query, corpus, weights):
  """`correlation` where its value is at hand: only a derivative costs."""
  del query, corpus, weights
  return value


@_known_correlation.defjvp
def _known_correlation_jvp(primals, tangents):
  def compute(query, corpus, weights):
    return linalg.matmul(corpus, query - linalg.matmul(weights, corpus))

  _, tangent = jax.jvp(compute, primals[1:], tangents[1:])
  return primals[0], tangent
