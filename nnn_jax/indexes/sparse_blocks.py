"""Builds and keeps the index of `decoders.seismic`; on the host, once.

For each coordinate the documents with the largest values are kept (pruning) and
put into blocks around sampled ones. A block's summary is the maximum of its
documents, coordinate by coordinate, of which the largest entries that hold
alpha of the sum are kept, in 8 bits.

Reference: Bruch et al. (2024), Efficient Inverted Indexes for Approximate
Retrieval over Learned Sparse Representations, arXiv 2404.18812, section 5.
"""

from __future__ import annotations

import dataclasses
import io
import zipfile
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
import scipy.sparse

from nnn_jax import files
from nnn_jax.core import sparse as arrays_lib
from nnn_jax.indexes import pages, sparse, sparse_summaries

_FORMAT = "nnn_jax sparse blocks 2"

# Documents that are sorted in one step: bounds the memory.
_CHUNK_DOCS = 20_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildConfig:
  """What an index keeps.

  Attributes:
    n_postings: Documents a list; None keeps all.
    prune: "paper": each list keeps n_postings. "global": the vocab x n_postings
      largest entries of all, at most n_postings x max_fraction a list.
    max_fraction: Of "global".
    centroid_fraction: Blocks of a list, over its documents.
    min_cluster_size: Blocks of at most so many documents are dissolved.
    alpha: Share of a summary's sum that is kept, (0, 1].
    summary_length: Entries of a summary that are kept instead, if not None.
    blocks: "geometric": around sampled documents. "fixed": runs of the list,
      values descending, of 1 / centroid_fraction documents.
    quantize: Summaries in 8 bits.
    dtype: Of document values.
    seed: Of the sampled documents.
  """

  n_postings: int | None = 50
  prune: Literal["paper", "global"] = "global"
  max_fraction: float = 4.0
  centroid_fraction: float = 0.1
  min_cluster_size: int = 2
  alpha: float = 0.4
  summary_length: int | None = None
  blocks: Literal["geometric", "fixed"] = "geometric"
  quantize: bool = True
  dtype: Any = np.float16
  seed: int = 0

  def __post_init__(self):
    if self.prune not in ("paper", "global"):
      raise ValueError(f'prune must be "paper" or "global", got {self.prune}.')
    if self.blocks not in ("geometric", "fixed"):
      raise ValueError(
        f'blocks must be "geometric" or "fixed", got {self.blocks}.'
      )
    if self.summary_length is not None and self.summary_length < 1:
      raise ValueError(
        f"summary_length must be >= 1, got {self.summary_length}."
      )
    if self.n_postings is not None and self.n_postings < 1:
      raise ValueError(f"n_postings must be >= 1, got {self.n_postings}.")
    if not 0 < self.alpha <= 1:
      raise ValueError(f"alpha must be in (0, 1], got {self.alpha}.")
    if not 0 < self.centroid_fraction <= 1:
      raise ValueError(
        f"centroid_fraction must be in (0, 1], got {self.centroid_fraction}."
      )


def build(
  rows: sparse.SparseRows, *, config: BuildConfig = BuildConfig()
) -> arrays_lib.SparseBlocks:
  """Builds the index of some checked rows.

  >>> rows = sparse.from_lists([[0, 2], [], [2]], [[1, 2], [], [3]], 3)
  >>> index = build(rows)
  >>> index.shape, index.postings.tolist()
  ((3, 3), [0, 2, 0])
  """
  rows = _rounded(rows, config.dtype)
  coords, docs = _prune(rows, config)
  per_coord = np.bincount(coords, minlength=rows.vocab)
  sizes = per_coord[per_coord > 0]
  list_starts = np.concatenate([[0], np.cumsum(sizes)])
  if config.blocks == "fixed":
    rank = np.arange(len(docs)) - np.repeat(list_starts[:-1], sizes)
    labels = (rank * config.centroid_fraction).astype(np.int32)
  else:
    labels = sparse_summaries.assign(
      rows,
      list_starts,
      docs,
      centroid_fraction=config.centroid_fraction,
      min_cluster_size=config.min_cluster_size,
      seed=config.seed,
    )
  # The documents of a block together, otherwise in the order of the list.
  key = (coords.astype(np.int64) << 32) | labels
  order = np.argsort(key, kind="stable")
  docs, key = docs[order], key[order]
  first = np.flatnonzero(
    np.concatenate([[True], key[1:] != key[:-1]])[: len(key)]
  )
  block_starts = np.concatenate([first, [len(key)]])
  per_list = np.bincount(coords[first], minlength=rows.vocab)
  summaries = sparse_summaries.summarize(
    rows,
    block_starts,
    docs,
    alpha=config.alpha,
    length=config.summary_length,
  )
  codes, least, step = _coded(summaries, config.quantize)
  large = max(rows.vocab, per_list.max(initial=0)) >= 2**16
  kind = np.int32 if large else np.uint16
  indices, values = _pad(rows, config.dtype, kind)
  index = arrays_lib.SparseBlocks(
    indices=jnp.asarray(indices),
    values=jnp.asarray(values),
    list_starts=_int32(np.concatenate([[0], np.cumsum(per_list)])),
    block_starts=_int32(block_starts),
    postings=_int32(docs),
    **_by_coordinate(summaries, codes, per_list, rows.vocab, kind),
    summary_least=jnp.asarray(least),
    summary_step=jnp.asarray(step),
    vocab=rows.vocab,
    max_blocks=int(per_list.max(initial=1)),
    max_size=int(np.diff(block_starts).max(initial=1)),
  )
  return pages.on_huge_pages(index)


def _rounded(rows, dtype):
  """Rows as they are stored and scored.

  A summary must not be below a value that was rounded up, and a value that was
  rounded to zero is no posting.
  """
  values = rows.values.astype(dtype).astype(np.float32)
  kept = values > 0
  starts = np.concatenate([[0], np.cumsum(kept)])[rows.starts]
  return rows._replace(
    starts=starts, indices=rows.indices[kept], values=values[kept]
  )


def _int32(x):
  return jnp.asarray(np.asarray(x, np.int32))


def _pad(rows, dtype, kind):
  """Rows as `[num_docs, width]` of both, values descending; not 0 wide."""
  counts = np.diff(rows.starts)
  shape = len(counts), max(1, int(counts.max(initial=1)))
  indices, values = np.full(shape, rows.vocab, kind), np.zeros(shape, dtype)
  places = np.arange(shape[1])
  for first in range(0, shape[0], _CHUNK_DOCS):
    part = slice(first, first + _CHUNK_DOCS)
    starts = rows.starts[first : first + _CHUNK_DOCS + 1]
    entries = slice(starts[0], starts[-1])
    inside = places < counts[part, None]
    # One number sorts by value, then coordinate: positive floats are ordered
    # as their bits are.
    bits = rows.values[entries].view(np.uint32)
    keys = np.full(inside.shape, 2**64 - 1, np.uint64)
    keys[inside] = (~bits).astype(np.uint64) << np.uint64(32)
    keys[inside] |= rows.indices[entries].astype(np.uint64)
    keys = np.sort(keys, axis=1)[inside]
    low = (keys >> np.uint64(32)).astype(np.uint32)
    indices[part][inside] = keys.astype(np.uint32).astype(kind)
    values[part][inside] = (~low).view(np.float32)
  return indices, values


def _prune(rows, config):
  """The kept (coordinates, documents), by coordinate, then value descending."""
  docs = np.repeat(
    np.arange(rows.num_docs, dtype=np.int32), np.diff(rows.starts)
  )
  coords, values, num = rows.indices, rows.values, config.n_postings
  most = num
  if num is not None and config.prune == "global":
    most = max(1, int(num * config.max_fraction))
    total = num * rows.vocab
    if total < len(values):
      at = len(values) - total
      kept = values >= np.partition(values, at)[at]
      docs, coords, values = docs[kept], coords[kept], values[kept]
  # Positive floats are ordered as their bits are.
  low = np.uint64(2**32 - 1) - values.view(np.uint32).astype(np.uint64)
  order = np.argsort(
    (coords.astype(np.uint64) << np.uint64(32)) | low, kind="stable"
  )
  coords, docs = coords[order], docs[order]
  if most is not None:
    counts = np.bincount(coords, minlength=rows.vocab)
    rank = np.arange(len(coords)) - np.repeat(
      np.cumsum(counts) - counts, counts
    )
    coords, docs = coords[rank < most], docs[rank < most]
  return coords, docs


def _coded(summaries, quantize):
  """(codes, least, step) of the entries, or values and no summary's."""
  starts, _, values = summaries
  num = len(starts) - 1
  least, step = np.zeros(num, np.float32), np.ones(num, np.float32)
  if not (quantize and num):
    return values, least, step
  least = values[starts[1:] - 1]
  step = (values[starts[:-1]] - least) / np.float32(255)
  block = np.repeat(np.arange(num), np.diff(starts))
  divisor = np.where(step > 0, step, 1)[block]
  codes = np.rint((values - least[block]) / divisor).astype(np.uint8)
  return codes, least, step


def _by_coordinate(summaries, codes, per_list, vocab, kind):
  """The summaries of each list by coordinate, then block; their buckets."""
  sizes = np.diff(summaries.starts)
  list_starts = np.concatenate([[0], np.cumsum(per_list)])
  numbers = np.arange(list_starts[-1]) - np.repeat(list_starts[:-1], per_list)
  starts = summaries.starts[list_starts]
  order = scipy.sparse.csr_array(
    (np.arange(starts[-1]), summaries.indices, starts), (vocab, vocab)
  )
  order = order.tocsc().tocsr().data  # Sorted and stable, in linear time.
  coords = summaries.indices[order]
  # As many buckets as keep their starts below the entries in size.
  bits = 0
  while arrays_lib.num_buckets(vocab, bits) * vocab * 4 > max(
    len(coords), 4 * vocab
  ):
    bits += 1
  num = arrays_lib.num_buckets(vocab, bits)
  bucket = np.repeat(np.arange(vocab) * num, np.diff(starts)) + (coords >> bits)
  counts = np.bincount(bucket, minlength=vocab * num)
  return {
    "bucket_starts": _int32(np.concatenate([[0], np.cumsum(counts)])),
    "entry_coords": jnp.asarray(coords.astype(kind)),
    "entry_blocks": jnp.asarray(np.repeat(numbers, sizes)[order].astype(kind)),
    "entry_codes": jnp.asarray(codes[order]),
    "bucket_bits": bits,
    "max_bucket": int(counts.max(initial=1)),
  }


def save(index: arrays_lib.SparseBlocks, path: files.PathLike) -> None:
  """Writes one .npz file, which appears whole or not at all."""
  arrays: dict[str, Any] = {
    field.name: np.asarray(getattr(index, field.name))
    for field in dataclasses.fields(index)
  }
  buffer = io.BytesIO()
  np.savez(buffer, format=np.str_(_FORMAT), **arrays)
  files.write(path, buffer.getvalue())


def load(path: files.PathLike) -> arrays_lib.SparseBlocks:
  """Reads what `save` wrote.

  Raises:
    FileNotFoundError: If there is no such file.
    ValueError: If it is another kind of file, or damaged.
  """
  arrays: dict[str, Any] = {}
  try:
    with np.load(path, allow_pickle=False) as file:
      if str(file["format"]) != _FORMAT:
        raise ValueError(f"its format is {file['format']!s}")
      for field in dataclasses.fields(arrays_lib.SparseBlocks):
        value = file[field.name]
        static = field.metadata.get("static", False)
        arrays[field.name] = int(value) if static else jnp.asarray(value)
  except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
    raise ValueError(
      f"{path} is not a whole file of format {_FORMAT!r} ({error}): build the "
      "index again and save it with indexes.sparse_blocks.save."
    ) from error
  return pages.on_huge_pages(arrays_lib.SparseBlocks(**arrays))
