r"""Time and memory of decoding a corpus of a million documents on one machine.

  python -m experiments.bench.scale_bench --json=scale_bench.json
  python -m experiments.bench.scale_bench --num_docs=100000 --dtypes=bfloat16

Each storage dtype and decoder is measured in a process of its own. "peak" is
the most memory that the process held while it compiled and decoded, beyond what
it held with the corpus in place; "temporary" is XLA's own count of it.
"""

from __future__ import annotations

import concurrent.futures
import math
import multiprocessing
import pathlib
import platform
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
from absl import app, flags

from experiments import report
from experiments.bench import timing
from nnn_jax.core import linalg
from nnn_jax.decoders import dense, nnn
from nnn_jax.solvers import working_set

_NUM_DOCS = flags.DEFINE_integer("num_docs", 1_000_000, "")
_DIM = flags.DEFINE_integer("dim", 384, "Embedding size.")
_BATCH = flags.DEFINE_integer("batch", 16, "Queries decoded together.")
_DTYPES = flags.DEFINE_list("dtypes", ["float32", "bfloat16"], "Of the corpus.")
_L1 = flags.DEFINE_float("l1", 0.1, "")
_L2 = flags.DEFINE_float("l2", 0.1, "")
_CAPACITY = flags.DEFINE_integer("capacity", 128, "Of the working set.")
_REPEATS = flags.DEFINE_integer("repeats", 3, "Timed calls; median.")
_JSON = flags.DEFINE_string("json", None, "Where to write the rows.")

_K = 10
_GB = 1e9


def world(
  num_docs: int, dim: int, batch: int, dtype: str
) -> tuple[jax.Array, jax.Array]:
  """Unit rows around a shared mean, and queries that mix three documents.

  The rows are drawn and stored in blocks: the float32 corpus never exists
  beside a narrower one.
  """
  keys = jax.random.split(jax.random.key(0), 4)
  mean = jax.random.normal(keys[0], (dim,))
  block = math.gcd(num_docs, 10_000)

  def draw(key):
    rows = jax.random.normal(key, (block, dim)) + 0.5 * mean
    return linalg.normalize(rows).astype(dtype)

  block_keys = jax.random.split(keys[1], num_docs // block)
  corpus = jax.jit(partial(jax.lax.map, draw))(block_keys)
  corpus = corpus.reshape(num_docs, dim)
  rows = jax.random.randint(keys[2], (3, batch), 0, num_docs)
  noise = jax.random.normal(keys[3], (batch, dim)) / dim**0.5
  mixed = sum(linalg.rows(corpus, chosen) for chosen in rows)
  return jax.block_until_ready((linalg.normalize(mixed + 0.5 * noise), corpus))


def resident(*, peak: bool) -> float:
  """Memory of this process in GB: now, or the most since `forget_peak`."""
  name = "VmHWM:" if peak else "VmRSS:"
  for line in pathlib.Path("/proc/self/status").read_text().splitlines():
    if line.startswith(name):
      return int(line.split()[1]) * 1024 / _GB
  return float("nan")


def forget_peak() -> None:
  """Makes the present memory the peak (Linux)."""
  pathlib.Path("/proc/self/clear_refs").write_text("5")


def measure(
  name: str,
  dtype: str,
  shape: tuple[int, int, int],
  penalties: tuple[float, float],
  capacity: int,
  repeats: int,
) -> dict[str, Any]:
  """Measures one decoder on one storage dtype, in this process."""
  queries, corpus = world(*shape, dtype)
  solver = working_set.WorkingSet(capacity=capacity)
  decode = {
    "dense": partial(dense.decode, ()),
    "working set": partial(
      nnn.decode,
      nnn.NnnParams(*penalties),
      config=nnn.NnnConfig(solver=solver),
    ),
  }[name]
  batched = jax.jit(jax.vmap(partial(decode, k=_K), in_axes=(0, None)))
  forget_peak()
  before = resident(peak=False)
  compiled = batched.lower(queries, corpus).compile()
  spent = timing.measure(compiled, queries, corpus, repeats=repeats)
  peak = resident(peak=True) - before
  memory = compiled.memory_analysis()
  row = {
    "num_docs": shape[0],
    "corpus": dtype,
    "decoder": name,
    "corpus GB": corpus.nbytes / _GB,
    "temporary GB": memory.temp_size_in_bytes / _GB if memory else None,
    "peak GB": peak,
    "ms": 1e3 * spent.median_s,
  }
  aux = compiled(queries, corpus).aux
  if isinstance(aux, nnn.NnnAux):
    row |= {
      "max KKT": f"{float(aux.kkt_violation.max()):.1e}",
      "mean support": float(aux.support_size.mean()),
      "max passes": int(aux.num_passes.max()),
    }
  return row


def main(argv: Sequence[str]) -> None:
  """Entry point."""
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {argv[1:]}")
  print(f"{platform.platform()}, jax {jax.__version__}")
  shape = (_NUM_DOCS.value, _DIM.value, _BATCH.value)
  print(f"dim {_DIM.value}, batch {_BATCH.value}, k {_K}\n")
  penalties = (_L1.value, _L2.value)
  with concurrent.futures.ProcessPoolExecutor(
    max_workers=1,
    mp_context=multiprocessing.get_context("spawn"),
    max_tasks_per_child=1,
  ) as pool:
    rows = [
      pool.submit(
        measure,
        name,
        dtype,
        shape,
        penalties,
        _CAPACITY.value,
        _REPEATS.value,
      ).result()
      for dtype in _DTYPES.value
      for name in ("dense", "working set")
    ]
  columns = ["num_docs", "corpus", "decoder", "corpus GB", "temporary GB"]
  columns += ["peak GB", "ms", "max KKT", "mean support", "max passes"]
  print(report.markdown_table(rows, columns, digits=2))
  if _JSON.value:
    report.write_json(_JSON.value, rows)


if __name__ == "__main__":
  app.run(main)
