"""Sparse document vectors, as they enter the program: CSR, lists or JSONL.

The reader takes what SPLADE encoders write, a JSON object a line, with the
vector as `{"token or number": weight}`.
"""

from __future__ import annotations

import json
import logging
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from nnn_jax import files, types

_LOG = logging.getLogger(__name__)
_LARGEST = float(np.finfo(np.float16).max)


class SparseRows(NamedTuple):
  """Checked rows on the host, coordinates ascending and distinct in each.

  Attributes:
    starts: `[num_docs + 1]` int64; row i is starts[i] to starts[i + 1].
    indices: `[num_entries]` int32.
    values: `[num_entries]` float32, positive.
    vocab: Number of coordinates.
  """

  starts: np.ndarray
  indices: np.ndarray
  values: np.ndarray
  vocab: int

  @property
  def num_docs(self) -> int:
    """Rows, empty ones too."""
    return len(self.starts) - 1


def from_arrays(
  starts: types.Array, indices: types.Array, values: types.Array, vocab: int
) -> SparseRows:
  """Checks ragged rows; sorts each, and drops zeros. An empty row stays.

  Raises:
    ValueError: If lengths do not fit, a coordinate is out of range or twice in
      a row, or a value is negative, NaN or above float16; the row is named.

  >>> from_arrays([0, 2, 2], [3, 1], [1.0, 2.0], 4).indices.tolist()
  [1, 3]
  """
  starts = np.asarray(starts, np.int64)
  indices, values = np.asarray(indices), np.asarray(values, np.float32)
  if starts.ndim != 1 or len(starts) < 2:
    raise ValueError("corpus is empty: it has no rows.")
  if indices.ndim != 1 or indices.shape != values.shape:
    raise ValueError(
      f"indices and values must have one length, got shapes {indices.shape} "
      f"and {values.shape}."
    )
  if starts[0] or starts[-1] != len(indices) or (np.diff(starts) < 0).any():
    raise ValueError(
      f"starts must ascend from 0 to {len(indices)}, the number of entries."
    )
  rows = np.repeat(np.arange(len(starts) - 1), np.diff(starts))

  def check(bad: np.ndarray, what: str) -> None:
    if bad.any():
      at = int(np.argmax(bad))
      raise ValueError(
        f"corpus row {rows[at]} {what} (coordinate {indices[at]}, value "
        f"{values[at]}; {int(bad.sum())} such entries)."
      )

  check(
    (indices < 0) | (indices >= vocab), f"has a coordinate not in [0, {vocab})"
  )
  check(~np.isfinite(values), "holds NaN or infinity")
  check(values < 0, "holds a negative weight: the index needs weights >= 0")
  check(values > _LARGEST, f"holds a weight above {_LARGEST:g}: scale it down")
  kept = values > 0
  rows, indices, values = rows[kept], indices[kept], values[kept]
  key = rows * vocab + indices.astype(np.int64)
  if (np.diff(key) < 0).any():
    order = np.argsort(key, kind="stable")
    key, indices, values = key[order], indices[order], values[order]
  again = np.concatenate([np.zeros(1, bool), key[1:] == key[:-1]])[: len(key)]
  check(again, "lists a coordinate twice: sum or drop one")
  counts = np.bincount(rows, minlength=len(starts) - 1)
  starts = np.concatenate([[0], np.cumsum(counts)])
  return SparseRows(starts, indices.astype(np.int32), values, int(vocab))


def from_csr(matrix: Any) -> SparseRows:
  """Checks a scipy CSR matrix or array; see `from_arrays`."""
  return from_arrays(
    matrix.indptr, matrix.indices, matrix.data, matrix.shape[1]
  )


def from_lists(
  indices: Sequence[Any], values: Sequence[Any], vocab: int
) -> SparseRows:
  """Checks a list of rows; see `from_arrays`.

  >>> from_lists([[0], []], [[1.0], []], 2).starts.tolist()
  [0, 1, 1]
  """
  if len(indices) != len(values):
    raise ValueError(
      f"indices has {len(indices)} rows and values {len(values)}."
    )
  for row, (i, v) in enumerate(zip(indices, values, strict=True)):
    if len(i) != len(v):
      raise ValueError(
        f"corpus row {row} has {len(i)} coordinates and {len(v)} values."
      )
  starts = np.cumsum([0, *map(len, indices)])
  if starts[-1] == 0:
    return from_arrays(starts, np.zeros(0, int), np.zeros(0), vocab)
  return from_arrays(
    starts, np.concatenate(indices), np.concatenate(values), vocab
  )


def from_padded(
  indices: types.Array, values: types.Array, *, vocab: int
) -> SparseRows:
  """Checks rows `[num_docs, width]`, -1 where fewer; see `from_arrays`.

  >>> from_padded([[2, -1]], [[1.5, 0.0]], vocab=3).values.tolist()
  [1.5]
  """
  indices, values = np.asarray(indices), np.asarray(values)
  if indices.ndim != 2 or indices.shape != values.shape:
    raise ValueError(
      "indices and values must both be [num_docs, width], got shapes "
      f"{indices.shape} and {values.shape}."
    )
  used = indices != -1
  starts = np.concatenate([[0], np.cumsum(used.sum(axis=1))])
  return from_arrays(starts, indices[used], values[used], vocab)


def read_jsonl(
  path: files.PathLike,
  *,
  vocab: int | None = None,
  tokens: Mapping[str, int] | None = None,
  queries: bool = False,
) -> tuple[list[str], SparseRows]:
  """Reads (ids, rows) of a file of SPLADE vectors.

  Args:
    path: JSON lines: {"id": ..., "vector": {"17": 0.5, ...}}.
    vocab: Number of coordinates; None is the largest plus one.
    tokens: Coordinate of each token, where the vector's keys are tokens.
    queries: Leaves out what no document has, tokens that are not in `tokens`
      and numbers that are not below `vocab`; one line in the log counts them.

  Raises:
    ValueError: As `from_arrays`, or for a line that is no such object (named),
      or an id that is there twice.
  """
  ids: list[str] = []
  indices, values, skipped = [], [], 0

  def is_known(key):
    if tokens is not None:
      return key in tokens
    return vocab is None or int(key) < vocab

  with pathlib.Path(path).open(encoding="utf-8") as lines:
    for number, line in enumerate(lines, 1):
      try:
        record = json.loads(line)
        vector = record["vector"]
        ids.append(str(record["id"]))
        if queries:
          known = {t: v for t, v in vector.items() if is_known(t)}
          skipped += len(vector) - len(known)
          vector = known
        indices.append(
          [int(t if tokens is None else tokens[t]) for t in vector]
        )
        values.append([float(value) for value in vector.values()])
      except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
          f'{path} line {number} is not {{"id": ..., "vector": {{...}}}} with '
          f"known coordinates ({error!r})."
        ) from error
  if skipped:
    _LOG.warning("%s: %d entries that no document has, skipped", path, skipped)
  if len(set(ids)) != len(ids):
    twice = next(i for at, i in enumerate(ids) if i in ids[:at])
    raise ValueError(
      f"{path} has the id {twice!r} twice: ids must be distinct."
    )
  if vocab is None:
    vocab = 1 + max((max(row) for row in indices if row), default=0)
  return ids, from_lists(indices, values, vocab)
