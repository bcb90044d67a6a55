"""NQ320K: questions to a search engine and the Wikipedia page that answers."""

from __future__ import annotations

import json
from typing import ClassVar

import tensorflow_datasets as tfds

from nnn_jax.data import base, records

_URL = (
  "https://raw.githubusercontent.com/sunnweiwei/GenRet/main/dataset/nq320k.zip"
)
_CORPUS, _TRAIN, _TEST = "corpus_lite.json", "train.json", "dev.json"
_SEED = 0
_VALIDATION = 7_830  # As many as the test has.


class Builder(base.RetrievalBuilder):
  """NQ320K as GenRet publishes it: 109,739 pages, 307,373 + 7,830 questions.

  Files: `corpus_lite.json`, a list of texts; `train.json` and `dev.json`, lists
  of [question, number of the text]. dev.json is the test split, as in the
  literature; 7,830 seeded questions of train.json (at most a tenth) are the
  validation split.
  """

  VERSION = tfds.core.Version("1.0.0")
  RELEASE_NOTES: ClassVar[dict[str, str]] = {"1.0.0": "First release."}
  MANUAL_DOWNLOAD_INSTRUCTIONS = (
    f"Files {_CORPUS}, {_TRAIN}, {_TEST} of the archive {_URL}"
  )
  HOMEPAGE = "https://ai.google.com/research/NaturalQuestions"
  LICENSE = "CC BY-SA 3.0 (Natural Questions)."
  CITATION = """@article{kwiatkowski2019natural,
  title={Natural Questions: a Benchmark for Question Answering Research},
  author={Kwiatkowski, Tom and others},
  journal={Transactions of the ACL}, volume={7}, year={2019}}"""

  def read_source(
    self, dl_manager: tfds.download.DownloadManager
  ) -> records.Source:
    """See the base class."""
    files, origin = base.source_archive(
      dl_manager, _URL, (_CORPUS, _TRAIN, _TEST)
    )
    texts = json.loads(files[_CORPUS].read_text(encoding="utf-8"))
    corpus = [records.Document(str(n), text) for n, text in enumerate(texts)]
    splits = {
      split: [
        records.Query(f"{split}-{n}", question, (str(page),))
        for n, (question, page) in enumerate(
          json.loads(files[name].read_text(encoding="utf-8"))
        )
      ]
      for split, name in (("train", _TRAIN), ("test", _TEST))
    }
    size = min(_VALIDATION, len(splits["train"]) // 10)
    splits["train"], splits["validation"] = records.hold_out(
      splits["train"], size, _SEED
    )
    metadata = {"split_seed": _SEED, "source": origin}
    return records.Source(corpus, splits, metadata)
