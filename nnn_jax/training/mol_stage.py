"""The stage "mol": a mixture of logits of texts, from a pretrained encoder.

In-batch softmax on (query, one positive document) pairs, with L_MI on the
positive pairs to keep the gates in use.

Reference: "Retrieval with Learned Similarities" (2025), arXiv 2407.15462.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from nnn_jax import losses, retriever
from nnn_jax.core import mixture
from nnn_jax.data import pipeline
from nnn_jax.decoders import mol
from nnn_jax.models import bi_encoder as bi_encoder_lib
from nnn_jax.models import text_mol
from nnn_jax.training import loop, stages


@dataclasses.dataclass(frozen=True, kw_only=True)
class MolStage:
  """Settings of the stage.

  Attributes:
    num_epochs: At most.
    learning_rate: Of AdamW, constant.
    weight_decay: Of AdamW.
    patience: Epochs without improvement before stopping.
    num_query_components: P_Q.
    num_item_components: P_X.
    temperature: tau.
    gate_dropout: On pi.
    load_balancing: Weight of L_MI.
  """

  num_epochs: int = 20
  learning_rate: float = 2e-5
  weight_decay: float = 0.01
  patience: int = 3
  num_query_components: int = 4
  num_item_components: int = 4
  temperature: float = 0.05
  gate_dropout: float = 0.2
  load_balancing: float = 0.001

  def make_retriever(
    self, bi_encoder: bi_encoder_lib.BiEncoder, *, seed: int
  ) -> text_mol.TextMolRetriever:
    """New components and gates on an encoder: that of its queries."""
    config = text_mol.TextMolConfig(
      num_query_components=self.num_query_components,
      num_item_components=self.num_item_components,
      temperature=self.temperature,
      gate_dropout=self.gate_dropout,
    )
    encoder = nnx.clone(bi_encoder.query_encoder)
    return text_mol.TextMolRetriever(
      model=text_mol.TextMol(encoder, config, rngs=nnx.Rngs(seed)),
      tokenizer=bi_encoder.tokenizer,
      query_length=bi_encoder.query_length,
      document_length=bi_encoder.document_length,
    )


def mol_task(
  initial: text_mol.TextMolRetriever,
  dataset: pipeline.RetrievalDataset,
  stage: MolStage,
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

  def batch_fn(step):
    batch = query_batch(step)
    positive = batch["positive"]
    batch["document_ids"] = documents.ids[positive]
    batch["document_mask"] = documents.mask[positive]
    batch["step"] = step
    return batch

  def loss_fn(params, frozen, batch):
    del frozen
    model = nnx.merge(graphdef, params)
    components, gate = model.query(batch["query_ids"], batch["query_mask"])
    queries = mixture.QuerySide(components[:, None], gate[:, None])
    items = mixture.ItemSide(
      *model.item(batch["document_ids"], batch["document_mask"])
    )
    # Of the step alone, so that a resumed run drops the same gates.
    key = jax.random.fold_in(jax.random.key(seed), batch["step"])
    scores, gates = model(queries, items, rngs=nnx.Rngs(dropout=key))
    own = jnp.arange(scores.shape[0])
    loss = losses.in_batch_softmax(scores, batch["positive"])
    balance = losses.load_balancing(gates[own, own])
    return jnp.mean(loss) + stage.load_balancing * balance

  def eval_fn(params):
    model = nnx.merge(graphdef, params)
    encode = bi_encoder_lib.encode_tokens
    indices = retriever.rank(
      mol.decode,
      model.params(),
      mixture.QuerySide(*encode(*nnx.split(model.query), validation.tokens)),
      mixture.ItemSide(*encode(*nnx.split(model.item), documents)),
      k=max(stages.KS),
      config=mol.MolConfig(search=mol.BruteForce()),
    )
    return stages.validate(indices, validation.labels)

  return loop.Task(
    params=params,
    frozen=(),
    loss_fn=loss_fn,
    batch_fn=batch_fn,
    eval_fn=eval_fn,
    steps_per_epoch=len(train.queries) // batch_size,
    monitor=stages.MONITOR,
  )
