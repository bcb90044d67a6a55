r"""Compares decoders on held-out queries: tables, runs and figures.

  python -m experiments.evaluate --workdir=runs/demo
  python -m experiments.evaluate --encoder=minilm --workdir=runs/frozen \
    --datasets=toollens --manual_dir=toollens=/path/to/toollens

Parameters are chosen on a validation split, by Comp@5: the data set's own, or
for a data set without one that of the first data set named. Written under
`<workdir>/evaluation`: `results.md`, `results.json`, TREC runs and qrels, and
the paper's Figures 2 to 4 as PNG.
"""

from __future__ import annotations

import json
import os
import pathlib
import platform
import sys
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from absl import app, flags, logging

import nnn_jax
from experiments import comparison, figures, report
from experiments import embeddings as embeddings_lib
from nnn_jax import files
from nnn_jax.data import pipeline
from nnn_jax.models import bi_encoder as bi_encoder_lib
from nnn_jax.training import selection, writers

FLAGS = flags.FLAGS
_WORKDIR = flags.DEFINE_string(
  "workdir", None, "Of experiments.train.", required=True
)
_DATASETS = flags.DEFINE_list(
  "datasets",
  [],
  "Data sets to evaluate; the default is the trained one (api_docs with "
  "--encoder), and bfcl beside api_docs.",
)
_MANUAL_DIR = flags.DEFINE_multi_string(
  "manual_dir", [], "name=folder with a data set's original files."
)
_DATA_DIR = flags.DEFINE_string("data_dir", None, "Prepared data sets.")
_DECODERS = flags.DEFINE_list(
  "decoders",
  ["dense", "mmr", "diversity", "nnn_fix", "dense_tr", "nnn_tr"],
  "Rows of the table; by default also colt and mol, where they were trained.",
)
_SPLITS = flags.DEFINE_list(
  "splits", ["test"], 'Query splits, such as "test,see_also"; or "all".'
)
_ENCODER = flags.DEFINE_string(
  "encoder", None, "A pretrained encoder, frozen, in place of a trained one."
)
_QUERY_LENGTH = flags.DEFINE_integer(
  "query_length", 64, "Tokens a query; only with --encoder."
)
_DOCUMENT_LENGTH = flags.DEFINE_integer(
  "document_length", 128, "Tokens a document; only with --encoder."
)

_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500)


def load_encoders(
  workdir: pathlib.Path, decoders: Sequence[str]
) -> dict[str, embeddings_lib.Encoded]:
  """Stage -> encoder, for the stages that the decoders need."""
  cache = workdir / "evaluation" / "embeddings"
  stages = {comparison.METHODS[name].stage for name in decoders}
  encoders = {}
  for stage in sorted(stages):
    if _ENCODER.value:
      bi_encoder = bi_encoder_lib.BiEncoder.from_pretrained(
        _ENCODER.value,
        query_length=_QUERY_LENGTH.value,
        document_length=_DOCUMENT_LENGTH.value,
      )
      lengths = f"{_QUERY_LENGTH.value}-{_DOCUMENT_LENGTH.value}"
      identity = f"{_ENCODER.value}-{lengths}"
      encoders[stage] = embeddings_lib.Encoded(bi_encoder, identity, cache)
    else:
      folder = workdir / stage / "retriever"
      encoders[stage] = embeddings_lib.Encoded.of_stage(folder, cache)
  return encoders


def _trained_on(workdir: pathlib.Path) -> dict[str, Any]:
  path = workdir / "config.json"
  if _ENCODER.value:
    return {}
  if not path.exists():
    raise ValueError(
      f"workdir {workdir} holds no run (config.json is missing): train one "
      "with `python -m experiments.train`, or name a pretrained --encoder."
    )
  return json.loads(path.read_text())


def _splits(dataset: pipeline.RetrievalDataset) -> list[str]:
  """The held-out splits asked for, as far as the data set has them."""
  held_out = [s for s in dataset.splits if s not in ("train", "validation")]
  if _SPLITS.value == ["all"]:
    return held_out
  return [split for split in held_out if split in _SPLITS.value]


def _load(
  names: Sequence[str], config: dict[str, Any]
) -> list[pipeline.RetrievalDataset]:
  """Loads the data sets; a further one that cannot be had is left out."""
  manual = dict(item.split("=", 1) for item in _MANUAL_DIR.value)
  if config.get("manual_dir"):
    manual.setdefault(config["dataset"], config["manual_dir"])
  datasets = []
  for name in names:
    try:
      datasets.append(
        pipeline.load(
          name,
          data_dir=_DATA_DIR.value or config.get("data_dir"),
          manual_dir=manual.get(name),
        )
      )
    except (FileNotFoundError, RuntimeError) as error:
      if name == names[0]:
        raise
      logging.warning("Leaving %s out: %s", name, error)
  return datasets


def _selector(
  dataset: pipeline.RetrievalDataset, first: pipeline.RetrievalDataset
) -> pipeline.RetrievalDataset:
  """The data set on whose validation split parameters are chosen."""
  selector = dataset if "validation" in dataset.splits else first
  if "validation" not in selector.splits:
    raise ValueError(
      f"{dataset.name} has no validation split to choose parameters on: "
      "name a data set that has one first in --datasets."
    )
  return selector


def evaluate(workdir: pathlib.Path, decoders: Sequence[str]) -> str:
  """Runs the comparison and returns the report, in Markdown."""
  unknown = set(decoders) - set(comparison.METHODS)
  if unknown:
    raise ValueError(
      f"decoders {sorted(unknown)} are unknown: choose from "
      f"{', '.join(comparison.METHODS)}."
    )
  config = _trained_on(workdir)
  if _ENCODER.value:
    decoders = [d for d in decoders if comparison.METHODS[d].stage == "dense"]
  names = list(_DATASETS.value)
  if not names:
    names = [config.get("dataset", "api_docs")]
    if names == ["api_docs"]:
      names.append("bfcl")  # Its independent test.
  datasets = _load(names, config)
  if not any(_splits(dataset) for dataset in datasets):
    raise ValueError(
      f"splits {_SPLITS.value} are held-out splits of none of the data sets; "
      f"{datasets[0].name} has {', '.join(datasets[0].splits)}."
    )
  encoders = load_encoders(workdir, decoders)
  out = workdir / "evaluation"
  results: dict[str, Any] = {"machine": _machine(), "data_sets": {}}
  sections = []
  chosen_on: dict[str, dict[str, comparison.Chosen]] = {}
  for dataset in datasets:
    selector = _selector(dataset, datasets[0])
    if selector.name not in chosen_on:
      chosen_on[selector.name] = {
        name: comparison.choose(method, encoders[method.stage], selector)
        for name, method in comparison.METHODS.items()
        if name in decoders
      }
    for split in _splits(dataset):
      title = f"{dataset.name}, {split}"
      rows = _evaluate_split(
        dataset, split, chosen_on[selector.name], encoders, out
      )
      cosines = [
        {"encoder": stage} | comparison.geometry(encoded.split(dataset, split))
        for stage, encoded in encoders.items()
        if encoded.serves(dataset)
      ]
      results["data_sets"][title] = {
        "rows": rows,
        "cosines": cosines,
        "parameters_chosen_on": f"{selector.name}, validation",
        "metadata": dataset.metadata,
      }
      sections.append(
        f"### {title}: {len(dataset.splits[split]):,} queries, "
        f"{len(dataset.doc_ids):,} documents "
        f"({dataset.metadata.get('source', dataset.name)})\n\n"
        f"{report.markdown_table(rows, list(rows[0]), digits=2).rstrip()}\n\n"
        "Mean cosines, for queries with two or more relevant documents:\n\n"
        f"{report.markdown_table(cosines, list(cosines[0])).rstrip()}\n\n"
        f"Parameters chosen on {selector.name}, validation."
      )
  chosen = chosen_on[datasets[0].name]
  results["chosen"] = {
    name: comparison.scalars(one.params)
    for name, one in chosen.items()
    if one.params
  }
  _draw(datasets[0], chosen, encoders, workdir, out)
  left_out = [name for name in names if name not in {d.name for d in datasets}]
  if left_out:
    sections.append(f"Left out, files not to be had: {', '.join(left_out)}.")
  sections.append(f"Figures, runs and qrels: {out}\n")
  text = "\n\n".join(sections)
  report.write_json(out / "results.json", results)
  files.write(out / "results.md", text)
  return text


def _slug(dataset: pipeline.RetrievalDataset, what: str) -> str:
  """A file name; names such as "toolbank/numpy" have a slash."""
  return f"{dataset.name}-{what}".replace("/", "-").replace(":", "-")


def _evaluate_split(dataset, split, chosen, encoders, out):
  queries = dataset.splits[split]
  slug = _slug(dataset, split)
  relevant = queries.labels(len(dataset.doc_ids))
  report.write_qrels(
    out / "runs" / f"{slug}.qrels",
    queries.ids,
    dataset.doc_ids,
    queries.gains(len(dataset.doc_ids)),
  )
  rows, table = [], {}
  for name, one in chosen.items():
    if not encoders[one.method.stage].serves(dataset):
      continue
    embeddings = encoders[one.method.stage].split(dataset, split)
    row, indices, comp = comparison.measure(one, embeddings)
    rows.append(row)
    table[one.method.label] = comparison.by_num_relevant(comp, relevant)
    report.write_run(
      out / "runs" / f"{slug}-{name}.trec",
      queries.ids,
      dataset.doc_ids,
      indices,
      tag=name,
    )
  figures.by_num_relevant(
    table, out / "figures" / f"{slug}-by_num_relevant.png"
  )
  return rows


def _dense_comp(dataset, split, chosen, encoders):
  if "dense" not in chosen:
    return None
  embeddings = encoders["dense"].split(dataset, split)
  _, _, comp = comparison.measure(chosen["dense"], embeddings)
  return float(np.mean(comp[embeddings.labels.any(axis=1)]))


def _draw(dataset, chosen, encoders, workdir, out):
  """Heat map (validation), steps curve (test) and training curves."""
  shape = (len(selection.PENALTIES), len(selection.PENALTIES))
  grids = {
    chosen[name].method.label: np.reshape(
      [value["comp"] for value in chosen[name].values], shape
    )
    for name in ("nnn_fix", "nnn_tr")
    if name in chosen
  }
  if grids:
    figures.heat_map(
      grids,
      selection.PENALTIES,
      selection.PENALTIES,
      out / "figures" / f"{_slug(dataset, 'penalties')}.png",
      metric="validation Comp@5",
    )
  split = "test" if "test" in dataset.splits else "validation"
  curves = {
    one.method.label: comparison.steps_curve(
      one, encoders[one.method.stage].split(dataset, split), _STEPS
    )
    for name, one in chosen.items()
    if name in ("nnn_fix", "nnn_tr")
  }
  if curves:
    figures.steps_curve(
      curves,
      out / "figures" / f"{_slug(dataset, 'steps')}.png",
      dense=_dense_comp(dataset, split, chosen, encoders),
      metric=f"{split} Comp@5",
    )
  for stage in encoders:
    records = writers.read_metrics(workdir / stage)
    if records:
      figures.training_curves(
        records,
        out / "figures" / f"{stage}-training.png",
        loss="train/loss",
        validation="validation/comp@5",
      )


def _machine() -> dict[str, Any]:
  return {
    "devices": [str(device) for device in jax.devices()],
    "cpu_count": os.cpu_count(),
    "platform": platform.platform(),
    "python": sys.version.split()[0],
    "jax": jax.__version__,
    "nnn_jax": nnn_jax.__version__,
  }


def main(argv: Sequence[str]) -> None:
  """Entry point."""
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {argv[1:]}")
  logging.set_verbosity(logging.INFO)
  workdir, decoders = pathlib.Path(_WORKDIR.value), list(_DECODERS.value)
  if FLAGS["decoders"].using_default_value:
    decoders += [
      name
      for name in comparison.OPTIONAL
      if (workdir / name / "retriever").exists()
    ]
  print(evaluate(workdir, decoders))


if __name__ == "__main__":
  app.run(main)
