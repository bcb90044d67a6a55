"""ToolLens: user requests and the API tools that serve them together."""

from __future__ import annotations

from typing import ClassVar

import tensorflow_datasets as tfds

from nnn_jax.data import base, beir, records

_URL = (
  "https://raw.githubusercontent.com/quchangle1/COLT/"
  "bbec292c38cabe3fbae098f50cc31b2e9f7e8fca/datasets/ToolLens/"
)
_FILES = ("corpus.jsonl", "queries.jsonl", "qrels/train.tsv", "qrels/test.tsv")


class Builder(base.RetrievalBuilder):
  """ToolLens (COLT): 464 tools, 18,770 requests with 1 to 3 tools each.

  Splits: train 13,515, validation 3,378 (a seeded fifth of the published
  training split; the paper's seed is unpublished), test 1,877; 2.66 relevant
  tools a query. Every test tool set also occurs in train, so the test measures
  new wordings, not new combinations.

  Repaired: 193 repeated labels (170 in train, 23 in test). Files: BEIR format,
  `corpus.jsonl`, `queries.jsonl`, `qrels/train.tsv`, `qrels/test.tsv`.
  """

  VERSION = tfds.core.Version("1.0.0")
  RELEASE_NOTES: ClassVar[dict[str, str]] = {"1.0.0": "COLT commit bbec292."}
  MANUAL_DOWNLOAD_INSTRUCTIONS = f"Files {', '.join(_FILES)} from {_URL}"
  HOMEPAGE = "https://github.com/quchangle1/COLT"
  LICENSE = (
    "No licence stated by its authors. Tool texts derive from ToolBench "
    "(Apache-2.0). Research use with citation."
  )
  CITATION = """@inproceedings{qu2024colt,
  title={Towards Completeness-Oriented Tool Retrieval for Large Language
         Models},
  author={Qu, Changle and Dai, Sunhao and Wei, Xiaochi and Cai, Hengyi and
          Wang, Shuaiqiang and Yin, Dawei and Xu, Jun and Wen, Ji-Rong},
  booktitle={CIKM}, year={2024}, note={arXiv:2405.16089}}"""

  def read_source(
    self, dl_manager: tfds.download.DownloadManager
  ) -> records.Source:
    """See the base class."""
    files, origin = base.source_files(dl_manager, {f: _URL + f for f in _FILES})
    source = beir.assemble(
      beir.read_corpus(files["corpus.jsonl"]),
      beir.read_queries(files["queries.jsonl"]),
      {
        split: beir.read_qrels(files[f"qrels/{split}.tsv"])
        for split in ("train", "test")
      },
      seed=0,
    )
    source.metadata["source"] = origin
    return source
