"""LIMIT-small: all pairs of documents as relevant sets, against embeddings."""

from __future__ import annotations

from typing import ClassVar

import tensorflow_datasets as tfds

from nnn_jax.data import base, beir, records

_URL = (
  "https://raw.githubusercontent.com/google-deepmind/limit/"
  "90c5dd3a7c3c0d68bc6cc7a0c5b0f4ca124dfdcb/data/limit-small/"
)
_FILES = ("corpus.jsonl", "queries.jsonl", "qrels.jsonl")
_SEED = 0
_VALIDATION_SHARE, _TEST_SHARE = 0.1, 0.2


class Builder(base.RetrievalBuilder):
  """LIMIT-small: 46 people, 1,000 questions "Who likes X?", 2 answers each.

  The relevant sets are 1,000 of the 1,035 pairs of documents, so that few
  dimensions cannot represent them all. The published data has one split; ours
  are seeded: train 700, validation 100, test 200. No pair is in two splits.

  Files: MTEB's `corpus.jsonl`, `queries.jsonl`, `qrels.jsonl`.
  """

  VERSION = tfds.core.Version("1.0.0")
  RELEASE_NOTES: ClassVar[dict[str, str]] = {
    "1.0.0": "google-deepmind/limit commit 90c5dd3."
  }
  MANUAL_DOWNLOAD_INSTRUCTIONS = f"Files {', '.join(_FILES)} from {_URL}"
  HOMEPAGE = "https://github.com/google-deepmind/limit"
  LICENSE = "CC BY 4.0"
  CITATION = """@article{weller2025limit,
  title={On the Theoretical Limitations of Embedding-Based Retrieval},
  author={Weller, Orion and Boratko, Michael and Naim, Iftekhar and
          Lee, Jinhyuk},
  journal={arXiv:2508.21038}, year={2025}}"""

  def read_source(
    self, dl_manager: tfds.download.DownloadManager
  ) -> records.Source:
    """See the base class."""
    files, origin = base.source_files(dl_manager, {f: _URL + f for f in _FILES})
    qrels: dict[str, list[str]] = {}
    for _, row in beir.read_jsonl(files["qrels.jsonl"]):
      if row["score"] > 0:
        qrels.setdefault(row["query-id"], []).append(row["corpus-id"])
    source = beir.assemble(
      beir.read_corpus(files["corpus.jsonl"]),
      beir.read_queries(files["queries.jsonl"]),
      {"test": qrels},
      seed=_SEED,
    )
    source.splits = records.three_way(
      source.splits["test"], _VALIDATION_SHARE, _TEST_SHARE, _SEED
    )
    source.metadata |= {"split_seed": _SEED, "source": origin}
    return source
