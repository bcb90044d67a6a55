"""The decoders that the paper compares, and how each is chosen and measured."""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import logging

from experiments import report
from nnn_jax import metrics, retriever
from nnn_jax.core import checks, mixture
from nnn_jax.data import pipeline
from nnn_jax.decoders import dense, diversity, mmr, mol, nnn
from nnn_jax.models import bi_encoder as bi_encoder_lib
from nnn_jax.models import colt_retriever, text_mol
from nnn_jax.solvers import fista
from nnn_jax.training import selection


class Method(NamedTuple):
  """One row of a comparison.

  Attributes:
    label: As printed.
    stage: The trained bi-encoder that it decodes.
    decode: The decoder.
    config: Its static choices.
    candidates: Parameters to choose from, on validation; None where they are
      the trained model's own.
  """

  label: str
  stage: str
  decode: Callable[..., Any]
  config: Any
  candidates: Sequence[Any] | None


_DENSE = (dense.decode, dense.DenseConfig(), [()])
# As published: 50 steps, not the optimum.
_NNN = (nnn.decode, nnn.NnnConfig(solver=fista.Fista()))
METHODS = {
  "dense": Method("dense", "dense", *_DENSE),
  "mmr": Method(
    "MMR", "dense", mmr.decode, mmr.MmrConfig(), selection.trade_off_grid()
  ),
  "diversity": Method(
    "diversity",
    "dense",
    diversity.decode,
    # A prefix of this order is a diverse list too: measured at several k.
    diversity.DiversityConfig(order="marginal"),
    [diversity.DiversityParams(value) for value in selection.TRADE_OFFS],
  ),
  "l1_fix": Method("L1-Fix", "dense", *_NNN, selection.penalty_grid(l2=[0.0])),
  "l2_fix": Method("L2-Fix", "dense", *_NNN, selection.penalty_grid(l1=[0.0])),
  "nnn_fix": Method("NNN-Fix", "dense", *_NNN, selection.penalty_grid()),
  # What of NNN-Tr's gain is the encoder's, and what the decoder's.
  "dense_tr": Method("dense, NNN-Tr encoder", "nnn_tr", *_DENSE),
  "nnn_tr": Method("NNN-Tr", "nnn_tr", *_NNN, selection.penalty_grid()),
  # A query that was not trained on is its encoder's output: see models.colt.
  "colt": Method("COLT", "colt", *_DENSE),
  # Every item is scored: the corpora of the comparison are small.
  "mol": Method(
    "MoL", "mol", mol.decode, mol.MolConfig(search=mol.BruteForce()), None
  ),
}

Retriever = (
  bi_encoder_lib.BiEncoder
  | text_mol.TextMolRetriever
  | colt_retriever.ColtRetriever
)
# Of stages that are trained on request.
OPTIONAL = ("colt", "mol")


def load_retriever(folder: pathlib.Path) -> Retriever:
  """What a stage left, of whichever kind."""
  if colt_retriever.is_saved_in(folder):
    return colt_retriever.ColtRetriever.load(folder)[0]
  if text_mol.is_saved_in(folder):
    return text_mol.TextMolRetriever.load(folder)[0]
  return bi_encoder_lib.BiEncoder.load(folder)[0]


class Chosen(NamedTuple):
  """A method with its parameters chosen.

  Attributes:
    method: The method.
    params: What validation chose.
    values: Validation metrics of every candidate, in order.
  """

  method: Method
  params: Any
  values: list[dict[str, float]]


class Embeddings(NamedTuple):
  """Queries and corpus as the decoder takes them.

  Attributes:
    queries: `[num_queries, dim]`, or the query sides of a mixture.
    corpus: `[num_docs, dim]`, or the item sides of a mixture.
    labels: `[num_queries, num_docs]`.
  """

  queries: Any
  corpus: Any
  labels: np.ndarray


def vectors(rows: Any) -> np.ndarray:
  """One vector a text: of a mixture the mean of its components, unit norm."""
  if isinstance(rows, np.ndarray):
    return rows
  mean = rows.components.mean(axis=1)
  return mean / np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), 1e-12)


class Encoded:
  """Embeddings of data sets by one bi-encoder, cached on disk.

  The cache key holds the encoder's identity and the texts, so that it can
  never serve another model's or another corpus's embeddings.
  """

  def __init__(
    self,
    bi_encoder: Retriever,
    identity: str,
    folder: pathlib.Path,
  ):
    self._bi_encoder = bi_encoder
    self._identity = identity
    self._folder = folder

  def params(self) -> Any:
    """The decoder's parameters, of a model that has some of its own."""
    if not isinstance(self._bi_encoder, text_mol.TextMolRetriever):
      raise ValueError("only a mixture has parameters for a decoder.")
    return self._bi_encoder.params()

  def serves(self, dataset: pipeline.RetrievalDataset) -> bool:
    """Whether it can embed the corpus: COLT only the one it was trained on."""
    return not isinstance(
      self._bi_encoder, colt_retriever.ColtRetriever
    ) or self._bi_encoder.knows(dataset.doc_texts)

  def split(self, dataset: pipeline.RetrievalDataset, name: str) -> Embeddings:
    """Embeds one query split and the corpus, or reads them back."""
    queries = dataset.splits[name]
    return Embeddings(
      self._cached(
        queries.texts, self._bi_encoder.encode_queries, f"{name} queries"
      ),
      self._cached(
        dataset.doc_texts, self._bi_encoder.encode_documents, "documents"
      ),
      queries.labels(len(dataset.doc_ids)),
    )

  def texts(self, texts: Sequence[str], kind: str) -> Any:
    """Embeds "queries" or "documents", or reads them back."""
    encode = {
      "queries": self._bi_encoder.encode_queries,
      "documents": self._bi_encoder.encode_documents,
    }[kind]
    return self._cached(texts, encode, kind)

  def _cached(self, texts, encode, description):
    key = hashlib.sha256()
    for part in (self._identity, description, *texts):
      key.update(part.encode() + b"\0")
    stem = key.hexdigest()[:24]
    path = self._folder / f"{stem}.npy"
    more = self._folder / f"{stem}-gate.npy"  # Of a mixture, written first.
    side = mixture.QuerySide if "queries" in description else mixture.ItemSide
    if path.exists():
      logging.info("Reusing embeddings of %d %s.", len(texts), description)
      embeddings = np.load(path)
      return side(embeddings, np.load(more)) if more.exists() else embeddings
    embeddings = encode(texts, description=description)
    for array in jax.tree.leaves(embeddings):
      rows = array.reshape(len(array), -1)
      checks.check_embeddings(description, rows)
    if isinstance(embeddings, np.ndarray):
      report.write_npy(path, embeddings)
    else:
      report.write_npy(more, embeddings.gate)
      report.write_npy(path, embeddings.components)
    return embeddings


def choose(
  method: Method, encoded: Encoded, dataset: pipeline.RetrievalDataset
) -> Chosen:
  """Chooses a method's parameters by Comp@5 on validation."""
  if method.candidates is None:
    return Chosen(method, encoded.params(), [])
  if len(method.candidates) == 1:
    return Chosen(method, method.candidates[0], [])
  validation = encoded.split(dataset, "validation")
  best, values = selection.select(
    method.decode,
    method.candidates,
    validation.queries,
    validation.corpus,
    validation.labels,
    config=method.config,
    description=f"{method.label} on validation",
  )
  return Chosen(method, best, values)


def measure(
  chosen: Chosen,
  embeddings: Embeddings,
  ks: Sequence[int] = (3, 5),
  depth: int = 10,
) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
  """Measures a method on a split.

  Returns:
    (the table's row, indices `[num_queries, depth]`, Comp@5 of each query).
    The interval is a 95 % bootstrap over queries.
  """
  corpus = vectors(embeddings.corpus)
  depth = min(depth, len(corpus))
  ks = [k for k in ks if k <= depth]
  indices = retriever.rank(
    chosen.method.decode,
    chosen.params,
    embeddings.queries,
    embeddings.corpus,
    k=depth,
    config=chosen.method.config,
  )
  means = metrics.evaluate(indices, embeddings.labels, ks=ks)
  per_query = metrics.per_query(indices, embeddings.labels, ks=ks[-1:])
  comp = np.asarray(per_query[f"comp@{ks[-1]}"])
  interval = metrics.bootstrap_interval(comp[embeddings.labels.any(axis=1)])
  row = {
    "decoder": chosen.method.label,
    "parameters": describe_params(chosen.params),
    **{f"R@{k}": 100 * float(means[f"recall@{k}"]) for k in ks},
    **{f"Comp@{k}": 100 * float(means[f"comp@{k}"]) for k in ks},
    f"Comp@{ks[-1]} 95 %": f"{100 * interval.low:.1f} to "
    f"{100 * interval.high:.1f}",
    "nDCG@5": 100 * float(means[f"ndcg@{ks[-1]}"]),
    "ILAD@5": float(np.mean(metrics.ilad(indices, corpus, k=ks[-1]))),
  }
  return row, np.asarray(indices), comp


def describe_params(params: Any) -> str:
  """Such as "l1=0.1 l2=0.03"; empty for a decoder without parameters."""
  if not params:
    return ""
  return " ".join(f"{k}={v:g}" for k, v in scalars(params).items())


def scalars(params: Any) -> dict[str, float]:
  """The parameters that are numbers: not the weights of a model."""
  values = params._asdict().items()
  return {k: float(v) for k, v in values if np.ndim(v) == 0}


def geometry(embeddings: Embeddings) -> dict[str, float]:
  """How alike a query's relevant documents are, and how they stand apart.

  NNN and MMR treat documents that are alike as redundant, so they can gain over
  dense retrieval where relevant documents are less alike than they are to
  irrelevant ones.

  Returns:
    Means over queries with two or more relevant documents of: the cosine
    between two relevant documents, the cosine of a relevant document with its
    nearest irrelevant one, and the cosine of the query with a relevant one.
  """
  values = []
  queries, corpus = vectors(embeddings.queries), vectors(embeddings.corpus)
  for query, labels in zip(queries, embeddings.labels, strict=True):
    rows = np.flatnonzero(labels)
    if len(rows) < 2:
      continue
    relevant = corpus[rows]
    cosine = relevant @ corpus.T
    within = cosine[:, rows][~np.eye(len(rows), dtype=bool)]
    nearest = np.where(labels, -np.inf, cosine).max(axis=1)
    values.append((within.mean(), nearest.mean(), (relevant @ query).mean()))
  names = ("within relevant", "to nearest irrelevant", "query to relevant")
  return dict(zip(names, np.mean(values, axis=0).tolist(), strict=True))


def by_num_relevant(
  comp: np.ndarray, labels: np.ndarray
) -> dict[int, tuple[float, float, float, int]]:
  """Number of relevant documents -> (mean Comp, low, high, queries)."""
  counts = labels.sum(axis=1)
  table = {}
  for n in np.unique(counts[counts > 0]):
    values = comp[counts == n]
    table[int(n)] = (*metrics.bootstrap_interval(values), len(values))
  return table


def steps_curve(
  chosen: Chosen, embeddings: Embeddings, steps: Sequence[int], k: int = 5
) -> tuple[list[int], list[float]]:
  """Comp@k against the number of solver steps, parameters fixed."""
  values = []
  config = chosen.method.config
  for num_steps in steps:
    solver = dataclasses.replace(config.solver, num_steps=num_steps)
    indices = retriever.rank(
      chosen.method.decode,
      chosen.params,
      embeddings.queries,
      embeddings.corpus,
      k=k,
      config=dataclasses.replace(config, solver=solver),
    )
    means = metrics.evaluate(indices, embeddings.labels, ks=(k,))
    values.append(float(means[f"comp@{k}"]))
  return list(steps), values
