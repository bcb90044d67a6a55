"""MS MARCO passages, with the judged queries of TREC Deep Learning."""

from __future__ import annotations

from typing import ClassVar

import tensorflow_datasets as tfds

from nnn_jax.data import base, records, trec

_URL = "https://msmarco.z22.web.core.windows.net/msmarcoranking/"
_TREC = "https://trec.nist.gov/data/deep/"
_COLLECTION = "collection.tsv"
# Split -> (queries, judgements).
_FILES = {
  "train": ("queries.train.tsv", "qrels.train.tsv"),
  "test": ("queries.dev.small.tsv", "qrels.dev.small.tsv"),
  "trec_dl_2019": ("msmarco-test2019-queries.tsv", "2019qrels-pass.txt"),
  "trec_dl_2020": ("msmarco-test2020-queries.tsv", "2020qrels-pass.txt"),
}
_SEED = 0
_VALIDATION = 1_000


class Builder(base.RetrievalBuilder):
  """MS MARCO passage ranking: 8.8 million passages, 503 thousand queries.

  Splits: train; validation, 1,000 seeded queries of train (at most a tenth);
  test, which is the small development set of 6,980; and trec_dl_2019 and
  trec_dl_2020, judged with grades 1 to 3 (binary measures of the track count
  from 2), where their files are in the folder.

  Files, unpacked: `collection.tsv`, `queries.train.tsv`, `qrels.train.tsv`,
  `queries.dev.small.tsv`, `qrels.dev.small.tsv` of collectionandqueries.tar.gz;
  `msmarco-test20{19,20}-queries.tsv` and `20{19,20}qrels-pass.txt` of TREC.
  """

  GRADED = True
  VERSION = tfds.core.Version("1.0.0")
  RELEASE_NOTES: ClassVar[dict[str, str]] = {"1.0.0": "First release."}
  MANUAL_DOWNLOAD_INSTRUCTIONS = (
    f"The files of {_URL}collectionandqueries.tar.gz, unpacked, and for the "
    f"splits trec_dl_* those of {_TREC}."
  )
  HOMEPAGE = "https://microsoft.github.io/msmarco/"
  LICENSE = "Non-commercial research, see the home page."
  CITATION = """@article{nguyen2016msmarco,
  title={MS MARCO: A Human Generated MAchine Reading COmprehension Dataset},
  author={Nguyen, Tri and others}, journal={arXiv:1611.09268}, year={2016}}"""

  def read_source(
    self, dl_manager: tfds.download.DownloadManager
  ) -> records.Source:
    """See the base class."""
    archive = _URL + "collectionandqueries.tar.gz"
    urls = {_COLLECTION: archive}
    for split, names in _FILES.items():
      urls |= dict.fromkeys(names, _TREC if "trec" in split else archive)
    optional = tuple(n for s in _FILES if "trec" in s for n in _FILES[s])
    files, origin = base.manual_files(dl_manager, urls, optional=optional)
    corpus = [records.Document(*p) for p in trec.read_pairs(files[_COLLECTION])]
    splits = {
      split: trec.judge(
        list(trec.read_pairs(files[queries])), trec.read_qrels(files[qrels])
      )
      for split, (queries, qrels) in _FILES.items()
      if queries in files and qrels in files
    }
    size = min(_VALIDATION, len(splits["train"]) // 10)
    splits["train"], splits["validation"] = records.hold_out(
      splits["train"], size, _SEED
    )
    metadata = {"split_seed": _SEED, "source": origin}
    return records.Source(corpus, splits, metadata)
