"""Documents and labelled queries as plain Python, and how they are cleaned.

Nothing here knows a file format or a data framework: readers produce a
`Source`, `clean` repairs it and counts every repair, and a builder stores it.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

# Order in which splits are stored and printed; other names follow, as given.
SPLIT_ORDER = ("train", "validation", "test")


class Document(NamedTuple):
  """One row of the corpus."""

  id: str
  text: str


class Query(NamedTuple):
  """A request and the ids of the documents that together answer it.

  Attributes:
    grades: of the relevant documents, above 0; empty where all are alike.
  """

  id: str
  text: str
  relevant: tuple[str, ...]
  grades: tuple[int, ...] = ()


@dataclasses.dataclass
class Source:
  """A retrieval data set as read: corpus, queries by split, facts about it."""

  corpus: list[Document]
  splits: dict[str, list[Query]]
  metadata: dict[str, Any] = dataclasses.field(default_factory=dict)


def seeded_order(items: Iterable[T], seed: int, key=lambda item: item.id):
  """Sorts items pseudo-randomly by a hash of the seed and their key.

  Unlike a generator's `shuffle`, the order depends on no library version, and
  an item keeps its place relative to the others when some are removed.

  >>> seeded_order(["a", "b", "c", "d"], seed=0, key=str)
  ['d', 'a', 'c', 'b']
  """

  def digest(item: T) -> bytes:
    return hashlib.sha256(f"{seed}:{key(item)}".encode()).digest()

  return sorted(items, key=digest)


def hold_out(
  queries: Sequence[Query], size: int, seed: int
) -> tuple[list[Query], list[Query]]:
  """Splits off `size` seeded queries: (rest, held out), both in file order."""
  held = {q.id for q in seeded_order(queries, seed)[:size]}
  return (
    [q for q in queries if q.id not in held],
    [q for q in queries if q.id in held],
  )


def three_way(
  queries: Sequence[Query], validation: float, test: float, seed: int
) -> dict[str, list[Query]]:
  """Seeded train, validation and test splits by share (rounded down)."""
  rest, held = hold_out(queries, int(test * len(queries)), seed)
  train, valid = hold_out(rest, int(validation * len(queries)), seed)
  return {"train": train, "validation": valid, "test": held}


def clean(source: Source) -> tuple[Source, dict[str, int]]:
  """Repairs the faults that published data sets have, and counts them.

  Returns:
    The repaired source, its splits in `SPLIT_ORDER` and without empty ones,
    and the number of each repair:
      duplicate_documents_removed: corpus rows whose id came before.
      duplicate_texts_kept: documents whose text came before under another id;
        they stay, for labels may name either.
      duplicate_pairs_removed: repeated (query, document) labels.
      unknown_pairs_removed: labels that name no document of the corpus.
      duplicate_queries_removed: queries whose id came before in any split.
      unlabelled_queries_dropped: queries left without a relevant document.

  Raises:
    ValueError: an id or a document text is empty, or there is no document.
  """
  counts = dict.fromkeys(
    (
      "duplicate_documents_removed",
      "duplicate_texts_kept",
      "duplicate_pairs_removed",
      "unknown_pairs_removed",
      "duplicate_queries_removed",
      "unlabelled_queries_dropped",
    ),
    0,
  )
  corpus: dict[str, Document] = {}
  texts: set[str] = set()
  for row, doc in enumerate(source.corpus):
    if not doc.id.strip():
      raise ValueError(f"corpus row {row} has an empty id")
    if not doc.text.strip():
      raise ValueError(f"corpus row {row} (id {doc.id!r}) has an empty text")
    if doc.id in corpus:
      counts["duplicate_documents_removed"] += 1
      continue
    counts["duplicate_texts_kept"] += doc.text in texts
    corpus[doc.id] = doc
    texts.add(doc.text)
  if not corpus:
    raise ValueError("the corpus is empty: expected at least one document")

  seen: set[str] = set()
  splits: dict[str, list[Query]] = {}
  for split in _ordered(source.splits):
    kept = []
    for row, query in enumerate(source.splits[split]):
      if not query.id.strip():
        raise ValueError(f"query row {row} of split {split!r} has an empty id")
      if query.id in seen:
        counts["duplicate_queries_removed"] += 1
        continue
      seen.add(query.id)
      distinct = tuple(dict.fromkeys(query.relevant))
      known = tuple(i for i in distinct if i in corpus)
      counts["duplicate_pairs_removed"] += len(query.relevant) - len(distinct)
      counts["unknown_pairs_removed"] += len(distinct) - len(known)
      grades = query.grades
      if grades:
        grade = dict(zip(query.relevant, grades, strict=True))
        grades = tuple(grade[i] for i in known)
      if known and query.text.strip():
        kept.append(query._replace(relevant=known, grades=grades))
      else:
        counts["unlabelled_queries_dropped"] += 1
    if kept:
      splits[split] = kept
  return Source(list(corpus.values()), splits, source.metadata), counts


def _ordered(splits: Mapping[str, Any]) -> list[str]:
  first = [name for name in SPLIT_ORDER if name in splits]
  return first + [name for name in splits if name not in SPLIT_ORDER]
