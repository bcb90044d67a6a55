"""Documents that a teacher proposes for the queries of a training split.

They are the mined negatives of a stage, and the scores that it distils.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from nnn_jax import retriever
from nnn_jax.data import pipeline


class Candidates(NamedTuple):
  """Documents and a teacher's scores, query by query.

  Attributes:
    rows: `[num_queries, num]` int32 corpus rows; -1 where fewer.
    scores: `[num_queries, num]` float32.
  """

  rows: np.ndarray
  scores: np.ndarray

  def score_of(self, queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The scores of one document a query, `[batch]`; NaN where unknown."""
    same = (self.rows[queries] == rows[:, None]) & (rows[:, None] >= 0)
    place = same.argmax(axis=1)
    return np.where(same.any(axis=1), self.scores[queries, place], np.nan)

  def draw(
    self,
    queries: np.ndarray,
    relevant: np.ndarray,
    num: int,
    rng: np.random.Generator,
  ) -> tuple[np.ndarray, np.ndarray]:
    """Irrelevant documents of some queries, at random without repetition.

    Args:
      queries: `[batch]` rows of the split.
      relevant: `[batch, max_relevant]` corpus rows; -1 where fewer.
      num: Documents a query.
      rng: Of the draw.

    Returns:
      (rows, scores), `[batch, num]`; -1 and NaN where there are fewer.

    >>> some = Candidates(np.asarray([[4, 7, -1]]), np.asarray([[2.0, 1.0, 0]]))
    >>> some.draw(
    ...   np.asarray([0]), np.asarray([[7]]), 2, np.random.default_rng(0)
    ... )
    (array([[ 4, -1]]), array([[ 2., nan]]))
    """
    rows, scores = self.rows[queries], self.scores[queries]
    usable = (rows >= 0) & ~(rows[:, :, None] == relevant[:, None, :]).any(2)
    order = np.argsort(np.where(usable, rng.random(rows.shape), 2.0), axis=1)
    order = order[:, :num]
    rows, scores, usable = (
      np.take_along_axis(x, order, axis=1) for x in (rows, scores, usable)
    )
    missing = [(0, 0), (0, num - rows.shape[1])]
    return (
      np.pad(np.where(usable, rows, -1), missing, constant_values=-1),
      np.pad(np.where(usable, scores, np.nan), missing, constant_values=np.nan),
    )


def from_decoder(
  decode: Callable[..., Any],
  params: Any,
  queries: Any,
  corpus: Any,
  *,
  num: int,
  config: Any,
) -> Candidates:
  """What a trained retriever ranks first; arguments as `retriever.retrieve`."""
  result = retriever.retrieve(
    decode, params, queries, corpus, k=num, config=config
  )
  return Candidates(
    np.asarray(result.indices, np.int32), np.asarray(result.scores, np.float32)
  )


def from_scores(
  scores: Iterable[tuple[str, str, float]],
  queries: pipeline.Queries,
  doc_ids: Sequence[str],
) -> Candidates:
  """From (query id, document id, score), as a file of a teacher has them.

  Queries and documents that the data set has not are passed over; of a pair
  that comes twice the last score counts.

  Raises:
    ValueError: If none is of a query and a document of the data set.
  """
  query_row = {name: row for row, name in enumerate(queries.ids)}
  doc_row = {name: row for row, name in enumerate(doc_ids)}
  found: list[dict[int, float]] = [{} for _ in queries.ids]
  for query_id, doc_id, score in scores:
    if query_id in query_row and doc_id in doc_row:
      found[query_row[query_id]][doc_row[doc_id]] = score
  num = max(map(len, found), default=0)
  if not num:
    raise ValueError(
      "the teacher's scores are of no query and document of the data set: "
      "take the file that belongs to it."
    )
  result = Candidates(
    np.full((len(found), num), -1, np.int32),
    np.zeros((len(found), num), np.float32),
  )
  for row, pairs in enumerate(found):
    result.rows[row, : len(pairs)] = list(pairs)
    result.scores[row, : len(pairs)] = list(pairs.values())
  return result
