"""Dense retrieval: the k documents with the largest inner product."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from nnn_jax import types
from nnn_jax.core import checks, linalg, topk


@dataclasses.dataclass(frozen=True, kw_only=True)
class DenseConfig:
  """Static choices.

  Attributes:
    recall_target: None searches exactly. Else `jax.lax.approx_max_k` finds that
      share of the true list, in the mean: for accelerators, where it is faster;
      `aux.exact` is then False.
  """

  recall_target: float | None = None

  def __post_init__(self):
    target = self.recall_target
    if target is not None and not 0 < target <= 1:
      raise ValueError(f"recall_target must be in (0, 1], got {target}.")


class DenseAux(NamedTuple):
  """Attributes: num_scored int32; exact, finite bool (see DecodeResult)."""

  num_scored: jax.Array
  exact: jax.Array
  finite: jax.Array


def decode(
  params: tuple[()],
  query: types.Array,
  corpus: types.Array,
  *,
  k: int,
  config: DenseConfig = DenseConfig(),
  where: types.Array | None = None,
) -> types.DecodeResult:
  """Ranks documents by corpus @ query; ties by lowest index.

  Args:
    params: `()`.
    query: `[dim]`.
    corpus: `[num_docs, dim]`.
    k: How many documents to return, at most num_docs.
    config: Static choices.
    where: `[num_docs]` bool; False leaves a document out.

  Returns:
    DecodeResult with the inner products as scores.

  Raises:
    ValueError: While tracing, for shapes that do not fit or k out of range.

  >>> decode((), jnp.asarray([1.0, 0.0]), jnp.eye(2), k=1).indices.tolist()
  [0]
  """
  if not (isinstance(params, tuple) and len(params) == 0):
    raise ValueError(f"dense has no params: pass (), got {params!r}.")
  checks.check_choice("config", config, (DenseConfig,))
  query, corpus, where = checks.check_inputs(query, corpus, where, k=k)
  return _decode(query, corpus, where, k=k, config=config)


@partial(jax.jit, static_argnames=("k", "config"))
def _decode(query, corpus, where, *, k, config):
  scores = linalg.products(corpus, query)
  best, indices = topk.top_k(
    scores, k, where=where, recall_target=config.recall_target
  )
  finite = checks.all_finite(scores)
  num_scored = jnp.asarray(corpus.shape[0], jnp.int32)
  exact = finite & (config.recall_target is None)
  return types.DecodeResult(
    indices, best, DenseAux(num_scored, exact=exact, finite=finite)
  )
