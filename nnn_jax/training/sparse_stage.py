"""The stage "sparse": learned sparse vectors, from a pretrained encoder.

In-batch InfoNCE of inner products on (query, one positive document) pairs, and
the FLOPS regulariser on either side, whose weight rises with the square of the
step over the first epochs, so that terms are found before they are dropped.

Reference: Formal et al. (2021), SPLADE, arXiv 2107.05720 and 2109.10086.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
from flax import nnx

from nnn_jax import losses, retriever
from nnn_jax.core import sparse
from nnn_jax.data import pipeline
from nnn_jax.decoders import seismic
from nnn_jax.indexes import sparse as rows_lib
from nnn_jax.indexes import sparse_blocks
from nnn_jax.models import bi_encoder as bi_encoder_lib
from nnn_jax.models import sparse_head, tokenization
from nnn_jax.training import loop, stages

# Of a token's rarest term at the start: scores are then about those that a
# softmax of temperature 1 can tell apart.
_PEAK_WEIGHT = 1.4


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparseStage:
  """Settings of the stage.

  Attributes:
    num_epochs: At most.
    learning_rate: Of AdamW, constant.
    weight_decay: Of AdamW.
    patience: Epochs without improvement before stopping.
    temperature: Of InfoNCE on inner products, which are not cosines here.
    mask_false_negatives: Whether other relevant documents of a query are left
      out of its negatives.
    query_flops: Weight of the regulariser on queries.
    document_flops: Likewise on documents.
    ramp_epochs: Over which the weights rise.
    sharpness: See `models.sparse_head`.
    terms: The vocabulary: "all" tokens, as published, or those of the "corpus",
      which cost less.
    max_query_terms: Largest weights that are kept of a query, in search.
    max_document_terms: Likewise of a document.
  """

  num_epochs: int = 20
  learning_rate: float = 2e-5
  weight_decay: float = 0.01
  patience: int = 3
  temperature: float = 1.0
  mask_false_negatives: bool = False
  query_flops: float = 3e-4
  document_flops: float = 1e-4
  ramp_epochs: float = 1.0
  sharpness: float = 6.0
  terms: Literal["all", "corpus"] = "all"
  max_query_terms: int = 64
  max_document_terms: int = 256

  def __post_init__(self):
    if self.terms not in ("all", "corpus"):
      raise ValueError(f"terms must be all or corpus, got {self.terms!r}.")

  def make_retriever(
    self,
    bi_encoder: bi_encoder_lib.BiEncoder,
    dataset: pipeline.RetrievalDataset,
  ) -> sparse_head.SparseRetriever:
    """A new head on an encoder, that of its queries.

    A token's weight for its own term starts at the square root of the inverse
    document frequency, in units in which the rarest has 1.4.
    """
    documents = bi_encoder.tokenizer(
      dataset.doc_texts, max_length=bi_encoder.document_length
    )
    encoder = nnx.clone(bi_encoder.query_encoder)
    counts = document_frequencies(documents, encoder.config.vocab_size)
    num_docs = len(documents.ids)
    idf = np.log((num_docs + 1) / (counts + 0.5))
    # Marks such as [CLS], which every document has, are not terms.
    used = (counts < num_docs) | (num_docs == 1)
    if self.terms == "corpus":
      used &= counts > 0
    terms = np.flatnonzero(used)
    own_weights = _PEAK_WEIGHT * np.sqrt(idf[terms] / idf[terms].max())
    config = sparse_head.SparseHeadConfig(
      sharpness=self.sharpness,
      max_query_terms=self.max_query_terms,
      max_document_terms=self.max_document_terms,
    )
    return sparse_head.SparseRetriever(
      model=sparse_head.SparseHead(encoder, terms, own_weights, config),
      tokenizer=bi_encoder.tokenizer,
      query_length=bi_encoder.query_length,
      document_length=bi_encoder.document_length,
    )


def document_frequencies(
  tokens: tokenization.Tokens, vocab_size: int
) -> np.ndarray:
  """In how many texts each token is, `[vocab_size]`."""
  rows, places = np.nonzero(tokens.mask)
  pairs = np.unique(rows * vocab_size + tokens.ids[rows, places])
  return np.bincount(pairs % vocab_size, minlength=vocab_size)


def sparse_task(
  initial: sparse_head.SparseRetriever,
  dataset: pipeline.RetrievalDataset,
  stage: SparseStage,
  *,
  batch_size: int,
  seed: int,
) -> loop.Task:
  """The stage as a task; params are those of the whole model."""
  train = stages.Split(initial, dataset, "train")
  validation = stages.Split(initial, dataset, "validation")
  documents = initial.tokenizer(
    dataset.doc_texts, max_length=initial.document_length
  )
  graphdef, params = nnx.split(initial.model)
  query_batch = stages.query_batches(train, batch_size=batch_size, seed=seed)
  steps_per_epoch = len(train.queries) // batch_size
  ramp = max(stage.ramp_epochs * steps_per_epoch, 1.0)

  def batch_fn(step):
    batch = query_batch(step)
    positive = batch["positive"]
    batch["document_ids"] = documents.ids[positive]
    batch["document_mask"] = documents.mask[positive]
    batch["strength"] = np.float32(min((step + 1) / ramp, 1.0) ** 2)
    return batch

  def loss_fn(params, frozen, batch):
    del frozen
    model = nnx.merge(graphdef, params)
    queries = model(batch["query_ids"], batch["query_mask"])
    items = model(batch["document_ids"], batch["document_mask"])
    loss = retriever.in_batch_loss(
      queries,
      items,
      batch["positive"],
      batch["relevant"],
      temperature=stage.temperature,
      mask_false_negatives=stage.mask_false_negatives,
    )
    penalty = stage.query_flops * losses.flops(queries)
    penalty += stage.document_flops * losses.flops(items)
    return loss + batch["strength"] * penalty

  def eval_fn(params):
    model = nnx.merge(graphdef, params)
    encode = bi_encoder_lib.encode_tokens

    def lists(max_terms, tokens):
      split = nnx.split(sparse_head.TermList(model, max_terms))
      return sparse.SparseVector(*encode(*split, tokens))

    rows = lists(stage.max_document_terms, documents)
    rows = rows_lib.from_padded(*rows, vocab=len(model.terms))
    # The exact search reads no lists: the shortest will do.
    config = sparse_blocks.BuildConfig(n_postings=1, prune="paper")
    indices = retriever.rank(
      seismic.decode,
      (),
      lists(stage.max_query_terms, validation.tokens),
      sparse_blocks.build(rows, config=config),
      k=max(stages.KS),
      config=seismic.SeismicConfig(search=seismic.Exact()),
    )
    return stages.validate(indices, validation.labels)

  return loop.Task(
    params=params,
    frozen=(),
    loss_fn=loss_fn,
    batch_fn=batch_fn,
    eval_fn=eval_fn,
    steps_per_epoch=steps_per_epoch,
    monitor=stages.MONITOR,
  )
