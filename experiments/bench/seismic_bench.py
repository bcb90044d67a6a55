r"""Seismic against its Rust implementation and exact search, in one run.

  XLA_FLAGS=--xla_cpu_multi_thread_eigen=false taskset -c 0 \
    python -m experiments.bench.seismic_bench --json=seismic_bench.json

k = 10, --queries queries a call; time is of a query, the median of --repeats
rounds in which every search takes its turn, so that what else the machine does
meets all of them. Recall is the share of the exact top 10, by scipy in float32.
The peer, `pyseismic-lsr` (Raw: integer ids), is called a query at a time, as
its batch call reads a file, and builds with the same numbers; it is left out
where it is not installed (`pip install ".[bench]"`). Its threads setting is
ignored by it: pin a core, as above. Rows that are in --json already are not
measured again. --figure draws recall against time; --ablations measures other
ways to build.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import pathlib
import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import matplotlib
import numpy as np
import scipy.sparse
import tqdm
from absl import app, flags

from experiments import drawing, report
from experiments.bench import sparse_worlds, timing
from nnn_jax.decoders import seismic
from nnn_jax.indexes import sparse_blocks

_NUM_DOCS = flags.DEFINE_list("num_docs", ["10000", "100000"], "")
_QUERIES = flags.DEFINE_integer("queries", 512, "")
_REPEATS = flags.DEFINE_integer("repeats", 9, "Rounds; the median is taken.")
_ABLATIONS = flags.DEFINE_bool("ablations", False, "Other ways to build.")
_PEER = flags.DEFINE_bool("peer", True, "Measure pyseismic, if installed.")
_JSON = flags.DEFINE_string("json", None, "Where rows are kept.")
_FIGURE = flags.DEFINE_string("figure", None, "The PNG to draw.")

K = 10
_COLUMNS = (
  "search",
  "us",
  "recall",
  "speed",
  "num_scored",
  "overflow",
  "build_s",
  "index_mib",
)
_POSTINGS = {10_000: 50, 100_000: 100, 500_000: 200}
_CUTS = (
  (1, 1.2),
  (1, 1.1),
  (1, 1.0),
  (2, 1.1),
  (2, 1.05),
  (2, 1.0),
  (3, 1.0),
  (3, 0.9),
  (5, 0.9),
  (8, 0.8),
)
_ABLATION_CUTS = ((3, 1.0), (5, 0.9))
_ROUTED = (
  (1, 96, 12, 128, 64, 32, 24),
  (1, 128, 16, 192, 96, 32, 24),
  (2, 256, 24, 256, 128, 32, 24),
  (2, 256, 28, 256, 144, 32, 24),
  (2, 256, 28, 320, 160, 32, 24),
  (2, 256, 32, 384, 192, 32, 24),
  (2, 384, 48, 512, 320, 32, 24),
  (2, 384, 56, 640, 384, 32, 24),
  (2, 512, 64, 768, 448, 32, 24),
  (3, 512, 64, 1024, 512, 32, 32),
  (5, 768, 64, 1024, 512, 48, 48),
)
_OTHER_BUILDS: dict[str, dict[str, Any]] = {
  "as above": {},
  "fixed blocks": {"blocks": "fixed"},
  "summaries of 32": {"summary_length": 32},
  "summaries of 100": {"summary_length": 100},
  "float summaries": {"quantize": False},
  "alpha .2": {"alpha": 0.2},
  "paper pruning": {"prune": "paper"},
}
Row = dict[str, Any]


class Cell(NamedTuple):
  """Attributes: about, the row's own columns; call; read, call's columns."""

  about: Row
  call: Callable[[], Any]
  read: Callable[[Any], Row]


def settings(num_docs: int) -> dict[str, Any]:
  """What both indexes are built with."""
  return {"n_postings": _POSTINGS.get(num_docs, 100), "max_fraction": 4.0}


def exact(world: sparse_worlds.World) -> Iterator[Row]:
  """Exact search: a query at a time, and 16 at once."""
  rows = world.rows
  matrix = scipy.sparse.csr_array(
    (rows.values, rows.indices, rows.starts), (rows.num_docs, rows.vocab)
  )
  num = min(256, len(world.coords)) // 16 * 16
  queries = np.zeros((rows.vocab, num), np.float32)
  queries[world.coords[:num].T, np.arange(num)] = world.weights[:num].T

  def best(scores):
    at = np.argpartition(-scores, K - 1, axis=0)[:K]
    order = np.argsort(-np.take_along_axis(scores, at, axis=0), axis=0)
    return np.take_along_axis(at, order, axis=0)

  for size in (1, 16):
    parts = np.split(queries, num // size, axis=1)

    def call(parts=parts):
      return np.concatenate([best(matrix @ part) for part in parts], axis=1)

    seconds, found = timing.timed(call)
    yield {
      "search": f"exact, {size} at once",
      "us": 1e6 * seconds / num,
      "indices": found.T.tolist(),
    }


def ours(
  world: sparse_worlds.World, build: dict[str, Any], label: str = ""
) -> Iterator[Cell]:
  """Both searches of one index."""
  config = sparse_blocks.BuildConfig(**build)
  build_s, index = timing.timed(
    lambda: sparse_blocks.build(world.rows, config=config)
  )
  mib = sum(x.nbytes for x in jax.tree.leaves(index)) / 2**20
  about = {"build_s": build_s, "index_mib": mib}
  queries = seismic.SparseVector(world.coords, world.weights)
  cuts = _ABLATION_CUTS if label else _CUTS
  cells: list[tuple[str, seismic.Search, Any]] = [
    (f"native {c}, {f}", seismic.Sequential(cut=c, heap_factor=f), "native")
    for c, f in cuts
  ]
  if not label:
    names = [field.name for field in dataclasses.fields(seismic.Routed)]
    for values in _ROUTED:
      routed = seismic.Routed(**dict(zip(names, values, strict=True)))
      cells.append((f"XLA routed {values}", routed, "xla"))

  def read(result):
    return {
      "indices": np.asarray(result.indices).tolist(),
      "num_scored": float(np.mean(result.aux.num_scored)),
      "overflow": float(np.mean(result.aux.overflow)),
    }

  for name, search, backend in cells:
    decode = partial(
      seismic.decode,
      k=K,
      config=seismic.SeismicConfig(search=search, backend=backend),
    )
    batch = jax.jit(jax.vmap(partial(decode, ()), in_axes=(0, None)))
    yield Cell(
      about | {"search": f"{name} {label}".strip()},
      partial(_blocking, batch, queries, index),
      read,
    )


def peer(world: sparse_worlds.World, build: dict[str, Any]) -> Iterator[Cell]:
  """The Rust implementation."""
  import seismic as rust

  rows = world.rows
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, "documents.bin")
    with path.open("wb") as file:
      file.write(np.uint32(rows.num_docs).tobytes())
      for i in range(rows.num_docs):
        part = slice(rows.starts[i], rows.starts[i + 1])
        file.write(np.uint32(part.stop - part.start).tobytes())
        file.write(rows.indices[part].astype(np.uint32).tobytes())
        file.write(rows.values[part].tobytes())
    build_s, index = timing.timed(
      lambda: rust.SeismicIndexRaw.build(
        str(path),
        centroid_fraction=0.1,
        min_cluster_size=2,
        summary_energy=0.4,
        **build,
      )
    )
    index.save(str(pathlib.Path(folder, "index")))
    saved = pathlib.Path(folder).glob("index*")
    mib = sum(file.stat().st_size for file in saved) / 2**20
  about = {"build_s": build_s, "index_mib": mib}

  def search(cut, factor):
    return [
      index.search(coords, weights, K, cut, factor, 0, True)
      for coords, weights in zip(world.coords, world.weights, strict=True)
    ]

  def read(result):
    found = [[doc for _, doc in hits] for hits in result]
    return {"indices": [(hits + [-1] * K)[:K] for hits in found]}

  for cut, factor in _CUTS:
    name = f"pyseismic {cut}, {factor}"
    yield Cell(about | {"search": name}, partial(search, cut, factor), read)


def _blocking(fn, *args):
  return jax.block_until_ready(fn(*args))


def _measure(cells: Sequence[Cell]) -> list[Row]:
  """In turns; what compiles and warms up is left out."""
  rows = [cell.about | cell.read(cell.call()) for cell in cells]
  spent = [
    [timing.timed(cell.call)[0] for cell in cells]
    for _ in tqdm.trange(_REPEATS.value, desc="rounds")
  ]
  for row, seconds in zip(rows, np.median(spent, axis=0), strict=True):
    row["us"] = 1e6 * float(seconds) / _QUERIES.value
  return rows


def rows_of(num_docs: int) -> list[Row]:
  """Measures everything on one world."""
  world = sparse_worlds.make(num_docs, _QUERIES.value)
  build = settings(num_docs)
  cells: list[Cell] = []
  if _ABLATIONS.value:
    for name, other in _OTHER_BUILDS.items():
      cells += ours(world, build | other, name)
  else:
    if _PEER.value and importlib.util.find_spec("seismic"):
      cells += peer(world, build)
    cells += ours(world, build)
  rows = [*exact(world), *_measure(cells)]
  truth = np.asarray(rows[0]["indices"])
  batched = rows[1]["us"]
  for row in rows:
    found = np.asarray(row.pop("indices"))[: len(truth)]
    same = (truth[:, :, None] == found[:, None, :]).any(axis=2)
    row |= {"recall": float(same.mean()), "speed": batched / row["us"]}
  return rows


def draw(results: Mapping[str, Sequence[Row]], path: str) -> None:
  """Recall against time, a panel a world."""
  with matplotlib.rc_context(drawing.STYLE):
    figure = drawing.figure(4.5 * len(results), 4.0)
    axes = figure.subplots(1, len(results), squeeze=False)[0]
    for ax, (name, rows) in zip(axes, results.items(), strict=True):
      for n, kind in enumerate(("pyseismic", "native", "XLA routed")):
        mine = [row for row in rows if row["search"].startswith(kind)]
        if mine:
          points = [(row["us"], row["recall"]) for row in mine]
          ax.plot(*np.transpose(points), label=kind, **drawing.look(n))
      ax.set_title(f"{int(name.split()[0]):,} documents")
      ax.set_xlabel("us a query")
      ax.set_ylabel("recall@10")
    drawing.legend(figure, axes[0])
    drawing.save(figure, path)


def main(argv: Sequence[str]) -> None:
  """Entry point."""
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {argv[1:]}")
  print(f"{jax.devices()}, {platform.platform()}, jax {jax.__version__}")
  path = pathlib.Path(_JSON.value) if _JSON.value else None
  done = json.loads(path.read_text()) if path and path.exists() else {}
  for num_docs in _NUM_DOCS.value:
    key = f"{num_docs} {_QUERIES.value} {_ABLATIONS.value} {_PEER.value}"
    if key not in done:
      done[key] = rows_of(int(num_docs))
      if path:
        report.write_json(path, done)
    print(f"{num_docs} documents")
    print(report.markdown_table(done[key], _COLUMNS, digits=4))
  if _FIGURE.value:
    draw(done, _FIGURE.value)


if __name__ == "__main__":
  app.run(main)
