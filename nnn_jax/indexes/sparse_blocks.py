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
from nnn_jax.indexes import sparse

_FORMAT = "nnn_jax sparse blocks 1"
# Document entries that summaries are made of at a time: bounds the memory.
_CHUNK_ENTRIES = 4_000_000


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
  quantize: bool = True
  dtype: Any = np.float16
  seed: int = 0

  def __post_init__(self):
    if self.prune not in ("paper", "global"):
      raise ValueError(f'prune must be "paper" or "global", got {self.prune}.')
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
  padded = _pad(rows.starts, rows.indices, rows.values, fill=rows.vocab)
  matrix = scipy.sparse.csr_array(
    (rows.values, rows.indices, rows.starts), (rows.num_docs, rows.vocab)
  )
  coords, docs = _prune(rows, config)
  rng = np.random.default_rng(config.seed)
  postings, sizes, per_list = [], [], np.zeros(rows.vocab, np.int64)
  ends = np.cumsum(np.bincount(coords, minlength=rows.vocab))
  for coord in np.unique(coords):
    start = ends[coord - 1] if coord else 0
    members = docs[start : ends[coord]]
    count = max(1, int(config.centroid_fraction * len(members)))
    labels = _assign(members, count, matrix, rng, config)
    order = np.argsort(labels, kind="stable")
    filled = np.bincount(labels)
    filled = filled[filled > 0]
    postings.append(members[order])
    sizes.append(filled)
    per_list[coord] = len(filled)
  flat = np.concatenate(postings) if postings else np.zeros(0, np.int32)
  counts = np.concatenate(sizes) if sizes else np.zeros(0, np.int64)
  block_starts = np.concatenate([[0], np.cumsum(counts)])
  summary = _summaries(rows, flat, block_starts, config)
  return arrays_lib.SparseBlocks(
    indices=jnp.asarray(padded[0]),
    values=jnp.asarray(padded[1].astype(config.dtype)),
    list_starts=_int32(np.concatenate([[0], np.cumsum(per_list)])),
    block_starts=_int32(block_starts),
    postings=_int32(flat),
    **summary,
    vocab=rows.vocab,
    max_blocks=int(per_list.max(initial=1)),
    max_size=int(counts.max(initial=1)),
  )


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


def _pad(starts, indices, values, *, fill):
  """Ragged rows as `[rows, width]` of both, at least one wide."""
  counts = np.diff(starts)
  shape = len(counts), max(1, int(counts.max(initial=1)))
  inside = np.arange(shape[1]) < counts[:, None]
  padded = np.full(shape, fill, np.int32), np.zeros(shape, values.dtype)
  padded[0][inside], padded[1][inside] = indices, values
  return padded


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


def _assign(members, count, matrix, rng, config):
  """The block of each document of a list."""
  if count == 1:
    return np.zeros(len(members), np.int64)
  centres = members[np.sort(rng.choice(len(members), count, replace=False))]
  products = (matrix[members] @ matrix[centres].T).toarray()
  labels = products.argmax(axis=1)
  sizes = np.bincount(labels, minlength=count)
  small = sizes <= config.min_cluster_size
  if small.any() and not small.all():
    moved = small[labels]
    labels[moved] = np.where(small, -np.inf, products[moved]).argmax(axis=1)
  return labels


def _summaries(rows, postings, block_starts, config):
  """The summary arrays, made for some blocks at a time."""
  counts = np.diff(rows.starts)
  entries = np.concatenate([[0], np.cumsum(counts[postings])])[block_starts]
  lengths, kept_indices, kept_values = [], [], []
  first, num_blocks = 0, len(block_starts) - 1
  while first < num_blocks:
    last = np.searchsorted(entries, entries[first] + _CHUNK_ENTRIES, "right")
    last = min(max(int(last) - 1, first + 1), num_blocks)
    docs = postings[block_starts[first] : block_starts[last]]
    sizes = np.diff(block_starts[first : last + 1])
    at = np.repeat(
      rows.starts[docs] - np.cumsum(counts[docs]) + counts[docs], counts[docs]
    ) + np.arange(counts[docs].sum())
    ends = np.cumsum(counts[docs])[np.cumsum(sizes) - 1]
    entries_of = scipy.sparse.csr_array(
      (rows.values[at], rows.indices[at], np.r_[0, ends]),
      (last - first, rows.vocab),
    )
    entries_of = entries_of.tocsc().tocsr()  # Sorted, in linear time.
    blocks = np.repeat(np.arange(last - first), np.diff(entries_of.indptr))
    key = blocks * np.int64(rows.vocab) + entries_of.indices
    values = entries_of.data
    new = np.flatnonzero(np.r_[True, key[1:] != key[:-1]])
    values, key = np.maximum.reduceat(values, new), key[new]
    blocks = key // rows.vocab
    order = np.lexsort((-values, blocks))  # Stable: ties by coordinate.
    values, key = values[order].astype(np.float64), key[order]
    blocks = blocks[order]
    mass = np.cumsum(values) - values  # Of what precedes, over all blocks.
    start = np.searchsorted(blocks, np.arange(last - first))
    total = np.add.reduceat(values, start)
    kept = mass - mass[start][blocks] < config.alpha * total[blocks]
    if config.alpha == 1:
      kept[:] = True  # Rounding of the sums would drop the last.
    lengths.append(np.bincount(blocks[kept], minlength=last - first))
    kept_indices.append((key[kept] % rows.vocab).astype(np.int32))
    kept_values.append(values[kept].astype(np.float32))
    first = last
  join = lambda x, dtype: np.concatenate([np.zeros(0, dtype), *x])  # noqa: E731
  starts = np.concatenate([[0], np.cumsum(join(lengths, np.int64))])
  indices, values = join(kept_indices, np.int32), join(kept_values, np.float32)
  least, step = (
    np.zeros(num_blocks, np.float32),
    np.ones(num_blocks, np.float32),
  )
  if config.quantize and num_blocks:
    starts = starts.astype(np.int64)
    least = np.minimum.reduceat(values, starts[:-1])
    step = (np.maximum.reduceat(values, starts[:-1]) - least) / np.float32(255)
    block = np.repeat(np.arange(num_blocks), np.diff(starts))
    divisor = np.where(step > 0, step, 1)[block]
    values = np.rint((values - least[block]) / divisor).astype(np.uint8)
  indices, values = _pad(starts, indices, values, fill=rows.vocab)
  return {
    "summary_indices": jnp.asarray(indices),
    "summary_codes": jnp.asarray(values),
    "summary_least": jnp.asarray(least),
    "summary_step": jnp.asarray(step),
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
  return arrays_lib.SparseBlocks(**arrays)
