r"""Searches of a mixture of logits against brute force, in one run.

  XLA_FLAGS=--xla_cpu_multi_thread_eigen=false taskset -c 0 \
    python -m experiments.bench.mol_bench --json=mol_bench.json

The Books shape by default; of NQ320K, whose items are eight times as large:

    python -m experiments.bench.mol_bench --shape=4x4x768 \
      --num_docs=10000,100000 --json=mol_bench_nq.json

A batch of 32 queries a call, k = 10. Recall is the share of the exact top 10
that a search finds (as a set), a mean over --queries; the relative hit rate is
how often its 10 hold the item that the query is about, over how often the exact
10 do. The worlds are described in `experiments.bench.mol_worlds`. The peer is
the same model in PyTorch eager on the same threads, if it is installed (`pip
install ".[bench]"`): brute force over blocks of items, and the search by the
average. Rows that are in --json already are not measured again;
beside it stands a figure of recall against latency.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import platform
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import matplotlib
import matplotlib.ticker
import numpy as np
from absl import app, flags, logging

from experiments import drawing, report
from experiments.bench import memory, mol_worlds, timing
from nnn_jax.core import mixture
from nnn_jax.decoders import mol

_SHAPE = flags.DEFINE_string("shape", "8x8x32", "P_Q x P_X x dim.")
_NUM_DOCS = flags.DEFINE_list("num_docs", ["10000", "100000", "674000"], "")
_WORLDS = flags.DEFINE_list(
  "worlds", ["random", "trained"], "random, trained, or folders with a world."
)
_DTYPE = flags.DEFINE_enum(
  "dtype", "float32", ["float32", "bfloat16"], "To store items in."
)
_BATCH = flags.DEFINE_integer("batch", 32, "Queries a call.")
_QUERIES = flags.DEFINE_integer("queries", 128, "Queries that recall is of.")
_NOISE = flags.DEFINE_float("noise", 0.3, "Of the random world.")
_FOLLOW = flags.DEFINE_float("follow", 1.0, "Of the random world.")
_STEPS = flags.DEFINE_integer("steps", 300, "Of training.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Timed calls; the median.")
_CELL_S = flags.DEFINE_float("cell_s", 30.0, "About the time of a cell.")
_SEARCHES = flags.DEFINE_list(
  "searches", None, "Which rows, by name: all by default. Brute force is one."
)
_PEERS = flags.DEFINE_bool("peers", True, "Measure PyTorch, if installed.")
_JSON = flags.DEFINE_string("json", None, "Where rows are kept.")

K = 10
BRUTE = "brute force"

# By the name of a row.
SEARCHES: dict[str, mol.Search] = {
  BRUTE: mol.BruteForce(),
  "average 100": mol.Average(num=100),
  "average 200": mol.Average(num=200),
  "average 500": mol.Average(num=500),
  "per embedding 5": mol.PerEmbedding(num=5),
  "combined 1, 100": mol.Combined(per_embedding=1, average=100),
  "two pass 500": mol.TwoPass(num=500),
}
PEERS = (f"torch {BRUTE}", "torch average 500")
# A call takes a batch of queries; it returns [batch, K] rows, and what else it
# says of them.
Call = Callable[[mixture.QuerySide], tuple[Any, Any]]


def ours(world: mol_worlds.World, search: mol.Search) -> Call:
  """A search, jitted."""
  decode = partial(mol.decode, k=K, config=mol.MolConfig(search=search))

  @jax.jit
  def batch(params, queries, index):
    return jax.vmap(lambda query: decode(params, query, index))(queries)

  def call(queries):
    result = batch(world.params, queries, world.items)
    return jax.block_until_ready((result.indices, result.aux))

  return call


def peers(world: mol_worlds.World) -> dict[str, Call]:
  """The same model in PyTorch eager."""
  if not _PEERS.value or importlib.util.find_spec("torch") is None:
    print("torch is not installed, or not asked for: left out.")
    return {}
  from experiments.bench import mol_torch

  peer = mol_torch.Peer(world, threads=len(os.sched_getaffinity(0)))
  searches = (
    lambda queries: (peer.brute_force(queries, K), None),
    lambda queries: (peer.average(queries, K, 500), None),
  )
  return dict(zip(PEERS, searches, strict=True))


def measure(name: str, call: Call, world: mol_worlds.World) -> dict[str, Any]:
  """One row: time, memory and the answers, by which others are judged."""
  size = _BATCH.value
  batches = [
    jax.tree.map(lambda x, at=at: x[at : at + size], world.queries)
    for at in range(0, _QUERIES.value, size)
  ]
  call(batches[0])  # Compiles.
  spent = timing.measure(
    lambda: call(batches[0]), repeats=_REPEATS.value, limit_s=_CELL_S.value
  )
  peak_mib, _ = memory.peak_mib(lambda: call(batches[0]))
  results = [call(queries) for queries in batches]
  row: dict[str, Any] = {
    "search": name,
    "ms": 1e3 * spent.median_s,
    "calls": spent.calls,
    "peak_mib": peak_mib,
    "indices": np.concatenate([np.asarray(r[0]) for r in results]).tolist(),
  }
  if results[0][1] is not None:
    for field in ("num_scored", "exact"):
      values = [np.asarray(getattr(aux, field)) for _, aux in results]
      row[field] = float(np.mean(np.concatenate(values)))
  return row


def judge(
  rows: list[dict[str, Any]], targets: np.ndarray
) -> list[dict[str, Any]]:
  """Adds what compares with brute force, whose indices are the truth."""
  by_name = {row["search"]: row for row in rows}
  truth = by_name[BRUTE]
  exact = np.asarray(truth["indices"])

  def hit_rate(indices):
    return (indices == targets[: len(indices), None]).any(axis=1).mean()

  judged = []
  for row in rows:
    found = np.asarray(row["indices"])
    shared = (exact[:, :, None] == found[:, None, :]).any(axis=2)
    judged.append(
      row
      | {
        "recall": float(shared.mean()),
        "relative hit rate": float(hit_rate(found) / hit_rate(exact))
        if hit_rate(exact) > 0
        else None,
        "speed": truth["ms"] / row["ms"],
      }
    )
  return judged


def world_of(name: str, num_docs: int) -> mol_worlds.World:
  """Makes or reads a world."""
  shape = mol_worlds.Shape.parse(_SHAPE.value)
  if name == "random":
    return mol_worlds.random_world(
      shape,
      num_docs,
      _QUERIES.value,
      noise=_NOISE.value,
      follow=_FOLLOW.value,
      dtype=_DTYPE.value,
    )
  if name == "trained":
    return mol_worlds.trained_world(
      shape,
      num_docs,
      _QUERIES.value,
      num_steps=_STEPS.value,
      dtype=_DTYPE.value,
    )
  return mol_worlds.load(pathlib.Path(name))


def wanted_rows() -> list[str]:
  """The rows asked for, brute force among them."""
  known = [*SEARCHES, *(PEERS if _PEERS.value else ())]
  asked = _SEARCHES.value or known
  unknown = set(asked) - set(known)
  if unknown:
    raise ValueError(
      f"searches {sorted(unknown)} are unknown: choose from {known}."
    )
  return [name for name in known if name in asked or name == BRUTE]


def rows_of(name: str, num_docs: int, store: _Store) -> list[dict[str, Any]]:
  """Measures every search on one world, as far as that is not done."""
  settings = {
    "random": f" noise {_NOISE.value:g} follow {_FOLLOW.value:g}",
    "trained": f" {_STEPS.value} steps",
  }
  key = f"{name}{settings.get(name, '')} {num_docs}"
  key += f" {_SHAPE.value} {_DTYPE.value}"
  done = store.rows.get(key, {})
  wanted = wanted_rows()
  if not all(search in done for search in wanted):
    world = world_of(name, num_docs)
    calls = {search: ours(world, how) for search, how in SEARCHES.items()}
    if set(PEERS) & set(wanted):
      calls |= peers(world)
    targets = world.targets.tolist()
    for search, call in calls.items():
      if search in wanted and search not in done:
        row = measure(search, call, world)
        shown = {k: v for k, v in row.items() if k != "indices"}
        logging.info("%s: %s", key, shown)
        stored = sum(x.nbytes for x in jax.tree.leaves(world.items)) / 2**20
        row |= {"index_mib": stored, "targets": targets}
        store.add(key, search, row)
        jax.clear_caches()
  done = store.rows[key]
  rows = judge(
    list(done.values()), np.asarray(next(iter(done.values()))["targets"])
  )
  for row in rows:
    row |= {"world": name, "num_docs": num_docs}
  return rows


class _Store:
  """Rows by world and search, on disk after each."""

  def __init__(self, path: str | None):
    self._path = path
    self.rows: dict[str, dict[str, dict[str, Any]]] = {}
    if path and pathlib.Path(path).exists():
      self.rows = json.loads(pathlib.Path(path).read_text())["rows"]

  def add(self, key: str, search: str, row: dict[str, Any]) -> None:
    self.rows.setdefault(key, {})[search] = row
    if self._path:
      report.write_json(self._path, {"rows": self.rows})


_COLUMNS = (
  "world",
  "num_docs",
  "search",
  "ms",
  "speed",
  "recall",
  "relative hit rate",
  "exact",
  "num_scored",
  "peak_mib",
  "index_mib",
)


def growth(rows: list[dict[str, Any]]) -> list[str]:
  """How latency grows from the smallest to the largest catalogue."""
  lines = []
  names = dict.fromkeys((row["world"], row["search"]) for row in rows)
  for world, search in names:
    own = [r for r in rows if (r["world"], r["search"]) == (world, search)]
    first, last = own[0], own[-1]
    if last["num_docs"] > first["num_docs"]:
      power = np.log(last["ms"] / first["ms"])
      power /= np.log(last["num_docs"] / first["num_docs"])
      lines.append(
        f"{world}, {search}: time ~ N^{power:.2f} from {first['num_docs']} to "
        f"{last['num_docs']} items"
      )
  return lines


def draw(rows: list[dict[str, Any]], path: pathlib.Path) -> None:
  """Recall against latency, a point a search, a panel a world and size."""
  panels = list(dict.fromkeys((row["world"], row["num_docs"]) for row in rows))
  names = list(dict.fromkeys(row["search"] for row in rows))
  with matplotlib.rc_context(drawing.STYLE):
    figure = drawing.figure(1.2 + 3.2 * len(panels), 4.0)
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for ax, (world, num_docs) in zip(axes, panels, strict=True):
      for n, name in enumerate(names):
        points = [
          (row["ms"], row["recall"])
          for row in rows
          if (row["world"], row["num_docs"], row["search"])
          == (world, num_docs, name)
        ]
        ax.plot(*zip(*points, strict=True), label=name, **drawing.look(n))
      ax.set(
        title=f"{pathlib.Path(world).name}, {num_docs:,} items",
        xlabel=f"ms a batch of {_BATCH.value}",
        xscale="log",
        ylim=(-0.03, 1.03),
      )
      ax.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    axes[0].set_ylabel(f"recall of the exact top {K}")
    drawing.legend(figure, axes[0])
    drawing.save(figure, path)


def main(argv: Sequence[str]) -> None:
  """Entry point."""
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {argv[1:]}")
  threads = len(os.sched_getaffinity(0))
  print(f"{jax.devices()}, {platform.platform()}, jax {jax.__version__}")
  print(f"{_SHAPE.value}, batch {_BATCH.value}, {threads} processors\n")
  store, rows = _Store(_JSON.value), []
  for name in _WORLDS.value:
    for num_docs in map(int, _NUM_DOCS.value):
      rows += rows_of(name, num_docs, store)
  columns = [c for c in _COLUMNS if any(c in row for row in rows)]
  print(report.markdown_table(rows, columns, digits=4))
  print()
  print("\n".join(growth(rows)))
  if _JSON.value:
    draw(rows, pathlib.Path(_JSON.value).with_suffix(".png"))


if __name__ == "__main__":
  app.run(main)
