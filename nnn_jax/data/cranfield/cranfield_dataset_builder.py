"""Cranfield 1400: abstracts on aerodynamics with judged relevance."""

from __future__ import annotations

import gzip
import pathlib
import re
from typing import ClassVar

import tensorflow_datasets as tfds

from nnn_jax.data import base, records

_URL = (
  "https://raw.githubusercontent.com/oussbenk/cranfield-trec-dataset/"
  "1208e6edfb6cb2527b2c44398d3d8fefd3249144/"
)
_DOCUMENTS, _QUERIES = "cran.all.1400.xml.gz", "cran.qry.xml"
_QRELS = "cranqrel.trec.txt"


class Builder(base.RetrievalBuilder):
  """Cranfield: 1,400 abstracts, 225 questions, 1 to 39 relevant abstracts.

  Relevant means judged with grade 1 or more. There is one split, test. Topic
  numbers are not the ids that the judgements use: those count the topics from
  1. Two documents without text are left out.

  Files: those of oussbenk/cranfield-trec-dataset; the documents gzipped, or
  as they are.
  """

  VERSION = tfds.core.Version("1.0.0")
  RELEASE_NOTES: ClassVar[dict[str, str]] = {
    "1.0.0": "oussbenk/cranfield-trec-dataset commit 1208e6e."
  }
  MANUAL_DOWNLOAD_INSTRUCTIONS = (
    f"Files {_DOCUMENTS} (gzip cran.all.1400.xml), {_QUERIES}, {_QRELS} from "
    f"{_URL}"
  )
  HOMEPAGE = "https://github.com/oussbenk/cranfield-trec-dataset"
  LICENSE = "none stated"
  CITATION = """@article{cleverdon1967cranfield,
  title={The Cranfield tests on index language devices},
  author={Cleverdon, Cyril}, journal={Aslib Proceedings}, year={1967}}"""

  def read_source(
    self, dl_manager: tfds.download.DownloadManager
  ) -> records.Source:
    """See the base class."""
    names = {
      _DOCUMENTS: _URL + "cran.all.1400.xml",
      _QUERIES: _URL + _QUERIES,
      _QRELS: _URL + _QRELS,
    }
    files, origin = base.source_files(dl_manager, names)
    documents = [
      records.Document(_field(doc, "docno"), _field(doc, "text"))
      for doc in _elements(_read(files[_DOCUMENTS]), "doc")
    ]
    corpus = [document for document in documents if document.text]
    relevant: dict[str, list[str]] = {}
    for line in _read(files[_QRELS]).splitlines():
      if line.strip():
        topic, _, doc_id, grade = line.split()
        if int(grade) > 0:
          relevant.setdefault(topic, []).append(doc_id)
    queries = [
      records.Query(str(i), _field(topic, "title"), tuple(relevant[str(i)]))
      for i, topic in enumerate(_elements(_read(files[_QUERIES]), "top"), 1)
    ]
    metadata = {
      "source": origin,
      "empty_documents_dropped": len(documents) - len(corpus),
    }
    return records.Source(corpus, {"test": queries}, metadata)


def _read(path: pathlib.Path) -> str:
  data = path.read_bytes()
  if data.startswith(b"\x1f\x8b"):  # A download is not compressed.
    data = gzip.decompress(data)
  return data.decode("utf-8")


def _elements(text: str, tag: str) -> list[str]:
  # The file of documents has no root, so an XML parser refuses it.
  return re.findall(f"<{tag}>(.*?)</{tag}>", text, flags=re.DOTALL)


def _field(text: str, tag: str) -> str:
  """The element's text with single spaces; empty where there is none."""
  return " ".join(" ".join(_elements(text, tag)).split())
