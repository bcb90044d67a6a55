"""Readers for files of TREC: graded judgements, and tables with tabs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from nnn_jax.data import records, teacher_scores

PathLike = str | os.PathLike[str]


def read_qrels(path: PathLike) -> dict[str, dict[str, int]]:
  """Reads `query iteration document grade` lines, compressed or not.

  Returns:
    {query id: {document id: grade}} with grades above 0; a query judged without
    a relevant document has an empty entry. Of a pair judged twice the last
    grade counts, as in trec_eval.

  Raises:
    ValueError: A line has not four columns, or its grade is no whole number;
      the message names file and line.
  """
  qrels: dict[str, dict[str, int]] = {}
  with teacher_scores.open_text(path) as lines:
    for number, line in enumerate(lines, start=1):
      if not line.strip():
        continue
      try:
        query_id, _, doc_id, text = line.split()
        grade = int(text)
      except ValueError:
        raise ValueError(
          f"{path}, line {number}: expected query, iteration, document and a "
          f"whole grade; got {line.strip()!r}"
        ) from None
      judged = qrels.setdefault(query_id, {})
      judged.pop(doc_id, None)
      if grade > 0:
        judged[doc_id] = grade
  return qrels


def read_pairs(path: PathLike) -> Iterator[tuple[str, str]]:
  """Yields (id, text) of lines with one tab.

  Raises:
    ValueError: A line has no tab or several, or an empty id or text; the
      message names file and line.
  """
  with teacher_scores.open_text(path) as lines:
    for number, line in enumerate(lines, start=1):
      if not line.strip():
        continue
      columns = [part.strip() for part in line.rstrip("\r\n").split("\t")]
      if len(columns) != 2 or not all(columns):
        raise ValueError(
          f"{path}, line {number}: expected an id and a text with a tab "
          f"between; got {line.strip()[:80]!r}"
        )
      yield columns[0], columns[1]


def judge(
  queries: Sequence[tuple[str, str]], qrels: dict[str, dict[str, int]]
) -> list[records.Query]:
  """The (id, text) queries that are judged, with documents and grades.

  >>> judge([("1", "a"), ("2", "b")], {"2": {"d": 3, "e": 1}})
  [Query(id='2', text='b', relevant=('d', 'e'), grades=(3, 1))]
  """
  return [
    records.Query(name, text, tuple(qrels[name]), tuple(qrels[name].values()))
    for name, text in queries
    if name in qrels
  ]
