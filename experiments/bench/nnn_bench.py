r"""NNN decoding against its peers, in one run.

  pip install '.[bench]'  # The peers; those that are missing are left out.
  python -m experiments.bench.nnn_bench --threads=1 --json=nnn_bench.json

For each number of documents and batch size: our dense top-k, working set and
FISTA (50 steps and to convergence), faiss `IndexFlatIP`, a PyTorch FISTA loop,
and coordinate descent in scikit-learn, celer and skglm. A run is resumed when
the same command is given again: finished cells are read from the JSON.

Printed, and in the JSON:

  ms        a batch, compiled and loaded; median of the calls
  x dense   that time over our dense top-k's; "FISTA 50 x" is FISTA's over it
  KKT       largest violation, and "above best" largest objective above the
            best decoder's, evaluated in float64 on up to 16 queries
  MiB       peak of resident memory during a call, above what it was before,
            with corpus and index loaded

A cell takes at most about three times --cell_s (it is prepared, timed, and run
once more for its memory), and the defaults ask for 156 cells. One predicted to
take longer is measured on fewer queries, or skipped, and its note says so.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import pathlib
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Any

import tqdm
from absl import app, flags

from experiments import report
from experiments.bench import measure, registry, summary, worlds

_NUM_DOCS = flags.DEFINE_list(
  "num_docs", ["1000", "10000", "100000", "1000000"], "Corpus sizes."
)
_BATCH = flags.DEFINE_list("batch", ["1", "16", "256"], "Queries at a time.")
_DIM = flags.DEFINE_integer("dim", 384, "Embedding size.")
_WORLD = flags.DEFINE_enum("world", "anisotropic", worlds.KINDS, "")
_RADIUS = flags.DEFINE_float("radius", 0.6, "Of the clusters.")
_DTYPE = flags.DEFINE_enum("dtype", "float32", worlds.DTYPES, "Of the corpus.")
_PENALTIES = flags.DEFINE_list(
  "penalties",
  ["0.1:0.1", "0.3:0.1", "0.03:0.03"],
  "l1:l2 pairs; peers and converged FISTA are measured at the first only.",
)
_DECODERS = flags.DEFINE_list("decoders", list(registry.CONTESTANTS), "Rows.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Timed calls; median.")
_CELL_S = flags.DEFINE_float("cell_s", 20.0, "About the time a cell may take.")
_THREADS = flags.DEFINE_integer("threads", 0, "Processors to use; 0 is all.")
_JSON = flags.DEFINE_string(
  "json", "nnn_bench.json", "Results, kept as it runs."
)


def requests(decoders: Sequence[str]) -> dict[str, measure.Request]:
  """What the flags ask of each decoder."""
  pairs = [tuple(map(float, pair.split(":"))) for pair in _PENALTIES.value]
  world = worlds.World(
    kind=_WORLD.value,
    dim=_DIM.value,
    radius=_RADIUS.value,
    dtype=_DTYPE.value,
  )
  asked = {}
  for decoder in decoders:
    every = registry.CONTESTANTS[decoder].all_penalties
    cells = [
      measure.Cell(num_docs=num_docs, batch=batch, l1=l1, l2=l2)
      for num_docs in sorted(map(int, _NUM_DOCS.value))
      for batch in sorted(map(int, _BATCH.value))
      for l1, l2 in (pairs if every else pairs[:1])
    ]
    asked[decoder] = measure.Request(
      decoder=decoder,
      world=world,
      cells=cells,
      repeats=_REPEATS.value,
      limit_s=_CELL_S.value,
      threads=_THREADS.value,
    )
  return asked


def environment(threads: int) -> dict[str, str]:
  """The environment of a measuring process.

  OPENBLAS_CORETYPE and OPENBLAS_L2_SIZE, where a machine sets them, are made
  for other builds than the ones measured. OpenBLAS releases older than the
  processor take it for a Pentium 4 ("Prescott"), faiss's among them, and peers
  shall not lose by that: the kernels for its vector instructions are named.
  """
  env = {**os.environ, "MALLOC_ARENA_MAX": "1"}  # See `memory.peak_mib`.
  for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
    env.pop(name, None)
  try:
    features = pathlib.Path("/proc/cpuinfo").read_text().split()
  except OSError:
    features = []
  if "avx512f" in features:
    env["OPENBLAS_CORETYPE"] = "SkylakeX"
  elif "avx2" in features:
    env["OPENBLAS_CORETYPE"] = "Haswell"
  if threads:
    for library in ("OMP", "OPENBLAS", "MKL", "NUMBA"):
      env[f"{library}_NUM_THREADS"] = str(threads)
  if threads == 1:
    flag = "--xla_cpu_multi_thread_eigen=false"
    env["XLA_FLAGS"] = f"{env.get('XLA_FLAGS', '')} {flag}".strip()
  return env


def replies(request: measure.Request) -> Iterator[dict[str, Any]]:
  """Runs the measuring process, and yields what it prints as it comes.

  Raises:
    RuntimeError: If the process fails.
  """
  process = subprocess.Popen(
    [sys.executable, "-m", "experiments.bench.measure"],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
    env=environment(request.threads),
  )
  with process:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(request.to_json())
    process.stdin.close()
    try:
      for line in process.stdout:
        if line.startswith("{"):
          yield json.loads(line)
    except BaseException:  # Of the reader, too: its time is up.
      process.kill()
      raise
  if process.returncode:
    raise RuntimeError(f"ended with code {process.returncode}")


def settings() -> dict[str, Any]:
  """What has to be equal for a cell to be reused."""
  git = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
  found = subprocess.run(git, capture_output=True, text=True, check=False)
  packages = ["jax", "jaxlib", "numpy"]
  packages += ["faiss-cpu", "torch", "scikit-learn", "celer", "skglm"]
  return {
    "world": _WORLD.value,
    "dim": _DIM.value,
    "radius": _RADIUS.value,
    "dtype": _DTYPE.value,
    "repeats": _REPEATS.value,
    "cell_s": _CELL_S.value,
    "threads": _THREADS.value,
    "revision": found.stdout.strip() or "unknown",
    "platform": platform.platform(),
    "processors": len(os.sched_getaffinity(0)),
    "versions": {name: _version(name) for name in packages},
  }


def _version(package: str) -> str:
  try:
    return metadata.version(package)
  except metadata.PackageNotFoundError:
    return "not installed"


def run(path: pathlib.Path) -> dict[str, Any]:
  """Measures what `path` does not hold yet; returns all it then holds.

  Raises:
    ValueError: If it was written under other settings.
  """
  now = settings()
  results: dict[str, Any] = {"settings": now, "kernels": {}, "rows": []}
  if path.exists():
    results = json.loads(path.read_text())
    changed = [k for k in now if results["settings"].get(k) != now[k]]
    if changed:
      raise ValueError(
        f"{path} holds a run with other settings of {', '.join(changed)}: "
        "name another --json, or delete it."
      )
  installed = []
  for decoder in _DECODERS.value:
    package = registry.CONTESTANTS[decoder].package
    if importlib.util.find_spec(package):
      installed.append(decoder)
    else:
      print(f"{package} is not installed: no rows of {decoder}.")

  def is_done(decoder: str, cell: measure.Cell) -> bool:
    wanted = dataclasses.asdict(cell) | {"decoder": decoder}
    return any(wanted.items() <= row.items() for row in results["rows"])

  asked = requests(installed)
  total = sum(len(request.cells) for request in asked.values())
  with tqdm.tqdm(total=total, unit="cell") as progress:
    for decoder, request in asked.items():
      cells = [cell for cell in request.cells if not is_done(decoder, cell)]
      progress.set_description(decoder)
      progress.update(len(request.cells) - len(cells))
      if not cells:
        continue
      request = dataclasses.replace(request, cells=cells)
      try:
        for reply in replies(request):
          if "kernels" in reply:
            results["kernels"][decoder] = reply["kernels"]
          else:
            results["rows"].append(reply["row"])
            progress.update()
          report.write_json(path, results)
      except RuntimeError as error:
        progress.write(f"{decoder} {error}: its other rows are missing.")
  return results


def main(argv: Sequence[str]) -> None:
  """Entry point."""
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {argv[1:]}")
  unknown = set(_DECODERS.value) - set(registry.CONTESTANTS)
  if unknown:
    raise app.UsageError(f"--decoders: no {', '.join(sorted(unknown))}.")
  path = pathlib.Path(_JSON.value)
  results = run(path)
  plot = path.with_suffix(".png")
  print(summary.text(results))
  summary.cost_plot(results["rows"], plot)
  print(f"Wrote {path} and {plot}.")


if __name__ == "__main__":
  app.run(main)
