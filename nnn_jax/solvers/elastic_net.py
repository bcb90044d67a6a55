"""The non-negative elastic net: the problem, and how optimal an answer is.

  argmin_{w >= 0}  1/2 ||corpus^T w - query||^2 + l1 sum(w) + l2/2 ||w||^2

With residual r = query - corpus^T w and correlation s = corpus r, w is optimal
if and only if s_i = l1 + l2 w_i where w_i > 0 and s_j <= l1 where w_j = 0.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from nnn_jax.core import gradients, linalg


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


class Solver(Protocol):
  """A frozen, hashable dataclass that solves a `Problem`."""

  def solve(
    self, problem: Problem, *, gradient: gradients.Gradient
  ) -> jax.Array:
    """Returns weights `[num_docs]` >= 0."""
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
