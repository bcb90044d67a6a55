"""The feature schema and the builder class that all data sets share.

Every data set has a split "corpus" (one row a document, `relevant` empty) and
query splits (`relevant` holds document ids), with the same three features:

  id        Text
  text      Text
  relevant  Sequence(Text)

and, where its builder says GRADED,

  grades    Sequence(int32), of the relevant documents

A data set of sequences (a log of users and items) has two splits instead:

  items  id, text          item n of the rows below is row n of this split
  users  id, items int32 [length], timestamps int64 [length] or [0]

with the items of a user oldest first; see `SequenceBuilder`.

Rows keep the order of the source. A builder subclasses `RetrievalBuilder`,
sets a few class attributes and writes `read_source`. TensorFlow is never
imported: the files are array_record, read by `as_data_source`.
"""

from __future__ import annotations

import abc
import pathlib
import socket
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from absl import logging

from nnn_jax import files
from nnn_jax.data import interactions, records

FEATURES = {
  "id": tfds.features.Text(),
  "text": tfds.features.Text(),
  "relevant": tfds.features.Sequence(tfds.features.Text()),
}
GRADES = {"grades": tfds.features.Sequence(np.int32)}


class RetrievalBuilder(
  tfds.core.GeneratorBasedBuilder,
  abc.ABC,
  skip_registration=True,  # type: ignore[call-arg]  # TFDS's own keyword.
):
  """Stores what `read_source` returns, cleaned, with the faults counted.

  `builder.info.metadata` holds the counts of `records.clean`, where the files
  came from, and what the data set adds (seeds, versions).
  """

  HOMEPAGE: str = ""
  LICENSE: str = ""
  CITATION: str = ""
  GRADED: bool = False

  @abc.abstractmethod
  def read_source(
    self, dl_manager: tfds.download.DownloadManager
  ) -> records.Source:
    """Reads the original files."""

  def _info(self) -> tfds.core.DatasetInfo:
    return tfds.core.DatasetInfo(
      builder=self,
      description=type(self).__doc__,
      features=tfds.features.FeaturesDict(
        FEATURES | GRADES if self.GRADED else FEATURES
      ),
      homepage=self.HOMEPAGE,
      license=self.LICENSE,
      citation=self.CITATION,
      metadata=tfds.core.MetadataDict(),
      disable_shuffling=True,  # A row's place in the corpus is its index.
    )

  def _split_generators(self, dl_manager: tfds.download.DownloadManager):
    source, counts = records.clean(self.read_source(dl_manager))
    self.info.metadata.update(counts | source.metadata)
    found = {name: n for name, n in counts.items() if n}
    if found:
      logging.warning("%s: faults of the source repaired: %s", self.name, found)
    corpus = [records.Query(d.id, d.text, ()) for d in source.corpus]
    return {
      split: self._generate_examples(rows)
      for split, rows in {"corpus": corpus, **source.splits}.items()
    }

  def _generate_examples(self, rows: list[records.Query]) -> Iterator:
    for key, row in enumerate(rows):
      features: dict[str, Any] = {"id": row.id, "text": row.text}
      features["relevant"] = list(row.relevant)
      if self.GRADED:
        features["grades"] = list(row.grades or [1] * len(row.relevant))
      yield key, features


class SequenceBuilder(
  tfds.core.GeneratorBasedBuilder,
  abc.ABC,
  skip_registration=True,  # type: ignore[call-arg]  # TFDS's own keyword.
):
  """Stores the log that `read_log` returns, by user and in order of time."""

  HOMEPAGE: str = ""
  LICENSE: str = ""
  CITATION: str = ""

  @abc.abstractmethod
  def read_log(
    self, dl_manager: tfds.download.DownloadManager
  ) -> interactions.Log:
    """Reads the original files."""

  def _info(self) -> tfds.core.DatasetInfo:
    # One schema for both splits, as TFDS asks: an item has no interactions, a
    # user no text.
    features = {
      "id": tfds.features.Text(),
      "text": tfds.features.Text(),
      "items": tfds.features.Tensor(shape=(None,), dtype=np.int32),
      "timestamps": tfds.features.Tensor(shape=(None,), dtype=np.int64),
    }
    return tfds.core.DatasetInfo(
      builder=self,
      description=type(self).__doc__,
      features=tfds.features.FeaturesDict(features),
      homepage=self.HOMEPAGE,
      license=self.LICENSE,
      citation=self.CITATION,
      metadata=tfds.core.MetadataDict(),
      disable_shuffling=True,  # A row's place is its number.
    )

  def _split_generators(self, dl_manager: tfds.download.DownloadManager):
    log = interactions.chronological(self.read_log(dl_manager))
    self.info.metadata.update(log.metadata)
    return {"items": self._items(log), "users": self._users(log)}

  def _generate_examples(self) -> Iterator:
    raise NotImplementedError("the splits have generators of their own")

  def _items(self, log: interactions.Log) -> Iterator:
    none = {"items": np.zeros(0, np.int32), "timestamps": np.zeros(0, np.int64)}
    rows = zip(log.item_ids, log.item_texts, strict=True)
    for key, (item, text) in enumerate(rows):
      yield key, {"id": item, "text": text, **none}

  def _users(self, log: interactions.Log) -> Iterator:
    bounds = np.searchsorted(log.users, np.arange(len(log.user_ids) + 1))
    for key, user in enumerate(log.user_ids):
      rows = slice(bounds[key], bounds[key + 1])
      times = np.zeros(0) if log.timestamps is None else log.timestamps[rows]
      items = log.items[rows]
      yield (
        key,
        {
          "id": user,
          "text": "",
          "items": items,
          "timestamps": times.astype(np.int64),
        },
      )


def source_archive(
  dl_manager: tfds.download.DownloadManager,
  url: str,
  names: Sequence[str],
  *,
  optional: tuple[str, ...] = (),
) -> tuple[dict[str, pathlib.Path], str]:
  """As `source_files`, for files that are published in one archive.

  Args:
    dl_manager: of the builder.
    url: of the archive.
    names: of its files, without folders. The manual directory holds these
      files, not the archive.
    optional: names that may be absent.
  """
  if manual_folder(dl_manager) is not None:
    return source_files(
      dl_manager, dict.fromkeys(names, url), optional=optional
    )
  paths, origin = source_files(dl_manager, {url.rsplit("/", 1)[-1]: url})
  (archive,) = paths.values()
  found = {}
  # TFDS extracts by way of TensorFlow, which is not needed for anything else.
  with zipfile.ZipFile(archive) as opened:
    for member in opened.namelist():
      name = member.rsplit("/", 1)[-1]
      if name in names:
        found[name] = archive.parent / f"{archive.name}.extracted" / name
        with opened.open(member) as data:
          files.write(found[name], data.read())
  missing = set(names) - set(found) - set(optional)
  if missing:
    raise FileNotFoundError(f"{url} lacks {', '.join(sorted(missing))}")
  return found, origin


def source_files(
  dl_manager: tfds.download.DownloadManager,
  urls: Mapping[str, str],
  *,
  optional: tuple[str, ...] = (),
) -> tuple[dict[str, pathlib.Path], str]:
  """Finds the files in the manual directory, or downloads all of them.

  Args:
    dl_manager: of the builder. Its manual directory is used when it exists.
    urls: {file name: public address}.
    optional: names that the manual directory may lack.

  Returns:
    {file name: path}, without absent optional files, and a word for the
    metadata on where they are from.

  Raises:
    FileNotFoundError: the manual directory lacks a file, or it could not be
      downloaded; the message names directory, file and address.
  """
  folder = manual_folder(dl_manager)
  if folder is not None:
    files = {name: folder / name for name in urls}
    for name, path in files.items():
      if name not in optional and not path.is_file():
        raise FileNotFoundError(
          f"manual directory {folder} lacks {name}: get it from {urls[name]}"
        )
    present = {name: path for name, path in files.items() if path.is_file()}
    return present, str(folder)
  try:
    for url in urls.values():
      _check_reachable(url)
    # One by one: when a file fails, no other is left retrying in a thread.
    paths = {name: dl_manager.download(url) for name, url in urls.items()}
  except Exception as error:
    # Whatever the downloader raises, a user needs the way out by hand.
    listing = "\n".join(f"  {name}: {url}" for name, url in urls.items())
    raise FileNotFoundError(
      f"download failed ({type(error).__name__}: {error}). Put these files "
      f"into a folder and pass it as manual_dir:\n{listing}"
    ) from error
  return {name: pathlib.Path(path) for name, path in paths.items()}, "download"


def manual_files(
  dl_manager: tfds.download.DownloadManager,
  urls: Mapping[str, str],
  *,
  optional: tuple[str, ...] = (),
) -> tuple[dict[str, pathlib.Path], str]:
  """As `source_files`, for files that have to be fetched by hand.

  Raises:
    FileNotFoundError: there is no manual directory, or it lacks a file.
  """
  if manual_folder(dl_manager) is None:
    listing = "\n".join(f"  {name}: {url}" for name, url in urls.items())
    raise FileNotFoundError(
      "these files are not downloaded automatically: put them into a folder "
      f"and pass it as manual_dir:\n{listing}"
    )
  return source_files(dl_manager, urls, optional=optional)


def _check_reachable(url: str) -> None:
  """Raises OSError at once where TFDS would retry for three minutes."""
  if urllib.request.getproxies():
    return  # A proxy reaches what this machine cannot.
  parts = urllib.parse.urlsplit(url)
  port = parts.port or {"http": 80, "https": 443}[parts.scheme]
  socket.create_connection((parts.hostname, port), timeout=10).close()


def manual_folder(
  dl_manager: tfds.download.DownloadManager,
) -> pathlib.Path | None:
  """The manual directory, or None where none was given."""
  try:
    return pathlib.Path(dl_manager.manual_dir)
  except AssertionError:  # How TFDS says that it is not there, or empty.
    return None
