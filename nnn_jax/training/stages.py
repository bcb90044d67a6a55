"""The two published stages, as tasks for the loop.

  dense    two encoders from one checkpoint, in-batch InfoNCE on (query, one
           positive document) pairs
  nnn_tr   from dense: the query encoder and an adapter on frozen document
           embeddings, through the NNN solver: FISTA unrolled, as published,
           or the exact working set with implicit gradients

Reference: arXiv 2606.17910, section 3.2 and appendix B.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Literal, Protocol

import jax.numpy as jnp
import numpy as np
from flax import nnx

from nnn_jax import losses, metrics, retriever
from nnn_jax.core import gradients
from nnn_jax.data import pipeline
from nnn_jax.decoders import dense, nnn
from nnn_jax.models import adapter as adapter_lib
from nnn_jax.models import bi_encoder as bi_encoder_lib
from nnn_jax.models import tokenization
from nnn_jax.solvers import fista, working_set
from nnn_jax.training import loop

# Validation metrics look at so many documents.
KS = (3, 5)
MONITOR = "comp@5"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DenseStage:
  """Settings of the dense stage.

  Attributes:
    num_epochs: At most.
    learning_rate: Of AdamW, constant.
    weight_decay: Of AdamW.
    patience: Epochs without improvement before stopping.
    temperature: Of InfoNCE; the paper does not state it.
    mask_false_negatives: Whether other relevant documents of a query are left
      out of its negatives; the paper's formula leaves none out.
  """

  num_epochs: int = 20
  learning_rate: float = 2e-5
  weight_decay: float = 0.01
  patience: int = 3
  temperature: float = 0.05
  mask_false_negatives: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class NnnStage:
  """Settings of training through the solver.

  Attributes:
    num_epochs: At most.
    learning_rate: Of AdamW, constant.
    weight_decay: Of AdamW.
    patience: Epochs without improvement before stopping.
    gamma: Of the ranking loss.
    temperature: Of the ranking loss.
    adapter_hidden: Width of the adapter.
    relevant_scores: See `retriever.weights_loss`.
    solver: "fista", unrolled, or "working_set", with implicit gradients; in
      training and validation.
    num_steps: FISTA steps.
    remat_every: Of FISTA, see `gradients.Unroll`.
    capacity: Of the working set and its gradient; the whole of a corpus of at
      most twice as many documents. A support beyond it is cut off, which the
      validation metric `inexact` shows.
  """

  num_epochs: int = 20
  learning_rate: float = 2e-5
  weight_decay: float = 0.01
  patience: int = 3
  gamma: float = 1.5
  temperature: float = 0.1
  adapter_hidden: int = 768
  relevant_scores: retriever.RelevantScores | None = None
  solver: Literal["fista", "working_set"] = "fista"
  num_steps: int = 50
  remat_every: int | None = None
  capacity: int = 256

  def __post_init__(self):
    if self.solver not in ("fista", "working_set"):
      raise ValueError(
        f"solver must be fista or working_set, got {self.solver!r}."
      )

  def decoder_config(self, num_docs: int) -> nnn.NnnConfig:
    """The decoder that the stage trains through, for so many documents."""
    if self.solver == "fista":
      return nnn.NnnConfig(
        solver=fista.Fista(num_steps=self.num_steps),
        gradient=gradients.Unroll(remat_every=self.remat_every),
      )
    # The solver takes in all documents if there are so few; the gradient is
    # of the same support.
    all_fit = num_docs <= 2 * self.capacity
    capacity = num_docs if all_fit else self.capacity
    return nnn.NnnConfig(
      solver=working_set.WorkingSet(capacity=capacity),
      gradient=gradients.Implicit(capacity=capacity),
    )

  def make_adapter(self, dim: int, *, seed: int) -> adapter_lib.Adapter:
    """A new adapter, close to the identity."""
    return adapter_lib.Adapter(
      adapter_lib.AdapterConfig(dim=dim, hidden=self.adapter_hidden),
      rngs=nnx.Rngs(seed),
    )


class Tokenizing(Protocol):
  """What a split is tokenised for: any retriever of texts."""

  @property
  def tokenizer(self) -> tokenization.Tokenizer:
    """Of its queries."""

  @property
  def query_length(self) -> int:
    """Tokens a query is cut to."""


class Split:
  """One query split, tokenised once.

  Raises:
    ValueError: If the corpus is too small for the metrics.
  """

  def __init__(
    self,
    retriever: Tokenizing,
    dataset: pipeline.RetrievalDataset,
    name: str,
  ):
    if len(dataset.doc_ids) < max(KS):
      raise ValueError(
        f"dataset {dataset.name} has {len(dataset.doc_ids)} documents, fewer "
        f"than the {max(KS)} that {MONITOR} looks at: add documents."
      )
    self.queries = dataset.splits[name]
    self.relevant = self.queries.rows()
    self._num_docs = len(dataset.doc_ids)
    self.tokens = retriever.tokenizer(
      self.queries.texts, max_length=retriever.query_length
    ).trimmed()

  @functools.cached_property
  def labels(self) -> np.ndarray:
    """Relevance `[num_queries, num_docs]` bool: for validation splits."""
    return self.queries.labels(self._num_docs)


def query_batches(train: Split, *, batch_size: int, seed: int):
  """Returns step -> the batch's rows, tokens and relevant rows."""
  rows = pipeline.train_batches(train.queries, batch_size=batch_size, seed=seed)

  def batch_fn(step: int) -> dict[str, Any]:
    batch = dict(rows[step])
    query = batch["query"]
    batch["query_ids"] = train.tokens.ids[query]
    batch["query_mask"] = train.tokens.mask[query]
    batch["relevant"] = train.relevant[query]
    return batch

  return batch_fn


def validate(indices: Any, labels: np.ndarray) -> loop.Metrics:
  """The validation metrics of retrieved rows."""
  values = metrics.evaluate(indices, labels, ks=KS)
  return {
    f"{name}@{k}": float(values[f"{name}@{k}"])
    for name in ("recall", "comp")
    for k in KS
  }


def dense_task(
  bi_encoder: bi_encoder_lib.BiEncoder,
  dataset: pipeline.RetrievalDataset,
  stage: DenseStage,
  *,
  batch_size: int,
  seed: int,
) -> loop.Task:
  """The dense stage; params are {"query", "document"}."""
  train = Split(bi_encoder, dataset, "train")
  validation = Split(bi_encoder, dataset, "validation")
  documents = bi_encoder.tokenizer(
    dataset.doc_texts, max_length=bi_encoder.document_length
  )
  graphdef, query_params = nnx.split(bi_encoder.query_encoder)
  _, document_params = nnx.split(bi_encoder.document_encoder)
  query_batch = query_batches(train, batch_size=batch_size, seed=seed)

  def batch_fn(step):
    batch = query_batch(step)
    positive = batch["positive"]
    batch["document_ids"] = documents.ids[positive]
    batch["document_mask"] = documents.mask[positive]
    return batch

  def loss_fn(params, frozen, batch):
    del frozen
    query_encoder = nnx.merge(graphdef, params["query"])
    document_encoder = nnx.merge(graphdef, params["document"])
    return retriever.in_batch_loss(
      query_encoder(batch["query_ids"], batch["query_mask"]),
      document_encoder(batch["document_ids"], batch["document_mask"]),
      batch["positive"],
      batch["relevant"],
      temperature=stage.temperature,
      mask_false_negatives=stage.mask_false_negatives,
    )

  def eval_fn(params):
    encode = bi_encoder_lib.encode_tokens
    indices = retriever.rank(
      dense.decode,
      (),
      encode(graphdef, params["query"], validation.tokens),
      encode(graphdef, params["document"], documents),
      k=max(KS),
      config=dense.DenseConfig(),
    )
    return validate(indices, validation.labels)

  return loop.Task(
    params={"query": query_params, "document": document_params},
    frozen=(),
    loss_fn=loss_fn,
    batch_fn=batch_fn,
    eval_fn=eval_fn,
    steps_per_epoch=len(train.queries) // batch_size,
    monitor=MONITOR,
  )


def nnn_task(
  bi_encoder: bi_encoder_lib.BiEncoder,
  dataset: pipeline.RetrievalDataset,
  stage: NnnStage,
  penalties: nnn.NnnParams,
  *,
  batch_size: int,
  seed: int,
) -> loop.Task:
  """Training through the solver; params are {"query", "adapter"}."""
  config = stage.decoder_config(len(dataset.doc_ids))
  train = Split(bi_encoder, dataset, "train")
  validation = Split(bi_encoder, dataset, "validation")
  corpus = bi_encoder.encode_documents(
    dataset.doc_texts, description="frozen documents"
  )
  graphdef, query_params = nnx.split(bi_encoder.query_encoder)
  adapter_graphdef, adapter_params = nnx.split(
    stage.make_adapter(corpus.shape[1], seed=seed)
  )

  def loss_fn(params, frozen, batch):
    query_encoder = nnx.merge(graphdef, params["query"])
    adapter = nnx.merge(adapter_graphdef, params["adapter"])
    return retriever.weights_loss(
      nnn.decode,
      penalties,
      query_encoder(batch["query_ids"], batch["query_mask"]),
      adapter(frozen),
      batch["relevant"],
      config=config,
      relevant_scores=stage.relevant_scores,
      loss=functools.partial(
        losses.nnn_ranking_loss,
        gamma=stage.gamma,
        temperature=stage.temperature,
      ),
    )

  def eval_fn(params):
    queries = bi_encoder_lib.encode_tokens(
      graphdef, params["query"], validation.tokens
    )
    adapter = nnx.merge(adapter_graphdef, params["adapter"])
    result = retriever.retrieve(
      nnn.decode,
      penalties,
      queries,
      adapter(jnp.asarray(corpus)),
      k=max(KS),
      config=config,
    )
    support = np.asarray(result.aux.support_size)
    return {
      **validate(result.indices, validation.labels),
      "support_size": float(support.mean()),
      "kkt_violation": float(np.max(result.aux.kkt_violation)),
      "mean_kkt_violation": float(np.mean(result.aux.kkt_violation)),
      "inexact": 1.0 - float(np.mean(result.aux.exact)),
    }

  def stop_fn(values):
    return "every weight is zero" if values["support_size"] == 0 else None

  return loop.Task(
    params={"query": query_params, "adapter": adapter_params},
    frozen=corpus,
    loss_fn=loss_fn,
    batch_fn=query_batches(train, batch_size=batch_size, seed=seed),
    eval_fn=eval_fn,
    steps_per_epoch=len(train.queries) // batch_size,
    monitor=MONITOR,
    stop_fn=stop_fn,
  )
