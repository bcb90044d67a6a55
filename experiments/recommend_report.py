r"""Tables and figures of recommenders that `experiments.recommend` trained.

  python -m experiments.recommend_report --output=runs/report \
    --workdirs=runs/sasrec-dot,runs/sasrec-mol

Written: `results.md`, `results.csv` and `results.json`, one row a run (mean and
standard deviation over its seeds), and, where a run has gates,
`gates.png`: how many of them are used, by epoch.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from absl import app, flags

from experiments import drawing, report
from nnn_jax import files

METRICS = ("hr@1", "hr@10", "hr@50", "hr@200", "mrr")


def read(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """The results of a work directory's finished seeds, by seed.

  Raises:
    FileNotFoundError: If none is finished.
  """
  found = [
    json.loads(path.read_text()) for path in workdir.glob("seed-*/results.json")
  ]
  if not found:
    raise FileNotFoundError(
      f"{workdir} has no seed-*/results.json: train with "
      "`python -m experiments.recommend`."
    )
  return sorted(found, key=lambda results: results["seed"])


def row_of(runs: list[dict[str, Any]]) -> dict[str, Any]:
  """One row: the mean over seeds, and the standard deviation."""
  settings = runs[0]["settings"]
  row = {
    "data set": settings["dataset"],
    "model": settings["model"],
    "similarity": settings["similarity"],
    "seeds": len(runs),
    "epochs": settings["stage"]["num_epochs"],
    "best epoch": float(np.mean([r["validation"]["epoch"] for r in runs])),
    "validation hr@10": float(
      np.mean([r["validation"]["hr@10"] for r in runs])
    ),
  }
  for metric in METRICS:
    values = [run["test"][metric] for run in runs]
    row[metric] = float(np.mean(values))
    row[f"{metric} std"] = float(np.std(values, ddof=1)) if runs[1:] else None
  return row


def write(workdirs: Sequence[pathlib.Path], output: pathlib.Path) -> str:
  """Writes the report of some work directories; returns the Markdown table."""
  runs = [read(workdir) for workdir in workdirs]
  rows = [row_of(group) for group in runs]
  shown = []
  for row in rows:
    cells: dict[str, Any] = {
      name: value
      for name, value in row.items()
      if name not in METRICS and not name.endswith(" std")
    }
    for metric in METRICS:
      deviation = row[f"{metric} std"]
      spread = "" if deviation is None else f" ± {deviation:.4f}"
      cells[metric] = f"{row[metric]:.4f}{spread}"
    shown.append(cells)
  table = report.markdown_table(shown, list(shown[0]), digits=3)
  files.write(output / "results.md", table)
  report.write_json(
    output / "results.json", [one for group in runs for one in group]
  )
  lines = [
    {
      "data set": one["settings"]["dataset"],
      "model": one["settings"]["model"],
      "similarity": one["settings"]["similarity"],
      "seed": one["seed"],
      **{metric: one["test"][metric] for metric in METRICS},
    }
    for group in runs
    for one in group
  ]
  report.write_csv(output / "results.csv", lines)
  gated = [group for group in runs if "gates_used" in group[0]["history"][0]]
  if gated:
    draw_gates(gated, output / "gates.png")
  return table


def draw_gates(runs: list[list[dict[str, Any]]], path: pathlib.Path) -> None:
  """Gates in use, over all pairs and for one pair, by epoch; mean of seeds."""
  with matplotlib.rc_context(drawing.STYLE):
    figure = drawing.figure(9.0, 4.0)
    axes = figure.subplots(1, 2)
    for n, group in enumerate(runs):
      settings = group[0]["settings"]
      name = f"{settings['model']}, {settings['similarity']}"
      for ax, key in zip(axes, ("gates_used", "gates_per_pair"), strict=True):
        shortest = min(len(one["history"]) for one in group)
        values = [
          [entry[key] for entry in one["history"][:shortest]] for one in group
        ]
        ax.plot(np.mean(values, axis=0), label=name, **drawing.look(n))
    axes[0].set_ylabel("gates in use: exp H(mean of pi)")
    axes[1].set_ylabel("gates a pair uses: exp mean H(pi)")
    for ax in axes:
      ax.set_xlabel("epoch")
      ax.set_ylim(bottom=0)
    drawing.legend(figure, axes[0])
    drawing.save(figure, path)


def main(argv: Sequence[str]) -> None:
  """Entry point."""
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {argv[1:]}")
  workdirs = [pathlib.Path(name) for name in flags.FLAGS.workdirs]
  print(write(workdirs, pathlib.Path(flags.FLAGS.output)))


if __name__ == "__main__":
  flags.DEFINE_list(
    "workdirs", None, "Of experiments.recommend.", required=True
  )
  flags.DEFINE_string("output", None, "Where the report goes.", required=True)
  app.run(main)
