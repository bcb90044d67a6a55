r"""NNN decoding with clusters against the whole corpus: what is skipped.

  python -m experiments.bench.clusters_bench --num_docs=10000,100000
  XLA_FLAGS=--xla_cpu_multi_thread_eigen=false taskset -c 0 \
    python -m experiments.bench.clusters_bench --json=clusters_bench.json

Documents are unit(topic + spread * noise), noise and topic of length about one,
a topic for 50 documents; for the spread "none" they are rows around one shared
mean, as in `nnn_bench`: there are no clusters. A query mixes three documents.

Printed for each world, batch and pair of penalties: the share of documents
scored in all passes (mean and largest over the batch), the centres read beside
them, the worst violation of the optimality conditions by numpy in float64, and
the time of a decode with the array and with the index.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from absl import app, flags

from experiments import report
from experiments.bench import timing
from nnn_jax.core import linalg
from nnn_jax.decoders import nnn
from nnn_jax.indexes import clusters
from nnn_jax.solvers import working_set

_NUM_DOCS = flags.DEFINE_list("num_docs", ["10000", "100000"], "")
_DIM = flags.DEFINE_integer("dim", 384, "Embedding size.")
_BATCHES = flags.DEFINE_list("batches", ["1", "16"], "Queries at a time.")
_SPREADS = flags.DEFINE_list("spreads", ["0.1", "0.2", "0.4", "none"], "")
_PENALTIES = flags.DEFINE_list(
  "penalties", ["0.3:0.1", "0.2:0.1", "0.1:0.1"], "l1:l2 pairs."
)
_CAPACITY = flags.DEFINE_integer("capacity", 128, "Of the working set.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Timed calls; median.")
_JSON = flags.DEFINE_string("json", None, "Where to write the rows.")

_K = 10


def _blocking(fn: Callable[..., Any], *args: Any) -> Any:
  return jax.block_until_ready(fn(*args))


def world(
  num_docs: int, dim: int, batch: int, spread: str
) -> tuple[jax.Array, jax.Array]:
  """(queries, corpus)."""
  keys = jax.random.split(jax.random.key(0), 5)
  noise = jax.random.normal(keys[2], (num_docs, dim)) / dim**0.5
  if spread == "none":
    corpus = noise + 0.5 * jax.random.normal(keys[0], (1, dim)) / dim**0.5
  else:
    shape = (num_docs // 50, dim)
    topics = linalg.normalize(jax.random.normal(keys[0], shape))
    topic = jax.random.randint(keys[1], (num_docs,), 0, shape[0])
    corpus = topics[topic] + float(spread) * noise
  corpus = linalg.normalize(corpus)
  rows = jax.random.randint(keys[3], (batch, 3), 0, num_docs)
  noise = jax.random.normal(keys[4], (batch, dim)) / dim**0.5
  return linalg.normalize(corpus[rows].sum(axis=1) + 0.5 * noise), corpus


def violation(
  params: nnn.NnnParams, queries: jax.Array, corpus: np.ndarray, weights: Any
) -> float:
  """The largest of the batch, by numpy in float64."""
  dense = np.asarray(weights.dense(len(corpus)), np.float64)
  residual = np.asarray(queries, np.float64) - dense @ corpus
  excess = residual @ corpus.T - params.l1
  on = np.abs(excess - params.l2 * dense)
  return float(np.where(dense > 0, on, np.maximum(excess, 0.0)).max())


def rows_of(num_docs: int, spread: str) -> list[dict[str, Any]]:
  """Measures one world, for every batch and pair of penalties."""
  most = max(map(int, _BATCHES.value))
  queries, corpus = world(num_docs, _DIM.value, most, spread)
  start = time.perf_counter()
  index = clusters.build(corpus, progress=True)
  build_s = time.perf_counter() - start
  exact_corpus = np.asarray(corpus, np.float64)
  solver = working_set.WorkingSet(capacity=_CAPACITY.value)
  decode = partial(nnn.decode, k=_K, config=nnn.NnnConfig(solver=solver))
  batched = jax.jit(jax.vmap(decode, in_axes=(None, 0, None)))
  rows = []
  for batch in map(int, _BATCHES.value):
    for pair in _PENALTIES.value:
      params = nnn.NnnParams(*map(float, pair.split(":")))
      some = queries[:batch]
      spent = {
        name: timing.measure(
          partial(_blocking, batched, params, some, documents),
          repeats=_REPEATS.value,
          limit_s=60.0,
        ).median_s
        for name, documents in {"array": corpus, "index": index}.items()
      }
      aux = batched(params, some, index).aux
      share = np.asarray(aux.num_scored) / num_docs
      centres = np.asarray(aux.num_passes) * len(index.sizes) / num_docs
      rows.append(
        {
          "num_docs": num_docs,
          "spread": spread,
          "build s": build_s,
          "batch": batch,
          "l1": params.l1,
          "l2": params.l2,
          "share %": 100 * share.mean(),
          "max %": 100 * share.max(),
          "centres %": 100 * centres.mean(),
          "passes": float(np.mean(aux.num_passes)),
          "support": float(np.mean(aux.support_size)),
          "exact": f"{int(aux.exact.sum())}/{batch}",
          "KKT": f"{violation(params, some, exact_corpus, aux.weights):.0e}",
          "array ms": 1e3 * spent["array"],
          "index ms": 1e3 * spent["index"],
          "array / index": spent["array"] / spent["index"],
        }
      )
  return rows


def main(argv: Sequence[str]) -> None:
  """Entry point."""
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {argv[1:]}")
  print(f"{jax.devices()}, {platform.platform()}, jax {jax.__version__}")
  print(f"dim {_DIM.value}, k {_K}, capacity {_CAPACITY.value}, float32\n")
  rows = []
  for num_docs in _NUM_DOCS.value:
    for spread in _SPREADS.value:
      rows += rows_of(int(num_docs), spread)
      if _JSON.value:  # After each world: a large one takes minutes.
        report.write_json(_JSON.value, rows)
  print(report.markdown_table(rows, list(rows[0]), digits=2))


if __name__ == "__main__":
  app.run(main)
