"""Amazon reviews: who reviewed which product, in order."""

from __future__ import annotations

from typing import ClassVar

import tensorflow_datasets as tfds

from nnn_jax.data import base, interactions

_SEQUENCES_URL = (
  "https://raw.githubusercontent.com/RUCAIBox/CIKM2020-S3Rec/"
  "2a81540ae18615d88ef88227b0c066e5b74781e5/data/"
)
_RATINGS_URL = (
  "https://snap.stanford.edu/data/amazon/productGraph/categoryFiles/"
)
_FILES = {
  "beauty": "Beauty.txt",
  "sports": "Sports_and_Outdoors.txt",
  "toys": "Toys_and_Games.txt",
  "books": "ratings_Books.csv",
}
_CORE = 5


class Builder(base.SequenceBuilder):
  """Amazon 2014: reviews as interactions, each user and item with five.

  Configurations: `beauty` (22,363 users, 12,101 items), `sports` and `toys`
  read the 5-core sequences that S3-Rec publishes, the order alone. `books`
  reads `user,item,rating,timestamp` rows without a header (22.5 million) and
  keeps the 5-core itself. There are no item texts.
  """

  VERSION = tfds.core.Version("1.0.0")
  RELEASE_NOTES: ClassVar[dict[str, str]] = {"1.0.0": "First release."}
  BUILDER_CONFIGS: ClassVar[list[tfds.core.BuilderConfig]] = [
    tfds.core.BuilderConfig(name=name, description=f"File {file}.")
    for name, file in _FILES.items()
  ]
  MANUAL_DOWNLOAD_INSTRUCTIONS = (
    f"{_FILES['books']} from {_RATINGS_URL}; the others from {_SEQUENCES_URL}"
  )
  HOMEPAGE = "https://cseweb.ucsd.edu/~jmcauley/datasets/amazon/links.html"
  LICENSE = "None stated; offered by its authors for research, with citation."
  CITATION = """@inproceedings{mcauley2015image,
  title={Image-Based Recommendations on Styles and Substitutes},
  author={McAuley, Julian and Targett, Christopher and Shi, Qinfeng and
          van den Hengel, Anton}, booktitle={SIGIR}, year={2015}}"""

  def read_log(
    self, dl_manager: tfds.download.DownloadManager
  ) -> interactions.Log:
    """See the base class."""
    file = _FILES[self.builder_config.name]
    root = _RATINGS_URL if file.endswith(".csv") else _SEQUENCES_URL
    files, origin = base.source_files(dl_manager, {file: root + file})
    if file.endswith(".csv"):
      log = interactions.read_ratings(files[file], separator=",", header=False)
      log = interactions.k_core(log, _CORE)
    else:
      log = interactions.read_sequences(files[file])
    log.metadata["source"] = origin
    return log
