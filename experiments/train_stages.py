"""The stages of a run: each from a task to the retriever that it saves."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import time
from collections.abc import Callable
from typing import Any

import ml_collections
import optax
from absl import logging
from flax import nnx

from experiments import embeddings
from experiments import teacher as teacher_lib
from nnn_jax.data import pipeline
from nnn_jax.decoders import nnn
from nnn_jax.models import bi_encoder as bi_encoder_lib
from nnn_jax.training import (
  colt_stage,
  hypencoder_stage,
  loop,
  mol_stage,
  selection,
  sparse_stage,
  stages,
)

BiEncoder = bi_encoder_lib.BiEncoder


@dataclasses.dataclass(frozen=True)
class Run:
  """What the stages of one run share.

  Attributes:
    config: Its settings.
    dataset: Its data.
    workdir: Its folder.
    debug_checks: See `loop.fit`.
  """

  config: ml_collections.ConfigDict
  dataset: pipeline.RetrievalDataset
  workdir: pathlib.Path
  debug_checks: bool = False

  @property
  def common(self) -> dict[str, int]:
    """What every task takes."""
    return {"batch_size": self.config.batch_size, "seed": self.config.seed}

  def run(
    self,
    name: str,
    make_task: Callable[[], loop.Task],
    make_result: Callable[[Any], Any],
    stage: Any,
    optimizer: optax.GradientTransformation | None = None,
  ) -> Any:
    """Trains one stage and saves its retriever, or reuses a finished one.

    The optimiser is AdamW at the stage's constant rate unless one is given.
    """
    folder = self.workdir / name / "retriever"
    if folder.exists():
      result, saved = embeddings.load(folder)
      logging.info(
        "Stage %s is done (%s %.4f): reusing %s.",
        name,
        stages.MONITOR,
        saved["best_value"],
        folder,
      )
      return result
    start = time.time()
    if optimizer is None:
      optimizer = optax.adamw(
        stage.learning_rate, weight_decay=stage.weight_decay
      )
    best_params, progress = loop.fit(
      make_task(),
      optimizer,
      folder=self.workdir / name,
      num_epochs=stage.num_epochs,
      patience=stage.patience,
      checkpoint_every=self.config.checkpoint_every,
      debug_checks=self.debug_checks,
    )
    result = make_result(best_params)
    result.save(
      folder,
      {
        "stage": name,
        "encoder": self.config.encoder,
        "dataset": self.config.dataset,
        "settings": dataclasses.asdict(stage),
        "best_value": progress.best_value,
        "best_step": progress.best_step,
        "num_steps": progress.step,
        "stop_reason": progress.stop_reason,
        "history": progress.history,
        "seconds_of_last_start": round(time.time() - start, 1),
      },
    )
    logging.info(
      "Stage %s: best validation %s %.4f at step %d; saved in %s.",
      name,
      stages.MONITOR,
      progress.best_value,
      progress.best_step,
      folder,
    )
    return result


def train_dense(run: Run, initial: BiEncoder) -> BiEncoder:
  """The stage "dense"."""
  stage = stages.DenseStage(**run.config.dense)
  graphdef, _ = nnx.split(initial.query_encoder)
  return run.run(
    "dense",
    lambda: stages.dense_task(initial, run.dataset, stage, **run.common),
    lambda params: dataclasses.replace(
      initial,
      query_encoder=nnx.merge(graphdef, params["query"]),
      document_encoder=nnx.merge(graphdef, params["document"]),
    ),
    stage,
  )


def nnn_penalties(
  l1: float | None,
  l2: float | None,
  bi_encoder: BiEncoder,
  dataset: pipeline.RetrievalDataset,
  config: nnn.NnnConfig,
) -> nnn.NnnParams:
  """The penalties to train with; None is chosen on validation.

  By the paper's rule, the support alone: with the list filled up beyond it, a
  penalty that empties the support ranks like dense retrieval, can win, and
  gives no gradient to train with.
  """
  if l1 is not None and l2 is not None:
    return nnn.NnnParams(l1, l2)
  validation = dataset.splits["validation"]
  best, _ = selection.select(
    nnn.decode,
    selection.penalty_grid(
      selection.PENALTIES if l1 is None else [l1],
      selection.PENALTIES if l2 is None else [l2],
    ),
    bi_encoder.encode_queries(validation.texts),
    bi_encoder.encode_documents(dataset.doc_texts),
    validation.labels(len(dataset.doc_ids)),
    config=config,
    support_only=True,
    description="penalties on validation",
  )
  logging.info("Training with %s.", best)
  return best


def train_nnn(
  run: Run, dense: BiEncoder, name: str = "nnn_tr", **fixed: Any
) -> BiEncoder:
  """The stage "nnn_tr", or one of its settings but for what is `fixed`."""
  settings = run.config.nnn_tr.to_dict() | fixed
  l1, l2 = settings.pop("l1"), settings.pop("l2")
  stage = stages.NnnStage(**settings)
  dim = dense.query_encoder.config.dim

  def make_task():
    nnn_config = stage.decoder_config(len(run.dataset.doc_ids))
    penalties = nnn_penalties(l1, l2, dense, run.dataset, nnn_config)
    return stages.nnn_task(dense, run.dataset, stage, penalties, **run.common)

  def make_result(params):
    adapter = stage.make_adapter(dim, seed=run.config.seed)
    return dataclasses.replace(
      dense,
      query_encoder=nnx.merge(
        nnx.split(dense.query_encoder)[0], params["query"]
      ),
      adapter=nnx.merge(nnx.split(adapter)[0], params["adapter"]),
    )

  return run.run(name, make_task, make_result, stage)


def train_colt(run: Run, dense: BiEncoder) -> Any:
  """The stage "colt"."""
  stage = colt_stage.ColtStage(**run.config.colt)
  return run.run(
    "colt",
    lambda: colt_stage.colt_task(
      dense, run.dataset, stage, seed=run.config.seed
    ),
    lambda params: colt_stage.make_retriever(dense, run.dataset, stage, params),
    stage,
  )


def _of_model(start: Any) -> Callable[[Any], Any]:
  """From the parameters of a whole model to its retriever."""
  graphdef, _ = nnx.split(start.model)
  return lambda params: dataclasses.replace(
    start, model=nnx.merge(graphdef, params)
  )


def train_mol(run: Run, initial: BiEncoder) -> Any:
  """The stage "mol"."""
  stage = mol_stage.MolStage(**run.config.mol)
  start = stage.make_retriever(initial, seed=run.config.seed)
  return run.run(
    "mol",
    lambda: mol_stage.mol_task(start, run.dataset, stage, **run.common),
    _of_model(start),
    stage,
  )


def train_sparse(run: Run, initial: BiEncoder) -> Any:
  """The stage "sparse"."""
  stage = sparse_stage.SparseStage(**run.config.sparse)
  start = stage.make_retriever(initial, run.dataset)
  return run.run(
    "sparse",
    lambda: sparse_stage.sparse_task(start, run.dataset, stage, **run.common),
    _of_model(start),
    stage,
  )


def train_hypencoder(run: Run, initial: BiEncoder) -> Any:
  """The stage "hypencoder"."""
  settings = run.config.hypencoder.to_dict()
  teacher, num = settings.pop("teacher"), settings.pop("num_candidates")
  stage = hypencoder_stage.HypencoderStage(**settings)
  start = stage.make_retriever(initial, seed=run.config.seed)

  def make_task():
    candidates = teacher_lib.candidates(
      teacher,
      run.dataset,
      run.workdir,
      num=num,
      temperature=run.config.dense.temperature,
    )
    return hypencoder_stage.hypencoder_task(
      start, run.dataset, stage, candidates=candidates, **run.common
    )

  return run.run(
    "hypencoder", make_task, _of_model(start), stage, stage.optimizer()
  )


# In the order in which they run: another may be the teacher of hypencoder.
STAGES: dict[str, Callable[[Run, Any], Any]] = {
  "dense": train_dense,
  "mol": train_mol,
  "sparse": train_sparse,
  "colt": train_colt,
  "nnn_tr": train_nnn,
  "l1_tr": functools.partial(train_nnn, name="l1_tr", l2=0.0),
  "l2_tr": functools.partial(train_nnn, name="l2_tr", l1=0.0),
  "nnn_exact": functools.partial(
    train_nnn, name="nnn_exact", solver="working_set"
  ),
  "hypencoder": train_hypencoder,
}
# The others start from the initial encoder.
FROM_DENSE = {"colt", "nnn_tr", "l1_tr", "l2_tr", "nnn_exact"}
