"""Pure retrieval metrics over rankings, one value a query.

Metrics read the rows a decoder returned, best first, and not its scores: MMR
scores are not monotone in rank, and decoders break ties by row, so sorting
scores again would rank other documents than the decoder did.

  metric(indices, labels, *, k, where=None) -> [...]

  indices  [..., num_retrieved] int, corpus rows, best first; -1 is a missing
           place, and a miss
  labels   [..., num_docs] bool, or grades >= 0; relevant means > 0
  where    [..., num_docs] bool, the documents that exist (None: all)
  returns  [...], float32 or the wider dtype of labels
  raises   ValueError while tracing: shapes that do not fit, or a k that is not
           in 1..num_retrieved

Below, S is the relevant set of a query. A row outside `where` is a miss that
takes its place in the ranking; a row listed twice counts once, at its first
place. A query without relevant documents has value 0 everywhere and must be
left out of a mean, as trec_eval does: `evaluate` does so, and counts them.

All functions can be jitted (with `k` and `ks` static), `bootstrap_interval`
excepted.

References:
  trec_eval 9 (recall, precision, nDCG, reciprocal rank: the values agree).
  Non-negative Elastic Net Decoding for Information Retrieval, arXiv 2606.17910
  (2026): Recall@k and Comp@k.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from nnn_jax import types
from nnn_jax.core import linalg

Array = types.Array


class Interval(NamedTuple):
  """A mean with its percentile interval."""

  mean: float
  low: float
  high: float


def recall(
  indices: Array, labels: Array, *, k: int, where: Array | None = None
) -> jax.Array:
  """|S in the top k| / |S|.

  >>> from nnn_jax import metrics
  >>> labels = jnp.array([True, False, True, False])
  >>> print(metrics.recall(jnp.array([2, 1, 0]), labels, k=2))
  0.5
  """
  gains, labels = _gains(indices, labels, k, where)
  return _ratio(_count(gains), _count(labels))


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
  gains, labels = _gains(indices, labels, k, where)
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
  gains, _ = _gains(indices, labels, k, where)
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
  gains, _ = _gains(indices, labels, k, where)
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
  gains, _ = _gains(indices, labels, k, where)
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
  gains, labels = _gains(indices, labels, k, where)
  ideal, _ = jax.lax.top_k(labels, min(k, labels.shape[-1]))
  return _ratio(_dcg(gains), _dcg(ideal))


def ilad(indices: Array, corpus: Array, *, k: int) -> jax.Array:
  """Intra-list average distance: mean pairwise 1 - cosine of the first k.

    2 / (n (n - 1)) sum_{i < j} (1 - cos(u_i, u_j))

  over the n places of the top k that are not missing; 0 for n < 2. A zero row
  has cosine 0 with every other.

  Source: Zhang and Hurley (2008), Avoiding monotony.

  Args:
    indices: `[..., num_retrieved]` corpus rows, -1 missing.
    corpus: `[num_docs, dim]`, of any length of row.
    k: how many places to read.

  Returns:
    `[...]`.

  Raises:
    ValueError: if `corpus` is not a matrix or `k` is out of range.

  >>> from nnn_jax import metrics
  >>> print(metrics.ilad(jnp.array([0, 1]), jnp.eye(2), k=2))
  1.0
  """
  indices, corpus = jnp.asarray(indices), jnp.asarray(corpus)
  if corpus.ndim != 2:
    raise ValueError(
      f"corpus must be [num_docs, dim], got shape {corpus.shape}."
    )
  indices = _top(indices, k, "indices")
  if corpus.shape[0] == 0:  # Nothing to gather from: every place is a miss.
    return jnp.zeros(indices.shape[:-1], linalg.compute_dtype(corpus))
  found = (indices >= 0) & (indices < corpus.shape[0])
  rows = linalg.normalize(corpus[jnp.where(found, indices, 0)])
  cosine = linalg.matmul(rows, jnp.swapaxes(rows, -1, -2))  # [..., k, k]
  pairs = found[..., :, None] & found[..., None, :]
  pairs &= jnp.broadcast_to(~jnp.eye(k, dtype=bool), pairs.shape)
  total = jnp.where(pairs, 1.0 - cosine, 0.0).sum(axis=(-2, -1))
  return _ratio(total, pairs.sum(axis=(-2, -1)).astype(total.dtype))


def overlap(indices: Array, other: Array, *, k: int) -> jax.Array:
  """|top k of one ranking, in the top k of the other| / k.

  Missing places are common to nobody.

  Args:
    indices: `[..., num_retrieved]` corpus rows, -1 missing.
    other: the same, of another decoder; only the last axis may differ.
    k: how many places to read.

  Returns:
    `[...]`.

  Raises:
    ValueError: if the leading axes differ or `k` is out of range.

  >>> from nnn_jax import metrics
  >>> print(metrics.overlap(jnp.array([4, 2, 7]), jnp.array([2, 5, 4]), k=2))
  0.5
  """
  indices, other = jnp.asarray(indices), jnp.asarray(other)
  _check_leading("other", other, "indices", indices)
  indices, other = _top(indices, k, "indices"), _top(other, k, "other")
  counts = (indices >= 0) & ~_repeated(indices)
  common = (indices[..., :, None] == other[..., None, :]).any(axis=-1)
  return (counts & common).sum(axis=-1).astype(jnp.float32) / k


def p_mrr(indices: Array, changed_indices: Array, changed: Array) -> jax.Array:
  """How far the documents that an instruction turned irrelevant fall.

  With r and r' the ranks of such a document without and with the change, from
  1, one more than num_retrieved where it is not in the list,

    p-MRR = mean over changed documents of
              1 - r / r'  where r' > r,  else  r' / r - 1

  from -1 (to the top) to 1; 0 where the order is the same.

  Source: Weller et al. (2024), FollowIR, arXiv 2403.15246.

  Args:
    indices: `[..., num_retrieved]`, for the original instruction; -1 is none.
    changed_indices: Likewise for the changed one.
    changed: `[..., num_docs]` bool, the documents whose relevance changed.

  Returns:
    `[...]`; 0 for a query without such a document.

  >>> before, after = jnp.asarray([0, 1]), jnp.asarray([1, 0])
  >>> print(p_mrr(before, after, jnp.asarray([True, False])))
  0.5
  """
  changed = jnp.asarray(changed)
  ranks = []
  for name, given in {
    "indices": indices,
    "changed_indices": changed_indices,
  }.items():
    rows = jnp.asarray(given)
    _check_leading("changed", changed, name, rows)
    num = rows.shape[-1]
    places = jnp.arange(1, num + 1, dtype=jnp.float32)
    # By scatter: no array of places times documents.
    flat = jnp.where(rows < 0, changed.shape[-1], rows).reshape(-1, num)
    absent = jnp.full((flat.shape[0], changed.shape[-1]), num + 1.0)
    rank = jax.vmap(lambda r, f, p=places: r.at[f].min(p, mode="drop"))(
      absent, flat
    )
    ranks.append(rank.reshape(changed.shape))
  before, after = ranks
  change = jnp.where(after > before, 1 - before / after, after / before - 1)
  total = jnp.where(changed, change, 0.0).sum(axis=-1)
  return _ratio(total, changed.sum(axis=-1).astype(total.dtype))


def per_query(
  indices: Array,
  labels: Array,
  *,
  ks: Sequence[int] = (1, 3, 5, 10),
  where: Array | None = None,
) -> dict[str, jax.Array]:
  """Every metric of every query, for intervals and for grouping queries.

  Returns:
    `[...]` arrays under "recall@5", "comp@5", "hit@5", "precision@5",
    "ndcg@5" (for every k in `ks`) and "mrr" (over the whole ranking).

  >>> from nnn_jax import metrics
  >>> labels = jnp.array([[True, False, True], [False, True, False]])
  >>> indices = jnp.array([[2, 1], [1, 0]])
  >>> print(metrics.per_query(indices, labels, ks=(1,))["recall@1"])
  [0.5 1. ]
  """
  named = {
    "recall": recall,
    "comp": completeness,
    "hit": hit_rate,
    "precision": precision,
    "ndcg": ndcg,
  }
  values = {
    f"{name}@{k}": metric(indices, labels, k=k, where=where)
    for name, metric in named.items()
    for k in ks
  }
  return values | {"mrr": mrr(indices, labels, where=where)}


def evaluate(
  indices: Array,
  labels: Array,
  *,
  ks: Sequence[int] = (1, 3, 5, 10),
  where: Array | None = None,
) -> dict[str, jax.Array]:
  """Means of `per_query` over the queries with a relevant document.

  Returns:
    Scalars under the names of `per_query`, and two counts: "num_queries", the
    queries the means are over, and "num_without_relevant", those left out. If
    no query is left the means are 0: look at "num_queries".

  Raises:
    ValueError: as every metric; the default `ks` need 10 places.

  >>> from nnn_jax import metrics
  >>> labels = jnp.array([[True, False, True], [False, False, False]])
  >>> indices = jnp.array([[2, 1], [1, 0]])
  >>> result = metrics.evaluate(indices, labels, ks=(1, 2))
  >>> print(result["recall@2"], result["num_queries"])
  0.5 1
  """
  values = per_query(indices, labels, ks=ks, where=where)
  relevant = jnp.asarray(labels) > 0
  if where is not None:
    relevant &= jnp.asarray(where)
  counted = relevant.any(axis=-1)
  num_queries = counted.sum()
  means = {
    name: _ratio(
      jnp.where(counted, value, 0.0).sum(), num_queries.astype(value.dtype)
    )
    for name, value in values.items()
  }
  return means | {
    "num_queries": num_queries,
    "num_without_relevant": (~counted).sum(),
  }


def bootstrap_interval(
  values: npt.ArrayLike,
  *,
  seed: int = 0,
  num_samples: int = 2000,
  level: float = 0.95,
) -> Interval:
  """Percentile bootstrap interval of a mean; numpy, on the host.

  Queries are drawn with replacement `num_samples` times; the interval holds
  the middle `level` of the means drawn.

  Source: Efron and Tibshirani (1993), chapter 13.

  Args:
    values: `[num_queries]`, for instance `per_query(...)["comp@5"]` of the
      queries with relevant documents, or a difference of two decoders.
    seed: the same seed gives the same interval.
    num_samples: how many means are drawn.
    level: in (0, 1).

  Raises:
    ValueError: if `values` is empty, not one-dimensional or not finite, or an
      option is out of range.

  >>> from nnn_jax import metrics
  >>> metrics.bootstrap_interval([1.0, 1.0, 1.0])
  Interval(mean=1.0, low=1.0, high=1.0)
  """
  data = np.asarray(values, np.float64)
  if data.ndim != 1 or data.size == 0:
    raise ValueError(
      f"values must be [num_queries] and not empty, got shape {data.shape}."
    )
  if not np.isfinite(data).all():
    row = int(np.argmin(np.isfinite(data)))
    raise ValueError(f"values[{row}] is {data[row]}; all must be finite.")
  if num_samples < 1 or not 0.0 < level < 1.0:
    raise ValueError(
      "num_samples must be at least 1 and level in (0, 1), got "
      f"{num_samples} and {level}."
    )
  rng = np.random.default_rng(seed)
  # In pieces: all draws at once are num_samples x num_queries numbers.
  piece = max(1, 1_000_000 // data.size)
  means = np.concatenate([
    data[rng.integers(data.size, size=(min(piece, num_samples - i), data.size))]
    .mean(axis=1)
    for i in range(0, num_samples, piece)
  ])  # fmt: skip
  tail = 50.0 * (1.0 - level)
  low, high = np.percentile(means, [tail, 100.0 - tail])
  return Interval(float(data.mean()), float(low), float(high))


def _gains(
  indices: Array, labels: Array, k: int | None, where: Array | None
) -> tuple[jax.Array, jax.Array]:
  """Grades at the first k places, and all grades; both >= 0 and masked."""
  indices, labels = jnp.asarray(indices), jnp.asarray(labels)
  if labels.ndim < 1:
    raise ValueError("labels must be [..., num_docs], got a scalar.")
  dtype = linalg.compute_dtype(labels)
  labels = jnp.maximum(labels.astype(dtype), 0.0)
  if where is not None:
    where = jnp.asarray(where)
    if where.shape != labels.shape or where.dtype != jnp.bool_:
      raise ValueError(
        f"where has shape {where.shape} and dtype {where.dtype} but labels has "
        f"shape {labels.shape}; where must be bool and of the shape of labels "
        "(spread a shared mask with jnp.broadcast_to)."
      )
    labels = jnp.where(where, labels, 0.0)
  _check_leading("labels", labels, "indices", indices)
  indices = _top(indices, k, "indices")
  num_docs = labels.shape[-1]
  if num_docs == 0:  # Nothing to gather from: every place is a miss.
    return jnp.zeros(indices.shape, dtype), labels
  found = (indices >= 0) & (indices < num_docs) & ~_repeated(indices)
  rows = jnp.where(found, indices, 0)
  gains = jnp.take_along_axis(labels, rows, axis=-1)
  return jnp.where(found, gains, 0.0), labels


def _top(indices: jax.Array, k: int | None, name: str) -> jax.Array:
  """The first k places, after checking that they are there."""
  if indices.ndim < 1 or not jnp.issubdtype(indices.dtype, jnp.integer):
    raise ValueError(
      f"{name} must be an integer array [..., num_retrieved] of ranked corpus "
      f"rows (not scores), got shape {indices.shape} and dtype {indices.dtype}."
    )
  num_retrieved = indices.shape[-1]
  k = num_retrieved if k is None else k
  if k > num_retrieved or k < min(1, num_retrieved):
    raise ValueError(
      f"k={k} must be between 1 and num_retrieved={num_retrieved}, the last "
      f"axis of {name}; retrieve more documents or ask for a smaller k."
    )
  return indices[..., :k]


def _check_leading(
  name: str, array: jax.Array, other_name: str, other: jax.Array
) -> None:
  if array.shape[:-1] != other.shape[:-1] or array.ndim != other.ndim:
    raise ValueError(
      f"{name} has shape {array.shape} but {other_name} has shape "
      f"{other.shape}; all axes but the last must be equal."
    )


def _repeated(indices: jax.Array) -> jax.Array:
  """True where the same row stands at an earlier place."""
  same = indices[..., :, None] == indices[..., None, :]
  earlier = np.tri(indices.shape[-1], k=-1, dtype=bool)  # [place, earlier]
  return (same & jnp.broadcast_to(earlier, same.shape)).any(axis=-1)


def _ranks(gains: jax.Array) -> jax.Array:
  ranks = jnp.arange(1, gains.shape[-1] + 1, dtype=gains.dtype)
  return jnp.broadcast_to(ranks, gains.shape)


def _dcg(gains: jax.Array) -> jax.Array:
  return (gains / jnp.log2(_ranks(gains) + 1.0)).sum(axis=-1)


def _count(gains: jax.Array) -> jax.Array:
  return (gains > 0).sum(axis=-1).astype(gains.dtype)


def _ratio(numerator: jax.Array, denominator: jax.Array) -> jax.Array:
  """The ratio, and 0 where the denominator is 0."""
  empty = denominator == 0
  return jnp.where(empty, 0.0, numerator / jnp.where(empty, 1.0, denominator))
