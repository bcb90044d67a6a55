r"""One training step through NNN decoding: the published way and implicitly.

  python -m experiments.bench.train_step_bench --num_docs=464,10000,100000
  XLA_FLAGS=--xla_cpu_multi_thread_eigen=false taskset -c 0 \
    python -m experiments.bench.train_step_bench --json=train_step.json

A step is the ranking loss of a batch and its gradient with respect to the
queries and to the adapter on frozen documents, without the text encoder. Each
row runs in a process of its own; "no solver" is what is left without decoding,
the adapter and inner products, which no solver can undercut. Printed:
compilation, the median time of a step, times faster than unrolled; XLA's
temporary memory and the process's peak (with the compiler's); the largest
support, the largest KKT violation and the share of queries whose solution is
not certified.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import platform
import resource
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from absl import app, flags
from flax import nnx

from experiments import report
from experiments.bench import timing, worlds
from nnn_jax import retriever
from nnn_jax.core import gradients
from nnn_jax.decoders import nnn
from nnn_jax.solvers import fista
from nnn_jax.training import stages

_NUM_DOCS = flags.DEFINE_list("num_docs", ["464", "10000", "100000"], "")
_DIM = flags.DEFINE_integer("dim", 384, "Embedding size.")
_BATCH = flags.DEFINE_integer("batch", 64, "Queries in a step.")
_PENALTIES = flags.DEFINE_list("penalties", ["0.1:0.1"], "l1:l2 pairs.")
_CAPACITY = flags.DEFINE_integer("capacity", 256, "Of implicit gradients.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Timed steps; median.")
_JSON = flags.DEFINE_string("json", None, "Where to write the rows.")

_UNROLLED = "FISTA 50, unrolled"
_NO_SOLVER = "no solver"
_SOLVERS = (
  _UNROLLED,
  "FISTA 50, implicit",
  "working set, implicit",
  _NO_SOLVER,
)


def decoder_config(solver: str, num_docs: int, capacity: int) -> nnn.NnnConfig:
  """The decoder behind a row's name."""
  exact = stages.NnnStage(solver="working_set", capacity=capacity)
  config = exact.decoder_config(num_docs)
  if solver == _UNROLLED:
    return nnn.NnnConfig(solver=fista.Fista(), gradient=gradients.Unroll())
  if solver.startswith("FISTA"):
    return nnn.NnnConfig(solver=fista.Fista(), gradient=config.gradient)
  return config


def measure(
  solver: str,
  *,
  num_docs: int,
  dim: int,
  batch: int,
  l1: float,
  l2: float,
  capacity: int,
  repeats: int,
) -> dict[str, Any]:
  """One row; for a fresh process, since peak memory never falls."""
  world = worlds.World(dim=dim)
  rows = worlds.corpus(world, num_docs)
  mixed, chosen = worlds.mixtures(world, rows, batch)
  queries, corpus, relevant = map(jnp.asarray, (mixed, rows, chosen))
  config = decoder_config(solver, num_docs, capacity)
  adapter = stages.NnnStage().make_adapter(dim, seed=0)
  graphdef, params = nnx.split(adapter)
  penalties = nnn.NnnParams(l1, l2)

  def loss(params, queries, frozen, relevant):
    corpus = nnx.merge(graphdef, params)(frozen)
    if solver == _NO_SOLVER:
      return jnp.mean((queries @ corpus.T) ** 2)
    return retriever.weights_loss(
      nnn.decode, penalties, queries, corpus, relevant, config=config
    )

  arguments = (params, queries, corpus, relevant)
  start = time.perf_counter()
  step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
  compiled = step.lower(*arguments).compile()
  compile_s = time.perf_counter() - start
  spent = timing.measure(
    lambda: jax.block_until_ready(compiled(*arguments)),
    repeats=repeats,
    limit_s=60.0,
  )
  memory = compiled.memory_analysis()
  peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

  row = {
    "num_docs": num_docs,
    "l1": l1,
    "l2": l2,
    "solver": solver,
    "compile s": compile_s,
    "ms": 1e3 * spent.median_s,
    "temp GiB": memory.temp_size_in_bytes / 2**30 if memory else None,
    "peak GiB": peak_kib / 2**20,
  }
  if solver == _NO_SOLVER:
    return row
  decode = partial(nnn.decode, penalties, k=1, config=config)
  aux = jax.jit(jax.vmap(lambda *args: decode(*args).aux, in_axes=(0, None)))(
    queries, adapter(corpus)
  )
  return row | {
    "max support": int(aux.support_size.max()),
    "max KKT": f"{float(aux.kkt_violation.max()):.1e}",
    "inexact": 1.0 - float(jnp.mean(aux.exact)),
  }


def main(argv: Sequence[str]) -> None:
  """Entry point."""
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {argv[1:]}")
  print(f"{platform.platform()}, jax {jax.__version__}")
  print(f"dim {_DIM.value}, batch {_BATCH.value}, float32\n")
  rows: list[dict[str, Any]] = []
  with concurrent.futures.ProcessPoolExecutor(
    max_workers=1,
    mp_context=multiprocessing.get_context("spawn"),
    max_tasks_per_child=1,
  ) as pool:
    for num_docs in map(int, _NUM_DOCS.value):
      for pair in _PENALTIES.value:
        l1, l2 = map(float, pair.split(":"))
        run = partial(
          measure,
          num_docs=num_docs,
          dim=_DIM.value,
          batch=_BATCH.value,
          l1=l1,
          l2=l2,
          capacity=_CAPACITY.value,
          repeats=_REPEATS.value,
        )
        peers = [pool.submit(run, solver).result() for solver in _SOLVERS]
        for row in peers:
          row["x faster"] = peers[0]["ms"] / row["ms"]
        rows += peers
  columns = ["num_docs", "l1", "l2", "solver", "compile s", "ms", "x faster"]
  columns += ["temp GiB", "peak GiB", "max support", "max KKT", "inexact"]
  print(report.markdown_table(rows, columns, digits=2))
  if _JSON.value:
    report.write_json(_JSON.value, rows)


if __name__ == "__main__":
  app.run(main)
