"""Files of a teacher's scores, and of mined negatives without any.

  *.jsonl  {"query": {"id"}, "items": [{"id", "score"?}]} a line: the training
           data of the Hypencoder
  *.tsv    positive's score, negative's score, query, positive, negative: the
           scores of Hofstaetter et al. for MarginMSE
  *.tsv    query, positive, negative: the triples of MS MARCO

Columns are separated by tabs; a name may end in ".gz".

References: arXiv 2502.05364; arXiv 2010.02666.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any, TextIO

PathLike = str | os.PathLike[str]


def read(path: PathLike) -> Iterator[tuple[str, str, float]]:
  """Yields (query id, document id, score); NaN where there is no score.

  Raises:
    ValueError: A line cannot be read; the message names file and line.
  """
  name = str(path).removesuffix(".gz")
  if not name.endswith((".jsonl", ".tsv")):
    raise ValueError(f"{path}: expected a .jsonl or .tsv file of scores.")
  parse = _json_line if name.endswith(".jsonl") else _columns
  with open_text(path) as lines:
    for number, line in enumerate(lines, start=1):
      if not line.strip():
        continue
      try:
        pairs = parse(line)
      except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
          f"{path}, line {number}: cannot be read ({error!r}); got "
          f"{line.strip()[:80]!r}"
        ) from None
      yield from pairs


def open_text(path: PathLike) -> TextIO:
  """Opens a text file, compressed or not."""
  if pathlib.Path(path).suffix == ".gz":
    return io.TextIOWrapper(gzip.open(path), encoding="utf-8")
  return open(path, encoding="utf-8")


def _json_line(line: str) -> list[tuple[str, str, float]]:
  row: dict[str, Any] = json.loads(line)
  query = str(row["query"]["id"])
  return [
    (query, str(item["id"]), float(item.get("score", "nan")))
    for item in row["items"]
  ]


def _columns(line: str) -> list[tuple[str, str, float]]:
  columns = line.rstrip("\r\n").split("\t")
  if len(columns) not in (3, 5):
    raise ValueError(f"{len(columns)} columns, expected 3 or 5")
  query, *documents = columns[-3:]
  scores = columns[:-3] or ["nan", "nan"]
  return [
    (query, document, float(score))
    for document, score in zip(documents, scores, strict=True)
  ]
