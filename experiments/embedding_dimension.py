r"""How few dimensions do the decoders need? Dense, MMR and NNN against size.

  python -m experiments.embedding_dimension --workdir=runs/dimension
  python -m experiments.embedding_dimension --workdir=runs/dimension \
    --datasets=limit --manual_dir=limit=FOLDER

A score that is an inner product in d dimensions cannot put every pair of
documents on top: LIMIT asks for nearly all pairs of its 46. A decoder of sets
need not score each document by itself. The encoder is latent semantic analysis
(TF-IDF, then the d leading singular vectors of the documents), which has a
solution in every dimension; parameters are chosen on validation.

Written under the work directory: `results.md`, `results.csv`, `results.json`
and a figure for each data set.

References: On the Theoretical Limitations of Embedding-Based Retrieval, arXiv
2508.21038; Deerwester et al. (1990), Indexing by latent semantic analysis.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from absl import app, flags
from sklearn import decomposition, preprocessing
from sklearn.feature_extraction import text as sklearn_text

from experiments import comparison, drawing, manual, report, splits
from experiments import embeddings as embeddings_lib
from nnn_jax import files
from nnn_jax.data import pipeline

Row = dict[str, Any]


class Lsa(embeddings_lib.Encoded):
  """Unit vectors of `dim` numbers a text, at most one less than documents."""

  def __init__(self, documents: Sequence[str], dim: int):
    self._words = sklearn_text.TfidfVectorizer(sublinear_tf=True)
    counts = self._words.fit_transform(documents)
    self.dim = min(dim, *(n - 1 for n in counts.shape))
    self._svd = decomposition.TruncatedSVD(
      self.dim, algorithm="arpack", random_state=0
    ).fit(counts)

  def _encode(self, texts: Sequence[str]) -> np.ndarray:
    rows = self._svd.transform(self._words.transform(texts))
    return preprocessing.normalize(rows).astype(np.float32)

  def split(
    self, dataset: pipeline.RetrievalDataset, name: str
  ) -> embeddings_lib.Embeddings:
    """As `Encoded.split`."""
    queries = dataset.splits[name]
    return embeddings_lib.Embeddings(
      self._encode(queries.texts),
      self._encode(dataset.doc_texts),
      queries.labels(len(dataset.doc_ids)),
    )


def rows_of(
  dataset: pipeline.RetrievalDataset, dims: Sequence[int]
) -> list[Row]:
  """One row a dimension and decoder, on test."""
  rows = []
  for dim in dims:
    encoded = Lsa(dataset.doc_texts, dim)
    for method in comparison.exact_methods(len(dataset.doc_ids)):
      chosen = comparison.choose(method, encoded, dataset)
      row, _, _ = comparison.measure(chosen, encoded.split(dataset, "test"))
      rows.append({"data set": dataset.name, "dim": encoded.dim} | row)
  return rows


def draw(rows: Sequence[Row], title: str, path: pathlib.Path) -> None:
  """Comp@3 and Comp@5 against the dimension, a curve a decoder."""
  with matplotlib.rc_context(drawing.STYLE):
    figure = drawing.figure(8.0, 3.6)
    axes = figure.subplots(1, 2, sharey=True)
    for ax, metric in zip(axes, ("Comp@3", "Comp@5"), strict=True):
      for n, name in enumerate(dict.fromkeys(row["decoder"] for row in rows)):
        mine = [row for row in rows if row["decoder"] == name]
        x, y = ([row[column] for row in mine] for column in ("dim", metric))
        ax.plot(x, y, label=name, **drawing.look(n))
      ax.set_xscale("log", base=2)
      ax.set_xticks(sorted({row["dim"] for row in rows}))
      ax.xaxis.set_major_formatter("{x:.0f}")
      ax.set_xlabel("dimensions")
      ax.set_title(f"{title}: {metric}, in %")
    drawing.legend(figure, axes[0])
    drawing.save(figure, path)


def main(argv: Sequence[str]) -> None:
  """Entry point."""
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {argv[1:]}")
  workdir = pathlib.Path(flags.FLAGS.workdir)
  folders = manual.folders()
  rows: list[Row] = []
  for name in flags.FLAGS.datasets:
    dataset, ours = splits.with_splits(
      pipeline.load(name, manual_dir=folders.get(name))
    )
    print(pipeline.describe(dataset))
    if ours:
      print(splits.NOTE)
    new = rows_of(dataset, [int(dim) for dim in flags.FLAGS.dims])
    slug = "".join(c if c.isalnum() else "-" for c in name)
    draw(new, name, workdir / f"{slug}.png")
    rows += new
  text = report.markdown_table(rows, list(rows[0]), digits=2)
  print(text)
  files.write(workdir / "results.md", f"{text}\n")
  report.write_csv(workdir / "results.csv", rows)
  report.write_json(workdir / "results.json", rows)


if __name__ == "__main__":
  # Here, so that a program can import this beside another experiment.
  flags.DEFINE_string("workdir", None, "Results.", required=True)
  flags.DEFINE_list("datasets", ["api_docs"], "Data sets.")
  manual.define()
  flags.DEFINE_list("dims", ["4", "8", "16", "32", "64"], "Dimensions.")
  app.run(main)
