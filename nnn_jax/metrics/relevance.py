"""Metrics of a ranking against what is relevant; see the package."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from nnn_jax.metrics import common

Array = common.Array


def recall(
  indices: Array, labels: Array, *, k: int, where: Array | None = None
) -> jax.Array:
  """|S in the top k| / |S|.

  >>> from nnn_jax import metrics
  >>> labels = jnp.array([True, False, True, False])
  >>> print(metrics.recall(jnp.array([2, 1, 0]), labels, k=2))
  0.5
  """
  gains, labels = common.gains(indices, labels, k, where)
  return common.ratio(_count(gains), _count(labels))


def completeness(
  indices: Array, labels: Array, *, k: int, where: Array | None = None
) -> jax.Array:
  """1 if all of S is in the top k, else 0 (Comp@k; 0 if S is empty).

  Source: arXiv 2606.17910. For |S| > k it is 0.

  >>> from nnn_jax import metrics
  >>> labels = jnp.array([True, False, True, False])
  >>> ranking = jnp.array([2, 1, 0])
  >>> print(metrics.completeness(ranking, labels, k=2),
  ...       metrics.completeness(ranking, labels, k=3))
  0.0 1.0
  """
  gains, labels = common.gains(indices, labels, k, where)
  num_relevant = _count(labels)
  complete = (_count(gains) == num_relevant) & (num_relevant > 0)
  return complete.astype(num_relevant.dtype)


def hit_rate(
  indices: Array, labels: Array, *, k: int, where: Array | None = None
) -> jax.Array:
  """1 if any of S is in the top k, else 0 (Success@k).

  >>> from nnn_jax import metrics
  >>> labels = jnp.array([True, False, True, False])
  >>> print(metrics.hit_rate(jnp.array([1, 2, 3]), labels, k=2))
  1.0
  """
  gains, _ = common.gains(indices, labels, k, where)
  return (gains > 0).any(axis=-1).astype(gains.dtype)


def precision(
  indices: Array, labels: Array, *, k: int, where: Array | None = None
) -> jax.Array:
  """|S in the top k| / k; missing places count as retrieved, as in trec_eval.

  >>> from nnn_jax import metrics
  >>> labels = jnp.array([True, False, True, False])
  >>> print(metrics.precision(jnp.array([2, 0, -1, -1]), labels, k=4))
  0.5
  """
  gains, _ = common.gains(indices, labels, k, where)
  return _count(gains) / k


def mrr(
  indices: Array,
  labels: Array,
  *,
  k: int | None = None,
  where: Array | None = None,
) -> jax.Array:
  """1 / rank of the first relevant document, 0 if there is none.

  `k=None` reads the whole ranking. The mean over queries is the mean
  reciprocal rank.

  >>> from nnn_jax import metrics
  >>> labels = jnp.array([True, False, True, False])
  >>> print(metrics.mrr(jnp.array([3, 2, 0]), labels))
  0.5
  """
  gains, _ = common.gains(indices, labels, k, where)
  reciprocal = (gains > 0) / _ranks(gains)
  # initial: a ranking with no places has no first relevant document.
  return reciprocal.max(axis=-1, initial=0.0)


def ndcg(
  indices: Array, labels: Array, *, k: int, where: Array | None = None
) -> jax.Array:
  """Normalised discounted cumulative gain, linear gain as in trec_eval.

    DCG = sum_{r <= k} grade(document at rank r) / log2(r + 1)

  divided by the DCG of the best possible k documents.

  Source: Jarvelin and Kekalainen (2002), in the form of trec_eval's ndcg_cut.

  >>> from nnn_jax import metrics
  >>> grades = jnp.array([2, 0, 1])
  >>> print(f"{metrics.ndcg(jnp.array([1, 0, 2]), grades, k=2):.4f}")
  0.4796
  """
  gains, labels = common.gains(indices, labels, k, where)
  ideal, _ = jax.lax.top_k(labels, min(k, labels.shape[-1]))
  return common.ratio(_dcg(gains), _dcg(ideal))


def _ranks(gains: jax.Array) -> jax.Array:
  ranks = jnp.arange(1, gains.shape[-1] + 1, dtype=gains.dtype)
  return jnp.broadcast_to(ranks, gains.shape)


def _dcg(gains: jax.Array) -> jax.Array:
  return (gains / jnp.log2(_ranks(gains) + 1.0)).sum(axis=-1)


def _count(gains: jax.Array) -> jax.Array:
  return (gains > 0).sum(axis=-1).astype(gains.dtype)
