"""The graph search of `decoders.hypencoder`: a greedy walk over neighbours.

Reference: "Hypencoder: Hypernetworks for Information Retrieval" (2025), arXiv
2502.05364, algorithm 1.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nnn_jax.core import corpora, topk
from nnn_jax.decoders import hypencoder_search


class _Walk(NamedTuple):
  """A walk under way: `frontier` `[size]` int32 documents to score, or -1."""

  frontier: jax.Array
  visited: jax.Array
  indices: jax.Array
  scores: jax.Array
  num_steps: jax.Array
  num_scored: jax.Array
  finite: jax.Array
  done: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Graph:
  """A greedy walk: score, go on to the neighbours of the best, as published.

  It ends when no new document enters the answer, or after max_steps.

  Attributes:
    beam: Documents whose neighbours come next.
    max_steps: Scored frontiers, at most.
  """

  beam: int = 64
  max_steps: int = 16

  def check_corpus(self, corpus: Any) -> None:
    """Refuses what has no graph."""
    if not isinstance(corpus, corpora.Neighboured):
      raise ValueError(
        "search is Graph, and corpus has none: pass "
        "indexes.neighbours.build(embeddings)."
      )

  def find(self, problem: hypencoder_search.Problem) -> hypencoder_search.Found:
    """Searches; see the module."""
    corpus, k = problem.corpus, problem.k
    num_docs, degree = corpus.neighbours.shape
    num_entries = corpus.entries.shape[0]
    beam = min(self.beam, num_docs)
    size = max(num_entries, beam * degree)

    def step(walk):
      present = walk.frontier >= 0
      at = jnp.maximum(walk.frontier, 0)
      scores = problem.score(problem.query, corpus.rows(at))
      allowed = problem.allows(walk.frontier)
      rows = jnp.concatenate([walk.indices, walk.frontier])
      everything = jnp.concatenate([walk.scores, scores])
      usable = jnp.concatenate([walk.indices >= 0, allowed])
      best, indices = hypencoder_search.best_of(rows, everything, usable, k)
      # What may not be returned is walked through all the same.
      _, sources = topk.top_k(scores, min(beam, size), where=present)
      sources = jnp.where(sources >= 0, walk.frontier[sources], -1)
      reached = jnp.where(
        sources[:, None] >= 0, corpus.neighbours[sources], -1
      ).ravel()
      reached = jnp.where(walk.visited[reached], -1, reached)
      reached = jnp.sort(reached)
      again = jnp.concatenate([jnp.zeros(1, bool), reached[1:] == reached[:-1]])
      reached = jnp.where(again, -1, reached)
      visited = walk.visited.at[_beyond(reached, num_docs)].set(
        True, mode="drop"
      )
      return _Walk(
        _pad(reached, size),
        visited,
        indices,
        best,
        walk.num_steps + 1,
        walk.num_scored + jnp.sum(present, dtype=jnp.int32),
        walk.finite & jnp.all(jnp.isfinite(scores) | ~allowed),
        jnp.all(indices == walk.indices) | ~jnp.any(reached >= 0),
      )

    dtype = problem.query.output.dtype
    visited = jnp.zeros(num_docs, bool)
    zero = jnp.zeros((), jnp.int32)
    start = _Walk(
      _pad(corpus.entries, size),
      visited.at[_beyond(corpus.entries, num_docs)].set(True, mode="drop"),
      jnp.full(k, -1, jnp.int32),
      jnp.full(k, -jnp.inf, dtype),
      zero,
      zero,
      jnp.ones((), bool),
      jnp.zeros((), bool),
    )
    end = jax.lax.while_loop(
      lambda walk: ~walk.done & (walk.num_steps < self.max_steps), step, start
    )
    rest = jnp.where(end.num_scored == num_docs, -jnp.inf, jnp.inf)
    return hypencoder_search.Found(
      end.indices, end.scores, rest.astype(dtype), end.num_scored, end.finite
    )


def _beyond(rows: jax.Array, num_docs: int) -> jax.Array:
  """-1 as a row that a scatter drops; -1 itself would be the last row."""
  return jnp.where(rows < 0, num_docs, rows)


def _pad(rows: jax.Array, size: int) -> jax.Array:
  return jnp.pad(rows, (0, size - rows.shape[0]), constant_values=-1)
