"""How good an answer is, in float64 and apart from the code measured."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_BLOCK = 65536


class Sparse(NamedTuple):
  """One query's weights: `rows` of the corpus and their `values`."""

  rows: np.ndarray
  values: np.ndarray

  @classmethod
  def of(cls, weights: np.ndarray) -> Sparse:
    """From `[num_docs]` weights."""
    rows = np.flatnonzero(weights)
    return cls(rows, weights[rows])


class Quality(NamedTuple):
  """One entry a query of each; `nnn_jax.solvers.elastic_net` defines them."""

  objective: list[float]
  kkt_violation: list[float]
  support_size: list[int]


def evaluate(
  queries: np.ndarray,
  corpus: np.ndarray,
  weights: list[Sparse],
  *,
  l1: float,
  l2: float,
) -> Quality:
  """Objective and KKT violation of each query's weights.

  Args:
    queries: `[batch, dim]`.
    corpus: `[num_docs, dim]`.
    weights: `[batch]`.
    l1: Penalty.
    l2: Penalty.

  >>> answer = [Sparse(np.array([0]), np.array([0.8]))]
  >>> quality = evaluate(np.eye(1, 2), np.eye(2), answer, l1=0.1, l2=0.1)
  >>> [round(values[0], 4) for values in quality]
  [0.132, 0.02, 1]
  """
  residuals = np.asarray(queries, np.float64).copy()
  objective = []
  for residual, (rows, values) in zip(residuals, weights, strict=True):
    values = values.astype(np.float64)
    residual -= values @ corpus[rows].astype(np.float64)
    penalty = l1 * values.sum() + 0.5 * l2 * values @ values
    objective.append(float(0.5 * residual @ residual + penalty))

  violation = np.zeros(len(residuals))
  for start in range(0, len(corpus), _BLOCK):
    block = corpus[start : start + _BLOCK].astype(np.float64)
    excess = residuals @ block.T - l1
    for i, (rows, values) in enumerate(weights):
      inside = (rows >= start) & (rows < start + len(block))
      at = rows[inside] - start
      on_support = np.abs(excess[i, at] - l2 * values[inside])
      excess[i, at] = on_support
      violation[i] = max(violation[i], excess[i].max())
  sizes = [int((values > 0).sum()) for _, values in weights]
  return Quality(objective, violation.tolist(), sizes)


def agreement(
  queries: np.ndarray, corpus: np.ndarray, indices: np.ndarray
) -> float:
  """The share of `indices` `[batch, k]` that are among the float64 top k."""
  k = indices.shape[1]
  hits = 0
  for query, found in zip(queries.astype(np.float64), indices, strict=True):
    scores = np.concatenate(
      [
        corpus[start : start + _BLOCK].astype(np.float64) @ query
        for start in range(0, len(corpus), _BLOCK)
      ]
    )
    # A document within rounding of the k-th score may stand for it.
    floor = np.partition(scores, -k)[-k] - 1e-6
    hits += int((scores[found] >= floor).sum())
  return hits / indices.size
