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
from nnn_jax.core import checks, linalg, topk


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
  query: types.Array,
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
    query: `[dim]`, unit norm.
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
  query, corpus, where = checks.check_inputs(query, corpus, where, k=k)
  params = checks.check_params("params", params, MmrParams, query.dtype)
  return _decode(params, query, corpus, where, k=k)


@partial(jax.jit, static_argnames="k")
def _decode(params, query, corpus, where, *, k):
  relevance = linalg.products(corpus, query)
  num_docs = corpus.shape[0]
  keep = jnp.ones(num_docs, bool) if where is None else where

  def select(carry, is_first):
    keep, redundancy = carry
    value = params.trade_off * relevance
    value = value - (1.0 - params.trade_off) * redundancy
    # At trade_off = 0 every first value is 0: rank the first by relevance.
    _, row = topk.top_k(jnp.where(is_first, relevance, value), 1, where=keep)
    # Gathered by a [1] array: a scalar index would gather a sharded corpus.
    selected, score = linalg.rows(corpus, row)[0], value[row][0]
    row = row[0]
    similarity = linalg.products(corpus, selected)
    redundancy = jnp.where(
      is_first, similarity, jnp.maximum(redundancy, similarity)
    )
    score = jnp.where(row < 0, -jnp.inf, score)
    keep = keep & (jnp.arange(num_docs) != row)
    return (keep, redundancy), (score, row)

  start = (keep, jnp.zeros_like(relevance))
  _, (scores, indices) = jax.lax.scan(select, start, jnp.arange(k) == 0)
  finite = checks.all_finite(relevance)
  return types.DecodeResult(
    indices,
    scores,
    MmrAux(jnp.asarray(num_docs, jnp.int32), exact=finite, finite=finite),
  )
