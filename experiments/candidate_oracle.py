r"""Which index can feed NNN: the weight mass that each round of asking has.

  python -m experiments.candidate_oracle --output=runs/candidate_oracle
  ... --corpus=CORPUS.npy --queries=QUERIES.npy

No search by the query alone is safe for NNN, whose optimality is about inner
products with the residual. Asking again is: decode over what is known, search
with the residual, add what is found. Round 0 asks with the query. A row tells
the share of the exact weights' sum that lies on documents found so far, for

  dense     the documents with the largest products: what an exact index finds
  clusters  those in the clusters with the largest products of the centres
  codes     a Seismic index over sparse codes: each document, and each residual,
            is decoded by NNN itself over a dictionary of learned atoms

Each is a function that `indexes.candidates.Candidates` takes; the last column
is the time NNN takes through it, in units of the exact working set's.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from experiments import report
from experiments.bench import timing, worlds
from nnn_jax import files
from nnn_jax.core import topk
from nnn_jax.decoders import nnn, seismic
from nnn_jax.indexes import candidates, kmeans, sparse, sparse_blocks

_ROUNDS = 4
PENALTIES = nnn.NnnParams(0.1, 0.1)
# Codes follow a document closely: small penalties.
CODE_PENALTIES = nnn.NnnParams(0.05, 0.01)
Search = Callable[[jax.Array], jax.Array]


def encode(dictionary: jax.Array, rows: jax.Array, size: int) -> Any:
  """Sparse codes `[num, size]` of rows over the dictionary's atoms."""
  decode = partial(nnn.decode, k=size, config=nnn.NnnConfig())

  def one(row):
    found = decode(CODE_PENALTIES, row, dictionary)
    # Places beyond the support are extended scores, at most zero.
    used = found.scores > 0
    return seismic.SparseVector(
      jnp.where(used, found.indices, -1), jnp.where(used, found.scores, 0.0)
    )

  return jax.lax.map(one, rows, batch_size=256)


def searches(corpus: jax.Array, num: int) -> dict[str, Search]:
  """Name -> a function of the residual that returns `num` rows."""
  num_atoms = min(flags.FLAGS.atoms, len(corpus) // 4)
  labels = kmeans.lloyd(corpus, num_clusters=num_atoms, num_steps=5, seed=0)
  sums = jax.ops.segment_sum(corpus, jnp.asarray(labels), num_atoms)
  counts = np.maximum(np.bincount(labels, minlength=num_atoms), 1)
  centres = sums / counts[:, None]
  table = np.full((num_atoms, int(counts.max())), -1, np.int32)
  order = np.argsort(labels, kind="stable")
  starts = np.concatenate([[0], np.cumsum(counts)])[:-1]
  place = np.arange(len(labels)) - starts[labels[order]]
  table[labels[order], place] = order
  members = jnp.asarray(table)
  # As many clusters as hold the documents asked for, on average.
  probes = max(1, -(-num * num_atoms // len(corpus)))

  def by_clusters(residual):
    _, near = topk.top_k(centres @ residual, probes)
    return members[near].ravel()

  norm = np.linalg.norm(centres, axis=1, keepdims=True)
  dictionary = jnp.asarray(centres / np.maximum(norm, 1e-12))
  codes = encode(dictionary, corpus, flags.FLAGS.code_size)
  index = sparse_blocks.build(
    sparse.from_padded(*map(np.asarray, codes), vocab=num_atoms)
  )
  config = seismic.SeismicConfig(search=seismic.Sequential())

  def by_codes(residual):
    size = jnp.linalg.norm(residual)
    unit = residual / jnp.where(size > 0, size, 1.0)
    code = encode(dictionary, unit[None], flags.FLAGS.code_size)
    query = jax.tree.map(lambda x: x[0], code)
    return seismic.decode((), query, index, k=num, config=config).indices

  return {
    "dense": lambda residual: topk.top_k(corpus @ residual, num)[1],
    "clusters": by_clusters,
    "codes": by_codes,
  }


def kept_by_round(
  search: Search, queries: jax.Array, corpus: jax.Array
) -> np.ndarray:
  """Share `[num_rounds]` of the exact weights on the documents found so far."""
  num_docs = len(corpus)
  config = nnn.NnnConfig()

  @jax.jit
  def one(query):
    def weights(where=None):
      found = nnn.decode(
        PENALTIES, query, corpus, k=1, config=config, where=where
      )
      return found.aux.weights.dense(num_docs)

    exact = weights()
    known, residual, shares = jnp.zeros(num_docs, bool), query, []
    for _ in range(_ROUNDS):
      rows = search(residual)
      known = known.at[jnp.where(rows < 0, num_docs, rows)].set(
        True, mode="drop"
      )
      shares.append(jnp.sum(jnp.where(known, exact, 0.0)) / jnp.sum(exact))
      residual = query - weights(known) @ corpus
    return jnp.stack(shares), jnp.sum(exact) > 0

  shares, defined = jax.lax.map(one, queries)
  return np.asarray(shares)[np.asarray(defined)].mean(axis=0)


def main(argv: Sequence[str]) -> None:
  """Entry point."""
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {argv[1:]}")
  if flags.FLAGS.corpus and flags.FLAGS.queries:
    corpus = np.load(flags.FLAGS.corpus)
    queries = np.load(flags.FLAGS.queries)[: flags.FLAGS.num_queries]
  else:
    world = worlds.World(kind="clustered")
    corpus = worlds.corpus(world, flags.FLAGS.num_docs)
    queries = worlds.queries(world, corpus, flags.FLAGS.num_queries)
  corpus, queries = jnp.asarray(corpus), jnp.asarray(queries)
  decode = jax.jit(
    lambda queries, corpus: jax.lax.map(
      lambda query: (
        nnn.decode(
          PENALTIES, query, corpus, k=10, config=nnn.NnnConfig()
        ).indices
      ),
      queries,
    )
  )

  def seconds(index: Any) -> float:
    return timing.measure(
      lambda: jax.block_until_ready(decode(queries, index)),
      repeats=3,
      limit_s=60.0,
    ).median_s

  exact_s = seconds(corpus)
  rows = []
  for name, search in searches(corpus, flags.FLAGS.num).items():
    shares = kept_by_round(search, queries, corpus)
    index = candidates.Candidates(corpus, search)
    rows.append(
      {"search": name}
      | {f"round {n}": float(share) for n, share in enumerate(shares)}
      | {"time / exact": seconds(index) / exact_s}
    )
  text = report.markdown_table(rows, list(rows[0]), digits=3)
  num = flags.FLAGS.num
  print(f"{len(corpus):,} documents, {num} a search, {PENALTIES}\n{text}")
  output = pathlib.Path(flags.FLAGS.output)
  files.write(output / "results.md", f"{text}\n")
  report.write_json(output / "results.json", rows)


if __name__ == "__main__":
  flags.DEFINE_string("output", None, "A folder.", required=True)
  flags.DEFINE_string("corpus", None, "Unit rows `[num_docs, dim]`.")
  flags.DEFINE_string("queries", None, "With --corpus: unit rows.")
  flags.DEFINE_integer("num_docs", 20_000, "Of generated documents.")
  flags.DEFINE_integer("num_queries", 32, "Queries.")
  flags.DEFINE_integer("num", 100, "Documents that a search returns.")
  flags.DEFINE_integer("atoms", 2_048, "Of the dictionary.")
  flags.DEFINE_integer("code_size", 32, "Entries of a code.")
  app.run(main)
