"""Sparse vectors, and the arrays of an index over them.

A document is a padded row of coordinates and values; where a row is shorter the
coordinate is `vocab`, where a dense query holds 0, and the value is 0.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from nnn_jax import types
from nnn_jax.core import linalg


class SparseVector(NamedTuple):
  """A sparse query; a coordinate that is listed twice counts with the sum.

  Attributes:
    indices: `[num_entries]` int32 coordinates, -1 where fewer. One outside of
      the vocabulary occurs in no document.
    values: `[num_entries]`, not negative.
  """

  indices: types.Array
  values: types.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class SparseBlocks:
  """Documents, and for each coordinate blocks of those that have it.

  The blocks of coordinate c are list_starts[c] to list_starts[c + 1]; the
  documents of block b are postings[block_starts[b] : block_starts[b + 1]].

  The summaries of a list are kept by coordinate, then block: those of
  coordinates j << bucket_bits and up, to the next j, from bucket_starts[c,
  j] on. A query looks its coordinates up in there.

  Attributes:
    indices: `[num_docs, width]` uint16 or int32, `vocab` where fewer.
    values: `[num_docs, width]`, float16 or float32, descending in a row.
    list_starts: `[vocab + 1]` int32.
    block_starts: `[num_blocks + 1]` int32.
    postings: `[num_postings]` int32 documents.
    bucket_starts: `[vocab * num_buckets + 1]` int32.
    entry_coords: `[num_entries]` as `indices`.
    entry_blocks: `[num_entries]` as `indices`; counted in the list.
    entry_codes: `[num_entries]` uint8 codes or float32 values.
    summary_least: `[num_blocks]` float32; an entry is least + step * code.
    summary_step: `[num_blocks]` float32.
    vocab: Static.
    max_blocks: Static; of a list.
    max_size: Static; documents of a block.
    bucket_bits: Static.
    max_bucket: Static; entries of a bucket.
  """

  indices: jax.Array
  values: jax.Array
  list_starts: jax.Array
  block_starts: jax.Array
  postings: jax.Array
  bucket_starts: jax.Array
  entry_coords: jax.Array
  entry_blocks: jax.Array
  entry_codes: jax.Array
  summary_least: jax.Array
  summary_step: jax.Array
  vocab: int = dataclasses.field(metadata={"static": True})
  max_blocks: int = dataclasses.field(metadata={"static": True})
  max_size: int = dataclasses.field(metadata={"static": True})
  bucket_bits: int = dataclasses.field(metadata={"static": True})
  max_bucket: int = dataclasses.field(metadata={"static": True})

  @property
  def num_buckets(self) -> int:
    """Buckets of a list."""
    return num_buckets(self.vocab, self.bucket_bits)

  @property
  def shape(self) -> tuple[int, int]:
    """(num_docs, vocab)."""
    return self.indices.shape[0], self.vocab


def num_buckets(vocab: int, bucket_bits: int) -> int:
  """Runs of 2^bucket_bits coordinates that hold all."""
  return (max(vocab, 1) - 1 >> bucket_bits) + 1


def dense(query: SparseVector, vocab: int) -> jax.Array:
  """`[vocab + 1]`, the last one 0; differentiable.

  >>> dense(SparseVector(jnp.asarray([1, 1, -1, 9]), jnp.ones(4)), 2).tolist()
  [0.0, 2.0, 0.0]
  """
  values = jnp.asarray(query.values)
  inside = (query.indices >= 0) & (query.indices < vocab)
  at = jnp.where(inside, query.indices, vocab + 1)
  return jnp.zeros(vocab + 1, values.dtype).at[at].add(values, mode="drop")


def products(
  panel: jax.Array, indices: jax.Array, values: jax.Array
) -> jax.Array:
  """Inner products `[rows]` of a dense query with padded rows."""
  weights = panel.at[indices].get(mode="promise_in_bounds")
  terms = weights * values.astype(panel.dtype)
  # On CPU a product with ones takes .6 of the time of a sum.
  return linalg.matmul(terms, jnp.ones(terms.shape[1], terms.dtype))


def overlaps(
  panel: jax.Array, indices: jax.Array, values: jax.Array
) -> jax.Array:
  """Which rows `[rows]` share a coordinate with the query."""
  return jnp.any((panel[indices] != 0) & (values != 0), axis=1)
