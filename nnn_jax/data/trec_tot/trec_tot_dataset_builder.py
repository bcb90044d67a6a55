"""TREC Tip of the Tongue: long, uncertain descriptions of one known item."""

from __future__ import annotations

import pathlib
from typing import ClassVar

import tensorflow_datasets as tfds

from nnn_jax.data import base, beir, records, trec

_URL = "https://trec-tot.github.io/"
_SPLITS = {"train": "train", "validation": "dev", "test": "test"}


class Builder(base.RetrievalBuilder):
  """TREC TOT 2023: 231,852 Wikipedia pages, 150 + 150 judged queries.

  A document is its page's title and text, a query its title and text. The dev
  set is the split validation; test is there where its judgements are.

  Files: `corpus.jsonl` with {"doc_id", "page_title", "text"} a line, and
  `{train,dev,test}/queries.jsonl` with {"id", "title"?, "text"} and
  `{train,dev,test}/qrel.txt` of TREC-TOT.zip.
  """

  VERSION = tfds.core.Version("1.0.0")
  RELEASE_NOTES: ClassVar[dict[str, str]] = {"1.0.0": "First release."}
  MANUAL_DOWNLOAD_INSTRUCTIONS = f"The folder TREC-TOT, see {_URL}"
  HOMEPAGE = _URL
  LICENSE = "CC BY-SA (Wikipedia); queries of iRememberThisMovie.com."
  CITATION = """@inproceedings{arguello2023trectot,
  title={Overview of the TREC 2023 Tip-of-the-Tongue Track},
  author={Arguello, Jaime and Bhargav, Samarth and Diaz, Fernando and
          Kanoulas, Evangelos and Mitra, Bhaskar},
  booktitle={TREC}, year={2023}}"""

  def read_source(
    self, dl_manager: tfds.download.DownloadManager
  ) -> records.Source:
    """See the base class."""
    pairs = {
      split: (f"{folder}/queries.jsonl", f"{folder}/qrel.txt")
      for split, folder in _SPLITS.items()
    }
    names = [
      "corpus.jsonl",
      *(name for pair in pairs.values() for name in pair),
    ]
    files, origin = base.manual_files(
      dl_manager, dict.fromkeys(names, _URL), optional=pairs["test"]
    )
    corpus = [
      records.Document(*pair)
      for pair in _texts(files["corpus.jsonl"], "doc_id", "page_title")
    ]
    splits = {
      split: trec.judge(
        _texts(files[queries], "id", "title"), trec.read_qrels(files[qrels])
      )
      for split, (queries, qrels) in pairs.items()
      if queries in files and qrels in files
    }
    return records.Source(corpus, splits, {"source": origin})


def _texts(path: pathlib.Path, name: str, title: str) -> list[tuple[str, str]]:
  """(id, title and text) of every line."""
  rows = []
  for number, row in beir.read_jsonl(path):
    where = f"{path}, line {number}"
    text = beir.text_field(row, ("text",), where)
    heading = str(row.get(title) or "")
    rows.append(
      (beir.text_field(row, (name,), where), f"{heading} {text}".strip())
    )
  return rows
