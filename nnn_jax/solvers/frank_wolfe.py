"""Frank-Wolfe on the relaxation of a cardinality-constrained quadratic.

From x, with slope g of f_rho at x:

  s = the vertex of the k largest g,  d = s - x,  gap = g . d >= 0
  C = 2 penalty (rho sum_i D_i d_i^2 - d^T K d)
  step = 1 if C >= 0, else min(1, gap / -C)

which maximises f_rho(x + step d) exactly. It ends at a stationary point: the
gap is zero up to rounding. K x is carried along, so a step costs one product of
K with a vector of k entries.

Backends, the same up to rounding: "xla"; "auto", by which a kernel in C++ takes
the steps on a CPU where the rows fit into its caches, if there is a compiler.
`jax.export` refuses a program for CPU that has a kernel in it: take "xla".

Reference: arXiv 2604.02554, Algorithm 1; Frank and Wolfe (1956).
"""

from __future__ import annotations

from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nnn_jax import native
from nnn_jax.core import linalg
from nnn_jax.solvers import kernels, quadratic

Backend = Literal["auto", "xla"]

# Entries of rows, 8 MiB, up to which the kernel is taken: it runs on one core.
_MOST_ENTRIES = 1 << 21


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
  backend: Backend = "auto",
) -> Solution:
  """Ascends f_loading from a feasible start; never descends.

  Args:
    problem: The instance.
    start: `[n]`, feasible.
    k: Static bound on problem.total.
    loading: rho, static.
    num_steps: At most so many.
    tol: Stationary means gap <= tol sum |g| (s + x).
    backend: "auto" or "xla".
  """
  ascend, natively = (
    partial(run, k=k, loading=loading, num_steps=num_steps, tol=tol)
    for run in (_ascend, _natively)
  )
  if backend == "xla" or not _has_kernel(problem):
    return ascend(problem, start)
  # Not known before lowering: `jax.export` may be for another platform.
  return jax.lax.platform_dependent(
    problem, start, cpu=natively, default=ascend
  )


def _has_kernel(problem: quadratic.Problem) -> bool:
  similarity = problem.similarity
  return (
    isinstance(similarity, kernels.Factored)
    and similarity.rows.size <= _MOST_ENTRIES
    and similarity.rows.dtype == problem.gain.dtype == jnp.float32
    and jax.default_backend() == "cpu"
    and native.frank_wolfe()
  )


def _natively(problem, start, *, k, loading, num_steps, tol):
  """`_ascend` in one call."""
  scalar, vector = (
    partial(jax.ShapeDtypeStruct, shape) for shape in ((), start.shape)
  )
  call = jax.ffi.ffi_call(
    native.FRANK_WOLFE,
    (
      vector(jnp.float32),
      vector(jnp.float32),
      scalar(jnp.float32),
      scalar(jnp.int32),
      scalar(jnp.bool_),
    ),
    vmap_method="sequential",
  )
  return Solution(
    *call(
      problem.gain,
      jnp.asarray(problem.penalty, jnp.float32),
      problem.similarity.rows,
      problem.similarity.diagonal,
      problem.similarity.finite,
      problem.allowed,
      start,
      k=np.int64(k),
      loading=np.float32(loading),
      num_steps=np.int64(num_steps),
      tol=np.float32(tol),
    )
  )


def _ascend(problem, start, *, k, loading, num_steps, tol):
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
  problem: quadratic.Problem,
  start: jax.Array,
  *,
  k: int,
  num_steps: int = 200,
  backend: Backend = "auto",
) -> jax.Array:
  """A number that no choice exceeds: the concave relaxation's dual bound.

  Valid after any number of steps; more of them tighten it towards max f_0,
  which exceeds the best F by at most penalty total max_i D_i for unit rows.
  """
  end = maximize(
    problem, start, k=k, loading=0.0, num_steps=num_steps, backend=backend
  )
  return end.bound
