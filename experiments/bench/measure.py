"""One process of a benchmark: measures the cells of one decoder.

`nnn_bench` starts it, a process a decoder: no peer's threads or libraries get
in another's way, and a crash costs one decoder's rows. It reads a request from
the standard input and prints a JSON line for each cell as it is done.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import threadpoolctl

from experiments.bench import (
  contestants,
  memory,
  registry,
  scoring,
  timing,
  worlds,
)

_SCORED = 16  # Queries of a batch whose answers are scored.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
  """What one row measures."""

  num_docs: int
  batch: int
  l1: float
  l2: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
  """What a process is asked; `cells` in order of num_docs, then batch.

  Attributes:
    decoder: A key of `registry.CONTESTANTS`.
    world: What to decode.
    cells: What to measure.
    repeats: Timed calls of a cell.
    limit_s: About the time a cell may take.
    threads: Processors to keep to; 0 is all.
  """

  decoder: str
  world: worlds.World
  cells: list[Cell]
  repeats: int
  limit_s: float
  threads: int

  def to_json(self) -> str:
    """Returns what `from_json` reads."""
    return json.dumps(dataclasses.asdict(self))

  @classmethod
  def from_json(cls, text: str) -> Request:
    """Reads what `to_json` wrote."""
    fields = json.loads(text)
    fields["world"] = worlds.World(**fields["world"])
    fields["cells"] = [Cell(**cell) for cell in fields["cells"]]
    return cls(**fields)


def rows_of(request: Request) -> Iterator[dict[str, Any]]:
  """Measures the cells, and yields a row each."""
  contestant = registry.CONTESTANTS[request.decoder]
  # Predictions: seconds a query of the same batch and penalties, last num_docs.
  known: dict[tuple[int, float, float], tuple[int, float]] = {}
  for num_docs in sorted({cell.num_docs for cell in request.cells}):
    corpus = worlds.corpus(request.world, num_docs)
    prepare = contestant.load(corpus, dtype=request.world.dtype)
    for cell in request.cells:
      if cell.num_docs != num_docs:
        continue
      key = cell.batch, cell.l1, cell.l2
      before = known.get(key)
      predicted = before and before[1] * num_docs / before[0]
      if not contestant.is_batched and predicted is None:
        one = contestants.Task(
          worlds.queries(request.world, corpus, 1), cell.l1, cell.l2, 0.0
        )
        prepared = prepare(one)
        predicted, _ = timing.timed(prepared.call)
        if predicted * cell.batch > request.limit_s:  # It may have compiled.
          predicted, _ = timing.timed(prepared.call)
      row = _row(request, cell, corpus, prepare, predicted)
      if "ms" in row:
        known[key] = num_docs, row["ms"] / 1e3 / cell.batch
      yield dataclasses.asdict(cell) | {"decoder": request.decoder} | row


def _row(request, cell, corpus, prepare, predicted) -> dict[str, Any]:
  """Measures one cell, on fewer queries where all would take too long.

  Args:
    request: What was asked.
    cell: Which cell.
    corpus: Its corpus.
    prepare: The decoder, loaded with it.
    predicted: Seconds a query, or None if unknown.
  """
  num_queries = cell.batch
  if predicted and predicted * cell.batch > request.limit_s:
    fitting = max(1, int(request.limit_s / predicted))
    num_queries = 2 ** (fitting.bit_length() - 1)
  if predicted and predicted * num_queries > 10 * request.limit_s:
    return {"skipped": f"about {predicted:.0f} s a query"}

  queries = worlds.queries(request.world, corpus, num_queries)
  task = contestants.Task(queries, cell.l1, cell.l2, request.limit_s)
  prepared = prepare(task)
  spent = timing.measure(
    prepared.call, repeats=request.repeats, limit_s=request.limit_s
  )
  peak_mib, result = memory.peak_mib(prepared.call)
  notes = [prepared.note] if prepared.note else []
  if num_queries < cell.batch:
    notes.append(
      f"{num_queries} of {cell.batch} queries, time scaled by "
      f"{cell.batch // num_queries}"
    )
  row: dict[str, Any] = {
    "ms": 1e3 * spent.median_s * cell.batch / num_queries,
    "calls": spent.calls,
    "compile_s": prepared.compile_s,
    "peak_mib": peak_mib,
    "note": "; ".join(notes),
  }
  few = queries[:_SCORED]
  if prepared.indices is not None:
    found = prepared.indices(result)[:_SCORED]
    row["agreement"] = scoring.agreement(few, corpus, found)
  if prepared.weights is not None:
    weights = prepared.weights(result)[:_SCORED]
    quality = scoring.evaluate(few, corpus, weights, l1=cell.l1, l2=cell.l2)
    row |= {
      "objective": quality.objective,
      "kkt_violation": max(quality.kkt_violation),
      "support_size": float(np.mean(quality.support_size)),
    }
  return row


def main() -> None:
  """Entry point of the process."""
  request = Request.from_json(sys.stdin.read())
  if request.threads:
    processors = sorted(os.sched_getaffinity(0))[: request.threads]
    os.sched_setaffinity(0, processors)
  for row in rows_of(request):
    print(json.dumps({"row": row}), flush=True)
  kernels = sorted(
    f"{pool['internal_api']} {pool['version']} {pool['architecture']} "
    f"x{pool['num_threads']}"
    for pool in threadpoolctl.threadpool_info()
    if pool["user_api"] == "blas"
  )
  print(json.dumps({"kernels": kernels}), flush=True)


if __name__ == "__main__":
  main()
