"""Trains a dense bi-encoder, then the same encoder through the NNN solver.

With --stages, other retrievers from the same initial encoder: a mixture of
logits (mol), a sparse encoder (sparse), a Hypencoder (hypencoder); and from the
dense stage COLT (colt), and NNN without l2 (l1_tr), without l1 (l2_tr) and
through the exact solver (nnn_exact).

  python -m experiments.train --config=configs/api_docs.py --workdir=runs/demo
  ... --config.dense.num_epochs=2 --stages=dense

The work directory holds, for each stage, checkpoints, `metrics.jsonl`,
TensorBoard files and, once the stage is done, `retriever/`: what evaluate and
search load. A killed run goes on when the same command is given again; a
finished stage is reused.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import ml_collections
from absl import app, flags, logging
from flax import nnx
from ml_collections import config_flags

from experiments import splits, train_stages
from nnn_jax import files
from nnn_jax.data import pipeline
from nnn_jax.models import bi_encoder as bi_encoder_lib
from nnn_jax.models import fetch, text_encoder, tokenization

BiEncoder = bi_encoder_lib.BiEncoder


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


def load_dataset(
  config: ml_collections.ConfigDict,
) -> pipeline.RetrievalDataset:
  """The data set of the settings, with splits of our own if they say so."""
  dataset = pipeline.load(
    config.dataset, data_dir=config.data_dir, manual_dir=config.manual_dir
  )
  return splits.with_splits(dataset)[0] if config.own_splits else dataset


def train(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  stage_names: Sequence[str] = ("dense", "nnn_tr"),
  *,
  debug_checks: bool = False,
) -> None:
  """Runs the stages in their order.

  Those of `train_stages.FROM_DENSE` start from the dense stage, and run it.
  """
  unknown = set(stage_names) - set(train_stages.STAGES)
  if unknown:
    raise ValueError(
      f"stages must be of {', '.join(train_stages.STAGES)}, got "
      f"{sorted(unknown)}."
    )
  check_settings(config, workdir)
  dataset = load_dataset(config)
  print(pipeline.describe(dataset))
  missing = {"train", "validation"} - set(dataset.splits)
  if missing:
    raise ValueError(
      f"dataset {dataset.name} has no {' and no '.join(sorted(missing))} "
      f"split to train with; it has {', '.join(dataset.splits) or 'none'}: "
      "--config.own_splits=True draws 80/10/10 % of all its queries."
    )
  run = train_stages.Run(config, dataset, workdir, debug_checks)
  initial = initial_bi_encoder(config, dataset)
  wanted = set(stage_names)
  if wanted & train_stages.FROM_DENSE:
    wanted.add("dense")
  results: dict[str, Any] = {}
  for name, stage in train_stages.STAGES.items():
    if name in wanted:
      start = results["dense"] if name in train_stages.FROM_DENSE else initial
      results[name] = stage(run, start)


def main(argv: Sequence[str]) -> None:
  """Entry point."""
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {argv[1:]}")
  values = flags.FLAGS
  train(
    values.config,
    pathlib.Path(values.workdir),
    values.stages,
    debug_checks=values.debug_checks,
  )


if __name__ == "__main__":
  # Here, so that a program can import this beside another experiment.
  config_flags.DEFINE_config_file("config", None, "Settings.")
  flags.mark_flag_as_required("config")
  flags.DEFINE_string("workdir", None, "Where results go.", required=True)
  flags.DEFINE_list(
    "stages",
    ["dense", "nnn_tr"],
    f"Stages to run, of {', '.join(train_stages.STAGES)}.",
  )
  flags.DEFINE_bool(
    "debug_checks", False, "Name the operation that makes a NaN; slow."
  )
  app.run(main)
