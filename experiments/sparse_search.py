r"""A trained sparse encoder through the index, beside dense retrieval.

  python -m experiments.train --config=configs/sparse.py --workdir=runs/sparse \
    --stages=dense,sparse
  python -m experiments.sparse_search --workdir=runs/sparse \
    --datasets=api_docs,bfcl

For each data set the quality of the dense encoder, of the sparse one scored
exactly, and of the sparse one through the index: the recall of the exact ten,
and the share of documents that were scored. Then how concentrated the vectors
are: the share of a vector's sum that its largest entries hold, on which the
index relies. Under `sparse_search/` of the work directory: `results.md`,
`results.json`, `concentration.csv` and `concentration.png`.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from absl import app, flags, logging

from experiments import comparison, drawing, manual, report
from experiments import embeddings as embeddings_lib
from nnn_jax import files, metrics, retriever
from nnn_jax.core import sparse
from nnn_jax.data import pipeline
from nnn_jax.decoders import dense, seismic
from nnn_jax.indexes import sparse as sparse_rows
from nnn_jax.indexes import sparse_blocks
from nnn_jax.models import sparse_head

# Entries of a vector, largest first, at which the concentration is told.
_COUNTS = (1, 5, 10, 20, 50, 100)
_K = 10


def main(argv: Sequence[str]) -> None:
  """Entry point."""
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {argv[1:]}")
  workdir = pathlib.Path(flags.FLAGS.workdir)
  output = workdir / "sparse_search"
  encoders = {
    stage: embeddings_lib.Encoded.of_stage(folder, output / "embeddings")
    for stage in ("dense", "sparse")
    if (folder := workdir / stage / "retriever").exists()
  }
  if "sparse" not in encoders:
    raise ValueError(
      f"{workdir} has no stage sparse: train one with `python -m "
      "experiments.train --stages=sparse`."
    )
  folders = manual.folders()
  rows, curves = [], {}
  for name in flags.FLAGS.datasets:
    dataset = pipeline.load(name, manual_dir=folders.get(name))
    print(pipeline.describe(dataset))
    rows += measure(name, dataset, encoders)
    encoded = encoders["sparse"]
    queries = encoded.split(dataset, flags.FLAGS.split).queries
    documents = encoded.texts(dataset.doc_texts, "documents")
    curves[f"{name}, queries"] = concentration(queries)
    curves[f"{name}, documents"] = concentration(documents)
  shares = [
    {"vectors": name} | {f"largest {n}": curve[n] for n in _COUNTS}
    for name, curve in curves.items()
  ]
  text = "\n\n".join(
    report.markdown_table(table, list(table[0]), digits=2)
    for table in (rows, shares)
  )
  print(text)
  files.write(output / "results.md", f"{text}\n")
  report.write_json(output / "results.json", {"rows": rows, "shares": shares})
  draw(output, curves)
  print(f"Written to {output}.")


def measure(
  name: str,
  dataset: pipeline.RetrievalDataset,
  encoders: dict[str, embeddings_lib.Encoded],
) -> list[dict[str, Any]]:
  """The rows of one data set."""
  rows = []
  k = min(_K, len(dataset.doc_ids))

  def row(decoder: str, indices, labels) -> dict[str, Any]:
    means = metrics.evaluate(indices, labels, ks=(5, k))
    return {
      "data set": name,
      "decoder": decoder,
      "R@5": 100 * float(means["recall@5"]),
      "Comp@5": 100 * float(means["comp@5"]),
      f"nDCG@{k}": 100 * float(means[f"ndcg@{k}"]),
      "recall of exact": None,
      "scored": 100.0,
    }

  if "dense" in encoders:
    embeddings = encoders["dense"].split(dataset, flags.FLAGS.split)
    indices = retriever.rank(
      dense.decode,
      (),
      embeddings.queries,
      embeddings.corpus,
      k=k,
      config=dense.DenseConfig(),
    )
    rows.append(row("dense", indices, embeddings.labels))
  encoded = encoders["sparse"]
  model = encoded.retriever
  assert isinstance(model, sparse_head.SparseRetriever)
  embeddings = encoded.split(dataset, flags.FLAGS.split)
  method = comparison.METHODS["sparse"]
  exact = retriever.rank(
    method.decode,
    (),
    embeddings.queries,
    embeddings.corpus,
    k=k,
    config=method.config,
  )
  rows.append(row("sparse, exact", exact, embeddings.labels))
  index = sparse_blocks.build(
    sparse_rows.from_padded(
      *encoded.texts(dataset.doc_texts, "documents"),
      vocab=len(model.model.terms),
    ),
    config=sparse_blocks.BuildConfig(n_postings=flags.FLAGS.n_postings),
  )
  search = seismic.Sequential(
    cut=flags.FLAGS.cut, heap_factor=flags.FLAGS.heap_factor
  )
  found = retriever.retrieve(
    seismic.decode,
    (),
    embeddings.queries,
    index,
    k=k,
    config=seismic.SeismicConfig(search=search),
  )
  through = row("sparse, index", found.indices, embeddings.labels)
  # Where the exact answer is short, -1 fills both.
  hits = [
    np.isin(a[a >= 0], b).mean()
    for a, b in zip(np.asarray(exact), np.asarray(found.indices), strict=True)
    if (a >= 0).any()
  ]
  through["recall of exact"] = 100 * float(np.mean(hits))
  scored = np.mean(np.asarray(found.aux.num_scored))
  through["scored"] = 100 * float(scored) / len(dataset.doc_ids)
  rows.append(through)
  logging.info("%s", rows)
  return rows


def concentration(vectors: sparse.SparseVector) -> np.ndarray:
  """Mean share of a vector's sum in its n largest entries, for n = 0, 1, ...

  As many entries as vectors have, and at least the largest of `_COUNTS`.

  >>> import numpy as np
  >>> values = np.asarray([[3.0, 1.0, 0.0], [2.0, 2.0, 0.0]])
  >>> concentration(sparse.SparseVector(values, values))[:3].tolist()
  [0.0, 0.625, 1.0]
  """
  values = np.sort(np.asarray(vectors.values, np.float64), axis=1)[:, ::-1]
  total = values.sum(axis=1, keepdims=True)
  values = values[total[:, 0] > 0] / total[total[:, 0] > 0]
  size = max(values.shape[1], *_COUNTS) + 1
  curve = np.ones(size)
  curve[0] = 0.0
  mean = np.cumsum(values, axis=1).mean(axis=0)
  curve[1 : len(mean) + 1] = mean
  return curve


def draw(output: pathlib.Path, curves: dict[str, np.ndarray]) -> None:
  """The figure and its data."""
  size = max(map(len, curves.values()))
  padded = {
    name: np.pad(curve, (0, size - len(curve)), constant_values=1.0)
    for name, curve in curves.items()
  }
  lines = ["entries," + ",".join(f'"{name}"' for name in padded)]
  columns = list(padded.values())
  lines += [
    f"{n}," + ",".join(f"{column[n]:.4f}" for column in columns)
    for n in range(size)
  ]
  files.write(output / "concentration.csv", "\n".join(lines) + "\n")
  with matplotlib.rc_context(drawing.STYLE):
    figure = drawing.figure(5.5, 3.8)
    axes = figure.subplots()
    for n, (name, curve) in enumerate(padded.items()):
      look = drawing.look(n) | {"marker": ""}
      axes.plot(np.arange(size), 100 * curve, label=name, **look)
    axes.set_xscale("symlog")
    axes.set_xlabel("largest entries")
    axes.set_ylabel("share of the vector's sum, in %")
    drawing.legend(figure, axes)
    drawing.save(figure, output / "concentration.png")


if __name__ == "__main__":
  flags.DEFINE_string(
    "workdir", None, "Of experiments.train, with a stage sparse.", required=True
  )
  flags.DEFINE_list("datasets", ["api_docs"], "Data sets to search.")
  manual.define()
  flags.DEFINE_string("split", "test", "Query split.")
  flags.DEFINE_integer("cut", 8, "Lists a query.")
  flags.DEFINE_float(
    "heap_factor", 0.8, "Of the test that skips a block; smaller is thorougher."
  )
  flags.DEFINE_integer("n_postings", 200, "Documents a list.")
  app.run(main)
