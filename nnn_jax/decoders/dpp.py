"""Greedy MAP inference of a determinantal point process.

The next document maximises, over the documents not selected yet,

  trade_off u_i . query + (1 - trade_off) log d_i^2

with d_i the distance of the corpus row u_i from the span of the rows selected.
So the k documents greedily maximise

  trade_off sum_i u_i . query + (1 - trade_off) log det(K_selected),

the log-determinant of a kernel diag(q) K diag(q) with quality
q_i = exp(trade_off / (2 (1 - trade_off)) u_i . query), and K the Gram matrix of
the rows. Rows inside the span have no volume to add: once only such rows are
left, d_i^2 stays at rounding size and they follow by relevance.

The distances are kept up to date by orthogonalising each selected row once,
the Cholesky factor's column by another name: one corpus pass a document.

Reference: Chen, Zhang and Zhou (2018), Fast greedy MAP inference for
determinantal point process.
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


class DppParams(NamedTuple):
  """Attributes: trade_off: weight of relevance against volume, 0 to 1."""

  trade_off: types.Scalar = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class DppConfig:
  """The greedy DPP has no static choices."""


class DppAux(NamedTuple):
  """Attributes: num_scored int32; exact, finite bool (see DecodeResult).

  `exact` certifies the greedy rule, not the best set.
  """

  num_scored: jax.Array
  exact: jax.Array
  finite: jax.Array


def decode(
  params: DppParams,
  query: types.Array | candidates.Scores,
  corpus: types.Array,
  *,
  k: int,
  config: DppConfig = DppConfig(),
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
  >>> decode(DppParams(0.25), query, corpus, k=2).indices.tolist()
  [0, 2]
  """
  checks.check_choice("config", config, (DppConfig,))
  query, corpus, where = candidates.check_inputs(query, corpus, where, k=k)
  params = candidates.check_params(params, DppParams, query)
  return _decode(params, query, corpus, where, k=k)


@partial(jax.jit, static_argnames="k")
def _decode(params, query, corpus, where, *, k):
  relevance = candidates.relevance(query, corpus)
  square = jnp.sum(corpus.astype(relevance.dtype) ** 2, axis=-1)
  # Below it a distance is rounding error.
  finite_square = jnp.where(jnp.isfinite(square), square, 0.0)
  floor = 100.0 * jnp.finfo(square.dtype).eps * jnp.max(finite_square)
  floor = jnp.maximum(floor, jnp.finfo(square.dtype).tiny)

  def rate(state):
    _, distance, _ = state
    value = params.trade_off * relevance
    volume = jnp.log(jnp.maximum(distance, floor))
    value = value + (1.0 - params.trade_off) * volume
    return value, value

  def update(state, row):
    basis, distance, step = state
    selected = linalg.rows(corpus, row)[0]
    # Twice: once leaves the rounding errors of long rows.
    for _ in range(2):
      selected = selected - linalg.matmul(linalg.matmul(basis, selected), basis)
    left = jnp.sum(selected**2)
    spans = left > floor
    length = jax.lax.rsqrt(jnp.where(spans, left, 1.0))
    direction = jnp.where(spans, selected * length, 0.0)
    distance = distance - linalg.matmul(corpus, direction) ** 2
    return basis.at[step].set(direction), distance, step + 1

  basis = jnp.zeros((k, corpus.shape[1]), relevance.dtype)
  scores, indices = greedy.select(
    (basis, square, jnp.zeros((), jnp.int32)),
    rate,
    update,
    jnp.ones(relevance.shape, bool) if where is None else where,
    k=k,
  )
  finite = checks.all_finite(relevance)
  num_scored = jnp.asarray(corpus.shape[0], jnp.int32)
  return types.DecodeResult(
    indices, scores, DppAux(num_scored, exact=finite, finite=finite)
  )
