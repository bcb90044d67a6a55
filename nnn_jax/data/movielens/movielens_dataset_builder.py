"""MovieLens: who rated which film, and when."""

from __future__ import annotations

from typing import ClassVar

import tensorflow_datasets as tfds

from nnn_jax.data import base, interactions

_URL = "https://files.grouplens.org/datasets/movielens/"


class Builder(base.SequenceBuilder):
  """MovieLens: every rating is an interaction, in order of time.

  Configurations: `latest_small` (2018: 610 users, 9,724 rated films, 100,836
  ratings), `1m` (6,040 users, 3,706 films, 1,000,209 ratings) and `20m`
  (138,493 users, 26,744 films). Films nobody rated are no items. Equal times
  keep the order of the file.

  Files: `ratings.csv` and `movies.csv` (latest_small, 20m), `ratings.dat` and
  `movies.dat` (1m). In place of ratings.dat the manual directory may hold
  `sequences.txt`, a line `user item item ...` a user, oldest first: the order
  alone, without times. The titles are optional.
  """

  VERSION = tfds.core.Version("1.0.0")
  RELEASE_NOTES: ClassVar[dict[str, str]] = {"1.0.0": "First release."}
  BUILDER_CONFIGS: ClassVar[list[tfds.core.BuilderConfig]] = [
    tfds.core.BuilderConfig(name="latest_small", description="100 thousand."),
    tfds.core.BuilderConfig(name="1m", description="A million."),
    tfds.core.BuilderConfig(name="20m", description="20 million."),
  ]
  MANUAL_DOWNLOAD_INSTRUCTIONS = (
    f"The ratings and movies files of an archive in {_URL}; for 1m "
    "sequences.txt may stand for ratings.dat"
  )
  HOMEPAGE = "https://grouplens.org/datasets/movielens/"
  LICENSE = (
    "GroupLens: research use with citation, no commercial use without "
    "permission; see the README of the archive on redistribution."
  )
  CITATION = """@article{harper2015movielens,
  title={The {MovieLens} Datasets: History and Context},
  author={Harper, F. Maxwell and Konstan, Joseph A.},
  journal={ACM Transactions on Interactive Intelligent Systems},
  volume={5}, number={4}, year={2015}}"""

  def read_log(
    self, dl_manager: tfds.download.DownloadManager
  ) -> interactions.Log:
    """See the base class."""
    name = self.builder_config.name
    url = f"{_URL}ml-{name.replace('_', '-')}.zip"
    if name == "1m":
      return self._one_million(dl_manager, url)
    files, origin = base.source_archive(
      dl_manager, url, ("ratings.csv", "movies.csv"), optional=("movies.csv",)
    )
    log = interactions.read_ratings(
      files["ratings.csv"], separator=",", header=True
    )
    if "movies.csv" in files:
      log = log.with_texts(
        interactions.read_titles(
          files["movies.csv"], separator=",", header=True
        )
      )
    log.metadata["source"] = origin
    return log

  def _one_million(self, dl_manager, url):
    names = ("ratings.dat", "sequences.txt", "movies.dat")
    files, origin = base.source_archive(dl_manager, url, names, optional=names)
    if "ratings.dat" in files:
      log = interactions.read_ratings(
        files["ratings.dat"], separator="::", header=False
      )
    elif "sequences.txt" in files:
      log = interactions.read_sequences(files["sequences.txt"])
    else:
      raise FileNotFoundError(
        f"{base.manual_folder(dl_manager)} lacks ratings.dat, and "
        f"sequences.txt too: get ratings.dat from {url}"
      )
    if "movies.dat" in files:
      log = log.with_texts(
        interactions.read_titles(
          files["movies.dat"],
          separator="::",
          header=False,
          encoding="iso-8859-1",
        )
      )
    log.metadata["source"] = origin
    return log
