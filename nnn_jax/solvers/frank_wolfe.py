"""Frank-Wolfe on the relaxation of a cardinality-constrained quadratic.

From x, with slope g of f_rho at x:

  s = the vertex of the k largest g,  d = s - x,  gap = g . d >= 0
  C = 2 penalty (rho sum_i D_i d_i^2 - d^T K d)
  step = 1 if C >= 0, else min(1, gap / -C)

which maximises f_rho(x + step d) exactly. It ends at a stationary point: the
gap is zero up to rounding. K x is carried along, so a step costs one product of
K with a vector of k entries.

Reference: arXiv 2604.02554, Algorithm 1; Frank and Wolfe (1956).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from nnn_jax.core import linalg
from nnn_jax.solvers import quadratic


class Solution(NamedTuple):
  """Where Frank-Wolfe stopped.

  Attributes:
    x: `[n]` in [0, 1], summing to the problem's total.
    product: `[n]`, K x.
    bound: The least f_rho(x) + gap met on the way. At loading 0 no choice has a
      larger F, since f_0 is concave.
    num_steps: int32.
    stationary: bool, the gap is zero up to the tolerance.
  """

  x: jax.Array
  product: jax.Array
  bound: jax.Array
  num_steps: jax.Array
  stationary: jax.Array


class _State(NamedTuple):
  solution: Solution
  rows: jax.Array
  weights: jax.Array
  vertex: jax.Array
  gap: jax.Array


def centre(problem: quadratic.Problem) -> jax.Array:
  """The published start: every allowed entry alike."""
  allowed = problem.allowed.astype(problem.gain.dtype)
  return allowed * (problem.total / jnp.maximum(jnp.sum(allowed), 1.0))


def maximize(
  problem: quadratic.Problem,
  start: jax.Array,
  *,
  k: int,
  loading: float,
  num_steps: int = 200,
  tol: float = 1e-6,
) -> Solution:
  """Ascends f_loading from a feasible start; never descends.

  Args:
    problem: The instance.
    start: `[n]`, feasible.
    k: Static bound on problem.total.
    loading: rho, static.
    num_steps: At most so many.
    tol: Stationary means gap <= tol sum |g| (s + x).
  """
  diagonal = problem.similarity.diagonal

  def look(x, product, bound, num_steps):
    """The state at x: where it would go, and whether that pays."""
    g = quadratic.slope(problem, x, product, loading)
    rows, weights, vertex = quadratic.best_vertex(problem, g, k)
    gap = linalg.matmul(g, vertex - x)
    here = quadratic.value(problem, x, product, loading) + gap
    stationary = gap <= tol * linalg.matmul(jnp.abs(g), vertex + x)
    bound = jnp.minimum(bound, here)
    solution = Solution(x, product, bound, num_steps, stationary)
    return _State(solution, rows, weights, vertex, gap)

  def step(state: _State) -> _State:
    (x, product, bound, num_steps, _), rows, weights, vertex, gap = state
    vertex_product = problem.similarity.columns(rows, weights)
    d, moved = vertex - x, vertex_product - product
    bend = linalg.matmul(d, loading * diagonal * d - moved)
    bend = 2.0 * problem.penalty * bend
    length = jnp.where(bend < 0, gap / jnp.where(bend < 0, -bend, 1.0), 1.0)
    full = length >= 1.0
    return look(
      # A full step lands on the vertex to the last bit.
      jnp.where(full, vertex, x + length * d),
      jnp.where(full, vertex_product, product + length * moved),
      bound,
      num_steps + 1,
    )

  first = look(
    start,
    problem.similarity.product(start),
    jnp.asarray(jnp.inf, start.dtype),
    jnp.zeros((), jnp.int32),
  )
  return jax.lax.while_loop(
    lambda state: (
      ~state.solution.stationary & (state.solution.num_steps < num_steps)
    ),
    step,
    first,
  ).solution


def upper_bound(
  problem: quadratic.Problem, start: jax.Array, *, k: int, num_steps: int = 200
) -> jax.Array:
  """A number that no choice exceeds: the concave relaxation's dual bound.

  Valid after any number of steps; more of them tighten it towards max f_0,
  which exceeds the best F by at most penalty total max_i D_i for unit rows.
  """
  return maximize(problem, start, k=k, loading=0.0, num_steps=num_steps).bound
