"""What the searches of `decoders.seismic` have in common."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from nnn_jax.core import sparse

_BIG = jnp.iinfo(jnp.int32).max


class Found(NamedTuple):
  """The answer of a search.

  Attributes:
    indices: `[k]` int32, -1 where fewer.
    scores: `[k]`, -inf where fewer.
    num_scored: int32, documents.
    overflow: int32, entries and documents that a budget left out.
    finite: bool, every score is.
  """

  indices: jax.Array
  scores: jax.Array
  num_scored: jax.Array
  overflow: jax.Array
  finite: jax.Array


def nothing(panel, k) -> Found:
  """Before any document is seen."""
  zero = jnp.zeros((), jnp.int32)
  return Found(
    jnp.full(k, -1, jnp.int32),
    jnp.full(k, -jnp.inf, panel.dtype),
    zero,
    zero,
    jnp.ones((), bool),
  )


class Entries(NamedTuple):
  """A query without repetition: coordinates ascending, weight 0 for none."""

  coords: jax.Array
  weights: jax.Array


def entries_of(query, panel) -> Entries:
  """The query's entries."""
  vocab = panel.shape[0] - 1
  inside = (query.indices >= 0) & (query.indices < vocab)
  coords = jnp.sort(jnp.where(inside, query.indices, vocab))
  again = jnp.concatenate([jnp.zeros(1, bool), coords[1:] == coords[:-1]])
  again = again[: coords.shape[0]]
  coords = jnp.where(again, vocab, coords)
  return Entries(coords, panel[coords])


def lists_of(entries, cut):
  """Coordinates of the largest query weights, and these; 0 where fewer."""
  best, at = jax.lax.top_k(entries.weights, min(cut, entries.coords.shape[0]))
  return jnp.where(best > 0, entries.coords[at], 0), best


def look_up(index, lists, coords):
  """Where a list has its entries of a coordinate: (first, number of them)."""
  inside = coords < index.vocab
  bucket = jnp.where(inside, coords, 0) >> index.bucket_bits
  bucket = lists * index.num_buckets + bucket
  first, end = index.bucket_starts[bucket], index.bucket_starts[bucket + 1]
  wanted = jnp.stack([coords + jnp.zeros_like(first)] * 2)
  wanted = wanted.at[1].add(1)

  def halve(_, state):
    low, high = state
    middle = (low + high) // 2
    entry = index.entry_coords.at[middle].get(mode="clip").astype(jnp.int32)
    less = (low < high) & (entry < wanted)
    low = jnp.where(less, middle + 1, low)
    return low, jnp.where(less, high, jnp.maximum(middle, low))

  # A loop: unrolled, XLA would compute all steps again in each use.
  low, _ = jax.lax.fori_loop(
    0,
    index.max_bucket.bit_length(),
    halve,
    (jnp.stack([first, first]), jnp.stack([end, end])),
  )
  return low[0], jnp.where(inside, low[1] - low[0], 0)


def routes_of(index, at, inside, weights, offset, start, size):
  """Scores `[size]` of blocks, of the entries at some places.

  Args:
    index: The index.
    at: The places.
    inside: Which of them there are.
    weights: Of the query, for each.
    offset: Where the blocks of each one's list are in the result.
    start: The first block of each one's list.
    size: Of the result.
  """
  at = jnp.where(inside, at, 0)
  block = index.entry_blocks[at].astype(jnp.int32)
  entry = index.entry_codes[at].astype(weights.dtype)
  if index.entry_codes.dtype == jnp.uint8:
    row = jnp.where(inside, start + block, 0)
    entry = index.summary_least[row] + index.summary_step[row] * entry
  slot = jnp.where(inside, offset + block, size)
  routes = jnp.zeros(size, weights.dtype)
  return routes.at[slot].add(weights * entry, mode="drop")


def merge(found, docs, listed, panel, index, k):
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
