r"""Repeats the comparison by seed: means and spread, beside what is published.

  python -m experiments.sweep --config=configs/api_docs.py --workdir=runs/sweep

Any config of experiments.train, with `--config.dataset=...` for another data
set. Every seed is a run of its own under `<workdir>/seed-N`, trained and
evaluated as experiments.train and experiments.evaluate do; what is finished
there is reused, so that a sweep that was killed goes on, and `--seeds` and
`--stages` can be added to. Written under the work directory: `results.md`,
`results.csv` (a line a seed and decoder), `results.json`, `results.png`.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import matplotlib
import ml_collections
import numpy as np
import tqdm
from absl import app, flags, logging
from ml_collections import config_flags

from experiments import (
  comparison,
  drawing,
  embeddings,
  evaluation,
  published,
  report,
  splits,
  train,
  train_stages,
)
from nnn_jax import files
from nnn_jax.data import pipeline

METRICS = (*published.METRICS, "nDCG@5")
Row = dict[str, Any]


def run_seed(
  config: ml_collections.ConfigDict,
  dataset: pipeline.RetrievalDataset,
  workdir: pathlib.Path,
  stages: Sequence[str],
) -> tuple[list[Row], list[Row]]:
  """Trains and evaluates one seed, or reads what it left.

  Returns:
    (a row a split and decoder, a row a stage: what its training took).
  """
  train.train(config, workdir, stages)
  decoders = [
    name
    for name, method in comparison.METHODS.items()
    if method.stage in stages
  ]
  path = workdir / "evaluation" / "results.json"
  results = json.loads(path.read_text()) if path.exists() else {}
  if results.get("decoders") != decoders:
    encoders = evaluation.encoders_of(workdir, decoders)
    evaluation.evaluate(workdir, [dataset], decoders, encoders)
    results = json.loads(path.read_text())
  rows = [
    {"split": title, "seed": config.seed} | row
    for title, table in results["data_sets"].items()
    for row in table["rows"]
  ]
  spent = []
  for stage in stages:
    _, facts = embeddings.load(workdir / stage / "retriever")
    spent.append(
      {
        "stage": stage,
        "seed": config.seed,
        "epochs": len(facts["history"]) - 1,
        "steps": facts["num_steps"],
        # Of the last start: all of it, unless the run was resumed.
        "minutes": facts["seconds_of_last_start"] / 60,
        "validation Comp@5": 100 * facts["best_value"],
      }
    )
  return rows, spent


def _by(rows: Sequence[Row], column: str) -> dict[str, list[Row]]:
  groups: dict[str, list[Row]] = {}
  for row in rows:
    groups.setdefault(row[column], []).append(row)
  return groups


def table(rows: Sequence[Row], dataset: str) -> str:
  """A line a decoder: means over seeds, +- deviation; published figures."""
  others = published.NNN.get(dataset, {})
  lines = []
  for decoder, mine in _by(rows, "decoder").items():
    line = {"decoder": decoder}
    for metric in METRICS:
      line[metric] = report.mean_and_spread([row[metric] for row in mine])
    if others:
      found = others.get(decoder, ())
      line["published"] = " / ".join(f"{value:.1f}" for value in found)
    lines.append(line)
  return report.markdown_table(lines, list(lines[0]))


def training_table(spent: Sequence[Row]) -> str:
  """A line a stage: means over seeds."""
  lines = [
    {"stage": stage}
    | {
      column: report.mean_and_spread([row[column] for row in mine])
      for column in ("epochs", "steps", "minutes", "validation Comp@5")
    }
    for stage, mine in _by(spent, "stage").items()
  ]
  return report.markdown_table(lines, list(lines[0]))


def draw(rows: Sequence[Row], dataset: str, path: pathlib.Path) -> None:
  """Comp@3 and Comp@5 of each decoder: a dot a seed, hollow if published."""
  groups = _by(rows, "decoder")
  others = published.NNN.get(dataset, {})
  with matplotlib.rc_context(drawing.STYLE):
    figure = drawing.figure(9.0, 1.2 + 0.32 * len(groups))
    axes = figure.subplots(1, 2, sharey=True)
    for ax, metric in zip(axes, ("Comp@3", "Comp@5"), strict=True):
      for place, (name, mine) in enumerate(groups.items()):
        values = [row[metric] for row in mine]
        ax.plot(
          values, [place] * len(values), "o", color=drawing.COLORS[0], alpha=0.6
        )
        ax.plot(np.mean(values), place, "|", color="black", markersize=14)
        if name in others:
          value = others[name][published.METRICS.index(metric)]
          ax.plot(value, place, "D", color="black", fillstyle="none")
      ax.set_xlabel(f"{metric} (%)" + ("; hollow: published" * bool(others)))
    axes[0].set_yticks(range(len(groups)), list(groups))
    axes[0].invert_yaxis()
    drawing.save(figure, path)


def sweep(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  seeds: Sequence[int],
  stages: Sequence[str],
) -> str:
  """Runs all seeds; returns the report, which is written after each."""
  dataset = train.load_dataset(config)
  rows: list[Row] = []
  spent: list[Row] = []
  text = ""
  for seed in tqdm.tqdm(seeds, desc=f"seeds of {dataset.name}"):
    one = config.copy_and_resolve_references()
    one.seed = seed
    new, times = run_seed(one, dataset, workdir / f"seed-{seed}", stages)
    rows += new
    spent += times
    sections = [pipeline.describe(dataset)]
    if config.own_splits:
      sections.append(splits.NOTE)
    for split, mine in _by(rows, "split").items():
      num = len({row["seed"] for row in mine})
      title = f"### {split}, {num} seed{'s' * (num > 1)}"
      sections.append(f"{title}\n\n{table(mine, dataset.name)}")
    sections.append(f"Training:\n\n{training_table(spent)}")
    text = "\n\n".join(section.rstrip() for section in sections) + "\n"
    files.write(workdir / "results.md", text)
    report.write_csv(workdir / "results.csv", rows)
    report.write_json(
      workdir / "results.json", {"rows": rows, "training": spent}
    )
    test = [row for row in rows if row["split"] == rows[0]["split"]]
    draw(test, dataset.name, workdir / "results.png")
  return text


def main(argv: Sequence[str]) -> None:
  """Entry point."""
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {argv[1:]}")
  logging.set_verbosity(logging.INFO)
  values = flags.FLAGS
  seeds = [int(seed) for seed in values.seeds]
  if not seeds:
    raise app.UsageError("seeds is empty: name at least one")
  print(
    sweep(values.config, pathlib.Path(values.workdir), seeds, values.stages)
  )


if __name__ == "__main__":
  # Here, so that a program can import this beside another experiment.
  config_flags.DEFINE_config_file("config", None, "Settings.")
  flags.mark_flag_as_required("config")
  flags.DEFINE_string("workdir", None, "Where results go.", required=True)
  flags.DEFINE_list("seeds", ["0", "1", "2"], "Seeds, one run each.")
  flags.DEFINE_list(
    "stages",
    ["dense", "colt", "nnn_tr", "l1_tr", "l2_tr", "nnn_exact"],
    f"Stages to train, of {', '.join(train_stages.STAGES)}; all decoders of "
    "theirs are compared.",
  )
  app.run(main)
