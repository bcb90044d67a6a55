r"""Seismic against its Rust implementation and exact search, in one run.

  XLA_FLAGS=--xla_cpu_multi_thread_eigen=false taskset -c 0 \
    python -m experiments.bench.seismic_bench --json=seismic_bench.json

k = 10, --queries queries a call; time is of a query. Recall is the share of the
exact top 10, by scipy in float32. The peer, `pyseismic-lsr` (Raw: integer ids),
is called a query at a time, as its batch call reads a file, and builds with the
same numbers; it is left out where it is not installed (`pip install
".[bench]"`). Its threads setting is ignored by it: pin a core, as above. Rows
that are in --json already are not measured again.
"""

from __future__ import annotations

import importlib.util
import json
import pathlib
import platform
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import scipy.sparse
from absl import app, flags, logging

from experiments import report
from experiments.bench import sparse_worlds, timing
from nnn_jax.decoders import seismic
from nnn_jax.indexes import sparse_blocks

_NUM_DOCS = flags.DEFINE_list("num_docs", ["10000", "100000"], "")
_QUERIES = flags.DEFINE_integer("queries", 512, "")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Timed calls; the median.")
_ABLATIONS = flags.DEFINE_bool("ablations", False, "Other ways to build.")
_PEER = flags.DEFINE_bool("peer", True, "Measure pyseismic, if installed.")
_JSON = flags.DEFINE_string("json", None, "Where rows are kept.")

K = 10
_COLUMNS = (
  "num_docs",
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
_CUTS = ((5, 0.9), (8, 0.9), (8, 0.8), (10, 0.7), (12, 0.6))
_ROUTED = (
  (8, 512, 48, 512, 256),
  (8, 1024, 96, 1024, 512),
  (10, 2048, 160, 1536, 1024),
)
_OTHER_BUILDS: dict[str, dict[str, Any]] = {
  "float summaries": {"quantize": False},
  "alpha .2": {"alpha": 0.2},
  "alpha .6": {"alpha": 0.6},
  "paper pruning": {"prune": "paper"},
}
Row = dict[str, Any]


def settings(num_docs: int) -> dict[str, Any]:
  """What both indexes are built with."""
  return {"n_postings": _POSTINGS.get(num_docs, 100), "max_fraction": 4.0}


def exact(world: sparse_worlds.World) -> Iterator[Row]:
  """Exact search: a query at a time, and 16 at once."""
  rows = world.rows
  matrix = scipy.sparse.csr_array(
    (rows.values, rows.indices, rows.starts), (rows.num_docs, rows.vocab)
  )
  num = min(64, len(world.coords))
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
) -> Iterator[Row]:
  """Both searches of one index."""
  config = sparse_blocks.BuildConfig(**build)
  build_s, index = timing.timed(
    lambda: sparse_blocks.build(world.rows, config=config)
  )
  mib = sum(x.nbytes for x in jax.tree.leaves(index)) / 2**20
  about = {"build_s": build_s, "index_mib": mib}
  queries = seismic.SparseVector(world.coords, world.weights)
  sequential = [seismic.Sequential(cut=c, heap_factor=f) for c, f in _CUTS]
  cells: list[tuple[str, seismic.Search, Any]] = [
    (f"native {s.cut}, {s.heap_factor}", s, "native") for s in sequential
  ]
  if not label:
    cells += [
      (f"XLA sequential {s.cut}, {s.heap_factor}", s, "xla")
      for s in sequential[2:3]
    ]
    names = ("cut", "num_summaries", "num_blocks", "num_postings", "num_docs")
    for values in _ROUTED:
      routed = seismic.Routed(**dict(zip(names, values, strict=True)))
      cells.append((f"XLA routed {values}", routed, "xla"))
  for name, search, backend in cells:
    decode = partial(
      seismic.decode,
      k=K,
      config=seismic.SeismicConfig(search=search, backend=backend),
    )
    batch = jax.jit(jax.vmap(partial(decode, ()), in_axes=(0, None)))
    row = _measure(partial(_blocking, batch, queries, index))
    result = row.pop("result")
    yield (
      about
      | row
      | {
        "search": f"{label} {name}".strip(),
        "indices": np.asarray(result.indices).tolist(),
        "num_scored": float(np.mean(result.aux.num_scored)),
        "overflow": float(np.mean(result.aux.overflow)),
      }
    )


def peer(world: sparse_worlds.World, build: dict[str, Any]) -> Iterator[Row]:
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
  for cut, factor in _CUTS:

    def call(cut=cut, factor=factor):
      return [
        index.search(coords, weights, K, cut, factor, 0, True)
        for coords, weights in zip(world.coords, world.weights, strict=True)
      ]

    row = _measure(call)
    found = [[doc for _, doc in hits] for hits in row.pop("result")]
    yield row | {
      "search": f"pyseismic {cut}, {factor}",
      "indices": [(hits + [-1] * K)[:K] for hits in found],
      "build_s": build_s,
    }


def _blocking(fn, *args):
  return jax.block_until_ready(fn(*args))


def _measure(call: Callable[[], Any]) -> Row:
  result = call()
  spent = timing.measure(call, repeats=_REPEATS.value, limit_s=20.0)
  return {"us": 1e6 * spent.median_s / _QUERIES.value, "result": result}


def rows_of(num_docs: int) -> list[Row]:
  """Measures everything on one world."""
  world = sparse_worlds.make(num_docs, _QUERIES.value)
  build, rows = settings(num_docs), []
  parts = [exact(world)]
  if _PEER.value and importlib.util.find_spec("seismic"):
    parts.append(peer(world, build))
  parts.append(ours(world, build))
  if _ABLATIONS.value:
    parts += [ours(world, build | o, n) for n, o in _OTHER_BUILDS.items()]
  for part in parts:
    for row in part:
      rows.append(row | {"num_docs": num_docs})
      shown = {k: v for k, v in row.items() if k != "indices"}
      logging.info("%s", shown)
  truth = np.asarray(rows[0]["indices"])
  batched = rows[1]["us"]
  for row in rows:
    found = np.asarray(row.pop("indices"))[: len(truth)]
    same = (truth[:, :, None] == found[:, None, :]).any(axis=2)
    row |= {"recall": float(same.mean()), "speed": batched / row["us"]}
  return rows


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
    print(report.markdown_table(done[key], _COLUMNS, digits=4))


if __name__ == "__main__":
  app.run(main)
