"""The search `Routed` of `decoders.seismic`, on one query and constants.

Section 6 of the paper: the summaries of all lists first, then the documents of
the best blocks. Every step has a size that is known beforehand, so it suits an
accelerator, and costs the same for each query.

Reference: Bruch et al. (2024), arXiv 2404.18812, section 6.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from nnn_jax.core import linalg, sparse, topk
from nnn_jax.decoders import seismic_parts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Routed:
  """All summaries first, then documents: static budgets, `aux.overflow`.

  Attributes:
    cut: Lists.
    num_entries: Entries of summaries that the query finds.
    num_blocks: Best blocks whose documents are looked at.
    num_postings: Documents in these, as often as they are listed.
    num_docs: Distinct documents scored, those of the best blocks first.
    prefix: Of these, the largest entries are scored first.
    num_rescored: The best by these, which are scored in full.
  """

  cut: int = 8
  num_entries: int = 1024
  num_blocks: int = 64
  num_postings: int = 1024
  num_docs: int = 512
  prefix: int = 48
  num_rescored: int = 64

  def find(self, query, panel, index, where, k) -> seismic_parts.Found:
    """Searches; see the module."""
    if index.postings.shape[0] == 0:
      return seismic_parts.nothing(panel, k)
    for name in ("num_docs", "num_rescored"):
      if getattr(self, name) < k:
        raise ValueError(
          f"search.{name} = {getattr(self, name)} is below k = {k}: raise it."
        )
    entries = seismic_parts.entries_of(query, panel)
    coords, weights = seismic_parts.lists_of(entries, self.cut)
    starts = index.list_starts[coords]
    sizes = jnp.where(weights > 0, index.list_starts[coords + 1] - starts, 0)
    first, num = seismic_parts.look_up(
      index, coords[:, None], entries.coords[None]
    )
    num = jnp.where(sizes[:, None] > 0, num, 0)
    at, pair, listed, lost_entries = _expand(
      first.ravel(), num.ravel(), self.num_entries
    )
    number, entry = jnp.divmod(pair, entries.coords.shape[0])
    routes = seismic_parts.routes_of(
      index,
      at,
      listed,
      entries.weights[entry],
      number * index.max_blocks,
      starts[number],
      coords.shape[0] * index.max_blocks,
    )
    places = jnp.arange(index.max_blocks, dtype=jnp.int32)
    routes = jnp.where(
      (places[None] < sizes[:, None]).ravel(), routes, -jnp.inf
    )
    num_blocks = min(self.num_blocks, routes.shape[0])
    best, at = topk.top_k(routes, num_blocks)
    number, block = jnp.divmod(jnp.maximum(at, 0), index.max_blocks)
    block = jnp.where(best > -jnp.inf, starts[number] + block, 0)
    first = index.block_starts[block]
    sizes = index.block_starts[block + 1] - first
    sizes = jnp.where(best > -jnp.inf, sizes, 0)
    row, _, listed, lost = _expand(first, sizes, self.num_postings)
    docs = jnp.where(listed, index.postings[row], 0)
    if where is not None:
      listed &= where[docs]
    docs, listed, lost_docs = _distinct(docs, listed, self.num_docs)
    docs = _touched(index, docs)
    prefix = slice(0, self.prefix)
    rows = index.indices[docs, prefix], index.values[docs, prefix]
    scores = sparse.products(panel, *rows)
    num = min(self.num_rescored, scores.shape[0])
    _, best = jax.lax.top_k(jnp.where(listed, scores, -jnp.inf), num)
    found = seismic_parts.merge(
      seismic_parts.nothing(panel, k), docs[best], listed[best], panel, index, k
    )
    return found._replace(
      num_scored=jnp.sum(listed, dtype=jnp.int32),
      overflow=lost_entries + lost + lost_docs,
    )


def _distinct(docs, listed, num):
  """The first `num` distinct documents, in order: (documents, which are).

  A document finds its first place in a hash table, unless an earlier one has
  its slot; those try again with another hash. Also returns how many distinct
  documents did not fit; those that never get a slot, almost none, among them.
  """
  size = docs.shape[0]
  bits = (8 * size - 1).bit_length()
  places = jnp.arange(size, dtype=jnp.int32)
  first, open_ = jnp.zeros(size, bool), listed
  for factor in (2654435769, 2246822519, 3266489917):
    slot = (docs.astype(jnp.uint32) * jnp.uint32(factor)) >> (32 - bits)
    slot = jnp.where(open_, slot.astype(jnp.int32), 2**bits)
    table = jnp.full(2**bits + 1, size, jnp.int32).at[slot].min(places)
    holder = table[slot]
    first |= open_ & (holder == places)
    open_ &= docs[jnp.minimum(holder, size - 1)] != docs
  rank = _cumsum(first) - 1
  at = jnp.where(first, rank, num)
  kept = jnp.zeros(num, jnp.int32).at[at].set(docs, mode="drop")
  total = rank[-1] + 1
  lost = jnp.maximum(total - num, 0) + jnp.sum(open_, dtype=jnp.int32)
  return kept, jnp.arange(num) < total, lost


def _touched(index, docs):
  """The same documents, once an entry of each was read.

  A loop as short as this has many reads under way at once; `products`, which
  would wait for each document's, then takes .6 of the time on CPU, this
  included.
  """
  true = (index.indices[docs, 0] <= index.vocab) | (index.values[docs, 0] > 0)
  return jnp.where(true, docs, 0)


def _expand(starts, sizes, budget):
  """The places of some ranges one after another, `[budget]`.

  Returns:
    (places, their ranges, which are in one, how many did not fit).
  """
  total = jnp.sum(sizes)
  ends = _cumsum(jnp.minimum(sizes, budget))
  passed = jnp.zeros(budget + 1, jnp.int32).at[jnp.minimum(ends, budget)].add(1)
  group = jnp.minimum(_cumsum(passed[:-1]), starts.shape[0] - 1)
  at = jnp.arange(budget, dtype=jnp.int32)
  listed = at < total
  places = (starts - ends + jnp.minimum(sizes, budget))[group] + at
  lost = jnp.maximum(total - budget, 0).astype(jnp.int32)
  return jnp.where(listed, places, 0), group, listed, lost


def _cumsum(x):
  """Sums of up to 2^24; by products, on CPU .3 of the time of jnp.cumsum.

  XLA keeps a product, but would compute a jnp.cumsum again in each use.
  """
  size, width = x.shape[0], 32
  x = jnp.pad(x, (0, -size % width)).astype(jnp.float32).reshape(-1, width)
  within = linalg.matmul(x, jnp.triu(jnp.ones((width, width), x.dtype)))
  rows = jnp.triu(jnp.ones((x.shape[0], x.shape[0]), x.dtype), 1)
  before = linalg.matmul(within[:, -1], rows)
  return (within + before[:, None]).ravel()[:size].astype(jnp.int32)
