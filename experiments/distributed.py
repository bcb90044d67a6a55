r"""Decodes, and differentiates through, a corpus that several processes hold.

Two processes on this machine, and the same answer from one:

  python -m experiments.distributed --num_processes=2
  python -m experiments.distributed

On several machines, one command each, with the first machine's address:

  python -m experiments.distributed --num_processes=2 --process_id=0 \
    --coordinator=10.0.0.1:1234 --corpus=embeddings.npy
  python -m experiments.distributed --num_processes=2 --process_id=1 \
    --coordinator=10.0.0.1:1234 --corpus=embeddings.npy

Each process reads, or draws, the rows that its devices hold and no others.
Printed: for each decoder the first query's documents and scores, and the norms
of the gradients of a batch's scores in the queries and in the corpus.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from experiments import report
from nnn_jax.core import checks, linalg, sharding
from nnn_jax.decoders import dense, nnn
from nnn_jax.solvers import working_set

_DECODERS: dict[str, tuple[Any, Any, Any]] = {
  "dense": (dense, (), dense.DenseConfig()),
  "nnn": (
    nnn,
    nnn.NnnParams(0.1, 0.1),
    nnn.NnnConfig(solver=working_set.WorkingSet(capacity=128)),
  ),
}


def random_rows(rows: slice, dim: int, seed: int) -> np.ndarray:
  """Unit rows that depend on their own numbers only: `[len(rows), dim]`."""
  keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(
    jax.random.key(seed), jnp.arange(rows.start, rows.stop)
  )
  draw = jax.vmap(lambda key: jax.random.normal(key, (dim,)))
  return np.asarray(linalg.normalize(draw(keys)))


def place_corpus(mesh: jax.sharding.Mesh) -> tuple[jax.Array, jax.Array]:
  """The sharded corpus and its `where`, from this process's rows."""
  if flags.FLAGS.corpus is None:
    rows = sharding.local_rows(flags.FLAGS.num_docs, mesh)
    local = random_rows(rows, flags.FLAGS.dim, seed=0)
    return sharding.shard_local(local, flags.FLAGS.num_docs, mesh)
  corpus = np.load(flags.FLAGS.corpus, mmap_mode="r")
  checks.check_shapes(corpus=(corpus, "num_docs dim"))
  return sharding.pad_and_shard(corpus, mesh)


def answer(
  name: str,
  mesh: jax.sharding.Mesh,
  queries: np.ndarray,
  corpus: jax.Array,
  where: jax.Array,
) -> dict[str, Any]:
  """Decodes the batch and differentiates the sum of its scores.

  Returns:
    indices and scores `[batch, k]`, d_queries `[batch, dim]` and d_corpus_norm.
  """
  module, params, config = _DECODERS[name]

  def total(queries, corpus, where):
    def decode(query):
      return module.decode(
        params, query, corpus, k=flags.FLAGS.k, config=config, where=where
      )

    result = jax.vmap(decode)(queries)
    found = jnp.where(result.indices >= 0, result.scores, 0.0)
    return jnp.sum(found), (result.indices, result.scores)

  def everything(queries, corpus, where):
    grad = jax.grad(total, argnums=(0, 1), has_aux=True)
    (d_queries, d_corpus), (indices, scores) = grad(queries, corpus, where)
    return {
      "indices": indices,
      "scores": scores,
      "d_queries": d_queries,
      "d_corpus_norm": jnp.linalg.norm(d_corpus.astype(scores.dtype)),
    }

  # Every process gets the whole of these small results.
  everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  fn = jax.jit(everything, out_shardings=everywhere)
  result = fn(queries, corpus, where)
  return {key: np.asarray(value).tolist() for key, value in result.items()}


def run() -> None:
  """Does one process's part; process 0 prints."""
  mesh = sharding.make_mesh()
  with jax.set_mesh(mesh):
    corpus, where = place_corpus(mesh)
    queries = random_rows(slice(0, flags.FLAGS.batch), corpus.shape[1], seed=1)
    answers = {
      name: answer(name, mesh, queries, corpus, where) for name in _DECODERS
    }
  if jax.process_index() == 0:
    held = sum(shard.data.nbytes for shard in corpus.addressable_shards)
    print(
      f"{jax.process_count()} processes, {jax.device_count()} devices; corpus "
      f"{corpus.shape} {corpus.dtype}, {held / corpus.nbytes:.0%} of it here"
    )
    for name, got in answers.items():
      print(
        f"{name}: indices {got['indices'][0]}, scores "
        f"{np.round(got['scores'][0], 4).tolist()}, |d queries| "
        f"{np.linalg.norm(got['d_queries']):.5f}, |d corpus| "
        f"{got['d_corpus_norm']:.5f}"
      )
    if flags.FLAGS.json:
      report.write_json(flags.FLAGS.json, answers)


def start_all() -> int:
  """Starts every process on this machine; the first failure ends them all."""
  with socket.socket() as free:
    free.bind(("localhost", 0))
    address = f"localhost:{free.getsockname()[1]}"
  command = [sys.executable, "-m", "experiments.distributed", *sys.argv[1:]]
  command.append(f"--coordinator={address}")
  # Processes cannot share this machine's accelerators.
  environment = {"JAX_PLATFORMS": "cpu", **os.environ}
  processes = [
    subprocess.Popen([*command, f"--process_id={i}"], env=environment)
    for i in range(flags.FLAGS.num_processes)
  ]
  try:
    while processes:
      for process in processes:
        try:
          code = process.wait(timeout=0.1)
        except subprocess.TimeoutExpired:
          continue
        if code:
          return code
        processes.remove(process)
        break
    return 0
  finally:
    for process in processes:
      process.kill()


def main(argv: Sequence[str]) -> None:
  """Entry point."""
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {argv[1:]}")
  if (flags.FLAGS.process_id is None) != (flags.FLAGS.coordinator is None):
    raise app.UsageError("--process_id and --coordinator go together.")
  if flags.FLAGS.process_id is not None:
    jax.distributed.initialize(
      flags.FLAGS.coordinator, flags.FLAGS.num_processes, flags.FLAGS.process_id
    )
  elif flags.FLAGS.num_processes > 1:
    sys.exit(start_all())
  run()


if __name__ == "__main__":
  flags.DEFINE_integer("num_processes", 1, "In all.", lower_bound=1)
  flags.DEFINE_integer(
    "process_id", None, "Of this process; without it, all are started here."
  )
  flags.DEFINE_string(
    "coordinator", None, "host:port of process 0; with --process_id."
  )
  flags.DEFINE_string(
    "corpus", None, "A .npy file `[num_docs, dim]`; else random unit rows."
  )
  flags.DEFINE_integer("num_docs", 10_001, "Of a random corpus.")
  flags.DEFINE_integer("dim", 64, "Of a random corpus.")
  flags.DEFINE_integer("batch", 4, "Queries decoded together.")
  flags.DEFINE_integer("k", 5, "Documents a query.")
  flags.DEFINE_string("json", None, "Where process 0 writes the answer.")
  app.run(main)
