r"""Diversity-aware selection against MMR, MSD, DPP and SSD, in one run.

  XLA_FLAGS=--xla_cpu_multi_thread_eigen=false taskset -c 0 \
    python -m experiments.bench.diversity_bench --json=diversity_bench.json

Random embeddings, or with --corpus and --embedded_queries those of a model (the
work directory of experiments.diversity holds some). Peers are pyversity and
langchain's MMR (`pip install ".[bench]"`; those that are not installed are left
out). One query a call, relevance included in the time. Quality is J, the
objective of `decoders.diversity`, of the set each returns, a mean over the
queries at each trade-off, the weight of relevance; for pyversity's DPP and SSD
it means what they document. The time is the mean over the queries at trade-off
.5, the median of rounds in which every decoder takes its turn, so that what
else the machine does meets all of them. On a corpus larger than its pool of
1,000 ours is timed with the pool and without.
"""

from __future__ import annotations

import importlib
import platform
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags, logging

from experiments import report
from experiments.bench import timing
from nnn_jax.decoders import diversity, dpp, max_sum, mmr
from nnn_jax.solvers import selection

_NUM_DOCS = flags.DEFINE_list("num_docs", ["200", "1000", "8000", "100000"], "")
_KS = flags.DEFINE_list("ks", ["10", "25", "50", "100"], "")
_DIM = flags.DEFINE_integer("dim", 384, "Embedding size.")
_QUERIES = flags.DEFINE_integer("queries", 8, "Queries, decoded one by one.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Timed rounds; the median.")
_CORPUS = flags.DEFINE_string(
  "corpus", None, "Unit rows `[num_docs, dim]`, .npy, in place of random ones."
)
_EMBEDDED_QUERIES = flags.DEFINE_string(
  "embedded_queries", None, "With --corpus: unit rows, .npy."
)
_JSON = flags.DEFINE_string("json", None, "Where to write the rows.")

_TRADE_OFFS = (0.1, 0.3, 0.5, 0.7, 0.9)
Select = Callable[[float, Any, Any], np.ndarray]


def world(
  num_docs: int, dim: int, num_queries: int
) -> tuple[np.ndarray, np.ndarray]:
  """Unit rows in clusters around a shared mean; queries between two rows.

  Of embeddings that are given, the num_docs rows most like the queries' mean.
  """
  if _CORPUS.value and _EMBEDDED_QUERIES.value:
    rows = np.load(_CORPUS.value)
    queries = np.load(_EMBEDDED_QUERIES.value)[:num_queries]
    if num_docs > len(rows):
      raise ValueError(
        f"num_docs = {num_docs} but corpus has {len(rows)} rows."
      )
    best = np.argsort(-(rows @ queries.sum(axis=0)), kind="stable")
    return queries, rows[np.sort(best[:num_docs])]
  rng = np.random.default_rng(0)
  clusters = rng.normal(size=(max(num_docs // 50, 4), dim))
  rows = 0.5 * rng.normal(size=dim) + rng.normal(size=(num_docs, dim))
  rows += 0.8 * clusters[rng.integers(len(clusters), size=num_docs)]
  rows /= np.linalg.norm(rows, axis=1, keepdims=True)
  queries = rows[rng.integers(num_docs, size=(num_queries, 2))].sum(axis=1)
  queries += 0.2 * rng.normal(size=queries.shape) / dim**0.5
  queries /= np.linalg.norm(queries, axis=1, keepdims=True)
  return queries.astype(np.float32), rows.astype(np.float32)


def ours(num_docs: int, k: int) -> dict[str, Select]:
  """Our decoders, jitted."""
  config = diversity.DiversityConfig
  configs: dict[str, Any] = {
    "mmr": (mmr, mmr.MmrConfig()),
    "max_sum": (max_sum, max_sum.MaxSumConfig()),
    "dpp": (dpp, dpp.DppConfig()),
    "diversity, published": (
      diversity,
      config(method=selection.Published()),
    ),
    "diversity": (diversity, config()),
  }
  if num_docs > 1_000:
    configs["diversity, no pool"] = (diversity, config(pool_size=None))

  # On the device beforehand, as an application has them: making an array of a
  # number takes 0.1 ms.
  params = {trade_off: (jnp.float32(trade_off),) for trade_off in _TRADE_OFFS}

  def bind(module, static):
    # What the peers return: a list and its scores.
    decode = jax.jit(lambda *args: module.decode(*args, k=k, config=static)[:2])

    def select(trade_off, query, corpus):
      indices, scores = decode(params[trade_off], query, corpus)
      return jax.block_until_ready((indices, scores))[0]

    return select

  return {name: bind(*pair) for name, pair in configs.items()}


def peers(k: int) -> dict[str, Select]:
  """The peers that are installed."""
  found: dict[str, Select] = {}
  try:
    pyversity = importlib.import_module("pyversity")
  except ImportError:
    print("pyversity is not installed: left out.")
  else:
    for name in ("mmr", "msd", "dpp", "ssd"):

      def select(trade_off, query, corpus, strategy=getattr(pyversity, name)):
        return strategy(corpus, corpus @ query, k, 1.0 - trade_off).indices

      found[f"pyversity {name}"] = select
  try:
    langchain = importlib.import_module("langchain_core.vectorstores.utils")
  except ImportError:
    print("langchain_core is not installed: left out.")
  else:
    found["langchain mmr"] = lambda trade_off, query, corpus: np.asarray(
      langchain.maximal_marginal_relevance(query, list(corpus), trade_off, k)
    )
  return found


def objective(indices, trade_off, query, corpus) -> float:
  """J of a set, in float64 from its definition."""
  rows = corpus[np.asarray(indices)].astype(np.float64)
  if len(set(np.asarray(indices).tolist())) != len(rows):
    raise ValueError(f"a document is selected twice: {indices}.")
  gram = rows @ rows.T
  pairs = len(rows) * (len(rows) - 1)
  spread = 1.0 - (gram.sum() - np.trace(gram)) / pairs
  return float(trade_off * (rows @ query).mean() + (1 - trade_off) * spread)


def _select_all(select: Select, queries: Sequence[Any], corpus: Any) -> None:
  for query in queries:
    select(0.5, query, corpus)


def rows_of(num_docs: int, k: int) -> list[dict[str, Any]]:
  """Measures every decoder on one world."""
  is_large = num_docs > 8_000  # One query and one round: peers take minutes.
  num_queries = 1 if is_large else _QUERIES.value
  queries, corpus = world(num_docs, _DIM.value, num_queries)
  # langchain's compares with all that is selected at each step: minutes beyond.
  methods = ours(num_docs, k) | {
    name: select
    for name, select in peers(k).items()
    if num_docs * k <= 50_000 or name != "langchain mmr"
  }
  rows, calls = [], []
  for name, select in methods.items():
    is_ours = not name.startswith(("pyversity", "langchain"))
    documents = jnp.asarray(corpus) if is_ours else corpus
    inputs = [jnp.asarray(q) if is_ours else q for q in queries]
    row: dict[str, Any] = {"num_docs": num_docs, "k": k, "decoder": name}
    for trade_off in _TRADE_OFFS:
      values = [
        objective(select(trade_off, q, documents), trade_off, query, corpus)
        for q, query in zip(inputs, queries, strict=True)
      ]
      row[f"J {trade_off}"] = float(np.mean(values))
    rows.append(row)
    calls.append(partial(_select_all, select, inputs, documents))
  spent = [
    [timing.timed(call)[0] for call in calls]
    for _ in range(1 if is_large else _REPEATS.value)
  ]
  for row, seconds in zip(rows, np.median(spent, axis=0), strict=True):
    row["ms"] = 1e3 * float(seconds) / num_queries
    logging.info("%s", row)
  by_name = {row["decoder"]: row["ms"] for row in rows}
  base = "pyversity mmr" if "pyversity mmr" in by_name else "mmr"
  for row in rows:
    row[f"speed / {base}"] = by_name[base] / row["ms"]
  return rows


def main(argv: Sequence[str]) -> None:
  """Entry point."""
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {argv[1:]}")
  print(f"{jax.devices()}, {platform.platform()}, jax {jax.__version__}")
  print(f"dim {_DIM.value}, {_QUERIES.value} queries, float32\n")
  rows = []
  for num_docs in map(int, _NUM_DOCS.value):
    for k in map(int, _KS.value):
      if k < num_docs:
        rows += rows_of(num_docs, k)
  ends = [f"J {trade_off}" for trade_off in _TRADE_OFFS]
  columns = [name for name in rows[0] if name not in ends] + ends
  print(report.markdown_table(rows, columns, digits=4))
  if _JSON.value:
    report.write_json(_JSON.value, rows)


if __name__ == "__main__":
  app.run(main)
