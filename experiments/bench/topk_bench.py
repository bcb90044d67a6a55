r"""Exact top-k: `core.topk` against `lax.top_k` over everything.

  XLA_FLAGS=--xla_cpu_multi_thread_eigen=false taskset -c 0 \
    python -m experiments.bench.topk_bench

Rows of normal scores, a batch at a time; "x" is lax.top_k's time over ours.
Both return the same values and indices, which is checked.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from functools import partial

import jax
import numpy as np
from absl import app, flags

from experiments import report
from experiments.bench import timing
from nnn_jax.core import topk

_NUM_DOCS = flags.DEFINE_list(
  "num_docs", ["1000", "10000", "100000", "1000000"], "Row lengths."
)
_KS = flags.DEFINE_list("ks", ["10", "64", "128", "512"], "How many.")
_BATCH = flags.DEFINE_integer("batch", 16, "Rows at a time.")
_REPEATS = flags.DEFINE_integer("repeats", 9, "Timed calls; median.")
_JSON = flags.DEFINE_string("json", None, "Where to write the rows.")


def row(num_docs: int, k: int) -> dict[str, float]:
  """Times both on one batch."""
  scores = jax.random.normal(jax.random.key(0), (_BATCH.value, num_docs))
  ours = jax.jit(jax.vmap(partial(topk.top_k, k=k)))
  lax = jax.jit(partial(jax.lax.top_k, k=k))
  for one, other in zip(ours(scores), lax(scores), strict=True):
    np.testing.assert_array_equal(one, other)

  def median_s(fn):
    call = partial(fn, scores)
    return timing.measure(
      lambda: jax.block_until_ready(call()),
      repeats=_REPEATS.value,
      limit_s=60.0,
    ).median_s

  seconds = median_s(ours), median_s(lax)
  return {
    "num_docs": num_docs,
    "k": k,
    "ours ms": 1e3 * seconds[0],
    "lax.top_k ms": 1e3 * seconds[1],
    "x": seconds[1] / seconds[0],
  }


def main(argv: Sequence[str]) -> None:
  """Entry point."""
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {argv[1:]}")
  print(f"{jax.devices()}, {platform.platform()}, jax {jax.__version__}\n")
  rows = [
    row(num_docs, k)
    for num_docs in map(int, _NUM_DOCS.value)
    for k in map(int, _KS.value)
  ]
  print(report.markdown_table(rows, list(rows[0]), digits=2))
  if _JSON.value:
    report.write_json(_JSON.value, rows)


if __name__ == "__main__":
  app.run(main)
