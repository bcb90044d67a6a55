"""K-means on the host: which cluster each row belongs to.

  argmin over labels, centres of  sum_j ||row_j - centre_label(j)||^2

by Lloyd's alternation, a block of rows at a time, and then by halving what is
too large, so that no cluster exceeds a given size.

Reference: Lloyd (1982), Least squares quantization in PCM.
"""

from __future__ import annotations

import contextlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from nnn_jax.core import linalg

# Entries of one block's distances: 64 MB in float32.
_BLOCK_ENTRIES = 2**24
_SPLIT_STEPS = 4
# A split whose smaller part has less than this share is made at the median.
_MIN_SHARE = 1 / 8
# What is small enough is halved too if the parts have at least so many rows and
# one has at most this share of the radius: there were two groups in it.
_MIN_PART = 16
_MAX_RADIUS_SHARE = 0.5


def lloyd(
  rows: jax.Array,
  *,
  num_clusters: int,
  num_steps: int,
  seed: int,
  progress: bool = False,
) -> np.ndarray:
  """Labels `[num_rows]` in [0, num_clusters); the same for the same seed.

  Starts from distinct random rows; a cluster that loses all rows starts again
  from the row that is farthest from its centre. Memory beside the rows: a block
  of distances and the centres.

  Args:
    rows: `[num_rows, dim]`.
    num_clusters: At most num_rows.
    num_steps: Assignments at most; fewer if none changes a label.
    seed: Of the first centres.
    progress: Show a bar, if tqdm is installed.

  >>> rows = jnp.asarray([[0.0, 1.0], [5.0, 5.0], [0.0, 1.1], [5.0, 5.1]])
  >>> a, b, c, d = lloyd(rows, num_clusters=2, num_steps=5, seed=0)
  >>> bool(a == c != b == d)
  True
  """
  num_rows, dim = rows.shape
  block = min(num_rows, max(1, _BLOCK_ENTRIES // num_clusters))
  starts = range(0, num_rows, block)
  first = np.random.default_rng(seed).choice(
    num_rows, num_clusters, replace=False
  )
  centres = np.asarray(linalg.rows(rows, first))
  labels = np.full(num_rows, -1)
  distances = np.zeros(num_rows, centres.dtype)
  with _bar(num_steps * len(starts), progress) as bar:
    for _ in range(num_steps):
      before = labels.copy()
      sums, counts = np.zeros((num_clusters, dim)), np.zeros(num_clusters)
      for start in starts:
        at = min(start, num_rows - block)  # One shape for every block.
        some = _assign(rows, at, start, centres, block=block)
        labels[at : at + block], distances[at : at + block] = some[:2]
        sums += np.asarray(some[2])
        counts += np.asarray(some[3])
        bar.update()
      if (labels == before).all():
        break
      centres = (sums / np.maximum(counts, 1)[:, None]).astype(centres.dtype)
      empty = np.flatnonzero(counts == 0)
      far = np.argsort(-distances, kind="stable")[: empty.size]
      centres[empty] = np.asarray(linalg.rows(rows, far))
  return labels


@partial(jax.jit, static_argnames="block")
def _assign(rows, at, start, centres, *, block):
  """Labels, squared distances, sums and counts of rows[at : at + block].

  Rows before `start` are in an earlier block's sums.
  """
  some = jax.lax.dynamic_slice_in_dim(rows, at, block)
  some = some.astype(centres.dtype)
  half = 0.5 * jnp.sum(centres**2, axis=1)
  closeness = linalg.matmul(some, centres.T) - half[None, :]
  labels = jnp.argmax(closeness, axis=1)
  distances = jnp.sum(some**2, axis=1) - 2.0 * jnp.max(closeness, axis=1)
  new = (at + jnp.arange(block) >= start).astype(some.dtype)
  num_clusters = centres.shape[0]
  sums = jax.ops.segment_sum(some * new[:, None], labels, num_clusters)
  return labels, distances, sums, jax.ops.segment_sum(new, labels, num_clusters)


def split(rows: np.ndarray, *, max_size: int) -> list[np.ndarray]:
  """Parts the rows into clusters of at most max_size, by halving.

  Also what is small enough, where that tells two groups apart.

  Args:
    rows: `[num_rows, dim]`.
    max_size: >= 1.

  Returns:
    The row numbers of each part, ascending.

  >>> [p.tolist() for p in split(np.float32([[0], [9], [1], [8]]), max_size=2)]
  [[0, 2], [1, 3]]
  """
  parts, pending = [], [np.arange(len(rows))]
  while pending:
    part = pending.pop()
    if part.size <= max(1, min(max_size, 2 * _MIN_PART - 1)):
      parts.append(part)
      continue
    side = _halve(rows[part])
    halves = [part[~side], part[side]]
    if part.size > max_size or _tighter(rows, part, halves):
      pending += halves
    else:
      parts.append(part)
  return parts


def _tighter(
  rows: np.ndarray, part: np.ndarray, halves: list[np.ndarray]
) -> bool:
  """Whether a half is a group of its own."""
  if min(half.size for half in halves) < _MIN_PART:
    return False
  least = min(_radius(rows[half]) for half in halves)
  return least < _MAX_RADIUS_SHARE * _radius(rows[part])


def _radius(rows: np.ndarray) -> float:
  return float(np.sqrt(_square(rows - rows.mean(axis=0)).max()))


def _halve(rows: np.ndarray) -> np.ndarray:
  """Two-means from two far rows: which rows are on the first one's side."""
  first = rows[np.argmax(_square(rows - rows.mean(axis=0)))]
  second = rows[np.argmax(_square(rows - first))]
  for _ in range(_SPLIT_STEPS):
    along = rows @ (first - second)
    side = 2 * along > (first + second) @ (first - second)
    if side.all() or not side.any():
      break
    first, second = rows[side].mean(axis=0), rows[~side].mean(axis=0)
  if min(side.mean(), 1 - side.mean()) < _MIN_SHARE:
    # One row at a time would take for ever, duplicates would never part.
    side[:] = False
    side[np.argsort(along, kind="stable")[len(rows) // 2 :]] = True
  return side


def _square(rows: np.ndarray) -> np.ndarray:
  return np.einsum("nd,nd->n", rows, rows)


class _NoBar:
  def update(self) -> None:
    """Shows nothing."""


def _bar(total: int, progress: bool):
  """A progress bar; tqdm is not among what the core needs."""
  if progress:
    with contextlib.suppress(ImportError):
      import tqdm

      return tqdm.tqdm(total=total, desc="k-means", unit="block")
  return contextlib.nullcontext(_NoBar())
