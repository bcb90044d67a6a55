"""Queries and corpora as the decoders take them, from what a stage trained."""

from __future__ import annotations

import hashlib
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from experiments import report
from nnn_jax.core import checks, linalg, qnet, sparse
from nnn_jax.data import pipeline
from nnn_jax.indexes import sparse as sparse_rows
from nnn_jax.indexes import sparse_blocks
from nnn_jax.models import bi_encoder as bi_encoder_lib
from nnn_jax.models import (
  colt_retriever,
  sparse_head,
  text_hypencoder,
  text_mol,
)


class Retriever(Protocol):
  """What a stage leaves; each returns a pytree of `[num_texts, ...]` arrays."""

  def encode_queries(
    self, texts: Sequence[str], *, description: str | None = None
  ) -> Any:
    """Of the query side; `description` labels a progress bar."""

  def encode_documents(
    self, texts: Sequence[str], *, description: str | None = None
  ) -> Any:
    """Of the document side, likewise."""


# How to tell each kind, and to read it; any other folder holds a bi-encoder.
_KINDS: list[tuple[Callable[..., bool], Callable[..., tuple[Any, Any]]]] = [
  (colt_retriever.is_saved_in, colt_retriever.ColtRetriever.load),
  (sparse_head.is_saved_in, sparse_head.SparseRetriever.load),
  (text_mol.is_saved_in, text_mol.TextMolRetriever.load),
  (
    text_hypencoder.is_saved_in,
    text_hypencoder.TextHypencoderRetriever.load,
  ),
]


def load(folder: pathlib.Path) -> tuple[Any, dict[str, Any]]:
  """(retriever, metadata) that a stage left, of whichever kind."""
  for is_saved_in, read in _KINDS:
    if is_saved_in(folder):
      return read(folder)
  return bi_encoder_lib.BiEncoder.load(folder)


def load_retriever(folder: pathlib.Path) -> Retriever:
  """The retriever alone."""
  return load(folder)[0]


class Embeddings(NamedTuple):
  """Queries and corpus as the decoder takes them.

  Attributes:
    queries: `[num_queries, dim]`, or a pytree of `[num_queries, ...]`.
    corpus: `[num_docs, dim]`, or what else the decoder takes.
    labels: `[num_queries, num_docs]`.
  """

  queries: Any
  corpus: Any
  labels: np.ndarray


class Encoded:
  """Embeddings of data sets by one retriever, cached on disk.

  The cache key holds the retriever's identity and the texts, so that it can
  never serve another model's or another corpus's embeddings.
  """

  def __init__(self, retriever: Retriever, identity: str, folder: pathlib.Path):
    self.retriever = retriever
    self._identity = identity
    self._folder = folder

  @classmethod
  def of_stage(cls, folder: pathlib.Path, cache: pathlib.Path) -> Encoded:
    """By what a stage left, which is known by its bytes."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
      if path.is_file():
        digest.update(path.name.encode() + path.read_bytes())
    return cls(load_retriever(folder), digest.hexdigest(), cache)

  @classmethod
  def of_frozen(
    cls,
    source: str,
    cache: pathlib.Path,
    *,
    query_length: int,
    document_length: int,
  ) -> Encoded:
    """By a pretrained encoder as it is; see `pretrained.load`."""
    lengths = {"query_length": query_length, "document_length": document_length}
    encoder = bi_encoder_lib.BiEncoder.from_pretrained(source, **lengths)
    return cls(encoder, f"{source}-{query_length}-{document_length}", cache)

  def params(self) -> Any:
    """The decoder's parameters, of a model that has some of its own."""
    if not isinstance(self.retriever, text_mol.TextMolRetriever):
      raise ValueError("only a mixture has parameters for a decoder.")
    return self.retriever.params()

  def serves(self, dataset: pipeline.RetrievalDataset) -> bool:
    """Whether it can embed the corpus: COLT only the one it was trained on."""
    return not isinstance(
      self.retriever, colt_retriever.ColtRetriever
    ) or self.retriever.knows(dataset.doc_texts)

  def split(self, dataset: pipeline.RetrievalDataset, name: str) -> Embeddings:
    """Embeds one query split and the corpus, or reads them back."""
    queries = dataset.splits[name]
    encode = self.retriever.encode_queries
    corpus = self.texts(dataset.doc_texts, "documents")
    if isinstance(self.retriever, sparse_head.SparseRetriever):
      corpus = _without_lists(corpus, len(self.retriever.model.terms))
    return Embeddings(
      self._cached(queries.texts, encode, f"{name} queries"),
      corpus,
      queries.labels(len(dataset.doc_ids)),
    )

  def texts(self, texts: Sequence[str], kind: str) -> Any:
    """Embeds "queries" or "documents", or reads them back."""
    encode = {
      "queries": self.retriever.encode_queries,
      "documents": self.retriever.encode_documents,
    }[kind]
    return self._cached(texts, encode, kind)

  def _cached(self, texts, encode, description):
    key = hashlib.sha256()
    for part in (self._identity, description, *texts):
      key.update(part.encode() + b"\0")
    plain = self._folder / f"{key.hexdigest()[:24]}.npy"
    tree = plain.with_suffix(".npz")
    if plain.exists() or tree.exists():
      logging.info("Reusing embeddings of %d %s.", len(texts), description)
    if plain.exists():
      return np.load(plain)
    if tree.exists():
      like = encode(texts[:1])  # Tells how the arrays are put together.
      with np.load(tree) as arrays:
        return jax.tree.map_with_path(lambda at, _: arrays[_name(at)], like)
    embeddings = encode(texts, description=description)
    leaves = {_name(at): x for at, x in jax.tree.leaves_with_path(embeddings)}
    for array in leaves.values():
      checks.check_embeddings(description, array.reshape(len(array), -1))
    if isinstance(embeddings, np.ndarray):
      report.write_npy(plain, embeddings)
    else:
      report.write_npz(tree, leaves)
    return embeddings


def _name(place: Any) -> str:
  return jax.tree_util.keystr(place, simple=True, separator=".")


def _without_lists(
  documents: sparse.SparseVector, vocab: int
) -> sparse.SparseBlocks:
  """Documents as the exact search takes them: it reads no lists."""
  config = sparse_blocks.BuildConfig(n_postings=1, prune="paper")
  rows = sparse_rows.from_padded(*documents, vocab=vocab)
  return sparse_blocks.build(rows, config=config)


def vectors(rows: Any, vocab: int | None = None) -> np.ndarray:
  """One vector a text, to compare texts by.

  Of a mixture it is the mean of its components, with unit norm; of a sparse
  encoder all `vocab` weights, likewise.
  """
  if isinstance(rows, np.ndarray):
    return rows
  if vocab is not None:
    indices, values = np.asarray(rows.indices), np.asarray(rows.values)
    row, place = np.nonzero(values > 0)
    vector = np.zeros((len(indices), vocab), np.float32)
    vector[row, indices[row, place]] = values[row, place]
  else:
    vector = rows.components.mean(axis=1)
  norm = np.linalg.norm(vector, axis=1, keepdims=True)
  return vector / np.maximum(norm, 1e-12)


def both_vectors(embeddings: Embeddings) -> tuple[np.ndarray, np.ndarray]:
  """`vectors` of the queries and of the corpus.

  A network has no vector; in its place stands the direction in which its score
  rises fastest at the mean of the documents.
  """
  queries, corpus = embeddings.queries, embeddings.corpus
  vocab = getattr(corpus, "vocab", None)
  corpus = vectors(corpus, vocab)
  if not isinstance(queries, qnet.QNet):
    return vectors(queries, vocab), corpus
  middle = jnp.asarray(corpus.mean(axis=0))
  slope = jax.vmap(
    jax.grad(lambda x, network: qnet.scores(network, x[None])[0]), (None, 0)
  )(middle, queries)
  return np.asarray(linalg.normalize(slope)), corpus
