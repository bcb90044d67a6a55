"""The non-negative elastic net: the problem, and how optimal an answer is.

  argmin_{w >= 0}  1/2 ||corpus^T w - query||^2 + l1 sum(w) + l2/2 ||w||^2

With residual r = query - corpus^T w and correlation s = corpus r, w is optimal
if and only if s_i = l1 + l2 w_i where w_i > 0 and s_j <= l1 where w_j = 0.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from nnn_jax.core import control, corpora, gradients, linalg, topk

# Up to so many documents a row of the support, products with all of them cost
# less than fetching the supports of a batch.
_MAX_DOCS_PER_MEMBER = 8


class Problem(NamedTuple):
  """One instance, in the compute dtype.

  Attributes:
    query: `[dim]`.
    corpus: `[num_docs, dim]` documents.
    l1: Scalar >= 0.
    l2: Scalar >= 0.
    where: `[num_docs]` bool or None: False holds a weight at zero.
  """

  query: jax.Array
  corpus: corpora.Searchable
  l1: jax.Array
  l2: jax.Array
  where: jax.Array | None = None


class Solution(NamedTuple):
  """What a solver returns: weights of candidates, zero for all others.

  Attributes:
    indices: `[num_candidates]` int32 rows; -1 where there are fewer, and for
      documents left out.
    weights: `[num_candidates]` >= 0.
    residual: `[dim]`, query - corpus^T weights.
    correlation: `[num_candidates]`, the rows' products with the residual; a
      constant to differentiation.
    rest: An upper bound on the correlation of every other document, -inf if
      there is none, NaN if one is not finite; a constant.
    num_passes: int32, products with the corpus that it took; a product with
      the Gram matrix counts as one.
    num_scored: int32, products of a document with a residual in all passes.
  """

  indices: jax.Array
  weights: jax.Array
  residual: jax.Array
  correlation: jax.Array
  rest: jax.Array
  num_passes: jax.Array
  num_scored: jax.Array


class Solver(Protocol):
  """A frozen, hashable dataclass that solves a `Problem`.

  Attributes:
    differentiable_by: The kinds of `gradients.Gradient` that are sound for it,
      the default first.
  """

  differentiable_by: ClassVar[tuple[type, ...]]

  def solve(
    self,
    problem: Problem,
    *,
    gradient: gradients.Gradient,
    num_candidates: int,
  ) -> Solution:
    """Solves, differentiable as `gradient` says.

    The solution has at least num_candidates candidates, the support and the
    documents with the largest correlation off it.
    """
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


def embeddings_of(problem: Problem) -> jax.Array:
  """The corpus `[num_docs, dim]`, for a solver that needs all of it.

  Raises:
    ValueError: While tracing, for an index.
  """
  if not isinstance(problem.corpus, corpora.AllDocuments):
    raise ValueError(
      f"corpus must be an array for this solver, got "
      f"{type(problem.corpus).__name__}: search an index with WorkingSet."
    )
  return problem.corpus.embeddings


def solution_of(
  problem: Problem, weights: jax.Array, *, num_passes: int = 2
) -> Solution:
  """The solution that weights `[num_docs]` of all documents are.

  Args:
    weights: `[num_docs]` >= 0.
    num_passes: The corpus products it took, the two made here among them.
  """
  corpus = embeddings_of(problem)
  num_docs = corpus.shape[0]
  indices = jnp.arange(num_docs, dtype=jnp.int32)
  residual = problem.query - linalg.matmul(weights, corpus)
  if problem.where is not None:
    indices = jnp.where(problem.where, indices, -1)
  return Solution(
    indices=indices,
    weights=weights,
    residual=residual,
    correlation=jax.lax.stop_gradient(linalg.products(corpus, residual)),
    rest=jnp.asarray(-jnp.inf, weights.dtype),
    num_passes=jnp.asarray(num_passes, jnp.int32),
    num_scored=jnp.asarray(num_passes * num_docs, jnp.int32),
  )


def objective(problem: Problem, solution: Solution) -> jax.Array:
  """1/2 ||corpus^T w - query||^2 + l1 sum(w) + l2/2 ||w||^2."""
  weights, residual = solution.weights, solution.residual
  return (
    0.5 * jnp.sum(residual**2)
    + problem.l1 * jnp.sum(weights)
    + 0.5 * problem.l2 * jnp.sum(weights**2)
  )


def optimality(problem: Problem, solution: Solution) -> Optimality:
  """Certifies a solution from its correlations: no further corpus pass.

  The gap is primal minus dual at two dual points, the residual r (finite for
  l2 > 0) and r scaled until corpus r <= l1; the smaller one counts. Both are
  written as sums of non-negative terms, so they do not cancel in float32.
  """
  num_docs = problem.corpus.shape[0]
  l1, l2 = problem.l1, problem.l2
  indices, weights, residual, correlation, rest, *_ = solution
  excess = jnp.where(indices >= 0, correlation - l1, -jnp.inf)
  violation = jnp.where(
    weights > 0, jnp.abs(excess - l2 * weights), jnp.maximum(excess, 0.0)
  )
  rest_violation = jnp.maximum(rest - l1, 0.0)

  tiny = jnp.finfo(weights.dtype).tiny
  twice_l2 = 2.0 * jnp.maximum(l2, tiny)
  off = jnp.where(weights > 0, weights * (0.5 * l2 * weights - excess), 0.0)
  on = (l2 * weights - excess) ** 2 / twice_l2
  gap_at_residual = jnp.sum(jnp.where(excess > 0, on, off))
  num_rest = jnp.maximum(num_docs - jnp.sum(indices >= 0), 1)
  gap_at_residual += num_rest * rest_violation**2 / twice_l2

  top = jnp.maximum(jnp.max(excess), rest - l1) + l1
  scale = jnp.where(top > l1, l1 / jnp.maximum(top, tiny), 1.0)
  slack = jnp.where(weights > 0, l1 - scale * (excess + l1), 0.0)
  gap_scaled = 0.5 * (1.0 - scale) ** 2 * jnp.sum(residual**2) + jnp.sum(
    weights * (slack + 0.5 * l2 * weights)
  )
  gap = jnp.where(l2 > 0, jnp.minimum(gap_at_residual, gap_scaled), gap_scaled)
  return Optimality(jnp.maximum(jnp.max(violation), rest_violation), gap)


def attach(
  problem: Problem, solution: Solution, *, gradient: gradients.Gradient
) -> Solution:
  """Makes a solution differentiable as `gradient` says.

  For `Unroll` it is already. For `Implicit` it becomes so through its
  optimality conditions: on the support A the optimum solves

    (G_AA + l2 I) w_A = corpus_A query - l1,

  so with cotangent g and (G_AA + l2 I) y = g_A,

    d query = corpus_A^T y,  d l1 = -sum y,  d l2 = -y . w_A,
    d corpus_A = y r^T - w_A (corpus_A^T y)^T.

  Only the rows of the support are fetched, so that under `jax.vmap` the
  corpus's cotangent is one scatter of `[batch, capacity, dim]`, and devices
  exchange no more. Of a small array all rows take part instead: a few products
  `[num_docs, batch] [batch, dim]` are less than that. Values are those of
  `solution`: without differentiation nothing is computed.

  Args:
    problem: What was solved; its leaves carry the derivative.
    solution: The optimum; a constant to `Implicit`.
    gradient: The policy.
  """
  if isinstance(gradient, gradients.Unroll):
    return solution
  solution = jax.lax.stop_gradient(solution)
  num_candidates = solution.weights.shape[0]
  capacity = min(gradient.capacity, num_candidates)
  at: jax.Array | slice = slice(None)
  if capacity < num_candidates:
    _, at = topk.top_k(solution.weights, capacity)
  support, members = solution.weights[at], solution.indices[at]
  corpus = problem.corpus
  few = corpus.shape[0] <= _MAX_DOCS_PER_MEMBER * capacity
  if few and isinstance(corpus, corpora.AllDocuments):
    documents = corpus.embeddings
  else:
    documents = corpus.rows(members)
    members = jnp.arange(capacity, dtype=jnp.int32)
  support, residual = _at_optimum(
    support,
    solution.residual,
    problem.query,
    documents,
    problem.l1,
    problem.l2,
    members,
  )
  return solution._replace(
    weights=solution.weights.at[at].set(support), residual=residual
  )


@jax.custom_jvp
def _at_optimum(support, residual, query, documents, l1, l2, members):
  """(support, residual), which follow query, documents and penalties.

  documents[members] are the rows of the support.
  """
  del query, documents, l1, l2, members
  return support, residual


@_at_optimum.defjvp
def _at_optimum_jvp(primals, tangents):
  support, residual, _, documents, _, l2, members = primals
  _, _, d_query, d_documents, d_l1, d_l2, _ = tangents
  active = support > 0
  system = (*jax.lax.stop_gradient((documents, l2)), members, active)
  # First with the weights held, then as they move to stay optimal.
  d_held = d_query - _combine(support, d_documents, members)
  d_slope = _correlate(documents, d_held, members)
  d_slope += _correlate(d_documents, residual, members)
  d_support = jax.lax.custom_linear_solve(
    lambda x: _system(*system, x),
    jnp.where(active, d_slope - d_l1 - support * d_l2, 0.0),
    lambda _, b: _solve_system(*system, b),
    symmetric=True,
  )
  d_residual = d_held - _combine(d_support, documents, members)
  return (support, residual), (d_support, d_residual)


def _combine(weights, documents, members):
  """The sum of weights times documents[members], through all documents."""
  num_docs = documents.shape[0]
  at = jnp.where(members >= 0, members, num_docs)
  spread = jnp.zeros(num_docs, weights.dtype)
  spread = spread.at[at].set(weights, mode="drop", unique_indices=True)
  return linalg.matmul(spread, documents)


def _correlate(documents, vector, members):
  """The products of documents[members] and a vector, through all of them."""
  return linalg.matmul(documents, vector)[members]


def _system(documents, l2, members, active, x):
  """(G_AA + l2 I) x on the active rows, x elsewhere."""
  on = jnp.where(active, x, 0.0)
  product = _correlate(documents, _combine(on, documents, members), members)
  return jnp.where(active, product + l2 * on, x)


def _solve_system(documents, l2, members, active, b):
  """Solves `_system` at the smallest size that holds the active rows."""

  def at_size(size):
    def solve(b):
      # Tied to b, or XLA would hoist the factor and compute every size.
      on, b = jax.lax.optimization_barrier((active, b))
      free, at = jax.lax.top_k(on.astype(b.dtype), size)
      free, rows = free > 0, linalg.rows(documents, members[at])
      factor = free_factor(linalg.matmul(rows, rows.T), l2, free)
      x = jax.scipy.linalg.cho_solve((factor, True), b[at])
      return b.at[at].set(jnp.where(free, x, b[at]))

    return solve

  x, smaller = b, 0
  num_active = jnp.sum(active)
  for size in ladder(active.shape[0]):
    fits = (num_active > smaller) & (num_active <= size)
    x, smaller = control.when(fits, at_size(size), x), size
  return x


def ladder(capacity: int) -> list[int]:
  """Sizes to try in turn, so that a small support costs little."""
  return [size for size in (32, 64, 128, 512) if size < capacity] + [capacity]


def free_factor(gram: jax.Array, l2: jax.Array, free: jax.Array) -> jax.Array:
  """Cholesky factor of gram + l2 I on the free rows, of I elsewhere.

  A ridge of rounding size keeps duplicate rows at l2 = 0 solvable.
  """
  diagonal = jnp.diagonal(gram)
  ridge = 10.0 * jnp.finfo(gram.dtype).eps * jnp.max(diagonal)
  system = jnp.where(free[:, None] & free[None, :], gram, 0.0)
  system = system + jnp.diag(jnp.where(free, l2 + ridge, 1.0))
  return jnp.linalg.cholesky(system)
