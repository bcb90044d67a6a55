"""The searches of `decoders.hypencoder`: which documents a network scores.

  Exhaustive        every document, a block of them at a time
  Clusters(n)       the documents of the n clusters whose centres score highest
  Certified(n)      clusters by an upper bound on the scores within, until no
                    other can hold a document of the answer, or n were visited

and `hypencoder_walk.Graph`, a greedy walk over a graph of neighbours.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nnn_jax.core import blocks, corpora, linalg, qnet, topk

# Clusters that Certified visits at a time: matrix products of a useful size.
_STEP_CLUSTERS = 8


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
    if isinstance(corpus, corpora.Grouped | corpora.Neighboured):
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
    scores = problem.score(problem.query, embeddings)
    allowed = problem.allows(rows)
    best, indices = best_of(rows, scores, allowed, problem.k)
    every = jnp.full((), -jnp.inf if num == num_clusters else jnp.inf)
    return Found(
      indices,
      best,
      every.astype(best.dtype),
      jnp.sum(inside, dtype=jnp.int32),
      jnp.all(jnp.isfinite(scores) | ~allowed),
    )


def best_of(
  rows: jax.Array, scores: jax.Array, usable: jax.Array, k: int
) -> tuple[jax.Array, jax.Array]:
  """(scores, rows) of the k best, each row once; ties by lowest row.

  Args:
    rows: `[n]` int32, in any order.
    scores: `[n]`.
    usable: `[n]` bool.
    k: Static.
  """
  # In row order, so that equal scores keep the lowest index.
  order = jnp.argsort(rows)
  best, at = topk.top_k(scores[order], k, where=usable[order])
  return best, jnp.where(at >= 0, rows[order][at], -1)


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
      allowed = jnp.concatenate([state.indices >= 0, allowed])
      best, indices = best_of(rows, scores, allowed, k)
      return _Visited(
        indices,
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
