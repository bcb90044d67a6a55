"""Diversity-aware selection: k documents, relevant and unlike each other.

Over the sets R of k documents of a candidate pool it maximises

  J(R) = trade_off mean_{i in R} c_i
         + (1 - trade_off) (1 - mean_{i != j in R} K_ij)

with relevance c_i = u_i . query, or given, and similarity K_ij = u_i . u_j (or
another kernel), u_i the corpus rows: for unit rows the second mean is the
intra-list average distance. k (k - 1) J is, up to a constant, the quadratic

  F(x) = trade_off (k - 1) c . x - (1 - trade_off) sum_{i != j} K_ij x_i x_j

of the 0-1 indicator x of R. Two methods:

  Published  Frank-Wolfe on a relaxation of loading 2 from the centre, then the
             k largest entries: Algorithm 1 of the paper.
  Polished   Frank-Wolfe at the smallest tight loading, pipage rounding, then
             single exchanges until none pays: within
             2 (1 - trade_off) / (k - 1) of the best J for unit rows without
             negative similarity, and mostly the best itself.

Which kernel: a mean of cosines tolerates near-duplicates, since a few pairs
weigh little in it. Where a list must not repeat itself use
`kernels.Power(power=4)`; where its spread as a whole counts, the linear one.

Reference: "Principled and Scalable Diversity-Aware Retrieval via
Cardinality-Constrained Binary Quadratic Programming", arXiv 2604.02554.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from nnn_jax import types
from nnn_jax.core import candidates, checks, topk
from nnn_jax.solvers import (
  frank_wolfe,
  greedy,
  quadratic,
  relaxation,
  selection,
)

Scores = candidates.Scores


class DiversityParams(NamedTuple):
  """Attributes: trade_off: weight of relevance against diversity, 0 to 1."""

  trade_off: types.Scalar = 0.5


class DiversityAux(NamedTuple):
  """Diagnostics of one selection.

  Attributes:
    objective: J of the documents returned.
    upper_bound: No k documents of the pool have a larger J; None without
      config.certificate.
    weights: `[num_docs]` in [0, 1], adding up to k: the relaxed selection, to
      be differentiated; None without config.gradient.
    num_steps: int32, Frank-Wolfe steps.
    num_swaps: int32, exchanges of the polish.
    num_scored: int32, documents whose relevance was computed: all.
    exact: bool: the method ended as it defines, stationary (Published) or
      with no exchange left that pays (Polished), and `finite`.
    finite: bool, no NaN or infinity in relevance and candidates. Documents
      that hold some are left out.
  """

  objective: jax.Array
  upper_bound: jax.Array | None
  weights: jax.Array | None
  num_steps: jax.Array
  num_swaps: jax.Array
  num_scored: jax.Array
  exact: jax.Array
  finite: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiversityConfig:
  """Static choices: one compilation per distinct value.

  Attributes:
    pool_size: Select from so many documents of the largest relevance (at most
      num_docs are used); None selects from the whole corpus.
    method: `Polished()` or `Published()`, of `solvers.selection`.
    order: Of the documents returned. "relevance": scores are relevances.
      "marginal": greedily by what a document adds to those before it,
      trade_off c_i - 2 (1 - trade_off) / (k - 1) sum_{j before} K_ij, which is
      its score, so that a shorter list is a prefix; the scores add up to
      F / (k - 1).
    certificate: Bound the best J of the pool from above, in aux.upper_bound,
      by as many Frank-Wolfe steps on the concave relaxation.
    gradient: The relaxation that aux.weights come from, `relaxation.Concave()`
      or `relaxation.Entropic()`, differentiated implicitly; None computes none.
      (The selection itself is a step function: its derivative is zero.)
  """

  pool_size: int | None = 1_000
  method: selection.Method = selection.Polished()
  order: str = "relevance"
  certificate: bool = False
  gradient: relaxation.Relaxation | None = None

  def __post_init__(self):
    checks.check_choice(
      "method", self.method, (selection.Polished, selection.Published)
    )
    if self.gradient is not None:
      kinds = (relaxation.Concave, relaxation.Entropic)
      checks.check_choice("gradient", self.gradient, kinds)
    if self.pool_size is not None and self.pool_size < 1:
      raise ValueError(f"pool_size must be >= 1, got {self.pool_size}.")
    if self.order not in ("relevance", "marginal"):
      raise ValueError(
        f'order must be "relevance" or "marginal", got {self.order!r}.'
      )


def decode(
  params: DiversityParams,
  query: types.Array | Scores,
  corpus: types.Array,
  *,
  k: int,
  config: DiversityConfig = DiversityConfig(),
  where: types.Array | None = None,
) -> types.DecodeResult:
  """Selects k documents; trade_off = 1 and k = 1 are dense retrieval.

  A row of any length counts as it is; a NaN or infinite one is left out. If k
  or fewer documents are left, all of them are returned. On a CPU
  decode many queries with `jax.lax.map`, or `retriever.retrieve` at batch_size
  1: a batched loop runs until its slowest query has ended.

  Args:
    params: The trade-off, traced.
    query: `[dim]`; or `Scores`, the documents' relevance from elsewhere.
    corpus: `[num_docs, dim]`, unit rows for J as described.
    k: How many documents to select, at most num_docs and pool_size.
    config: Static choices.
    where: `[num_docs]` bool; False leaves a document out.

  Returns:
    DecodeResult; `aux` is a DiversityAux.

  Raises:
    ValueError: While tracing, for shapes that do not fit, k out of range or an
      unknown choice; for a trade_off, given as a number, outside of 0 to 1.

  >>> corpus = jnp.asarray([[1.0, 0.0], [1.0, 0.0], [0.6, 0.8]])
  >>> query = jnp.asarray([1.0, 0.0])
  >>> config = DiversityConfig(certificate=True)
  >>> result = decode(DiversityParams(0.5), query, corpus, k=2, config=config)
  >>> result.indices.tolist()
  [0, 2]
  >>> print(f"{result.aux.objective:.4f}")  # (1 + .6) / 4 + (1 - .6) / 2
  0.6000
  """
  checks.check_choice("config", config, (DiversityConfig,))
  query, corpus, where = candidates.check_inputs(query, corpus, where, k=k)
  if config.pool_size is not None and k > config.pool_size:
    raise ValueError(
      f"k must be at most config.pool_size = {config.pool_size}, got {k}; use "
      "a larger pool, or None for the whole corpus."
    )
  params = candidates.check_params(params, DiversityParams, query)
  return _decode(params, query, corpus, where, k=k, config=config)


@partial(jax.jit, static_argnames=("k", "config"))
def _decode(params, query, corpus, where, *, k, config):
  relevance = candidates.relevance(query, corpus)
  num_docs = corpus.shape[0]
  size = min(config.pool_size or num_docs, num_docs)
  pool = candidates.pool(relevance, corpus, where, size=size)
  total = jnp.minimum(k, jnp.sum(pool.allowed)).astype(relevance.dtype)
  others = jnp.maximum(total - 1.0, 1.0)
  problem = quadratic.Problem(
    params.trade_off * others * pool.relevance,
    1.0 - params.trade_off,
    config.method.kernel.similarity(pool.rows),
    pool.allowed,
    total,
  )
  held = jax.lax.stop_gradient(problem)
  # Without a pair, only relevance tells documents apart.
  if k > 1:
    choice = config.method.solve(held, k=k)
  else:
    choice = selection.largest(held, pool.relevance)
  # In increasing order, so that ties go to the lowest index.
  places = jnp.sort(jnp.where(choice.indices < 0, size, choice.indices))
  exists = places < size
  chosen = _Chosen(problem, jnp.minimum(places, size - 1), exists)

  objective = chosen.value() / jnp.maximum(total * others, 1.0)
  upper_bound = None
  if config.certificate:
    start = quadratic.scatter(chosen.places, exists.astype(total.dtype), size)
    bound = frank_wolfe.upper_bound(
      held, start, k=k, backend=config.method.backend
    )
    upper_bound = bound / jnp.maximum(total * others, 1.0)
    # Rounding must not put the bound below what was found.
    upper_bound = jnp.maximum(upper_bound, objective) + problem.penalty
  weights = None
  if config.gradient is not None:
    x = relaxation.differentiable(problem, config.gradient)
    # What is left of the pool has no weight, on row 0 or elsewhere.
    weights = quadratic.scatter(jnp.maximum(pool.indices, 0), x, num_docs)

  if config.order == "marginal":
    scores, rank = chosen.by_marginal_gain(others)
  else:
    scores, rank = chosen.by_relevance(pool.relevance)
  finite = checks.all_finite(relevance, params.trade_off)
  if where is None:
    finite = finite & jnp.all(pool.allowed)
  in_range = (params.trade_off >= 0) & (params.trade_off <= 1)
  return types.DecodeResult(
    jnp.where(rank < 0, -1, pool.indices[chosen.places[rank]]),
    scores,
    DiversityAux(
      objective=objective + problem.penalty,
      upper_bound=upper_bound,
      weights=weights,
      num_steps=choice.num_steps,
      num_swaps=choice.num_swaps,
      num_scored=jnp.asarray(num_docs, jnp.int32),
      exact=choice.converged & finite & in_range,
      finite=finite,
    ),
  )


class _Chosen(NamedTuple):
  """Attributes: problem; places `[k]` in it; exists `[k]` bool."""

  problem: quadratic.Problem
  places: jax.Array
  exists: jax.Array

  def gram(self):
    """`[k, k]` similarities, zero on the diagonal and where missing."""
    gram = self.problem.similarity.block(self.places, self.places)
    pair = self.exists[:, None] & self.exists[None, :]
    return jnp.where(pair & ~jnp.eye(len(self.places), dtype=bool), gram, 0.0)

  def gain(self):
    """`[k]` gains, zero where missing."""
    return jnp.where(self.exists, self.problem.gain[self.places], 0.0)

  def value(self):
    """F, differentiable."""
    similarity, exists = self.problem.similarity, self.exists
    own = jnp.sum(jnp.where(exists, similarity.diagonal[self.places], 0.0))
    pairs = similarity.energy(self.places, exists.astype(own.dtype)) - own
    return jnp.sum(self.gain()) - self.problem.penalty * pairs

  def by_relevance(self, relevance):
    """(scores `[k]`, order `[k]`); -inf and -1 where missing."""
    return topk.top_k(
      relevance[self.places], len(self.places), where=self.exists
    )

  def by_marginal_gain(self, others):
    """(scores `[k]`, order `[k]`): greedily; -inf and -1 where missing."""
    gram, gain = self.gram(), self.gain() / others
    penalty = 2.0 * self.problem.penalty / others
    return greedy.select(
      jnp.zeros_like(gain),
      lambda redundancy: (gain - penalty * redundancy,) * 2,
      lambda redundancy, row: redundancy + gram[row[0]],
      self.exists,
      k=len(self.places),
    )
