"""Maximal marginal relevance: greedy selection against redundancy.

The next document maximises, over the documents not selected yet,

  trade_off u_i . query - (1 - trade_off) max_{j selected} u_i . u_j

with u_i the corpus rows. The first document is the most relevant one, and
trade_off = 1 is dense retrieval.

Reference: Carbonell and Goldstein (1998).
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from nnn_jax import types
from nnn_jax.core import candidates, checks, linalg
from nnn_jax.solvers import greedy


class MmrParams(NamedTuple):
  """Attributes: trade_off: weight of relevance against redundancy, 0 to 1."""

  trade_off: types.Scalar = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class MmrConfig:
  """MMR has no static choices."""


class MmrAux(NamedTuple):
  """Attributes: num_scored int32; exact, finite bool (see DecodeResult).

  `exact` certifies the greedy rule, not the best set.
  """

  num_scored: jax.Array
  exact: jax.Array
  finite: jax.Array


def decode(
  params: MmrParams,
  query: types.Array | candidates.Scores,
  corpus: types.Array,
  *,
  k: int,
  config: MmrConfig = MmrConfig(),
  where: types.Array | None = None,
) -> types.DecodeResult:
  """Selects k documents one by one; ties by lowest index.

  Cost: one corpus pass for the query and one for each document selected.

  Args:
    params: The trade-off, traced.
    query: `[dim]`, unit norm; or `Scores` from elsewhere.
    corpus: `[num_docs, dim]`, unit rows.
    k: How many documents to select, at most num_docs.
    config: Static choices.
    where: `[num_docs]` bool; False leaves a document out.

  Returns:
    DecodeResult in the order of selection. A score is the marginal value when
    the document was selected, so scores need not fall along the list.

  Raises:
    ValueError: While tracing, for shapes that do not fit or k out of range.

  >>> corpus = jnp.asarray([[1.0, 0.0], [1.0, 0.0], [0.6, 0.8]])
  >>> query = jnp.asarray([1.0, 0.0])
  >>> decode(MmrParams(0.25), query, corpus, k=2).indices.tolist()
  [0, 2]
  """
  checks.check_choice("config", config, (MmrConfig,))
  query, corpus, where = candidates.check_inputs(query, corpus, where, k=k)
  params = candidates.check_params(params, MmrParams, query)
  return _decode(params, query, corpus, where, k=k)


@partial(jax.jit, static_argnames="k")
def _decode(params, query, corpus, where, *, k):
  relevance = candidates.relevance(query, corpus)

  def rate(state):
    is_first, redundancy = state
    value = params.trade_off * relevance
    value = value - (1.0 - params.trade_off) * redundancy
    # At trade_off = 0 every first value is 0: rank the first by relevance.
    return jnp.where(is_first, relevance, value), value

  def update(state, row):
    is_first, redundancy = state
    similarity = linalg.products(corpus, linalg.rows(corpus, row)[0])
    redundancy = jnp.where(
      is_first, similarity, jnp.maximum(redundancy, similarity)
    )
    return jnp.zeros((), bool), redundancy

  scores, indices = greedy.select(
    (jnp.ones((), bool), jnp.zeros_like(relevance)),
    rate,
    update,
    jnp.ones(relevance.shape, bool) if where is None else where,
    k=k,
  )
  finite = checks.all_finite(relevance)
  num_scored = jnp.asarray(corpus.shape[0], jnp.int32)
  return types.DecodeResult(
    indices, scores, MmrAux(num_scored, exact=finite, finite=finite)
  )
