"""The searches of `decoders.hypencoder`: which documents a network scores.

  Exhaustive        every document, a block of them at a time
  Clusters(n)       the documents of the n clusters whose centres score highest
  Certified(n)      clusters by an upper bound on the scores within, until no
                    other can hold a document of the answer, or n were visited
  Graph(...)        a greedy walk over a graph of neighbouring documents

Reference: "Hypencoder: Hypernetworks for Information Retrieval" (2025), arXiv
2502.05364, algorithm 1 for the walk.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from nnn_jax.core import blocks, corpora, linalg, qnet, topk

# Clusters that Certified visits at a time: matrix products of a useful size.
_STEP_CLUSTERS = 8


@runtime_checkable
class Neighboured(Protocol):
  """A pytree of documents with a graph; `indexes.neighbours` builds it.

  Attributes:
    neighbours: `[num_docs, degree]` int32, -1 where fewer.
    entries: `[num_entries]` int32, where a walk begins.
  """

  neighbours: jax.Array
  entries: jax.Array

  @property
  def shape(self) -> tuple[int, ...]:
    """(num_docs, dim)."""
    ...

  def rows(self, indices: Any) -> jax.Array:
    """The embeddings `[num_indices, dim]`, in the compute dtype."""
    ...


@dataclasses.dataclass(frozen=True)
class Problem:
  """One query, as a search sees it; its arrays are constants.

  Attributes:
    query: The weights of its network.
    corpus: Documents.
    where: `[num_docs]` bool or None.
    k: Static.
    score: (query, embeddings `[n, dim]`) -> `[n]`.
  """

  query: qnet.QNet
  corpus: Any
  where: jax.Array | None
  k: int
  score: Callable[[qnet.QNet, jax.Array], jax.Array]

  def allows(self, rows: jax.Array) -> jax.Array:
    """Which rows may be returned; -1 is none."""
    if self.where is None:
      return rows >= 0
    return (rows >= 0) & self.where[rows]


class Found(NamedTuple):
  """The answer of a search; `rest` and the others as in HypencoderAux."""

  indices: jax.Array
  scores: jax.Array
  rest: jax.Array
  num_scored: jax.Array
  finite: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exhaustive:
  """Every document.

  Attributes:
    block_size: Documents scored at a time: memory, and speed, but not the
      answer.
  """

  block_size: int = 4096

  def check_corpus(self, corpus: Any) -> None:
    """Refuses an index."""
    if isinstance(corpus, corpora.Grouped | Neighboured):
      raise ValueError(
        f"corpus is an index, {type(corpus).__name__}, and search is "
        "Exhaustive: pass the array [num_docs, dim]."
      )

  def find(self, problem: Problem) -> Found:
    """Searches; see the module."""
    embeddings = problem.corpus.embeddings
    dtype = linalg.compute_dtype(embeddings)

    def score(query, rows):
      return problem.score(query, rows.astype(dtype))

    scores = blocks.map_rows(
      score, problem.query, embeddings, block_size=self.block_size
    )
    best, indices = topk.top_k(scores, problem.k, where=problem.where)
    finite = jnp.isfinite(scores)
    if problem.where is not None:
      finite |= ~problem.where
    return Found(
      indices,
      best,
      jnp.full((), -jnp.inf, scores.dtype),
      jnp.asarray(scores.shape[0], jnp.int32),
      finite.all(),
    )


def _check_grouped(corpus: Any, search: Any) -> None:
  if not isinstance(corpus, corpora.Grouped):
    raise ValueError(
      f"search is {type(search).__name__}, and corpus no index of clusters: "
      "pass indexes.clusters.build(embeddings)."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clusters:
  """The documents of the clusters whose centres score highest.

  Attributes:
    num_probes: Clusters, at most all of them.
  """

  num_probes: int = 32

  def check_corpus(self, corpus: Any) -> None:
    """Refuses what is not in clusters."""
    _check_grouped(corpus, self)

  def find(self, problem: Problem) -> Found:
    """Searches; see the module."""
    corpus = problem.corpus
    num_clusters = corpus.centres.shape[0]
    num = min(self.num_probes, num_clusters)
    _, clusters = topk.top_k(problem.score(problem.query, corpus.centres), num)
    embeddings, rows, inside = corpus.members(clusters)
    if rows.shape[0] < problem.k:
      raise ValueError(
        f"search finds {rows.shape[0]} documents at most, fewer than k = "
        f"{problem.k}: raise its num_probes."
      )
    rows = jnp.where(inside, rows, -1)
    best, indices, finite = _best(problem, embeddings, rows)
    every = jnp.full((), -jnp.inf if num == num_clusters else jnp.inf)
    return Found(
      indices,
      best,
      every.astype(best.dtype),
      jnp.sum(inside, dtype=jnp.int32),
      finite,
    )


def _best(problem, embeddings, rows):
  """The k best of some documents, each once; ties by lowest row."""
  scores = problem.score(problem.query, embeddings)
  allowed = problem.allows(rows)
  finite = jnp.all(jnp.isfinite(scores) | ~allowed)
  # In row order, so that equal scores keep the lowest index.
  order = jnp.argsort(rows)
  best, at = topk.top_k(scores[order], problem.k, where=allowed[order])
  return best, jnp.where(at >= 0, rows[order][at], -1), finite


class _Visited(NamedTuple):
  """A certified search under way."""

  indices: jax.Array
  scores: jax.Array
  num_visited: jax.Array
  num_scored: jax.Array
  finite: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Certified:
  """Clusters by descending bound, until the answer is certain.

  How many documents that spares depends on the network, and may be none.

  Attributes:
    num_probes: Clusters to visit at most; None is all. Where it ends the
      search, `aux.bound` says what may be missed.
  """

  num_probes: int | None = None

  def check_corpus(self, corpus: Any) -> None:
    """Refuses what is not in clusters."""
    _check_grouped(corpus, self)

  def find(self, problem: Problem) -> Found:
    """Searches; see the module."""
    corpus, k = problem.corpus, problem.k
    num_clusters = corpus.centres.shape[0]
    limit = num_clusters
    if self.num_probes is not None:
      limit = min(self.num_probes, num_clusters)
    step = min(_STEP_CLUSTERS, limit)
    bounds = qnet.upper_bounds(problem.query, corpus.centres, corpus.radii)
    # What is not finite bounds nothing.
    bounds = jnp.where(jnp.isnan(bounds), jnp.inf, bounds)
    order = jnp.argsort(-bounds)
    bounds = jnp.pad(bounds[order], (0, step), constant_values=-jnp.inf)
    visits = jnp.where(jnp.arange(num_clusters) < limit, order, -1)
    visits = jnp.pad(visits, (0, step), constant_values=-1)

    def more(state):
      # At equality too: a tie may have a lower index.
      open_ = bounds[state.num_visited] >= state.scores[-1]
      return open_ & (state.num_visited < limit)

    def visit(state):
      some = jax.lax.dynamic_slice_in_dim(visits, state.num_visited, step)
      embeddings, rows, inside = corpus.members(some)
      rows = jnp.where(inside, rows, -1)
      scores = problem.score(problem.query, embeddings)
      allowed = problem.allows(rows)
      rows = jnp.concatenate([state.indices, rows])
      scores = jnp.concatenate([state.scores, scores])
      order = jnp.argsort(rows)
      allowed = jnp.concatenate([state.indices >= 0, allowed])
      best, at = topk.top_k(scores[order], k, where=allowed[order])
      return _Visited(
        jnp.where(at >= 0, rows[order][at], -1),
        best,
        jnp.minimum(state.num_visited + step, limit),
        state.num_scored + jnp.sum(inside, dtype=jnp.int32),
        state.finite & jnp.all(jnp.isfinite(scores) | ~allowed),
      )

    dtype = bounds.dtype
    zero = jnp.zeros((), jnp.int32)
    start = _Visited(
      jnp.full(k, -1, jnp.int32),
      jnp.full(k, -jnp.inf, dtype),
      zero,
      zero,
      jnp.ones((), bool),
    )
    end = jax.lax.while_loop(more, visit, start)
    return Found(
      end.indices,
      end.scores,
      bounds[end.num_visited],
      end.num_scored,
      end.finite,
    )


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
    if not isinstance(corpus, Neighboured):
      raise ValueError(
        "search is Graph, and corpus has none: pass "
        "indexes.neighbours.build(embeddings)."
      )

  def find(self, problem: Problem) -> Found:
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
      order = jnp.argsort(rows)
      best, place = topk.top_k(everything[order], k, where=usable[order])
      indices = jnp.where(place >= 0, rows[order][place], -1)
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
    return Found(
      end.indices, end.scores, rest.astype(dtype), end.num_scored, end.finite
    )


def _beyond(rows: jax.Array, num_docs: int) -> jax.Array:
  """-1 as a row that a scatter drops; -1 itself would be the last row."""
  return jnp.where(rows < 0, num_docs, rows)


def _pad(rows: jax.Array, size: int) -> jax.Array:
  return jnp.pad(rows, (0, size - rows.shape[0]), constant_values=-1)
