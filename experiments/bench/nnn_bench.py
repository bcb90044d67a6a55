r"""NNN decoding against dense top-k, on synthetic anisotropic embeddings.

  python -m experiments.bench.nnn_bench --num_docs=10000,100000 --batch=16
  XLA_FLAGS=--xla_cpu_multi_thread_eigen=false taskset -c 0 \
    python -m experiments.bench.nnn_bench --json=nnn_bench.json

For each corpus size and pair of penalties: dense top-k, FISTA with the
published 50 steps, and the exact working set, in one process. Printed: time,
ratio to dense, objective above the best found, KKT violation, support and
corpus passes, the largest or mean over the batch.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from absl import app, flags

from experiments import report
from experiments.bench import timing, worlds
from nnn_jax.decoders import dense, nnn
from nnn_jax.solvers import elastic_net, fista, working_set

_NUM_DOCS = flags.DEFINE_list("num_docs", ["1000", "10000", "100000"], "")
_DIM = flags.DEFINE_integer("dim", 384, "Embedding size.")
_BATCH = flags.DEFINE_integer("batch", 16, "Queries decoded together.")
_PENALTIES = flags.DEFINE_list(
  "penalties", ["0.3:0.1", "0.1:0.1", "0.03:0.03"], "l1:l2 pairs."
)
_CAPACITY = flags.DEFINE_integer("capacity", 128, "Of the working set.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Timed calls; median.")
_JSON = flags.DEFINE_string("json", None, "Where to write the rows.")

_K = 10


def rows_of(num_docs: int, l1: float, l2: float) -> list[dict[str, Any]]:
  """Measures every decoder on one world."""
  queries, corpus, _ = worlds.mixtures(num_docs, _DIM.value, _BATCH.value)
  solver = working_set.WorkingSet(capacity=_CAPACITY.value)
  decoders = {
    "dense": partial(dense.decode, ()),
    "FISTA 50": partial(
      nnn.decode,
      nnn.NnnParams(l1, l2),
      config=nnn.NnnConfig(solver=fista.Fista()),
    ),
    "working set": partial(
      nnn.decode, nnn.NnnParams(l1, l2), config=nnn.NnnConfig(solver=solver)
    ),
  }

  def values(result):
    def one(query, weights):
      l1_, l2_ = jnp.float32(l1), jnp.float32(l2)
      problem = elastic_net.Problem(query, corpus, l1_, l2_)
      return elastic_net.objective(problem, weights)

    return jax.vmap(one)(queries, result.aux.weights)

  rows: list[dict[str, Any]] = []
  objectives = {}
  for name, decode in decoders.items():
    batched = jax.jit(jax.vmap(partial(decode, k=_K), in_axes=(0, None)))
    spent = timing.measure(batched, queries, corpus, repeats=_REPEATS.value)
    row = {
      "num_docs": num_docs,
      "l1": l1,
      "l2": l2,
      "decoder": name,
      "compile s": spent.compile_s - spent.median_s,
      "ms": 1e3 * spent.median_s,
    }
    result = batched(queries, corpus)
    if isinstance(result.aux, nnn.NnnAux):
      objectives[name] = values(result)
      row |= {
        "max KKT": f"{float(result.aux.kkt_violation.max()):.1e}",
        "mean support": float(result.aux.support_size.mean()),
        "max passes": int(result.aux.num_passes.max()),
      }
    rows.append(row)
  best = jnp.min(jnp.stack(list(objectives.values())), axis=0)
  for row in rows:
    row["x dense"] = row["ms"] / rows[0]["ms"]
    if row["decoder"] in objectives:
      above = float(jnp.max(objectives[row["decoder"]] - best))
      row["objective above best"] = f"{above:.1e}"
  return rows


def main(argv: Sequence[str]) -> None:
  """Entry point."""
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {argv[1:]}")
  print(f"{jax.devices()}, {platform.platform()}, jax {jax.__version__}")
  print(f"dim {_DIM.value}, batch {_BATCH.value}, k {_K}, float32\n")
  rows = []
  for num_docs in _NUM_DOCS.value:
    for pair in _PENALTIES.value:
      l1, l2 = map(float, pair.split(":"))
      rows += rows_of(int(num_docs), l1, l2)
  columns = ["num_docs", "l1", "l2", "decoder", "compile s", "ms", "x dense"]
  columns += ["max KKT", "objective above best", "mean support", "max passes"]
  print(report.markdown_table(rows, columns, digits=2))
  if _JSON.value:
    report.write_json(_JSON.value, rows)


if __name__ == "__main__":
  app.run(main)
