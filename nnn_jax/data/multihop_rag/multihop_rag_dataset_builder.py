"""MultiHop-RAG: questions that need several news articles."""

from __future__ import annotations

import json
import pathlib
from typing import Any, ClassVar

import tensorflow_datasets as tfds

from nnn_jax.data import base, beir, records

_URL = "https://huggingface.co/datasets/yixuantt/MultiHopRAG/resolve/main/"
_FULL_FILES = ("MultiHopRAG.json", "corpus.json")
_SAMPLE_FILES = ("queries.json", "ground_truth.json")
_SAMPLE_CORPUS = "corpus_from_evidence.jsonl"
_SEED = 0
_HELD_OUT_SHARE = 0.1  # Of the answerable queries, for validation and for test.


class Builder(base.RetrievalBuilder):
  """MultiHop-RAG: 609 news articles, 2,255 answerable questions.

  Relevant are the distinct articles (by URL) that the evidence cites, 2 to 4,
  2.58 a query; the 301 questions without evidence are dropped and counted.
  Splits: train 1,805, validation 225, test 225, random with a recorded seed
  (the paper's is unpublished).

  Files: `MultiHopRAG.json` and `corpus.json`. A manual directory may hold the
  500-query sample of zc277584121/search-datasets instead (`queries.json`,
  `ground_truth.json`, `corpus_from_evidence.jsonl`): the metadata then says
  `"sample": true`. Its documents hold nothing but cited evidence, which makes
  retrieval far easier: never compare it with results on the articles.
  """

  VERSION = tfds.core.Version("1.0.0")
  RELEASE_NOTES: ClassVar[dict[str, str]] = {"1.0.0": "First release."}
  MANUAL_DOWNLOAD_INSTRUCTIONS = f"Files {', '.join(_FULL_FILES)} from {_URL}"
  HOMEPAGE = "https://github.com/yixuantt/MultiHop-RAG"
  LICENSE = "ODC-BY 1.0"
  CITATION = """@inproceedings{tang2024multihoprag,
  title={{MultiHop-RAG}: Benchmarking Retrieval-Augmented Generation for
         Multi-Hop Queries},
  author={Tang, Yixuan and Yang, Yi}, booktitle={COLM}, year={2024},
  note={arXiv:2401.15391}}"""

  def read_source(
    self, dl_manager: tfds.download.DownloadManager
  ) -> records.Source:
    """See the base class."""
    folder = base.manual_folder(dl_manager)
    sample = folder is not None and all(
      (folder / name).is_file() for name in _SAMPLE_FILES
    )
    names: tuple[str, ...] = _FULL_FILES
    home = _URL
    if sample:
      names = (*_SAMPLE_FILES, _SAMPLE_CORPUS)
      home = "github.com/zc277584121/search-datasets, multihop_rag/"
    files, origin = base.source_files(dl_manager, {n: home + n for n in names})
    read = _read_sample if sample else _read_full
    corpus, queries = read(files)
    # Unanswerable by design: no fault of the labels, so not one of those.
    answerable = [q for q in queries if q.relevant]
    splits = records.three_way(
      answerable, _HELD_OUT_SHARE, _HELD_OUT_SHARE, _SEED
    )
    metadata = {
      "sample": sample,
      "null_queries_dropped": len(queries) - len(answerable),
      "split_seed": _SEED,
      "source": origin,
    }
    return records.Source(corpus, splits, metadata)


def _read_full(files: dict[str, pathlib.Path]):
  articles = _load(files["corpus.json"])
  corpus = [
    records.Document(a["url"], f"{a['title']} {a['body']}") for a in articles
  ]
  queries = [
    records.Query(str(row), q["query"], _cited(q["evidence_list"]))
    for row, q in enumerate(_load(files["MultiHopRAG.json"]))
  ]
  return corpus, queries


def _read_sample(files: dict[str, pathlib.Path]):
  corpus = [
    records.Document(row["url"], f"{row['title']} {row['text']}")
    for _, row in beir.read_jsonl(files[_SAMPLE_CORPUS])
  ]
  truth = _load(files["ground_truth.json"])
  queries = [
    records.Query(
      str(q["id"]), q["question"], _cited(truth[q["id"]]["evidence_list"])
    )
    for q in _load(files["queries.json"])["queries"]
  ]
  return corpus, queries


def _load(path: pathlib.Path) -> Any:
  return json.loads(path.read_text(encoding="utf-8"))


def _cited(evidence: list[dict[str, Any]]) -> tuple[str, ...]:
  """URLs as cited: two facts of one article repeat it, and are counted."""
  return tuple(fact["url"] for fact in evidence)
