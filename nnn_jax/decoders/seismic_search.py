"""The searches of `decoders.seismic`, on one query and constants.

Lists are those of the `cut` largest query weights; the whole query scores
summaries and documents.

  Exact        every document
  Sequential   list by list; a block is skipped if k documents are known and its
               summary's score r < heap_factor x the k-th best score
  Routed       the summaries of all lists at once: `seismic_routed`

(The paper prints the test of Sequential as r < k-th best / heap_factor with a
factor below 1, which skips more than its published code does: that code's
meaning is taken, so smaller is more thorough, and 1 the paper's 1.)

Reference: Bruch et al. (2024), arXiv 2404.18812, sections 5 and 6.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from nnn_jax.core import blocks, sparse, topk
from nnn_jax.decoders import seismic_parts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exact:
  """Every document; the oracle.

  Attributes:
    block_size: Documents at a time: memory, and speed, but not the answer.
  """

  block_size: int = 4096

  def find(self, query, panel, index, where, k) -> seismic_parts.Found:
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
    return seismic_parts.Found(
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

  def find(self, query, panel, index, where, k) -> seismic_parts.Found:
    """Searches; see the module. The first list by decreasing summary score."""
    entries = seismic_parts.entries_of(query, panel)
    coords, weights = seismic_parts.lists_of(entries, self.cut)
    places = jnp.arange(index.max_blocks, dtype=jnp.int32)
    members = jnp.arange(index.max_size, dtype=jnp.int32)
    last = index.postings.shape[0] - 1

    def visit_list(number, state):
      coord = coords[number]
      start = index.list_starts[coord]
      size = jnp.where(
        weights[number] > 0, index.list_starts[coord + 1] - start, 0
      )
      first, num = seismic_parts.look_up(index, coord, entries.coords)
      routes = seismic_parts.routes_of(
        index,
        first[:, None] + places[None],
        places[None] < num[:, None],
        entries.weights[:, None],
        jnp.zeros((), jnp.int32),
        start,
        index.max_blocks,
      )
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
        found = seismic_parts.merge(found, docs, listed, panel, index, k)
        return next_block(at + 1, (found,)), (found,)

      at = next_block(jnp.zeros((), jnp.int32), state)
      return jax.lax.while_loop(
        lambda carry: carry[0] < index.max_blocks, body, (at, state)
      )[1]

    if last < 0 or self.cut == 0:
      return seismic_parts.nothing(panel, k)
    return jax.lax.fori_loop(
      0, coords.shape[0], visit_list, (seismic_parts.nothing(panel, k),)
    )[0]
