"""NNN decoding: the support of a non-negative elastic net.

  argmin_{w >= 0}  1/2 ||corpus^T w - query||^2 + l1 sum(w) + l2/2 ||w||^2

A document is ranked by its weight. Documents explain the query together, so a
second copy of what is already explained earns less than what is still missing.

Reference: "Non-negative Elastic Net Decoding for Information Retrieval",
arXiv 2606.17910.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from nnn_jax import types
from nnn_jax.core import checks, corpora, gradients, linalg, topk
from nnn_jax.solvers import elastic_net, fista, working_set

_FISTA_FIX = (
  "Fista needs an array [num_docs, dim]; "
  "use NnnConfig(solver=working_set.WorkingSet())"
)


class NnnParams(NamedTuple):
  """Traced scalars: sweep or learn them without recompiling.

  Attributes:
    l1: >= 0. A larger value empties the support, entirely once
      l1 >= max(corpus @ query); for unit vectors useful values are below 1.
    l2: >= 0. A larger value ranks more like dense retrieval; 0 splits the
      weight of duplicate documents arbitrarily.
  """

  l1: types.Scalar = 0.1
  l2: types.Scalar = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class NnnConfig:
  """Static choices: one compilation per distinct value.

  Attributes:
    solver: What finds the weights: the exact WorkingSet, or fista.Fista(), 50
      steps of it as published.
    gradient: How the solver is differentiated; by default as it is best:
      `Unroll()` for Fista, `Implicit()` for WorkingSet.
    tol: `aux.exact` is True for a kkt_violation of at most tol.
  """

  solver: elastic_net.Solver = working_set.WorkingSet()
  gradient: gradients.Gradient | None = None
  tol: float = 1e-5

  def __post_init__(self):
    solvers = (fista.Fista, working_set.WorkingSet)
    checks.check_choice("solver", self.solver, solvers)
    kinds = self.solver.differentiable_by
    if self.gradient is None:
      object.__setattr__(self, "gradient", kinds[0]())
    checks.check_choice("gradient", self.gradient, kinds)


class Weights(NamedTuple):
  """Weights by document; of documents that are not listed the weight is zero.

  Attributes:
    indices: `[num_candidates]` int32 corpus rows, none twice; -1 where fewer.
    values: `[num_candidates]` >= 0.
  """

  indices: jax.Array
  values: jax.Array

  def dense(self, num_docs: int) -> jax.Array:
    """The weights `[num_docs]`, or `[batch, num_docs]` under a batch axis.

    >>> weights = Weights(jnp.asarray([2, 0, -1]), jnp.asarray([0.5, 0.1, 0.0]))
    >>> weights.dense(4).tolist()
    [0.10000000149011612, 0.0, 0.5, 0.0]
    """

    def scatter(indices, values):
      rows = jnp.where(indices < 0, num_docs, indices)
      zeros = jnp.zeros(num_docs, values.dtype)
      return zeros.at[rows].set(values, mode="drop", unique_indices=True)

    return jnp.vectorize(scatter, signature="(c),(c)->(n)")(*self)

  def find(self, rows: types.Array) -> jax.Array:
    """Where documents stand in the list; num_candidates if they do not.

    Args:
      rows: `[num_rows]` int32 corpus rows; -1 is never found.

    Returns:
      `[num_rows]` int32 positions, to index with `mode="fill"` or "drop".

    >>> weights = Weights(jnp.asarray([2, 0, -1]), jnp.asarray([0.5, 0.1, 0.0]))
    >>> weights.find(jnp.asarray([0, 1, 2, -1])).tolist()
    [1, 3, 0, 3]
    """
    size = self.indices.shape[0]
    rows = rows[:, None]
    found = (self.indices[None, :] == rows) & (rows >= 0)
    positions = jnp.arange(size, dtype=jnp.int32)[None, :]
    return jnp.min(jnp.where(found, positions, size), axis=1)

  def at_rows(self, rows: types.Array) -> jax.Array:
    """The weights `[num_rows]` of documents, zero where not listed.

    >>> weights = Weights(jnp.asarray([2, 0, -1]), jnp.asarray([0.5, 0.1, 0.0]))
    >>> weights.at_rows(jnp.asarray([2, 1, -1])).tolist()
    [0.5, 0.0, 0.0]
    """
    return self.values.at[self.find(rows)].get(mode="fill", fill_value=0)


class NnnAux(NamedTuple):
  """Diagnostics of one solve.

  Attributes:
    weights: Those of the solver's candidates, differentiable: all documents of
      Fista, in row order; the support and the next best of WorkingSet.
    residual: `[dim]`, query - corpus^T weights, differentiable.
    support_size: int32, how many weights are positive.
    kkt_violation: Distance from the optimality conditions, in score units.
    duality_gap: Upper bound on the objective's distance from its minimum.
    num_passes: int32, products with the corpus that the solver took.
    num_scored: int32, products of a document with a residual, in all passes.
    exact: bool, kkt_violation <= config.tol.
    finite: bool, no NaN or infinity in the weights and scores.
  """

  weights: Weights
  residual: jax.Array
  support_size: jax.Array
  kkt_violation: jax.Array
  duality_gap: jax.Array
  num_passes: jax.Array
  num_scored: jax.Array
  exact: jax.Array
  finite: jax.Array


def decode(
  params: NnnParams,
  query: types.Array,
  corpus: types.Array | corpora.Searchable,
  *,
  k: int,
  config: NnnConfig = NnnConfig(),
  where: types.Array | None = None,
) -> types.DecodeResult:
  """Solves for weights and returns the k documents with the largest.

  Beyond the support the list is filled by correlation s with the residual, and
  scored by one coordinate step from the solution, (s_j - l1) / (1 + l2) for
  unit rows, which is <= 0 there; before convergence it is lowered until it is.
  So a score > 0 is a weight, and a score <= 0 marks a document that was not
  retrieved.

  Args:
    params: The penalties, traced.
    query: `[dim]`, unit norm.
    corpus: `[num_docs, dim]`, unit rows (others work: the step follows them).
      For WorkingSet also an index, such as `indexes.clusters.build(corpus)`:
      weights and certificate are the same, `aux.num_scored / num_docs` is the
      share of documents looked at; the list beyond the support is filled with
      the best of those.
    k: How many documents to return, at most num_docs.
    config: Static choices.
    where: `[num_docs]` bool; False leaves a document out of the problem. Its
      row must be finite all the same, and still counts in FISTA's step size.

  Returns:
    DecodeResult; `aux` is a NnnAux.

  Raises:
    ValueError: While tracing, for shapes that do not fit, k out of range or an
      unsupported solver or gradient.

  >>> corpus = jnp.asarray([[1.0, 0, 0], [0.5**0.5, 0.5**0.5, 0], [0, 0, 1.0]])
  >>> query = jnp.asarray([2 / 3, 2 / 3, 1 / 3])
  >>> result = decode(NnnParams(0.1, 0.03), query, corpus, k=3)
  >>> result.indices.tolist()  # Dense retrieval ranks [1, 0, 2].
  [1, 2, 0]
  >>> [round(float(w), 4) for w in result.aux.weights.dense(3)]
  [0.0, 0.8183, 0.2265]
  """
  checks.check_choice("config", config, (NnnConfig,))
  needs_array = isinstance(config.solver, fista.Fista)
  query, corpus, where = checks.check_inputs(
    query,
    corpus,
    where,
    k=k,
    index_fix=_FISTA_FIX if needs_array else "",
  )
  params = checks.check_params("params", params, NnnParams, query.dtype)
  return _decode(params, query, corpus, where, k=k, config=config)


@partial(jax.jit, static_argnames=("k", "config"))
def _decode(params, query, corpus, where, *, k, config):
  documents = corpora.searchable(corpus)
  problem = elastic_net.Problem(query, documents, params.l1, params.l2, where)
  solution = config.solver.solve(
    problem, gradient=config.gradient, num_candidates=k
  )
  indices, scores = _rank(problem, solution, k)
  fixed = jax.lax.stop_gradient(solution)
  gap = elastic_net.optimality(jax.lax.stop_gradient(problem), fixed)
  aux = NnnAux(
    weights=Weights(solution.indices, solution.weights),
    residual=solution.residual,
    support_size=jnp.sum(fixed.weights > 0, dtype=jnp.int32),
    kkt_violation=gap.kkt_violation,
    duality_gap=gap.duality_gap,
    num_passes=fixed.num_passes,
    num_scored=fixed.num_scored,
    exact=gap.kkt_violation <= config.tol,
    finite=checks.all_finite(fixed.weights, fixed.residual)
    & ~jnp.isnan(fixed.rest),
  )
  return types.DecodeResult(indices, scores, aux)


def extended_weights(
  params: NnnParams,
  corpus: types.Array,
  rows: types.Array,
  aux: NnnAux,
) -> jax.Array:
  """Weights that go on below zero: one coordinate step from the solution.

    e_j = (u_j . residual + ||u_j||^2 w_j - l1) / (||u_j||^2 + l2)

  At the optimum e_j = w_j on the support and e_j <= 0 off it, so [e]_+ = w. A
  document off the support has a score that says how far off, and a derivative:
  with respect to u_j itself, and through the residual to the query and to the
  documents of the support. Nothing of size num_docs is computed.

  Args:
    params: The penalties of the solve.
    corpus: `[num_docs, dim]`, that of the solve.
    rows: `[num_rows]` int32, the documents to score; -1 where fewer.
    aux: Of one query's `decode`; batch with jax.vmap over rows and aux.

  Returns:
    `[num_rows]`, -inf where rows is -1.

  Raises:
    ValueError: While tracing, if rows is not a vector of integers.

  >>> corpus = jnp.asarray([[1.0, 0, 0], [0.5**0.5, 0.5**0.5, 0], [0, 0, 1.0]])
  >>> query = jnp.asarray([2 / 3, 2 / 3, 1 / 3])
  >>> params = NnnParams(0.1, 0.03)
  >>> aux = decode(params, query, corpus, k=1).aux
  >>> extended = extended_weights(params, corpus, jnp.asarray([0, 1, -1]), aux)
  >>> [round(float(e), 4) for e in extended]
  [-0.0116, 0.8183, -inf]
  """
  rows = jnp.asarray(rows)
  checks.check_shapes(rows=(rows, "num_rows"))
  if not jnp.issubdtype(rows.dtype, jnp.integer):
    raise ValueError(f"rows must be integer corpus rows, got {rows.dtype}.")
  params = checks.check_params("params", params, NnnParams, aux.residual.dtype)
  documents = corpora.searchable(corpus).rows(rows)
  square = jnp.sum(documents**2, axis=1)
  slope = linalg.matmul(documents, aux.residual) - params.l1
  curvature = jnp.maximum(square + params.l2, jnp.finfo(slope.dtype).tiny)
  extended = (slope + square * aux.weights.at_rows(rows)) / curvature
  return jnp.where(rows >= 0, extended, -jnp.inf)


def _rank(problem, solution, k):
  """Support by weight, then the others by correlation, with scores <= 0.

  The order is found on constants; only k rows carry a derivative.
  """
  allowed = solution.indices >= 0
  fixed = jax.lax.stop_gradient(solution)
  curvature = 1.0 + problem.l2
  step = (fixed.correlation - problem.l1) / curvature
  off_support = allowed & (fixed.weights <= 0)
  above = jax.lax.stop_gradient(jnp.max(step, where=off_support, initial=0.0))
  order = jax.lax.stop_gradient(
    jnp.where(fixed.weights > 0, fixed.weights, step - above)
  )
  best, at = topk.top_k(order, k, where=allowed)
  indices = jnp.where(at >= 0, solution.indices[at], -1)

  weights = solution.weights[at]
  correlation = linalg.matmul(problem.corpus.rows(indices), solution.residual)
  step = (correlation - problem.l1) / curvature - above
  # Values are those that were sorted; the rows add the derivative.
  step = best + (step - jax.lax.stop_gradient(step))
  scores = jnp.where(weights > 0, weights, step)
  return indices, jnp.where(at >= 0, scores, -jnp.inf)
