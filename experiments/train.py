"""Trains a dense bi-encoder, then the same encoder through the NNN solver.

With --stages=mol, sparse or hypencoder, or beside the others, a mixture of
logits, a sparse encoder or a Hypencoder from the same initial encoder.

  python -m experiments.train --config=configs/api_docs.py --workdir=runs/demo
  ... --config.dense.num_epochs=2 --stages=dense

The work directory holds, for each stage, checkpoints, `metrics.jsonl`,
TensorBoard files and, once the stage is done, `retriever/`: the trained
bi-encoder that evaluate and search load. A killed run goes on when the same
command is given again; a finished stage is reused.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import ml_collections
import optax
from absl import app, flags, logging
from flax import nnx
from ml_collections import config_flags

from experiments import teacher as teacher_lib
from nnn_jax import files
from nnn_jax.data import pipeline
from nnn_jax.decoders import nnn
from nnn_jax.models import bi_encoder as bi_encoder_lib
from nnn_jax.models import (
  colt_retriever,
  fetch,
  sparse_head,
  text_encoder,
  text_hypencoder,
  text_mol,
  tokenization,
)
from nnn_jax.training import (
  colt_stage,
  hypencoder_stage,
  loop,
  mol_stage,
  selection,
  sparse_stage,
  stages,
)

_CONFIG = config_flags.DEFINE_config_file("config", None, "Settings.")
_WORKDIR = flags.DEFINE_string(
  "workdir", None, "Where results go.", required=True
)
_STAGES = flags.DEFINE_list(
  "stages",
  ["dense", "nnn_tr"],
  "Stages to run, of dense, nnn_tr, mol, sparse, colt and hypencoder.",
)
_DEBUG_CHECKS = flags.DEFINE_bool(
  "debug_checks", False, "Name the operation that makes a NaN; slow."
)

BiEncoder = bi_encoder_lib.BiEncoder
STAGES = ("dense", "nnn_tr", "mol", "sparse", "colt", "hypencoder")


def initial_bi_encoder(
  config: ml_collections.ConfigDict, dataset: pipeline.RetrievalDataset
) -> BiEncoder:
  """The encoder that training starts from.

  `config.encoder` is a folder, a hub name, "minilm", "scratch", or "auto":
  MiniLM if its weights can be had, else from scratch.
  """
  source = config.encoder
  if source == "auto":
    try:
      fetch.minilm()
      source = "minilm"
    except RuntimeError as error:
      logging.warning(
        "Training a small encoder from scratch, since the MiniLM weights "
        "could not be had: %s",
        error,
      )
      source = "scratch"
  lengths = {
    "query_length": config.query_length,
    "document_length": config.document_length,
  }
  if source != "scratch":
    return BiEncoder.from_pretrained(source, **lengths)
  settings = dict(config.scratch)
  texts = dataset.doc_texts + dataset.splits["train"].texts
  tokenizer = tokenization.Tokenizer.train(
    texts, vocab_size=settings.pop("vocab_size")
  )
  encoder = text_encoder.TextEncoder(
    text_encoder.TextEncoderConfig(vocab_size=tokenizer.vocab_size, **settings),
    rngs=nnx.Rngs(config.seed),
  )
  return BiEncoder(
    query_encoder=encoder,
    document_encoder=encoder,
    tokenizer=tokenizer,
    **lengths,
  )


def run_stage(
  name: str,
  make_task: Callable[[], loop.Task],
  make_result: Callable[[Any], Any],
  stage: stages.DenseStage
  | stages.NnnStage
  | mol_stage.MolStage
  | sparse_stage.SparseStage
  | colt_stage.ColtStage
  | hypencoder_stage.HypencoderStage,
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  load: Callable[[pathlib.Path], tuple[Any, dict[str, Any]]] = BiEncoder.load,
  optimizer: optax.GradientTransformation | None = None,
) -> Any:
  """Trains one stage and saves its retriever, or reuses a finished one.

  The optimiser is AdamW with the stage's constant rate unless one is given.
  """
  folder = workdir / name / "retriever"
  if folder.exists():
    result, saved = load(folder)
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
    folder=workdir / name,
    num_epochs=stage.num_epochs,
    patience=stage.patience,
    checkpoint_every=config.checkpoint_every,
    debug_checks=_DEBUG_CHECKS.value,
  )
  result = make_result(best_params)
  result.save(
    folder,
    {
      "stage": name,
      "encoder": config.encoder,
      "dataset": config.dataset,
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


def check_settings(
  config: ml_collections.ConfigDict, workdir: pathlib.Path
) -> None:
  """Records the settings; refuses to resume a run under other ones.

  Settings that came with a newer version, such as those of a stage that there
  was not, are added.

  Raises:
    ValueError: Naming the settings that differ.
  """
  path = workdir / "config.json"
  settings = json.loads(config.to_json_best_effort())
  if not path.exists():
    files.write(path, json.dumps(settings, indent=2))
    return
  old = json.loads(path.read_text())
  changed = sorted(key for key in old if old[key] != settings.get(key))
  if changed:
    raise ValueError(
      f"{workdir} holds a run with other settings of {', '.join(changed)}: "
      "use another --workdir, or the settings in its config.json."
    )
  if settings != old:
    files.write(path, json.dumps(settings, indent=2))


def train(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  stage_names: Sequence[str] = ("dense", "nnn_tr"),
) -> None:
  """Runs the stages in order; nnn_tr and colt start from dense."""
  unknown = set(stage_names) - set(STAGES)
  if unknown:
    raise ValueError(
      f"stages must be {' or '.join(STAGES)}, got {sorted(unknown)}."
    )
  check_settings(config, workdir)
  dataset = pipeline.load(
    config.dataset, data_dir=config.data_dir, manual_dir=config.manual_dir
  )
  print(pipeline.describe(dataset))
  missing = {"train", "validation"} - set(dataset.splits)
  if missing:
    raise ValueError(
      f"dataset {dataset.name} has no {' and no '.join(sorted(missing))} "
      f"split to train with; it has {', '.join(dataset.splits) or 'none'}."
    )
  initial = initial_bi_encoder(config, dataset)
  if "mol" in stage_names:
    train_mol(initial, dataset, config, workdir)
  if "sparse" in stage_names:
    train_sparse(initial, dataset, config, workdir)
  if {"dense", "nnn_tr", "colt"} & set(stage_names):
    train_bi_encoders(initial, dataset, config, workdir, stage_names)
  if "hypencoder" in stage_names:  # Last: another may be its teacher.
    train_hypencoder(initial, dataset, config, workdir)


def train_bi_encoders(
  initial: BiEncoder,
  dataset: pipeline.RetrievalDataset,
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  stage_names: Sequence[str],
) -> None:
  """The stage "dense", and those of "colt" and "nnn_tr" that are asked for."""
  dense_stage = stages.DenseStage(**config.dense)
  settings = config.nnn_tr.to_dict()
  l1, l2 = settings.pop("l1"), settings.pop("l2")
  nnn_stage = stages.NnnStage(**settings)
  common = {"batch_size": config.batch_size, "seed": config.seed}
  graphdef, _ = nnx.split(initial.query_encoder)
  dense = run_stage(
    "dense",
    lambda: stages.dense_task(initial, dataset, dense_stage, **common),
    lambda params: dataclasses.replace(
      initial,
      query_encoder=nnx.merge(graphdef, params["query"]),
      document_encoder=nnx.merge(graphdef, params["document"]),
    ),
    dense_stage,
    config,
    workdir,
  )
  if "colt" in stage_names:
    train_colt(dense, dataset, config, workdir)
  if "nnn_tr" not in stage_names:
    return

  def make_task():
    nnn_config = nnn_stage.decoder_config(len(dataset.doc_ids))
    penalties = nnn_penalties(l1, l2, dense, dataset, nnn_config)
    return stages.nnn_task(dense, dataset, nnn_stage, penalties, **common)

  run_stage(
    "nnn_tr",
    make_task,
    lambda params: dataclasses.replace(
      dense,
      query_encoder=nnx.merge(
        nnx.split(dense.query_encoder)[0], params["query"]
      ),
      adapter=nnx.merge(
        nnx.split(
          nnn_stage.make_adapter(
            dense.query_encoder.config.dim, seed=config.seed
          )
        )[0],
        params["adapter"],
      ),
    ),
    nnn_stage,
    config,
    workdir,
  )


def train_mol(
  initial: BiEncoder,
  dataset: pipeline.RetrievalDataset,
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
) -> text_mol.TextMolRetriever:
  """The stage "mol"."""
  stage = mol_stage.MolStage(**config.mol)
  start = stage.make_retriever(initial, seed=config.seed)
  return run_stage(
    "mol",
    lambda: mol_stage.mol_task(
      start, dataset, stage, batch_size=config.batch_size, seed=config.seed
    ),
    lambda params: dataclasses.replace(
      start, model=nnx.merge(nnx.split(start.model)[0], params)
    ),
    stage,
    config,
    workdir,
    load=text_mol.TextMolRetriever.load,
  )


def train_sparse(
  initial: BiEncoder,
  dataset: pipeline.RetrievalDataset,
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
) -> sparse_head.SparseRetriever:
  """The stage "sparse"."""
  stage = sparse_stage.SparseStage(**config.sparse)
  start = stage.make_retriever(initial, dataset)
  return run_stage(
    "sparse",
    lambda: sparse_stage.sparse_task(
      start, dataset, stage, batch_size=config.batch_size, seed=config.seed
    ),
    lambda params: dataclasses.replace(
      start, model=nnx.merge(nnx.split(start.model)[0], params)
    ),
    stage,
    config,
    workdir,
    load=sparse_head.SparseRetriever.load,
  )


def train_hypencoder(
  initial: BiEncoder,
  dataset: pipeline.RetrievalDataset,
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
) -> text_hypencoder.TextHypencoderRetriever:
  """The stage "hypencoder"."""
  settings = config.hypencoder.to_dict()
  teacher, num = settings.pop("teacher"), settings.pop("num_candidates")
  stage = hypencoder_stage.HypencoderStage(**settings)
  start = stage.make_retriever(initial, seed=config.seed)
  return run_stage(
    "hypencoder",
    lambda: hypencoder_stage.hypencoder_task(
      start,
      dataset,
      stage,
      batch_size=config.batch_size,
      seed=config.seed,
      candidates=teacher_lib.candidates(
        teacher,
        dataset,
        workdir,
        num=num,
        temperature=config.dense.temperature,
      ),
    ),
    lambda params: dataclasses.replace(
      start, model=nnx.merge(nnx.split(start.model)[0], params)
    ),
    stage,
    config,
    workdir,
    load=text_hypencoder.TextHypencoderRetriever.load,
    optimizer=stage.optimizer(),
  )


def train_colt(
  dense: BiEncoder,
  dataset: pipeline.RetrievalDataset,
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
) -> colt_retriever.ColtRetriever:
  """The stage "colt"."""
  stage = colt_stage.ColtStage(**config.colt)
  return run_stage(
    "colt",
    lambda: colt_stage.colt_task(dense, dataset, stage, seed=config.seed),
    lambda params: colt_stage.make_retriever(dense, dataset, stage, params),
    stage,
    config,
    workdir,
    load=colt_retriever.ColtRetriever.load,
  )


def main(argv: Sequence[str]) -> None:
  """Entry point."""
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {argv[1:]}")
  train(_CONFIG.value, pathlib.Path(_WORKDIR.value), _STAGES.value)


if __name__ == "__main__":
  flags.mark_flag_as_required("config")
  app.run(main)
