"""The searches of `decoders.seismic`, on one query and constants.

Lists are those of the `cut` largest query weights; the whole query scores
summaries and documents.

  Exact        every document
  Sequential   list by list; a block is skipped if k documents are known and its
               summary's score r < heap_factor x the k-th best score
  Routed       the summaries of all lists at once, then the documents of the
               best blocks: section 6 of the paper

(The paper prints the test of Sequential as r < k-th best / heap_factor with a
factor below 1, which skips more than its published code does: that code's
meaning is taken, so smaller is more thorough, and 1 the paper's 1.)

Reference: Bruch et al. (2024), arXiv 2404.18812, sections 5 and 6.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from nnn_jax.core import blocks, sparse, topk

_BIG = jnp.iinfo(jnp.int32).max


class Found(NamedTuple):
  """The answer of a search.

  Attributes:
    indices: `[k]` int32, -1 where fewer.
    scores: `[k]`, -inf where fewer.
    num_scored: int32, documents.
    overflow: int32, blocks and documents that a budget left out.
    finite: bool, every score is.
  """

  indices: jax.Array
  scores: jax.Array
  num_scored: jax.Array
  overflow: jax.Array
  finite: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exact:
  """Every document; the oracle.

  Attributes:
    block_size: Documents at a time: memory, and speed, but not the answer.
  """

  block_size: int = 4096

  def find(self, query, panel, index, where, k) -> Found:
    """Searches; see the module."""
    del query

    def score(panel, rows):
      scores = sparse.products(panel, *rows)
      return jnp.where(sparse.overlaps(panel, *rows), scores, -jnp.inf)

    scores = blocks.map_rows(
      score, panel, (index.indices, index.values), block_size=self.block_size
    )
    best, indices = topk.top_k(scores, k, where=where)
    broken = ~jnp.isfinite(scores) & (scores != -jnp.inf)
    if where is not None:
      broken &= where
    return Found(
      indices,
      best,
      jnp.asarray(scores.shape[0], jnp.int32),
      jnp.zeros((), jnp.int32),
      ~broken.any(),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sequential:
  """The paper's search.

  Attributes:
    cut: Lists.
    heap_factor: Of the test that skips a block; smaller is more thorough.
  """

  cut: int = 8
  heap_factor: float = 0.8

  def find(self, query, panel, index, where, k) -> Found:
    """Searches; see the module. The first list by decreasing summary score."""
    coords, weights = _lists(query, panel, self.cut)
    places = jnp.arange(index.max_blocks, dtype=jnp.int32)
    members = jnp.arange(index.max_size, dtype=jnp.int32)
    last = index.postings.shape[0] - 1

    def visit_list(number, state):
      coord = coords[number]
      start = index.list_starts[coord]
      size = jnp.where(
        weights[number] > 0, index.list_starts[coord + 1] - start, 0
      )
      routes = _summary_scores(panel, index, start + places)
      routes = jnp.where(places < size, routes, -jnp.inf)
      order = jnp.where(
        number == 0, jnp.argsort(-routes, stable=True).astype(jnp.int32), places
      )
      routes = routes[order]

      def next_block(at, state):
        found = state[0]
        kept = (routes >= self.heap_factor * found.scores[-1]) | (
          found.indices[-1] < 0
        )
        kept &= (places >= at) & (places < size)
        return jnp.where(kept.any(), jnp.argmax(kept), index.max_blocks)

      def body(carry):
        at, (found,) = carry
        block = start + order[at]
        first = index.block_starts[block]
        num = index.block_starts[block + 1] - first
        docs = index.postings[jnp.minimum(first + members, last)]
        listed = members < num
        if where is not None:
          listed &= where[docs]
        listed &= ~(docs[:, None] == found.indices[None, :]).any(axis=1)
        found = _merge(found, docs, listed, panel, index, k)
        return next_block(at + 1, (found,)), (found,)

      at = next_block(jnp.zeros((), jnp.int32), state)
      return jax.lax.while_loop(
        lambda carry: carry[0] < index.max_blocks, body, (at, state)
      )[1]

    if last < 0 or self.cut == 0:
      return _nothing(panel, k)
    return jax.lax.fori_loop(
      0, coords.shape[0], visit_list, (_nothing(panel, k),)
    )[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Routed:
  """All summaries first, then documents: static budgets, `aux.overflow`.

  Attributes:
    cut: Lists.
    num_summaries: Blocks whose summary is scored.
    num_blocks: Best blocks whose documents are looked at.
    num_postings: Documents in these, as often as they are listed.
    num_docs: Distinct documents scored, those of the best blocks first.
  """

  cut: int = 8
  num_summaries: int = 512
  num_blocks: int = 64
  num_postings: int = 1024
  num_docs: int = 512

  def find(self, query, panel, index, where, k) -> Found:
    """Searches; see the module."""
    if index.postings.shape[0] == 0:
      return _nothing(panel, k)
    if self.num_docs < k:
      raise ValueError(
        f"search.num_docs = {self.num_docs} is below k = {k}: raise it."
      )
    coords, weights = _lists(query, panel, self.cut)
    starts = index.list_starts[coords]
    sizes = jnp.where(weights > 0, index.list_starts[coords + 1] - starts, 0)
    row, listed, lost_blocks = _expand(starts, sizes, self.num_summaries)
    routes = _summary_scores(panel, index, row)
    routes = jnp.where(listed, routes, -jnp.inf)
    num_blocks = min(self.num_blocks, self.num_summaries)
    best, at = topk.top_k(routes, num_blocks)
    block = row[jnp.maximum(at, 0)]
    first = index.block_starts[block]
    sizes = index.block_starts[block + 1] - first
    sizes = jnp.where(best > -jnp.inf, sizes, 0)
    row, listed, lost = _expand(first, sizes, self.num_postings)
    docs = index.postings[row]
    if where is not None:
      listed &= where[docs]
    # Each document once, at its first place: the best route it has.
    places = jnp.arange(self.num_postings, dtype=jnp.int32)
    docs, places = jax.lax.sort(
      (jnp.where(listed, docs, _BIG), places), num_keys=2
    )
    first = jnp.concatenate([jnp.ones(1, bool), docs[1:] != docs[:-1]])
    first &= docs < _BIG
    places, docs = jax.lax.sort((jnp.where(first, places, _BIG), docs))
    num = min(self.num_docs, self.num_postings)
    docs, listed = docs[:num], places[:num] < _BIG
    lost_docs = jnp.sum(first, dtype=jnp.int32) - jnp.sum(
      listed, dtype=jnp.int32
    )
    docs = jnp.where(listed, docs, 0)
    found = _merge(_nothing(panel, k), docs, listed, panel, index, k)
    return found._replace(overflow=lost_blocks + lost + lost_docs)


def _nothing(panel, k):
  zero = jnp.zeros((), jnp.int32)
  return Found(
    jnp.full(k, -1, jnp.int32),
    jnp.full(k, -jnp.inf, panel.dtype),
    zero,
    zero,
    jnp.ones((), bool),
  )


def _lists(query, panel, cut):
  """Coordinates of the largest query weights, and these; 0 where fewer."""
  vocab = panel.shape[0] - 1
  inside = (query.indices >= 0) & (query.indices < vocab)
  coords = jnp.sort(jnp.where(inside, query.indices, vocab))
  again = jnp.concatenate([jnp.zeros(1, bool), coords[1:] == coords[:-1]])
  weights = jnp.where(again[: coords.shape[0]], 0.0, panel[coords])
  best, at = jax.lax.top_k(weights, min(cut, coords.shape[0]))
  return jnp.where(best > 0, coords[at], 0), best


def _summary_scores(panel, index, block):
  """Scores of some blocks; out of range is clamped."""
  block = jnp.minimum(block, index.summary_least.shape[0] - 1)
  at = index.summary_indices[block]
  query = panel[at]
  codes = index.summary_codes[block].astype(panel.dtype)
  ones = jnp.ones(query.shape[1], panel.dtype)
  scores = jnp.matmul(query * codes, ones, precision="highest")
  if index.summary_codes.dtype != jnp.uint8:
    return scores
  total = jnp.matmul(query, ones, precision="highest")
  return index.summary_step[block] * scores + index.summary_least[block] * total


def _expand(starts, sizes, budget):
  """The places of some ranges one after another, `[budget]`.

  Returns:
    (places, which are in a range, how many did not fit).
  """
  ends = jnp.cumsum(sizes)
  at = jnp.arange(budget, dtype=jnp.int32)
  group = jnp.searchsorted(ends, at, side="right", method="scan_unrolled")
  group = jnp.minimum(group, starts.shape[0] - 1)
  listed = at < ends[-1]
  places = starts[group] + at - (ends - sizes)[group]
  lost = jnp.maximum(ends[-1] - budget, 0).astype(jnp.int32)
  return jnp.where(listed, places, 0), listed, lost


def _merge(found, docs, listed, panel, index, k):
  """Scores documents; keeps the k best; ties by lowest document."""
  rows = index.indices[docs], index.values[docs]
  scores = sparse.products(panel, *rows)
  finite = jnp.all(jnp.isfinite(scores) | ~listed)
  listed_now = jnp.sum(listed, dtype=jnp.int32)
  listed &= ~jnp.isnan(scores)
  scores = jnp.where(listed, scores, -jnp.inf)
  docs = jnp.where(listed, docs, _BIG)
  known = jnp.where(found.indices < 0, _BIG, found.indices)
  order, docs = jax.lax.sort(
    (
      -jnp.concatenate([found.scores, scores]),
      jnp.concatenate([known, docs]),
    ),
    num_keys=2,
  )
  return Found(
    jnp.where(docs[:k] < _BIG, docs[:k], -1),
    -order[:k],
    found.num_scored + listed_now,
    found.overflow,
    found.finite & finite,
  )
