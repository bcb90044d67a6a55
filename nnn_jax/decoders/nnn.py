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
from nnn_jax.core import checks, gradients, topk
from nnn_jax.solvers import elastic_net, fista, working_set


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
    solver: What finds the weights.
    gradient: How the solver is differentiated; by default as it is best:
      `Unroll()` for Fista, `Implicit()` for WorkingSet.
    tol: `aux.exact` is True for a kkt_violation of at most tol.
  """

  solver: elastic_net.Solver = fista.Fista()
  gradient: gradients.Gradient | None = None
  tol: float = 1e-5

  def __post_init__(self):
    solvers = (fista.Fista, working_set.WorkingSet)
    checks.check_choice("solver", self.solver, solvers)
    kinds = self.solver.differentiable_by
    if self.gradient is None:
      object.__setattr__(self, "gradient", kinds[0]())
    checks.check_choice("gradient", self.gradient, kinds)


class NnnAux(NamedTuple):
  """Diagnostics of one solve.

  Attributes:
    weights: `[num_docs]` >= 0; differentiable, what the NNN loss is taken of.
    support_size: int32, how many weights are positive.
    kkt_violation: Distance from the optimality conditions, in score units.
    duality_gap: Upper bound on the objective's distance from its minimum.
    num_passes: int32, products with the corpus that the solver took.
    num_scored: int32, documents whose score was computed: all.
    exact: bool, kkt_violation <= config.tol.
    finite: bool, no NaN or infinity in the weights and scores.
  """

  weights: jax.Array
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
  corpus: types.Array,
  *,
  k: int,
  config: NnnConfig = NnnConfig(),
  where: types.Array | None = None,
) -> types.DecodeResult:
  """Solves for weights and returns the k documents with the largest.

  Beyond the support the list is filled by one coordinate step from the
  solution, (s_j - l1) / (||corpus_j||^2 + l2) with correlation s, which is <= 0
  there; before convergence it is lowered until it is. So a score > 0 is a
  weight, and a score <= 0 marks a document that was not retrieved.

  Args:
    params: The penalties, traced.
    query: `[dim]`, unit norm.
    corpus: `[num_docs, dim]`, unit rows (others work: the step follows them).
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
  >>> [round(float(w), 4) for w in result.aux.weights]
  [0.0, 0.8183, 0.2265]
  """
  checks.check_choice("config", config, (NnnConfig,))
  query, corpus, where = checks.check_inputs(query, corpus, where, k=k)
  params = checks.check_params("params", params, NnnParams, query.dtype)
  return _decode(params, query, corpus, where, k=k, config=config)


@partial(jax.jit, static_argnames=("k", "config"))
def _decode(params, query, corpus, where, *, k, config):
  problem = elastic_net.Problem(query, corpus, params.l1, params.l2, where)
  weights, correlation, num_passes = config.solver.solve(
    problem, gradient=config.gradient
  )
  scores = _extended_scores(problem, weights, correlation)
  best, indices = topk.top_k(scores, k, where=where)

  gap = elastic_net.optimality(problem, weights, correlation)
  gap = jax.lax.stop_gradient(gap)
  aux = NnnAux(
    weights=weights,
    support_size=jnp.sum(weights > 0, dtype=jnp.int32),
    kkt_violation=gap.kkt_violation,
    duality_gap=gap.duality_gap,
    num_passes=num_passes,
    num_scored=jnp.asarray(corpus.shape[0], jnp.int32),
    exact=gap.kkt_violation <= config.tol,
    finite=checks.all_finite(weights, correlation),
  )
  return types.DecodeResult(indices, best, aux)


def _extended_scores(problem, weights, correlation):
  """Weights on the support, a coordinate step <= 0 off it."""
  square = jnp.sum(problem.corpus.astype(weights.dtype) ** 2, axis=-1)
  # A zero row with l2 = 0 has no curvature.
  curvature = jnp.maximum(square + problem.l2, jnp.finfo(weights.dtype).eps)
  step = (correlation - problem.l1) / curvature
  off_support = weights <= 0
  if problem.where is not None:
    off_support = off_support & problem.where
  above = jnp.max(step, where=off_support, initial=0.0)
  return jnp.where(weights > 0, weights, step - above)
