"""FollowIR: queries with an instruction, and the same with it changed."""

from __future__ import annotations

import pathlib
from typing import Any, ClassVar

import tensorflow_datasets as tfds

from nnn_jax.data import base, beir, records

_URL = "https://huggingface.co/datasets/jhu-clsp/"
_FILES = (
  "corpus.jsonl",
  "queries.jsonl",
  "instruction.jsonl",
  "qrels.jsonl",
)
_CHANGES = "qrel_diff.jsonl"
_SUFFIXES = {"original": "-og", "changed": "-changed"}


class Builder(base.RetrievalBuilder):
  """FollowIR, one of its three collections: Robust04, News21 or Core17.

  The instructions of a query come in two forms, of which the changed one makes
  some documents irrelevant: splits original and changed, whose query ids end in
  -og and -changed. A query is its text and its instruction. Grades are kept.
  How far a system follows the change is `metrics.p_mrr`, with the documents of
  `read_changes`.

  Files: the configurations of core17-instructions-mteb (or robust04-, news21-),
  each as JSON lines (`load_dataset(...)` and `to_json`):

    corpus.jsonl       {"_id", "title"?, "text"}
    queries.jsonl      {"_id", "text"}
    instruction.jsonl  {"query-id", "instruction"}
    qrels.jsonl        {"query-id", "corpus-id", "score"}
    qrel_diff.jsonl    {"query-id", "corpus-ids"}, for `read_changes`
  """

  GRADED = True
  VERSION = tfds.core.Version("1.0.0")
  RELEASE_NOTES: ClassVar[dict[str, str]] = {"1.0.0": "First release."}
  MANUAL_DOWNLOAD_INSTRUCTIONS = (
    f"Files {', '.join(_FILES)} from {_URL}core17-instructions-mteb, or "
    "robust04 or news21 in place of core17, as JSON lines."
  )
  HOMEPAGE = "https://github.com/orionw/FollowIR"
  LICENSE = "MIT (instructions); the documents have their own."
  CITATION = """@article{weller2024followir,
  title={FollowIR: Evaluating and Teaching Information Retrieval Models to
         Follow Instructions},
  author={Weller, Orion and others}, journal={arXiv:2403.15246}, year={2024}}"""

  def read_source(
    self, dl_manager: tfds.download.DownloadManager
  ) -> records.Source:
    """See the base class."""
    files, origin = base.manual_files(
      dl_manager, dict.fromkeys(_FILES, self.MANUAL_DOWNLOAD_INSTRUCTIONS)
    )
    instructions = {
      str(query): str(text)
      for query, text in _columns(
        files["instruction.jsonl"], "query-id", "instruction"
      )
    }
    graded: dict[str, dict[str, int]] = {}
    for query, document, score in _columns(
      files["qrels.jsonl"], "query-id", "corpus-id", "score"
    ):
      if float(score) > 0:
        graded.setdefault(str(query), {})[str(document)] = int(float(score))
    splits: dict[str, list[records.Query]] = {name: [] for name in _SUFFIXES}
    for query in beir.read_queries(files["queries.jsonl"]):
      for split, suffix in _SUFFIXES.items():
        if query.id.endswith(suffix):
          found = graded.get(query.id, {})
          text = f"{query.text} {instructions.get(query.id, '')}".strip()
          splits[split].append(
            records.Query(query.id, text, tuple(found), tuple(found.values()))
          )
    metadata = {"source": origin}
    corpus = beir.read_corpus(files["corpus.jsonl"])
    return records.Source(corpus, splits, metadata)


def read_changes(folder: Any) -> dict[str, list[str]]:
  """{query id without suffix: documents whose relevance changed}.

  Args:
    folder: The one with `qrel_diff.jsonl`.

  Raises:
    ValueError: A line has no such entries; the message names file and line.
  """
  path = pathlib.Path(folder) / _CHANGES
  rows = _columns(path, "query-id", "corpus-ids")
  return {str(query): [str(d) for d in documents] for query, documents in rows}


def _columns(path: pathlib.Path, *names: str) -> list[tuple[Any, ...]]:
  rows = []
  for number, row in beir.read_jsonl(path):
    missing = [name for name in names if name not in row]
    if missing:
      raise ValueError(f"{path}, line {number}: no {', '.join(missing)}")
    rows.append(tuple(row[name] for name in names))
  return rows
