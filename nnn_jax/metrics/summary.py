"""Many metrics of many queries, their means and intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from nnn_jax.metrics import common, relevance

Array = common.Array


class Interval(NamedTuple):
  """A mean with its percentile interval."""

  mean: float
  low: float
  high: float


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
    "recall": relevance.recall,
    "comp": relevance.completeness,
    "hit": relevance.hit_rate,
    "precision": relevance.precision,
    "ndcg": relevance.ndcg,
  }
  values = {
    f"{name}@{k}": metric(indices, labels, k=k, where=where)
    for name, metric in named.items()
    for k in ks
  }
  return values | {"mrr": relevance.mrr(indices, labels, where=where)}


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
  is_relevant = jnp.asarray(labels) > 0
  if where is not None:
    is_relevant &= jnp.asarray(where)
  counted = is_relevant.any(axis=-1)
  num_queries = counted.sum()
  means = {
    name: common.ratio(
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
