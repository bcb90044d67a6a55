"""The comparison of decoders on data sets: tables, runs, figures.

`experiments.evaluate` is the command, `experiments.sweep` repeats it by seed.
"""

from __future__ import annotations

import os
import pathlib
import platform
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

import nnn_jax
from experiments import comparison, figures, report, training_curves
from experiments import cosines as cosines_lib
from experiments import embeddings as embeddings_lib
from nnn_jax import files
from nnn_jax.data import pipeline
from nnn_jax.training import selection, writers

_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
# The decoders that have a grid of penalties to show.
_SOLVERS = ("nnn_fix", "nnn_tr")


def encoders_of(
  workdir: pathlib.Path, decoders: Sequence[str]
) -> dict[str, embeddings_lib.Encoded]:
  """Stage -> its encoder, for the stages that the decoders need."""
  cache = workdir / "evaluation" / "embeddings"
  stages = {comparison.METHODS[name].stage for name in decoders}
  return {
    stage: embeddings_lib.Encoded.of_stage(workdir / stage / "retriever", cache)
    for stage in sorted(stages)
  }


def held_out(
  dataset: pipeline.RetrievalDataset, asked: Sequence[str]
) -> list[str]:
  """The held-out splits asked for, "all" or by name, as far as it has them."""
  splits = [s for s in dataset.splits if s not in ("train", "validation")]
  if list(asked) == ["all"]:
    return splits
  return [split for split in splits if split in asked]


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


def evaluate(
  workdir: pathlib.Path,
  datasets: Sequence[pipeline.RetrievalDataset],
  decoders: Sequence[str],
  encoders: Mapping[str, embeddings_lib.Encoded],
  *,
  splits: Sequence[str] = ("test",),
  notes: Sequence[str] = (),
) -> tuple[str, dict[str, Any]]:
  """Compares decoders on the held-out splits of data sets.

  Args:
    workdir: What is written goes to its folder "evaluation"; training curves
      are drawn for the stages that it holds.
    datasets: The first's validation split serves those that have none.
    decoders: Names of `comparison.METHODS`.
    encoders: Stage -> encoder, of the stages that the decoders need.
    splits: As `held_out` takes them.
    notes: Lines to end the report with.

  Returns:
    (the report in Markdown, what `results.json` holds).
  """
  if not any(held_out(dataset, splits) for dataset in datasets):
    raise ValueError(
      f"splits {list(splits)} are held-out splits of none of the data sets; "
      f"{datasets[0].name} has {', '.join(datasets[0].splits)}."
    )
  out = workdir / "evaluation"
  results: dict[str, Any] = {
    "machine": _machine(),
    "decoders": list(decoders),
    "data_sets": {},
  }
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
    for split in held_out(dataset, splits):
      title = f"{dataset.name}, {split}"
      rows = _evaluate_split(
        dataset, split, chosen_on[selector.name], encoders, out
      )
      cosines = [
        {"encoder": stage} | cosines_lib.geometry(encoded.split(dataset, split))
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
  sections += [*notes, f"Figures, runs and qrels: {out}\n"]
  text = "\n\n".join(sections)
  report.write_json(out / "results.json", results)
  files.write(out / "results.md", text)
  return text, results


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
    for name in _SOLVERS
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
    if name in _SOLVERS
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
      training_curves.draw(
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
