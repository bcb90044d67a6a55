"""Exact non-negative elastic net by working sets.

A pass over the corpus gives every document's correlation s = corpus r with the
residual. Documents with s_j > l1 violate optimality; the worst join a working
set, the problem restricted to it is solved to the dtype's precision in Gram
form, and the next pass looks for violators again. The first pass, at w = 0, is
dense retrieval; a few passes end with a certificate, where FISTA pays two
products a step and stays short of the optimum.

Once the residual hardly moves, a pass is not needed to certify it: with the
candidates a pass found, and a bound s_rest on all other documents,

  corpus_j (r + d) <= s_rest + ||corpus_j|| ||d||

(a little less: see `_largest_product`), so while that stays below l1 only the
candidates can be violators.

References: arXiv 2606.17910 (names such a solver as future work).
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import ClassVar, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from nnn_jax.core import checks, control, corpora, gradients, linalg
from nnn_jax.solvers import active_set, elastic_net

# Below so many documents a candidate, one product for the whole batch costs
# less than fetching each query's candidates.
_MIN_DOCS_PER_CANDIDATE = 32

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkingSet:
  """Static choices.

  Attributes:
    capacity: Bound on the support. Of a problem with a larger one the answer
      is the optimum over a set: kkt_violation shows it, `exact` is False.
      Small supports cost no more at a larger capacity, except that twice as
      many candidates are kept from pass to pass.
    tol: Stop when no correlation exceeds l1 by more than tol times the
      query's largest correlation.
    max_rounds: At most so many restricted solves.
    max_norm: A promise that no row is longer, such as 1.001 for unit rows:
      spares the reading of the norms that a certificate may need. None reads.
  """

  capacity: int = 256
  tol: float = 1e-6
  max_rounds: int = 50
  max_norm: float | None = None
  # How many rounds there are depends on the data: nothing to unroll.
  differentiable_by: ClassVar[tuple[type, ...]] = (gradients.Implicit,)

  def __post_init__(self):
    for name in ("capacity", "max_rounds"):
      if getattr(self, name) < 1:
        raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}.")
    for name in ("tol", "max_norm"):
      value = getattr(self, name)
      if value is not None and not value > 0:
        raise ValueError(f"{name} must be > 0, got {value}.")

  def solve(
    self,
    problem: elastic_net.Problem,
    *,
    gradient: gradients.Gradient,
    num_candidates: int = 1,
  ) -> elastic_net.Solution:
    """Returns the optimum, or the best on a set that proved too small.

    Raises:
      ValueError: While tracing, for a gradient other than `Implicit`.
    """
    checks.check_choice("gradient", gradient, self.differentiable_by)
    # Twice the support, so that a pass always leaves room for violators.
    num_docs = problem.corpus.shape[0]
    size = min(num_docs, max(2 * self.capacity, num_candidates))
    held = jax.lax.stop_gradient(problem)
    is_array = isinstance(problem.corpus, corpora.AllDocuments)
    if is_array and size == num_docs:
      solution = _solve_all(held)
    else:
      solution = self._search(held, size)
    return elastic_net.attach(problem, solution, gradient=gradient)

  def _search(
    self, problem: elastic_net.Problem, size: int
  ) -> elastic_net.Solution:
    query, num_docs = problem.query, problem.corpus.shape[0]
    rescores = num_docs >= _MIN_DOCS_PER_CANDIDATE * size

    def violated(state: _State) -> jax.Array:
      """Whether to solve again: a candidate beside the support is above l1."""
      beside = jnp.where(state.weights > 0, -jnp.inf, state.correlation)
      full = state.support_size() >= min(self.capacity, size)
      return (
        (jnp.max(beside) > problem.l1 + state.tol)
        & ~full
        & (state.num_rounds < self.max_rounds)
      )

    def solve_among_candidates(state: _State) -> _State:
      """Until none of them is violated, without another pass."""
      # Fetched here: once, and not at all where every query is done.
      rows = problem.corpus.rows(_after(state.num_rounds, state.indices))
      return jax.lax.while_loop(
        violated,
        lambda state: _rescore(rows, self._resolve(problem, state)),
        state,
      )

    def look_and_solve(state: _State) -> _State:
      """One corpus pass, then the optimum over the candidates it found."""
      state = _corpus_pass(problem, state)
      state = state._replace(
        tol=jnp.where(
          state.num_passes == 1,
          self.tol * jnp.maximum(jnp.max(state.correlation), 0.0),
          state.tol,
        )
      )
      # A first look that found nothing may have had a lower bar than tol.
      certain = (state.num_passes > 1) | (state.rest <= problem.l1 + state.tol)
      state = state._replace(done=~violated(state) & certain)
      if not rescores:
        return control.when(
          ~state.done, lambda state: self._resolve(problem, state), state
        )
      fresh = state.done
      state = control.when(~fresh, solve_among_candidates, state)
      # At w = 0, the first pass, the residual still moves far.
      state = state._replace(
        max_norm=control.when(
          ~fresh & (state.num_passes > 1) & (state.max_norm == jnp.inf),
          lambda norm: _after(norm, problem.corpus).max_norm(),
          state.max_norm,
        )
      )
      rest = _largest_product(
        state.residual, state.at_pass, state.rest_at_pass, state.max_norm
      )
      return state._replace(
        rest=jnp.where(fresh, state.rest_at_pass, rest),
        done=fresh | (rest <= problem.l1 + state.tol),
      )

    zero = jnp.zeros((), query.dtype)
    start = _State(
      indices=jnp.full(size, -1, jnp.int32),
      weights=jnp.zeros(size, query.dtype),
      correlation=jnp.full(size, -jnp.inf, query.dtype),
      residual=query,
      at_pass=query,
      rest=zero,
      rest_at_pass=zero,
      max_norm=zero + (jnp.inf if self.max_norm is None else self.max_norm),
      tol=zero,
      num_passes=jnp.zeros((), jnp.int32),
      num_scored=jnp.zeros((), jnp.int32),
      num_rounds=jnp.zeros((), jnp.int32),
      done=jnp.zeros((), bool),
    )
    end = jax.lax.while_loop(lambda state: ~state.done, look_and_solve, start)
    return elastic_net.Solution(
      end.indices,
      end.weights,
      end.residual,
      end.correlation,
      end.rest,
      end.num_passes,
      end.num_scored,
    )

  def _resolve(self, problem: elastic_net.Problem, state: _State) -> _State:
    """Solves over the support and the likeliest of the candidates.

    At the smallest of a few sizes that holds the support.
    """
    size = state.weights.shape[0]
    pending = jnp.ones((), bool)
    capacity = min(self.capacity, size)
    for some in elastic_net.ladder(capacity):
      run = pending
      if some < capacity:
        run &= 4 * state.support_size() < 3 * some
      state = control.when(
        run,
        partial(
          _solve_members,
          problem,
          num_members=min(2 * some, size),
          capacity=some,
        ),
        state,
      )
      pending &= ~(run & (state.support_size() < some))
    return state


def _solve_all(problem: elastic_net.Problem) -> elastic_net.Solution:
  """The optimum over a small corpus, from its Gram matrix alone.

  Under `jax.vmap` over queries the Gram matrix is computed once.
  """
  rows = elastic_net.embeddings_of(problem)
  num_docs = rows.shape[0]
  gram, target = (
    linalg.matmul(rows, rows.T),
    linalg.products(rows, problem.query),
  )
  allowed = jnp.ones(num_docs, bool) if problem.where is None else problem.where
  weights = jnp.zeros_like(target)
  pending = jnp.ones((), bool)
  for some in elastic_net.ladder(num_docs):
    solve = partial(
      active_set.solve,
      gram,
      target,
      problem.l1,
      problem.l2,
      allowed=allowed,
      capacity=some,
    )
    weights = control.when(pending, solve, weights)
    pending &= jnp.sum(weights > 0) >= some
  solution = elastic_net.solution_of(problem, weights, num_passes=2)
  finite = jnp.all(jnp.isfinite(target) | ~allowed)
  return solution._replace(rest=jnp.where(finite, solution.rest, jnp.nan))


class _State(NamedTuple):
  """What is known of one query.

  Attributes:
    indices: `[size]` candidates, the support among them; -1 where fewer.
    weights: `[size]`.
    correlation: `[size]`, the candidates' products with a residual: of these
      weights after a pass or a rescoring, of the weights before after a solve.
    residual: `[dim]`, query - corpus^T weights.
    at_pass: `[dim]`, the residual of the last corpus pass.
    rest: Bound on the products of all documents but the candidates.
    rest_at_pass: The same with `at_pass`.
    max_norm: Bound on the norm of a row; infinite until it is needed.
    tol: Violation to accept.
    num_passes: Corpus passes so far.
    num_scored: Documents scored by them.
    num_rounds: Restricted solves so far.
    done: Whether to stop.
  """

  indices: jax.Array
  weights: jax.Array
  correlation: jax.Array
  residual: jax.Array
  at_pass: jax.Array
  rest: jax.Array
  rest_at_pass: jax.Array
  max_norm: jax.Array
  tol: jax.Array
  num_passes: jax.Array
  num_scored: jax.Array
  num_rounds: jax.Array
  done: jax.Array

  def support_size(self) -> jax.Array:
    return jnp.sum(self.weights > 0)


def _after(first: jax.Array, value: T) -> T:
  """`value`; XLA would hoist what depends on it alone out of a loop."""
  return jax.lax.optimization_barrier((first, value))[1]


def _largest_product(
  residual: jax.Array, before: jax.Array, bound: jax.Array, max_norm: jax.Array
) -> jax.Array:
  """Max of u . residual over ||u|| <= max_norm with u . before <= bound."""
  tiny = jnp.finfo(residual.dtype).tiny
  norm = jnp.maximum(jnp.linalg.norm(before), tiny)
  along = residual @ before / norm
  across = jnp.linalg.norm(residual - along / norm * before)
  size = jnp.sqrt(along**2 + across**2)
  height = bound / norm
  other = jnp.sqrt(jnp.maximum(max_norm**2 - height**2, 0.0))
  free = max_norm * along <= height * size
  largest = jnp.where(free, max_norm * size, height * along + other * across)
  known = jnp.isfinite(bound) & jnp.isfinite(max_norm)
  return jnp.where(known, largest, jnp.where(bound == -jnp.inf, bound, jnp.inf))


def _corpus_pass(problem: elastic_net.Problem, state: _State) -> _State:
  """Searches all documents; the support and the best are kept."""
  num_docs = problem.corpus.shape[0]
  # The support in row order, in which a search returns what it keeps.
  rows = jnp.where(state.weights > 0, state.indices, num_docs)
  order = jnp.argsort(rows)
  found = problem.corpus.search(
    state.residual,
    num=rows.shape[0],
    keep=rows[order],
    threshold=problem.l1 + state.tol,
    where=problem.where,
  )
  return state._replace(
    indices=found.indices,
    weights=state.weights[order],
    correlation=found.correlation,
    at_pass=state.residual,
    rest=found.rest,
    rest_at_pass=found.rest,
    num_passes=state.num_passes + 1,
    num_scored=state.num_scored + found.num_scored,
  )


def _rescore(rows: jax.Array, state: _State) -> _State:
  """Correlations of the candidates alone, whose embeddings are at hand."""
  correlation = linalg.matmul(rows, state.residual)
  return state._replace(
    correlation=jnp.where(state.indices >= 0, correlation, -jnp.inf)
  )


def _solve_members(
  problem: elastic_net.Problem,
  state: _State,
  *,
  num_members: int,
  capacity: int,
) -> _State:
  """The optimum over the support and the largest correlations beside it.

  Correlations below l1 too: they are the likeliest to be needed next.
  """
  priority = jnp.where(state.weights > 0, jnp.inf, state.correlation)
  best, at = jax.lax.top_k(priority, num_members)
  members = problem.corpus.rows(state.indices[at])
  weights = active_set.solve(
    linalg.matmul(members, members.T),
    linalg.matmul(members, problem.query),
    problem.l1,
    problem.l2,
    state.weights[at],
    allowed=best > -jnp.inf,
    capacity=capacity,
  )
  return state._replace(
    weights=jnp.zeros_like(state.weights).at[at].set(weights),
    residual=problem.query - linalg.matmul(weights, members),
    num_rounds=state.num_rounds + 1,
  )
