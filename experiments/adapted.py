"""Adapters on a frozen encoder's embeddings, and the ways to train them."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import logging
from flax import nnx

from experiments import embeddings as embeddings_lib
from nnn_jax import losses, retriever
from nnn_jax.core import linalg
from nnn_jax.data import pipeline
from nnn_jax.decoders import dense, nnn
from nnn_jax.models import adapter as adapter_lib
from nnn_jax.training import loop, stages


@dataclasses.dataclass(frozen=True)
class Training:
  """One way to train.

  Attributes:
    name: As printed.
    loss_fn: (queries, corpus, batch) -> a scalar.
    decode: The decoder that validation uses while training.
    params: Its parameters.
    config: Its static choices.
    learning_rate: Of AdamW, constant.
  """

  name: str
  loss_fn: Callable[[jax.Array, jax.Array, Any], jax.Array]
  decode: Callable[..., Any]
  params: Any
  config: Any
  learning_rate: float


_PLAIN = (dense.decode, (), dense.DenseConfig())


def by_loss(config: Any, num_docs: int) -> list[Training]:
  """Losses of inner products, and through the solver."""
  stage = stages.NnnStage(solver="working_set", capacity=config.capacity)
  static = stage.decoder_config(num_docs)
  ranking = partial(
    losses.nnn_ranking_loss, gamma=stage.gamma, temperature=stage.temperature
  )
  info_nce = partial(losses.info_nce, temperature=config.temperature)
  rate = config.learning_rate

  def of_products(loss, queries, corpus, batch):
    scores = linalg.matmul(queries, corpus.T)
    return jnp.mean(loss(scores, batch["labels"]))

  def through_solver(penalties, queries, corpus, batch):
    return retriever.weights_loss(
      nnn.decode,
      penalties,
      queries,
      corpus,
      batch["relevant"],
      config=static,
      loss=ranking,
    )

  found = [
    Training("InfoNCE", partial(of_products, info_nce), *_PLAIN, rate),
    Training("ranking loss", partial(of_products, ranking), *_PLAIN, rate),
  ]
  for l2 in config.l2:
    penalties = nnn.NnnParams(config.l1, l2)
    loss = partial(through_solver, penalties)
    name = f"NNN, l2 = {l2:g}"
    found.append(Training(name, loss, nnn.decode, penalties, static, rate))
  return found


def by_dense_settings(config: Any, num_docs: int) -> list[Training]:
  """Dense training, as the stage does it: in-batch InfoNCE, in its settings."""
  del num_docs

  def in_batch(masked, temperature, queries, corpus, batch):
    return retriever.in_batch_loss(
      queries,
      corpus[batch["positive"]],
      batch["positive"],
      batch["relevant"],
      temperature=temperature,
      mask_false_negatives=masked,
    )

  found = []
  for masked, temperature, rate in itertools.product(
    (False, True), config.temperatures, config.learning_rates
  ):
    name = f"{'' if masked else 'not '}masked, tau {temperature:g}, {rate:g}"
    loss = partial(in_batch, masked, temperature)
    found.append(Training(name, loss, *_PLAIN, rate))
  return found


TRAININGS: dict[str, Callable[[Any, int], list[Training]]] = {
  "losses": by_loss,
  "dense": by_dense_settings,
}


class Adapted(embeddings_lib.Encoded):
  """A frozen encoder's embeddings through an adapter on each side.

  Attributes:
    params: {"query", "document"} of `make_adapters`; None leaves them alone.
  """

  def __init__(self, encoded: embeddings_lib.Encoded, params: Any, config: Any):
    self._encoded, self._params, self._config = encoded, params, config

  def split(
    self, dataset: pipeline.RetrievalDataset, name: str
  ) -> embeddings_lib.Embeddings:
    """As `Encoded.split`."""
    plain = self._encoded.split(dataset, name)
    if self._params is None:
      return plain
    graphdef, _ = make_adapters(self._config, plain.corpus.shape[1], seed=0)
    queries, corpus = _adapt(
      graphdef, self._params, plain.queries, plain.corpus
    )
    return plain._replace(
      queries=np.asarray(queries), corpus=np.asarray(corpus)
    )


def make_adapters(config: Any, dim: int, *, seed: int) -> tuple[Any, Any]:
  """(graph definition of both, parameters {"query", "document"})."""
  shape = adapter_lib.AdapterConfig(dim=dim, hidden=config.adapter_hidden)
  params = {}
  for name, key in (("query", 2 * seed), ("document", 2 * seed + 1)):
    adapter = adapter_lib.Adapter(shape, rngs=nnx.Rngs(key))
    graphdef, params[name] = nnx.split(adapter)
  return graphdef, params


def _adapt(graphdef, params, queries, corpus):
  return (
    nnx.merge(graphdef, params["query"])(queries),
    nnx.merge(graphdef, params["document"])(corpus),
  )


def train(
  training: Training,
  encoded: embeddings_lib.Encoded,
  dataset: pipeline.RetrievalDataset,
  config: Any,
  *,
  seed: int,
  folder: pathlib.Path,
) -> Any:
  """The parameters of both adapters at the best epoch."""
  fit = encoded.split(dataset, "train")
  relevant = dataset.splits["train"].rows()
  batch_size = min(config.batch_size, len(fit.queries))
  rows = pipeline.train_batches(
    dataset.splits["train"], batch_size=batch_size, seed=seed
  )
  graphdef, params = make_adapters(config, fit.corpus.shape[1], seed=seed)

  def batch_fn(step):
    query = rows[step]["query"]
    return {
      "query": query,
      "positive": rows[step]["positive"],
      "queries": fit.queries[query],
      "labels": fit.labels[query],
      "relevant": relevant[query],
    }

  def loss_fn(params, corpus, batch):
    queries, corpus = _adapt(graphdef, params, batch["queries"], corpus)
    return training.loss_fn(queries, corpus, batch)

  def eval_fn(params):
    held_out = Adapted(encoded, params, config).split(dataset, "validation")
    indices = retriever.rank(
      training.decode,
      training.params,
      held_out.queries,
      held_out.corpus,
      k=max(stages.KS),
      config=training.config,
    )
    return stages.validate(indices, held_out.labels)

  task = loop.Task(
    params=params,
    frozen=fit.corpus,
    loss_fn=loss_fn,
    batch_fn=batch_fn,
    eval_fn=eval_fn,
    steps_per_epoch=len(fit.queries) // batch_size,
    monitor=stages.MONITOR,
  )
  best, progress = loop.fit(
    task,
    optax.adamw(training.learning_rate),
    folder=folder,
    num_epochs=config.num_epochs,
    patience=config.patience,
    checkpoint_every=max(task.steps_per_epoch, 50),
  )
  logging.info("%s: best at step %d.", training.name, progress.best_step)
  return best
