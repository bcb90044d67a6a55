"""Readers for the BEIR format, and for a user's own documents.

A BEIR folder holds

  corpus.jsonl        {"_id", "title"?, "text"} a line
  queries.jsonl       {"_id", "text"} a line
  qrels/<split>.tsv   header, then query-id, corpus-id, score; tab separated

Reference: Thakur et al. (2021), BEIR.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

from nnn_jax.data import records

PathLike = str | os.PathLike[str]

# A validation split that a data set lacks is this share of its training split.
VALIDATION_SHARE = 0.2
# Names other data sets give to the splits.
_SPLIT_FILES = {
  "train": ("train.tsv",),
  "validation": ("validation.tsv", "dev.tsv"),
  "test": ("test.tsv",),
}


def read_jsonl(path: PathLike) -> Iterator[tuple[int, dict[str, Any]]]:
  """Yields (line number from 1, object) of a JSON-lines file.

  Raises:
    ValueError: a line is not a JSON object; the message names file and line.
  """
  with open(path, encoding="utf-8") as lines:
    for number, line in enumerate(lines, start=1):
      if not line.strip():
        continue
      try:
        row = json.loads(line)
      except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {number}: not JSON ({error})") from None
      if not isinstance(row, dict):
        raise ValueError(f"{path}, line {number}: expected a JSON object")
      yield number, row


def text_field(row: dict[str, Any], names: tuple[str, ...], where: str) -> str:
  """The entry of the first of these names; an error says `where`."""
  for name in names:
    if name in row:
      return str(row[name])
  raise ValueError(f"{where}: no {' or '.join(map(repr, names))}")


def read_corpus(path: PathLike) -> list[records.Document]:
  """Reads {"_id" | "id", "title"?, "text"} lines; the title leads the text."""
  corpus = []
  for number, row in read_jsonl(path):
    where = f"{path}, line {number}"
    text = text_field(row, ("text",), where)
    title = str(row.get("title") or "")
    doc_id = text_field(row, ("_id", "id"), where)
    corpus.append(records.Document(doc_id, f"{title} {text}".strip()))
  return corpus


def read_queries(path: PathLike) -> list[records.Query]:
  """Reads {"_id" | "id", "text"} lines as queries without labels."""
  queries = []
  for number, row in read_jsonl(path):
    where = f"{path}, line {number}"
    query_id = text_field(row, ("_id", "id"), where)
    queries.append(
      records.Query(query_id, text_field(row, ("text",), where), ())
    )
  return queries


def read_qrels(path: PathLike) -> dict[str, list[str]]:
  """Reads labels as {query id: document ids}, repeated ones included.

  A score of zero or less says "not relevant" and is skipped.

  Raises:
    ValueError: a row has not three columns, or its score is no number.
  """
  qrels: dict[str, list[str]] = {}
  with open(path, encoding="utf-8") as lines:
    next(lines, None)  # The header.
    for number, line in enumerate(lines, start=2):
      if not line.strip():
        continue
      try:
        query_id, doc_id, score = line.rstrip("\r\n").split("\t")
        relevant = float(score) > 0
      except ValueError:
        raise ValueError(
          f"{path}, line {number}: expected query-id, corpus-id and a score, "
          f"tab separated; got {line.strip()!r}"
        ) from None
      if relevant:
        qrels.setdefault(query_id, []).append(doc_id)
  return qrels


def attach_labels(
  queries: list[records.Query], qrels: dict[str, list[str]]
) -> list[records.Query]:
  """The queries that `qrels` judges, with their labels, in file order."""
  return [
    q._replace(relevant=tuple(qrels[q.id])) for q in queries if q.id in qrels
  ]


def read_folder(folder: PathLike, *, seed: int = 0) -> records.Source:
  """Reads a BEIR folder; carves a missing validation split from train.

  Args:
    folder: directory with corpus.jsonl, queries.jsonl and qrels/.
    seed: of the carved validation split (a fifth of train).

  Raises:
    FileNotFoundError: a file is missing, or no qrels file is there.
    ValueError: a line cannot be read; file and line are named.
  """
  folder = pathlib.Path(folder)
  for name in ("corpus.jsonl", "queries.jsonl"):
    if not (folder / name).is_file():
      raise FileNotFoundError(
        f"{folder} has no {name}: a BEIR folder holds corpus.jsonl, "
        "queries.jsonl and qrels/{train,validation,test}.tsv"
      )
  files = {
    split: folder / "qrels" / name
    for split, names in _SPLIT_FILES.items()
    for name in names
    if (folder / "qrels" / name).is_file()
  }
  if not files:
    raise FileNotFoundError(
      f"{folder / 'qrels'} has none of train.tsv, validation.tsv, test.tsv"
    )
  return assemble(
    read_corpus(folder / "corpus.jsonl"),
    read_queries(folder / "queries.jsonl"),
    {split: read_qrels(path) for split, path in files.items()},
    seed=seed,
  )


def assemble(
  corpus: list[records.Document],
  queries: list[records.Query],
  qrels: dict[str, dict[str, list[str]]],
  *,
  seed: int,
) -> records.Source:
  """Joins corpus, queries and labels by split; carves validation if missing."""
  splits = {s: attach_labels(queries, labels) for s, labels in qrels.items()}
  judged = set().union(*qrels.values())
  metadata: dict[str, Any] = {
    "unjudged_queries": sum(q.id not in judged for q in queries),
    "labels_of_unknown_queries": len(judged - {q.id for q in queries}),
  }
  if "train" in splits and "validation" not in splits:
    size = int(VALIDATION_SHARE * len(splits["train"]))
    splits["train"], splits["validation"] = records.hold_out(
      splits["train"], size, seed
    )
    metadata["split_seed"] = seed
  return records.Source(corpus, splits, metadata)


def read_documents(path: PathLike) -> tuple[list[str], list[str]]:
  """Reads a user's own documents: JSON lines, or one text a line.

  A file named *.jsonl or *.json holds {"_id" | "id", "title"?, "text"} a line;
  any other file one document a line, whose id is its line number.

  Returns:
    (ids, texts), in file order.

  Raises:
    ValueError: no document, an empty text, an id that repeats, or a line that
      cannot be read; the message names the line.
  """
  path = pathlib.Path(path)
  if path.suffix in (".jsonl", ".json"):
    numbers = [number for number, _ in read_jsonl(path)]
    corpus = read_corpus(path)
  else:
    lines = path.read_text(encoding="utf-8").splitlines()
    numbers = [n for n, line in enumerate(lines, start=1) if line.strip()]
    corpus = [records.Document(str(n), lines[n - 1].strip()) for n in numbers]
  if not corpus:
    raise ValueError(f"{path} holds no document")
  first: dict[str, int] = {}
  for number, doc in zip(numbers, corpus, strict=True):
    if not doc.id.strip() or not doc.text.strip():
      raise ValueError(f"{path}, line {number}: empty id or text")
    if doc.id in first:
      raise ValueError(
        f"{path}, line {number}: id {doc.id!r} repeats line {first[doc.id]}"
      )
    first[doc.id] = number
  return [doc.id for doc in corpus], [doc.text for doc in corpus]
