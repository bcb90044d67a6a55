"""The blocks of a sparse index and their summaries, in C++ or numpy.

Both ways give the same arrays if values are float16: sums of these are exact in
float64, and products in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy.sparse
import tqdm

from nnn_jax import native
from nnn_jax.indexes import sparse

# Entries that are looked at in one step: bounds the memory.
_CHUNK_ENTRIES = 4_000_000


class Summaries(NamedTuple):
  """The kept entries of each block, values descending.

  Attributes:
    starts: `[num_blocks + 1]` int64; block b is starts[b] to starts[b + 1].
    indices: `[num_entries]` int32 coordinates.
    values: `[num_entries]` float32.
  """

  starts: np.ndarray
  indices: np.ndarray
  values: np.ndarray


def assign(
  rows: sparse.SparseRows,
  list_starts: np.ndarray,
  docs: np.ndarray,
  *,
  centroid_fraction: float,
  min_cluster_size: int,
  seed: int,
) -> np.ndarray:
  """The block of each document of each list, numbered in the list.

  A share of a list's documents are centres; each document joins the one with
  the largest inner product, and again without those of few documents.

  Args:
    rows: The documents.
    list_starts: `[num_lists + 1]` int64, ascending: no list is empty.
    docs: `[num_postings]` int32.
    centroid_fraction: Centres of a list, over its documents.
    min_cluster_size: Centres of at most so many documents are dropped.
    seed: Of the centres.
  """
  rng, sizes = np.random.default_rng(seed), np.diff(list_starts)
  counts = np.maximum(1, (centroid_fraction * sizes).astype(np.int64))
  centres = [
    docs[start + np.sort(rng.choice(size, count, replace=False))]
    for start, size, count in zip(list_starts[:-1], sizes, counts, strict=True)
  ]
  labels, library = np.zeros(len(docs), np.int32), native.sparse_blocks()
  per_doc = np.diff(rows.starts)
  matrix = scipy.sparse.csr_array(
    (rows.values, rows.indices, rows.starts), (rows.num_docs, rows.vocab)
  )
  entries = _before(per_doc[docs])[list_starts]
  for first, last in _chunks(entries, "blocks"):
    if library is not None:
      library.NnnAssign(
        *native.arguments(
          last - first,
          list_starts[first : last + 1],
          docs,
          _before(counts[first:last]),
          np.concatenate(centres[first:last]),
          *(rows.starts, rows.indices, rows.values, rows.vocab),
          min_cluster_size,
          labels,
        )
      )
      continue
    for number in range(first, last):
      part = slice(list_starts[number], list_starts[number + 1])
      products = matrix[docs[part]] @ matrix[centres[number]].T
      labels[part] = _best(products.toarray(), min_cluster_size)
  return labels


def _best(products, min_cluster_size):
  labels = products.argmax(axis=1)
  small = np.bincount(labels, minlength=products.shape[1]) <= min_cluster_size
  if small.any() and not small.all():
    moved = small[labels]
    labels[moved] = np.where(small, -np.inf, products[moved]).argmax(axis=1)
  return labels


def summarize(
  rows: sparse.SparseRows,
  block_starts: np.ndarray,
  postings: np.ndarray,
  *,
  alpha: float,
  length: int | None,
) -> Summaries:
  """The maximum of each block's documents: its largest entries.

  Args:
    rows: The documents.
    block_starts: `[num_blocks + 1]` int64, ascending: no block is empty.
    postings: `[num_postings]` int32 documents, at least one entry in each.
    alpha: Share of the sum that is kept, (0, 1]: the fewest that hold it.
    length: Entries that are kept instead, if not None.
  """
  per_doc, library = np.diff(rows.starts), native.sparse_blocks()
  entries = _before(per_doc[postings])[block_starts]
  parts = []
  for first, last in _chunks(entries, "summaries"):
    starts = block_starts[first : last + 1]
    if library is None:
      docs = postings[starts[0] : starts[-1]]
      parts.append(_summaries(rows, starts - starts[0], docs, alpha, length))
      continue
    room = int(entries[last] - entries[first])
    lengths = np.zeros(last - first, np.int64)
    indices, values = np.zeros(room, np.int32), np.zeros(room, np.float32)
    library.NnnSummaries(
      *native.arguments(
        *(last - first, starts, postings),
        *(rows.starts, rows.indices, rows.values, rows.vocab),
        *(float(alpha), length or 0, lengths, indices, values),
      )
    )
    num = int(lengths.sum())
    parts.append((lengths, indices[:num].copy(), values[:num].copy()))
  empty = np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32)
  lengths, indices, values = map(
    np.concatenate, zip(empty, *parts, strict=True)
  )
  return Summaries(_before(lengths), indices, values)


def _summaries(rows, block_starts, docs, alpha, length):
  """As NnnSummaries: (lengths, indices, values)."""
  num, counts = len(block_starts) - 1, np.diff(rows.starts)[docs]
  at = np.repeat(rows.starts[docs] - _before(counts)[:-1], counts)
  at += np.arange(len(at))
  merged = scipy.sparse.csr_array(
    (rows.values[at], rows.indices[at], _before(counts)[block_starts]),
    (num, rows.vocab),
  )
  merged = merged.tocsc().tocsr()  # Sorted, in linear time.
  blocks = np.repeat(np.arange(num), np.diff(merged.indptr))
  key = blocks * np.int64(rows.vocab) + merged.indices
  new = np.flatnonzero(np.r_[True, key[1:] != key[:-1]])
  values, key = np.maximum.reduceat(merged.data, new), key[new]
  blocks = key // rows.vocab
  # Positive floats are ordered as their bits are. Stable: ties by coordinate.
  low = np.uint64(2**32 - 1) - values.view(np.uint32).astype(np.uint64)
  order = np.argsort(
    (blocks.astype(np.uint64) << np.uint64(32)) | low, kind="stable"
  )
  values, key, blocks = values[order], key[order], blocks[order]
  mass = _before(values.astype(np.float64))
  starts = np.searchsorted(blocks, np.arange(num + 1))
  if length is not None:
    kept = np.arange(len(values)) - starts[blocks] < length
  elif alpha == 1:  # Rounding of the sums would drop the last.
    kept = np.ones(len(values), bool)
  else:
    total = mass[starts[1:]] - mass[starts[:-1]]
    kept = mass[:-1] - mass[starts[:-1]][blocks] < alpha * total[blocks]
  return (
    np.bincount(blocks[kept], minlength=num),
    (key[kept] % rows.vocab).astype(np.int32),
    values[kept],
  )


def _before(counts):
  """Sums of what precedes each, and of all."""
  return np.concatenate([np.zeros(1, counts.dtype), np.cumsum(counts)])


def _chunks(entries: np.ndarray, what: str) -> Iterator[tuple[int, int]]:
  """Ranges (first, last) of about _CHUNK_ENTRIES, with a progress bar."""
  first, num = 0, len(entries) - 1
  with tqdm.tqdm(total=num, desc=what, delay=3, mininterval=1) as progress:
    while first < num:
      last = np.searchsorted(entries, entries[first] + _CHUNK_ENTRIES, "right")
      last = min(max(int(last) - 1, first + 1), num)
      yield first, last
      progress.update(last - first)
      first = last
