r"""Compares decoders on held-out queries: tables, runs and figures.

  python -m experiments.evaluate --workdir=runs/demo
  python -m experiments.evaluate --encoder=minilm --workdir=runs/frozen \
    --datasets=toollens --manual_dir=toollens=/path/to/toollens

Parameters are chosen on a validation split, by Comp@5: the data set's own, or
for a data set without one that of the first data set named. Written under
`<workdir>/evaluation`: `results.md`, `results.json`, TREC runs and qrels, and
the paper's Figures 2 to 4 as PNG, with their data as CSV.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from typing import Any

from absl import app, flags, logging

from experiments import comparison, evaluation, manual
from experiments import embeddings as embeddings_lib
from experiments import splits as splits_lib
from nnn_jax.data import pipeline


def _trained_on(workdir: pathlib.Path) -> dict[str, Any]:
  path = workdir / "config.json"
  if flags.FLAGS.encoder:
    return {}
  if not path.exists():
    raise ValueError(
      f"workdir {workdir} holds no run (config.json is missing): train one "
      "with `python -m experiments.train`, or name a pretrained --encoder."
    )
  return json.loads(path.read_text())


def _decoders(workdir: pathlib.Path) -> list[str]:
  """Those asked for; by default what was trained on request as well."""
  decoders = list(flags.FLAGS.decoders)
  unknown = set(decoders) - set(comparison.METHODS)
  if unknown:
    raise ValueError(
      f"decoders {sorted(unknown)} are unknown: choose from "
      f"{', '.join(comparison.METHODS)}."
    )
  if flags.FLAGS["decoders"].using_default_value:
    decoders += [
      name
      for name in comparison.OPTIONAL
      if (workdir / comparison.METHODS[name].stage / "retriever").exists()
    ]
  if flags.FLAGS.encoder:
    decoders = [d for d in decoders if comparison.METHODS[d].stage == "dense"]
  return decoders


def _encoders(
  workdir: pathlib.Path, decoders: Sequence[str]
) -> dict[str, embeddings_lib.Encoded]:
  source, values = flags.FLAGS.encoder, flags.FLAGS
  if not source:
    return evaluation.encoders_of(workdir, decoders)
  encoded = embeddings_lib.Encoded.of_frozen(
    source,
    workdir / "evaluation" / "embeddings",
    query_length=values.query_length,
    document_length=values.document_length,
  )
  return {"dense": encoded}


def _load(
  names: Sequence[str], config: dict[str, Any]
) -> list[pipeline.RetrievalDataset]:
  """Loads the data sets; a further one that cannot be had is left out."""
  folders = manual.folders()
  if config.get("manual_dir"):
    folders.setdefault(config["dataset"], config["manual_dir"])
  datasets = []
  for name in names:
    try:
      dataset = pipeline.load(
        name,
        data_dir=flags.FLAGS.data_dir or config.get("data_dir"),
        manual_dir=folders.get(name),
      )
    except (FileNotFoundError, RuntimeError) as error:
      if name == names[0]:
        raise
      logging.warning("Leaving %s out: %s", name, error)
      continue
    if name == config.get("dataset") and config.get("own_splits"):
      dataset, _ = splits_lib.with_splits(dataset)
    datasets.append(dataset)
  return datasets


def main(argv: Sequence[str]) -> None:
  """Entry point."""
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {argv[1:]}")
  logging.set_verbosity(logging.INFO)
  workdir = pathlib.Path(flags.FLAGS.workdir)
  decoders = _decoders(workdir)
  config = _trained_on(workdir)
  names = list(flags.FLAGS.datasets)
  if not names:
    names = [config.get("dataset", "api_docs")]
    if names == ["api_docs"]:
      names.append("bfcl")  # Its independent test.
  datasets = _load(names, config)
  left_out = [name for name in names if name not in {d.name for d in datasets}]
  notes = []
  if left_out:
    notes.append(f"Left out, files not to be had: {', '.join(left_out)}.")
  if config.get("own_splits") and config["dataset"] in names:
    notes.append(f"{config['dataset']}: {splits_lib.NOTE}")
  text, _ = evaluation.evaluate(
    workdir,
    datasets,
    decoders,
    _encoders(workdir, decoders),
    splits=flags.FLAGS.splits,
    notes=notes,
  )
  print(text)


if __name__ == "__main__":
  # Here, so that a program can import this beside another experiment.
  flags.DEFINE_string("workdir", None, "Of experiments.train.", required=True)
  flags.DEFINE_list(
    "datasets",
    [],
    "Data sets to evaluate; the default is the trained one (api_docs with "
    "--encoder), and bfcl beside api_docs.",
  )
  manual.define()
  flags.DEFINE_string("data_dir", None, "Prepared data sets.")
  flags.DEFINE_list(
    "decoders",
    ["dense", "mmr", "diversity", "nnn_fix", "dense_tr", "nnn_tr"],
    "Rows of the table; by default also those of other stages that were "
    "trained, such as colt and mol.",
  )
  flags.DEFINE_list(
    "splits", ["test"], 'Query splits, such as "test,see_also"; or "all".'
  )
  flags.DEFINE_string(
    "encoder", None, "A pretrained encoder, frozen, in place of a trained one."
  )
  flags.DEFINE_integer(
    "query_length", 64, "Tokens a query; only with --encoder."
  )
  flags.DEFINE_integer(
    "document_length", 128, "Tokens a document; only with --encoder."
  )
  app.run(main)
