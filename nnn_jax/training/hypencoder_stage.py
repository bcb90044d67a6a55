"""The stage "hypencoder": a network for every query, from a pretrained encoder.

Of a query with its positive document, the positives of the batch and mined
negatives, which are the irrelevant ones among a teacher's candidates,

  loss = cross-entropy of the positive over all documents of the batch
         + distillation mean_j ((s+ - s_j) - (t+ - t_j))^2

with s the network's scores and t the teacher's, over the query's own mined
negatives. A document that is relevant to a query, or has the text of one that
is, is not among its negatives.

Reference: arXiv 2502.05364, section 4: 7 negatives of a cross-encoder, and
both terms with weight 1.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from nnn_jax import losses, retriever
from nnn_jax.data import pipeline
from nnn_jax.decoders import hypencoder
from nnn_jax.models import bi_encoder as bi_encoder_lib
from nnn_jax.models import hyperhead, text_hypencoder, tokenization
from nnn_jax.training import loop, stages, teachers


@dataclasses.dataclass(frozen=True, kw_only=True)
class HypencoderStage:
  """Settings of the stage.

  Attributes:
    num_epochs: At most.
    learning_rate: Of AdamW, constant after the warm-up.
    warmup_steps: Over which it rises.
    weight_decay: Of AdamW.
    patience: Epochs without improvement before stopping.
    widths: Of the network's hidden layers; `(768,) * 6` as published.
    skip: See `models.text_hypencoder`; False as published.
    temperature: Of the skip's inner product.
    scale: Of the hyperhead's softmax, see `models.hyperhead`.
    share_encoder: Whether queries and documents have one encoder.
    pooling: Of documents: that of the "encoder", or "cls" as published, the
      output at the first token, not normalised.
    num_negatives: Mined, a query and step; needs candidates.
    distillation: Weight of the second term; needs candidates.
    teacher_scale: Of the candidates' scores, see `losses.margin_mse`.
    validation_docs: Documents that validation ranks: the relevant ones and
      others drawn at random; None is all.
  """

  num_epochs: int = 20
  learning_rate: float = 2e-5
  warmup_steps: int = 0
  weight_decay: float = 0.01
  patience: int = 3
  widths: tuple[int, ...] = (32, 32)
  skip: bool = True
  temperature: float = 0.05
  scale: hyperhead.Scale = "features"
  share_encoder: bool = True
  pooling: Literal["encoder", "cls"] = "encoder"
  num_negatives: int = 0
  distillation: float = 0.0
  teacher_scale: losses.TeacherScale = "logit"
  validation_docs: int | None = None

  def __post_init__(self) -> None:
    for name in ("num_negatives", "distillation", "warmup_steps"):
      if getattr(self, name) < 0:
        raise ValueError(
          f"{name} must not be negative, got {getattr(self, name)}."
        )
    if self.pooling not in ("encoder", "cls"):
      raise ValueError(f"pooling must be encoder or cls, got {self.pooling!r}.")
    if self.skip and self.pooling == "cls":
      raise ValueError(
        "skip adds the inner product that the encoder was trained for: with "
        "pooling cls set it to False."
      )
    if self.distillation and not self.num_negatives:
      raise ValueError(
        "distillation needs the documents that the teacher scored: set "
        "num_negatives to 1 or more."
      )

  def optimizer(self) -> optax.GradientTransformation:
    """AdamW with the warm-up."""
    rate: optax.ScalarOrSchedule = self.learning_rate
    if self.warmup_steps:
      rate = optax.linear_schedule(0.0, rate, self.warmup_steps)
    return optax.adamw(rate, weight_decay=self.weight_decay)

  def make_retriever(
    self, bi_encoder: bi_encoder_lib.BiEncoder, *, seed: int
  ) -> text_hypencoder.TextHypencoderRetriever:
    """A new hyperhead on copies of a bi-encoder's encoders."""
    config = text_hypencoder.TextHypencoderConfig(
      widths=tuple(self.widths),
      skip=self.skip,
      temperature=self.temperature,
      scale=self.scale,
    )
    query = nnx.clone(bi_encoder.query_encoder)
    document = query
    if not self.share_encoder:
      document = nnx.clone(bi_encoder.document_encoder)
    if self.pooling == "cls":
      document.config = dataclasses.replace(
        document.config, pooling="cls", normalize=False
      )
    return text_hypencoder.TextHypencoderRetriever(
      model=text_hypencoder.TextHypencoder(
        query, document, config, rngs=nnx.Rngs(seed)
      ),
      tokenizer=bi_encoder.tokenizer,
      query_length=bi_encoder.query_length,
      document_length=bi_encoder.document_length,
    )


def hypencoder_task(
  initial: text_hypencoder.TextHypencoderRetriever,
  dataset: pipeline.RetrievalDataset,
  stage: HypencoderStage,
  *,
  batch_size: int,
  seed: int,
  candidates: teachers.Candidates | None = None,
) -> loop.Task:
  """The stage as a task; params are those of the whole model.

  Args:
    initial: What training starts from.
    dataset: With splits "train" and "validation".
    stage: Settings.
    batch_size: Queries a step.
    seed: Of batches and negatives.
    candidates: Of the queries of "train", for `stage.num_negatives`.

  Raises:
    ValueError: If the stage needs candidates and there are none.
  """
  num_negatives = stage.num_negatives
  if num_negatives and candidates is None:
    raise ValueError(
      f"num_negatives is {num_negatives}, and there are no candidates to draw "
      "from: name a teacher, or set it to 0."
    )
  train = stages.Split(initial, dataset, "train")
  ranked, rows = _validation_corpus(dataset, stage.validation_docs, seed)
  validation = stages.Split(initial, ranked, "validation")
  documents = initial.tokenizer(
    dataset.doc_texts, max_length=initial.document_length
  )
  ranked_documents = tokenization.Tokens(
    documents.ids[rows], documents.mask[rows]
  )
  graphdef, params = nnx.split(initial.model)
  query_batch = stages.query_batches(train, batch_size=batch_size, seed=seed)

  def batch_fn(step):
    batch = query_batch(step)
    negatives = np.zeros((batch_size, 0), np.int32)
    if candidates is not None and num_negatives:
      # Of the step alone, so that a resumed run draws the same.
      negatives, scores = candidates.draw(
        batch["query"],
        batch["relevant"],
        num_negatives,
        np.random.default_rng((seed, step)),
      )
      own = candidates.score_of(batch["query"], batch["positive"])
      teacher = np.concatenate([own[:, None], scores], axis=1)
      batch["teacher"] = teacher.astype(np.float32)
    batch["negatives"] = negatives
    columns = np.concatenate([batch["positive"], negatives.ravel()])
    columns = np.maximum(columns, 0)
    batch["document_ids"] = documents.ids[columns]
    batch["document_mask"] = documents.mask[columns]
    return batch

  def loss_fn(params, same_text, batch):
    model = nnx.merge(graphdef, params)
    scores = text_hypencoder.scores(
      model.query(batch["query_ids"], batch["query_mask"]),
      model.document(batch["document_ids"], batch["document_mask"]),
    )
    labels, where = losses.mined_targets(
      batch["positive"],
      batch["negatives"],
      batch["relevant"],
      same_text=same_text,
    )
    loss = losses.info_nce(scores, labels, temperature=1.0, where=where)
    if stage.distillation:
      own = jnp.arange(batch_size)[:, None]
      mined = batch_size + own * num_negatives + jnp.arange(num_negatives)[None]
      own = jnp.concatenate([own, mined], axis=1)
      known = ~jnp.isnan(batch["teacher"])
      loss += stage.distillation * losses.margin_mse(
        jnp.take_along_axis(scores, own, axis=1),
        jnp.broadcast_to(jnp.arange(own.shape[1]) == 0, own.shape),
        jnp.where(known, batch["teacher"], 0.0),
        teacher_scale=stage.teacher_scale,
        where=known,
      )
    return jnp.mean(loss)

  def eval_fn(params):
    model = nnx.merge(graphdef, params)
    encode = bi_encoder_lib.encode_tokens
    indices = retriever.rank(
      hypencoder.decode,
      (),
      encode(*nnx.split(model.query), validation.tokens),
      encode(*nnx.split(model.document), ranked_documents),
      k=max(stages.KS),
      config=hypencoder.HypencoderConfig(),
    )
    return stages.validate(indices, validation.labels)

  return loop.Task(
    params=params,
    frozen=losses.first_of_text(dataset.doc_texts),
    loss_fn=loss_fn,
    batch_fn=batch_fn,
    eval_fn=eval_fn,
    steps_per_epoch=len(train.queries) // batch_size,
    monitor=stages.MONITOR,
  )


def _validation_corpus(
  dataset: pipeline.RetrievalDataset, num_docs: int | None, seed: int
) -> tuple[pipeline.RetrievalDataset, np.ndarray]:
  """The data set with fewer documents, and their rows in the whole one."""
  every = np.arange(len(dataset.doc_ids))
  if num_docs is None or num_docs >= len(every):
    return dataset, every
  queries = dataset.splits["validation"]
  relevant = np.unique(np.concatenate(queries.relevant))
  others = np.random.default_rng(seed).permutation(
    np.setdiff1d(every, relevant)
  )
  rows = np.sort(
    np.concatenate([relevant, others[: max(num_docs - len(relevant), 0)]])
  )
  fewer = dataclasses.replace(
    dataset,
    doc_ids=[dataset.doc_ids[row] for row in rows],
    doc_texts=[dataset.doc_texts[row] for row in rows],
    splits={
      "validation": dataclasses.replace(
        queries,
        relevant=[
          np.searchsorted(rows, some).astype(np.int32)
          for some in queries.relevant
        ],
      )
    },
  )
  return fewer, rows
