"""Data sets as in-memory lists, and shuffled training batches.

The only module through which the rest of the package reads data:

  dataset = load("toollens")
  batches = train_batches(dataset.splits["train"], batch_size=64, seed=0)
  batches[step]  # {"query": int32 [batch], "positive": int32 [batch]}
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import grain
import numpy as np
import tensorflow_datasets as tfds
from absl import logging

from nnn_jax.data import beir, records

read_documents = beir.read_documents

NAMES = (
  "api_docs",
  "bfcl",
  "toollens",
  "toolbank/numpy",
  "toolbank/pandas",
  "toolbank/aws",
  "multihop_rag",
  "limit",
  "cranfield",
  "nq320k",
  "msmarco",
  "trec_tot",
  "followir",
)
_BEIR_PREFIX = "beir:"


@dataclasses.dataclass(frozen=True)
class Queries:
  """The labelled queries of one split."""

  ids: list[str]
  texts: list[str]
  relevant: list[np.ndarray]  # int32 corpus rows, sorted and distinct.
  grades: list[np.ndarray] | None = None  # Of these; None: all 1.

  def __len__(self) -> int:
    return len(self.ids)

  def labels(self, num_docs: int) -> np.ndarray:
    """Relevance as a bool array `[num_queries, num_docs]`.

    >>> Queries(["q"], ["?"], [np.array([0, 2])]).labels(3)
    array([[ True, False,  True]])
    """
    labels = np.zeros((len(self), num_docs), bool)
    for row, relevant in zip(labels, self.relevant, strict=True):
      row[relevant] = True
    return labels

  def gains(self, num_docs: int) -> np.ndarray:
    """Grades as an int32 array `[num_queries, num_docs]`; 0 is irrelevant.

    >>> some = Queries(["q"], ["?"], [np.array([0, 2])], [np.array([3, 1])])
    >>> some.gains(3)
    array([[3, 0, 1]], dtype=int32)
    """
    gains = self.labels(num_docs).astype(np.int32)
    for row, rows, grades in zip(
      gains, self.relevant, self.grades or [], strict=bool(self.grades)
    ):
      row[rows] = grades
    return gains

  def rows(self) -> np.ndarray:
    """Relevant rows, int32 `[num_queries, max_relevant]`, -1 where fewer.

    >>> Queries(["a", "b"], [""] * 2, [np.array([0, 2]), np.array([1])]).rows()
    array([[ 0,  2],
           [ 1, -1]], dtype=int32)
    """
    sizes = [len(relevant) for relevant in self.relevant]
    rows = np.full((len(self), max(sizes, default=0)), -1, np.int32)
    for row, relevant in zip(rows, self.relevant, strict=True):
      row[: len(relevant)] = relevant
    return rows


@dataclasses.dataclass(frozen=True)
class RetrievalDataset:
  """A corpus and its query splits ("train", "validation", "test", ...)."""

  name: str
  doc_ids: list[str]
  doc_texts: list[str]
  splits: dict[str, Queries]
  metadata: dict[str, Any]


def load(
  name: str,
  *,
  data_dir: str | os.PathLike[str] | None = None,
  manual_dir: str | os.PathLike[str] | None = None,
) -> RetrievalDataset:
  """Loads a data set, preparing it at first use.

  Args:
    name: one of `NAMES`, or "beir:/path/to/folder" for one's own data in the
      BEIR format (read directly, nothing is cached).
    data_dir: where prepared data is kept; by default TFDS's own directory
      ($TFDS_DATA_DIR or ~/tensorflow_datasets).
    manual_dir: folder with the original files. Without it they are downloaded
      (`api_docs` needs neither).

  Raises:
    ValueError: unknown name, empty corpus, or an empty or repeated id.
    FileNotFoundError: the original files are missing; the message says which
      and where to get them.
  """
  if name.startswith(_BEIR_PREFIX):
    return _from_beir(name)
  if name not in NAMES:
    raise ValueError(
      f"unknown data set {name!r}: expected one of {', '.join(NAMES)}, or "
      "'beir:/path/to/folder'"
    )
  builder = prepare(name, data_dir, manual_dir)
  rows = {split: _decode(builder, split) for split in builder.info.splits}
  corpus = [records.Document(q.id, q.text) for q in rows.pop("corpus")]
  metadata = dict(builder.info.metadata)
  return _to_dataset(name, records.Source(corpus, rows, metadata))


def prepare(name: str, data_dir: Any, manual_dir: Any) -> Any:
  """The TFDS builder of a data set, prepared; arguments as of `load`."""
  builder, manual = _builder(name, data_dir, manual_dir)
  if builder.is_prepared():
    logging.info("%s: reading %s", name, builder.data_path)
  else:
    logging.info("%s: preparing it in %s", name, builder.data_path)
    root = pathlib.Path(builder.data_dir_root)
    tfds.disable_progress_bar()
    builder.download_and_prepare(
      # Each data set looks for manual files in a folder of its own.
      download_dir=root / "downloads" / name,
      download_config=tfds.download.DownloadConfig(manual_dir=manual),
      file_format="array_record",
    )
  return builder


def _builder(name, data_dir, manual_dir):
  package, _, config = name.partition("/")
  module = importlib.import_module(
    f"nnn_jax.data.{package}.{package}_dataset_builder"
  )
  data_dir = pathlib.Path(data_dir or tfds.core.constants.DATA_DIR).expanduser()
  if manual_dir is not None:
    manual_dir = pathlib.Path(manual_dir).expanduser().resolve()
    if not manual_dir.is_dir() or not any(manual_dir.iterdir()):
      raise FileNotFoundError(
        f"manual_dir {manual_dir} is no directory, or empty: it should hold "
        f"the original files of {name}. "
        f"{module.Builder.MANUAL_DOWNLOAD_INSTRUCTIONS}"
      )
    # Other files mean other data: never reuse what was prepared from others.
    data_dir = data_dir / f"manual-{_fingerprint(manual_dir)}"
  builder = module.Builder(
    data_dir=data_dir, config=config or None, file_format="array_record"
  )
  return builder, manual_dir


def _fingerprint(folder: pathlib.Path) -> str:
  """Changes when a file in the folder does (by name, size and time)."""
  digest = hashlib.sha256(str(folder).encode())
  for path in sorted(p for p in folder.rglob("*") if p.is_file()):
    stat = path.stat()
    digest.update(f"{path}:{stat.st_size}:{stat.st_mtime_ns};".encode())
  return digest.hexdigest()[:12]


def _decode(builder, split: str) -> list[records.Query]:
  """Reads a whole split once: the per-row decoding of TFDS is slow."""
  return [
    records.Query(
      to_str(row["id"]),
      to_str(row["text"]),
      tuple(to_str(doc_id) for doc_id in row["relevant"]),
      tuple(int(grade) for grade in row.get("grades", ())),
    )
    for row in builder.as_data_source(split=split)
  ]


def to_str(text: bytes | str) -> str:
  """Text as TFDS stores it, decoded."""
  return text.decode("utf-8") if isinstance(text, bytes) else str(text)


def _from_beir(name: str) -> RetrievalDataset:
  folder = name.removeprefix(_BEIR_PREFIX)
  source, counts = records.clean(beir.read_folder(folder))
  found = {key: n for key, n in counts.items() if n}
  if found:
    logging.warning("%s: faults of the source repaired: %s", name, found)
  source.metadata.update(counts, source=folder)
  return _to_dataset(name, source)


def _to_dataset(name: str, source: records.Source) -> RetrievalDataset:
  """Turns document ids into corpus rows; checks what all callers rely on."""
  if not source.corpus:
    raise ValueError(f"{name}: the corpus is empty")
  row_of: dict[str, int] = {}
  for row, doc in enumerate(source.corpus):
    if not doc.id or doc.id in row_of:
      raise ValueError(
        f"{name}: corpus row {row}: id {doc.id!r} is empty or repeats"
      )
    row_of[doc.id] = row
  splits = {}
  for split, queries in source.splits.items():
    relevant, grades = [], []
    for query in queries:
      grade_of = dict.fromkeys(query.relevant, 1)
      grade_of |= dict(zip(query.relevant, query.grades, strict=False))
      pairs = sorted((row_of[name], grade) for name, grade in grade_of.items())
      relevant.append(np.array([row for row, _ in pairs], np.int32))
      grades.append(np.array([grade for _, grade in pairs], np.int32))
    graded = any(query.grades for query in queries)
    splits[split] = Queries(
      [q.id for q in queries],
      [q.text for q in queries],
      relevant,
      grades if graded else None,
    )
  if not splits:
    logging.warning("%s has documents but no queries", name)
  return RetrievalDataset(
    name=name,
    doc_ids=[doc.id for doc in source.corpus],
    doc_texts=[doc.text for doc in source.corpus],
    splits=splits,
    metadata=source.metadata,
  )


def train_batches(
  queries: Queries, *, batch_size: int, seed: int
) -> grain.MapDataset:
  """Infinite (query, one relevant document) batches, indexed by global step.

  An epoch is one freshly shuffled pass over the queries, without the last
  incomplete batch: `len(queries) // batch_size` steps. Each pass draws one of
  a query's relevant documents anew. `batches[step]` depends on nothing but
  `seed` and `step`, so a resumed run needs the step only.

  Returns:
    A data set of {"query": int32 `[batch]`, rows of `queries`,
    "positive": int32 `[batch]`, rows of the corpus}.

  Raises:
    ValueError: `batch_size` exceeds the number of queries, or is not positive.
  """
  if not 0 < batch_size <= len(queries):
    raise ValueError(
      f"batch_size is {batch_size}: expected 1 to {len(queries)}, the number "
      "of queries"
    )

  def draw_positive(row: int, rng: np.random.Generator) -> dict[str, np.int32]:
    return {
      "query": np.int32(row),
      "positive": np.int32(rng.choice(queries.relevant[row])),
    }

  return (
    grain.MapDataset.range(len(queries))
    .seed(seed)
    .shuffle()
    .random_map(draw_positive)
    .batch(batch_size, drop_remainder=True)
    .repeat()
  )


def describe(dataset: RetrievalDataset) -> str:
  """A Markdown table of sizes and of relevant documents per query.

  >>> one = Queries(["q"], ["?"], [np.array([0, 1])])
  >>> print(describe(RetrievalDataset("x", ["a", "b"], ["", ""], {"test": one},
  ...                                 {})))
  | data set | docs | split | queries | relevant min/max/mean |
  |---|---|---|---|---|
  | x | 2 | test | 1 | 2/2/2.00 |
  """
  lines = [
    "| data set | docs | split | queries | relevant min/max/mean |",
    "|---|---|---|---|---|",
  ]
  head = f"| {dataset.name} | {len(dataset.doc_ids):,} |"
  for split, queries in dataset.splits.items():
    lines.append(f"{head} {split} | {len(queries):,} | {_sizes(queries)} |")
  if not dataset.splits:
    lines.append(f"{head} - | 0 | - |")
  return "\n".join(lines)


def _sizes(queries: Queries) -> str:
  counts: Sequence[int] = [len(rows) for rows in queries.relevant]
  return f"{min(counts)}/{max(counts)}/{np.mean(counts):.2f}"
