r"""Loss or decoder: which of the two training through NNN owes its gain to.

  python -m experiments.loss_or_decoder --config=configs/loss_or_decoder.py \
    --workdir=runs/loss_or_decoder

The NNN paper compares encoders that are trained with different losses. Here a
frozen encoder gets an adapter on each side, trained in one of three ways:

  InfoNCE       of inner products, each relevant document against the corpus
  ranking loss  the paper's, of inner products: NNN's limit at l2 -> infinity
  NNN           the same loss through the exact solver, once for each config.l2

and every one is decoded with dense retrieval, MMR and exact NNN, the parameters
of which validation chooses. Of a training the epoch counts that is best on
validation, decoded as it is trained. Beside it stand cosines of documents,
which say what NNN and MMR can gain: see `cosines.geometry` and
`cosines.redundancy`, against which a figure shows that gain.

With --config=configs/dense_training.py the trainings are dense ones that differ
in whether false negatives are masked, in temperature and in learning rate.

Written under the work directory: `results.md`, `results.csv`, `results.json`,
and `gain.png` with its data as CSV. What is finished there is not done again;
an interrupted training goes on from its last checkpoint.

Reference: arXiv 2606.17910, section 3.2.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import matplotlib
import numpy as np
from absl import app, flags
from ml_collections import config_flags

from experiments import adapted as adapted_lib
from experiments import comparison, drawing, manual, report, splits
from experiments import cosines as cosines_lib
from experiments import embeddings as embeddings_lib
from nnn_jax import files
from nnn_jax.data import pipeline

METRICS = ("R@3", "R@5", "Comp@3", "Comp@5")
COSINES = (*cosines_lib.GEOMETRY, *cosines_lib.REDUNDANCY)
Row = dict[str, Any]


def rows_of(
  name: str,
  encoded: embeddings_lib.Encoded,
  dataset: pipeline.RetrievalDataset,
  config: Any,
  workdir: pathlib.Path,
  done: Sequence[Row],
) -> Iterator[list[Row]]:
  """Yields the rows of each training and seed that is not among `done`."""
  finished = {(row["data set"], row["training"], row["seed"]) for row in done}
  num_docs = len(dataset.doc_ids)
  methods = comparison.exact_methods(num_docs, config.capacity)
  trainings = adapted_lib.TRAININGS[config.trainings](config, num_docs)

  def measure(training: str, seed: int, params: Any) -> list[Row]:
    adapted = adapted_lib.Adapted(encoded, params, config)
    rows = []
    test = adapted.split(dataset, "test")
    cosines = cosines_lib.geometry(test) | cosines_lib.redundancy(test)
    for method in methods:
      chosen = comparison.choose(method, adapted, dataset)
      row, _, _ = comparison.measure(chosen, test)
      about = {"data set": name, "training": training, "seed": seed}
      rows.append(about | {k: row[k] for k in ("decoder", "parameters")})
      rows[-1] |= {metric: row[metric] for metric in METRICS} | cosines
    return rows

  if (name, "none, frozen", 0) not in finished:
    yield measure("none, frozen", 0, None)
  for seed in config.seeds:
    for training in trainings:
      if (name, training.name, seed) in finished:
        continue
      slug = "".join(c if c.isalnum() else "-" for c in training.name)
      folder = workdir / name.replace("/", "-").replace(":", "-") / slug
      params = adapted_lib.train(
        training,
        encoded,
        dataset,
        config,
        seed=seed,
        folder=folder / f"seed-{seed}",
      )
      yield measure(training.name, seed, params)


def table(rows: Sequence[Row], metrics: Sequence[str] = METRICS[2:]) -> str:
  """A line a training, a cell a decoder: means over seeds, +- deviation.

  Cosines are of the test queries with two or more relevant documents.
  """
  names = list(dict.fromkeys(row["training"] for row in rows))
  columns = list(dict.fromkeys(row["decoder"] for row in rows))
  lines = []
  for name in names:
    line = {"training": name}
    for column in columns:
      mine = [
        row
        for row in rows
        if (row["training"], row["decoder"]) == (name, column)
      ]
      line[column] = " / ".join(
        report.mean_and_spread([row[metric] for row in mine])
        for metric in metrics
      )
    for cosine in COSINES:
      line[cosine] = f"{np.mean([row[cosine] for row in mine]):.2f}"
    line["seeds"] = str(len(mine))
    lines.append(line)
  return report.markdown_table(lines, list(lines[0]))


def gains(rows: Sequence[Row], decoder: str = "NNN, exact") -> list[Row]:
  """Comp@5 that a decoder gains over dense retrieval, a row a training."""
  points = []
  for row in rows:
    if row["decoder"] == "dense":
      mine = {name: row[name] for name in ("data set", "training", "seed")}
      (other,) = [
        other
        for other in rows
        if other["decoder"] == decoder and mine.items() <= other.items()
      ]
      margin = row["intruder to found"] - row["missed to found"]
      gain = other["Comp@5"] - row["Comp@5"]
      points.append(mine | {"margin": margin, "gain": gain})
  return points


def draw(rows: Sequence[Row], path: pathlib.Path) -> None:
  """What NNN gains against how redundant the intruders are."""
  points = gains(rows)
  with matplotlib.rc_context(drawing.STYLE):
    figure = drawing.figure(5.0, 4.0)
    ax = figure.subplots()
    for n, name in enumerate(dict.fromkeys(p["data set"] for p in points)):
      mine = [point for point in points if point["data set"] == name]
      x, y = ([point[key] for point in mine] for key in ("margin", "gain"))
      ax.plot(x, y, label=name, **drawing.look(n) | {"linestyle": ""})
    ax.axhline(0.0, color="0.7", linewidth=0.8)
    ax.set_xlabel("cosine with found documents, intruders minus missed")
    ax.set_ylabel("Comp@5, NNN minus dense")
    drawing.legend(figure, ax)
    drawing.save(figure, path, points)


def write(workdir: pathlib.Path, rows: Sequence[Row], notes: Row) -> str:
  """Writes everything; returns the text."""
  sections = []
  for name in dict.fromkeys(row["data set"] for row in rows):
    mine = [row for row in rows if row["data set"] == name]
    title = f"### {name}{notes.get(name, '')}: {' / '.join(METRICS[2:])}"
    sections.append(f"{title}\n\n{table(mine)}")
  text = "\n\n".join(sections) + "\n"
  report.write_csv(workdir / "results.csv", rows)
  report.write_json(workdir / "results.json", rows)
  files.write(workdir / "results.md", text)
  draw(rows, workdir / "gain.png")
  return text


def main(argv: Sequence[str]) -> None:
  """Entry point."""
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {argv[1:]}")
  config, workdir = flags.FLAGS.config, pathlib.Path(flags.FLAGS.workdir)
  encoded = embeddings_lib.Encoded.of_frozen(
    config.encoder,
    workdir / "embeddings",
    query_length=config.query_length,
    document_length=config.document_length,
  )
  path = workdir / "results.json"
  rows: list[Row] = json.loads(path.read_text()) if path.exists() else []
  # Rows of an earlier revision lack cosines: decoded again, not trained again.
  rows = [row for row in rows if row.keys() >= set(COSINES)]
  notes, text = {}, ""
  folders = manual.folders()
  for name in config.datasets:
    loaded = pipeline.load(name, manual_dir=folders.get(name))
    dataset, ours = splits.with_splits(loaded)
    notes[name] = ", splits of 80/10/10 % of our own" if ours else ""
    print(pipeline.describe(dataset))
    for new in rows_of(name, encoded, dataset, config, workdir, rows):
      rows += new
      text = write(workdir, rows, notes)
  print(text or write(workdir, rows, notes))


if __name__ == "__main__":
  # Here, so that a program can import this beside another experiment.
  config_flags.DEFINE_config_file("config", "configs/loss_or_decoder.py")
  flags.DEFINE_string("workdir", None, "Results.", required=True)
  manual.define()
  app.run(main)
