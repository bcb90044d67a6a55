"""The stage "colt": document vectors that graphs of the labels have moved.

From the dense stage's encoder; see `models.colt` for the formulas. The loss is

  completeness of lists + lambda (InfoNCE between the views of queries
                                  + the same of scenes) / 2

Departures from the published training: scenes are the relevant sets of training
queries (not those of test queries), vectors start from unit rows, a scene that
occurs twice in a batch is not its own negative, and the best epoch is chosen on
validation (the published code chooses it on test).

Reference: COLT (CIKM 2024), arXiv 2405.16089.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nnn_jax import losses, retriever
from nnn_jax.core import linalg
from nnn_jax.data import pipeline
from nnn_jax.decoders import dense
from nnn_jax.models import bi_encoder as bi_encoder_lib
from nnn_jax.models import colt, colt_retriever
from nnn_jax.training import loop, stages


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColtStage:
  """Settings of the stage.

  Attributes:
    num_epochs: At most; an epoch is a pass over the training queries.
    batch_size: Queries a step.
    learning_rate: Of AdamW, constant.
    weight_decay: Of AdamW.
    patience: Epochs without improvement before stopping.
    num_layers: L of the propagation.
    contrastive: lambda, the weight of the contrastive loss.
    temperature: tau of the contrastive loss.
    list_size: Documents in a list: the relevant, filled up with others.
    edge_dropout: Share of edges dropped, redrawn each epoch.
  """

  num_epochs: int = 20
  batch_size: int = 256
  learning_rate: float = 1e-3
  weight_decay: float = 1e-7
  patience: int = 3
  num_layers: int = 1
  contrastive: float = 0.04
  temperature: float = 0.1
  list_size: int = 10
  edge_dropout: float = 0.2


def _lists(
  relevant: Sequence[np.ndarray], num_docs: int, size: int, key: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
  """Candidates and labels `[batch, size]`: relevant first, then any others."""
  order = np.random.default_rng(key).random((len(relevant), num_docs))
  for row, documents in enumerate(relevant):
    order[row, documents] -= 1.0
  candidates = np.argsort(order, axis=1)[:, :size].astype(np.int32)
  return candidates, np.take_along_axis(order, candidates, axis=1) < 0


def _between_views(ours, others, ids, temperature):
  """Mean InfoNCE of each row of one view with its own row of the other."""
  scores = linalg.matmul(linalg.normalize(ours), linalg.normalize(others).T)
  own = jnp.eye(ids.shape[0], dtype=bool)
  loss = losses.info_nce(
    scores,
    own,
    temperature=temperature,
    where=own | (ids[:, None] != ids[None, :]),
  )
  return jnp.mean(loss)


def colt_task(
  bi_encoder: bi_encoder_lib.BiEncoder,
  dataset: pipeline.RetrievalDataset,
  stage: ColtStage,
  *,
  seed: int,
) -> loop.Task:
  """The stage as a task; params are `colt.ColtParams`."""
  train, validation = dataset.splits["train"], dataset.splits["validation"]
  num_docs = len(dataset.doc_ids)
  graphs = colt.build(train.relevant)
  steps_per_epoch = len(train) // stage.batch_size
  rows = pipeline.train_batches(train, batch_size=stage.batch_size, seed=seed)
  queries = bi_encoder.encode_queries(
    validation.texts, description="validation queries"
  )
  labels = validation.labels(num_docs)

  def batch_fn(step: int) -> dict[str, Any]:
    query = rows[step]["query"]
    candidates, relevant = _lists(
      [train.relevant[row] for row in query],
      num_docs,
      min(stage.list_size, num_docs),
      (seed, step),
    )
    return {
      "query": query,
      "candidates": candidates,
      "relevant": relevant,
      "epoch": np.int32(step // steps_per_epoch),
    }

  def loss_fn(params, frozen, batch):
    key = jax.random.fold_in(jax.random.key(seed), batch["epoch"])
    kept = colt.keep_edges(frozen, stage.edge_dropout, key=key)
    views = colt.views(params, frozen, kept, num_layers=stage.num_layers)
    query = batch["query"]
    lists = losses.completeness(
      colt.scores(views, query, batch["candidates"]), batch["relevant"]
    )
    scene = jnp.asarray(frozen.query_scene.right)[query]
    contrastive = _between_views(
      views.tool_queries[query],
      views.scene_queries[query],
      query,
      stage.temperature,
    ) + _between_views(
      views.tool_scenes[scene],
      views.scenes[scene],
      scene,
      stage.temperature,
    )
    return jnp.mean(lists) + stage.contrastive * contrastive / 2

  def eval_fn(params):
    indices = retriever.rank(
      dense.decode,
      (),
      queries,
      documents(params, graphs, stage),
      k=max(stages.KS),
      config=dense.DenseConfig(),
    )
    return stages.validate(indices, labels)

  return loop.Task(
    params=colt.ColtParams(
      jnp.asarray(
        bi_encoder.encode_queries(train.texts, description="training queries")
      ),
      jnp.asarray(
        bi_encoder.encode_documents(dataset.doc_texts, description="documents")
      ),
    ),
    frozen=jax.tree.map(jnp.asarray, graphs),
    loss_fn=loss_fn,
    batch_fn=batch_fn,
    eval_fn=eval_fn,
    steps_per_epoch=steps_per_epoch,
    monitor=stages.MONITOR,
  )


def documents(
  params: colt.ColtParams, graphs: colt.Graphs, stage: ColtStage
) -> np.ndarray:
  """T, unit rows `[num_docs, dim]`, of all edges."""

  @jax.jit
  def compute(params, graphs):
    kept = colt.all_edges(graphs)
    views = colt.views(params, graphs, kept, num_layers=stage.num_layers)
    return linalg.normalize(views.tools)

  return np.asarray(compute(params, jax.tree.map(jnp.asarray, graphs)))


def make_retriever(
  bi_encoder: bi_encoder_lib.BiEncoder,
  dataset: pipeline.RetrievalDataset,
  stage: ColtStage,
  params: colt.ColtParams,
) -> colt_retriever.ColtRetriever:
  """What the trained parameters retrieve with."""
  graphs = colt.build(dataset.splits["train"].relevant)
  return colt_retriever.ColtRetriever(
    bi_encoder=bi_encoder,
    doc_texts=dataset.doc_texts,
    documents=documents(params, graphs, stage),
  )
