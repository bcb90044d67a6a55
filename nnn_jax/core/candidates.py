"""What decoders of sets start from: relevance, and a candidate pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from nnn_jax import types
from nnn_jax.core import checks, linalg, topk

T = TypeVar("T", bound=tuple)


class Scores(NamedTuple):
  """In place of a query: relevance from elsewhere, such as a reranker.

  Attributes:
    relevance: `[num_docs]`, on the scale of the similarities.
  """

  relevance: types.Array


class Pool(NamedTuple):
  """The candidates of one query, in no particular order.

  Attributes:
    rows: `[size, dim]` in the compute dtype; anything where not allowed.
    relevance: `[size]`; zero where not allowed.
    indices: `[size]` int32 corpus rows; -1 where fewer exist.
    allowed: `[size]` bool: exists and is finite.
  """

  rows: jax.Array
  relevance: jax.Array
  indices: jax.Array
  allowed: jax.Array


def check_inputs(
  query: types.Array | Scores,
  corpus: types.Array,
  where: types.Array | None,
  *,
  k: int,
) -> tuple[jax.Array | Scores, jax.Array, jax.Array | None]:
  """`checks.check_inputs` where the query may be `Scores`."""
  if not isinstance(query, Scores):
    return checks.check_inputs(query, corpus, where, k=k)
  checks.check_shapes(
    corpus=(corpus, "num_docs dim"),
    relevance=(query.relevance, "num_docs"),
  )
  stand_in = jnp.zeros_like(jnp.asarray(corpus), shape=corpus.shape[-1:])
  _, corpus, where = checks.check_inputs(stand_in, corpus, where, k=k)
  dtype = linalg.compute_dtype(jnp.asarray(query.relevance), corpus)
  scores = Scores(jnp.asarray(query.relevance, dtype))
  return scores, jnp.asarray(corpus), where


def check_params(
  params: Any, kind: Callable[..., T], query: jax.Array | Scores
) -> T:
  """`checks.check_params` of one trade_off.

  Raises:
    ValueError: Also if trade_off, known while tracing, is not in 0 to 1. A
      traced one shows in `aux.exact`.
  """
  dtype = (query.relevance if isinstance(query, Scores) else query).dtype
  checked = checks.check_params("params", params, kind, dtype)
  (value,) = params if isinstance(params, (tuple, list)) else (params,)
  known = isinstance(value, (int, float, np.number, np.ndarray))
  if known and not 0 <= value <= 1:
    raise ValueError(f"trade_off must be between 0 and 1, got {value}.")
  return checked


def relevance(query: jax.Array | Scores, corpus: jax.Array) -> jax.Array:
  """`[num_docs]` relevance; NaN, which is never selected, for a NaN row."""
  if not isinstance(query, Scores):
    return linalg.products(corpus, query)
  broken = jnp.isnan(corpus).any(axis=-1)
  return jnp.where(broken, jnp.nan, query.relevance)


def pool(
  relevance: jax.Array,
  corpus: jax.Array,
  where: jax.Array | None,
  *,
  size: int,
) -> Pool:
  """The `size` most relevant documents; ties by lowest index."""
  num_docs = corpus.shape[0]
  if size == num_docs:  # Nothing to leave out: the corpus is not copied.
    values, indices = relevance, jnp.arange(num_docs, dtype=jnp.int32)
    rows = corpus.astype(relevance.dtype)
    exists = jnp.ones(num_docs, bool) if where is None else where
  else:
    values, indices = topk.top_k(relevance, size, where=where)
    rows = linalg.rows(corpus, jnp.maximum(indices, 0))
    exists = indices >= 0
  # A sum is finite where all of its terms are.
  finite = jnp.isfinite(values) & jnp.isfinite(jnp.sum(rows**2, axis=-1))
  allowed = exists & finite
  return Pool(rows, jnp.where(allowed, values, 0.0), indices, allowed)
