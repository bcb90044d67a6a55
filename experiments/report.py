"""Writes results: TREC run and qrels files, Markdown tables, JSON.

Every writer is atomic: a reader, or a run that is killed, sees the old file or
the new one and never half of one.

TREC files separate columns by white space, and ids may hold some (LIMIT's are
names of persons), so ids are percent-encoded: see `encode_id`. Tools that read
these files see encoded ids; `urllib.parse.unquote` gives the original back.
"""

from __future__ import annotations

import csv
import io
import json
import numbers
import os
import string
import urllib.parse
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nnn_jax import files

# All that is printed as one ASCII character, but "%", which marks an escape.
_SAFE = string.punctuation.replace("%", "")


def encode_id(name: object) -> str:
  """Percent-encodes an id for a TREC file, reversibly.

  ASCII letters, digits and punctuation are kept; white space, control
  characters, "%" and everything beyond ASCII are escaped (UTF-8).

  Raises:
    ValueError: if the id is empty: the file would lose a column.

  >>> encode_id("numpy.linalg.norm"), encode_id("Ada Lovelace")
  ('numpy.linalg.norm', 'Ada%20Lovelace')
  """
  text = str(name)
  if not text:
    raise ValueError("an id is empty; TREC files need one on every line")
  return urllib.parse.quote(text, safe=_SAFE)


def write_run(
  path: files.PathLike,
  query_ids: Sequence[object],
  doc_ids: Sequence[object],
  indices: npt.ArrayLike,
  *,
  tag: str,
) -> None:
  """Writes rankings as a TREC run, `query Q0 document rank score tag`.

  The score column is num_retrieved - rank, with ranks from 0, and not the
  decoder's score: tools sort by score and break ties their own way, while
  decoders break ties by row and MMR scores are not monotone in rank. So every
  tool keeps the decoder's order. (The rank column counts from 1, as is usual.)

  Args:
    path: where to write; folders are made.
    query_ids: `[num_queries]` distinct ids.
    doc_ids: `[num_docs]` distinct ids.
    indices: `[num_queries, num_retrieved]` integer rows of `doc_ids`, best
      first; -1 (missing) is not written.
    tag: name of the run.

  Raises:
    ValueError: if ids are empty or repeated, or `indices` does not fit them.
  """
  queries = _encode_ids("query_ids", query_ids)
  docs = _encode_ids("doc_ids", doc_ids)
  rows = np.asarray(indices)
  if rows.ndim != 2 or not np.issubdtype(rows.dtype, np.integer):
    raise ValueError(
      "indices must be an integer array [num_queries, num_retrieved], got "
      f"shape {rows.shape} and dtype {rows.dtype}"
    )
  _check_rows("indices", rows, "query_ids", len(queries))
  if rows.size and not -1 <= rows.min() <= rows.max() < len(docs):
    raise ValueError(
      f"indices reach from {rows.min()} to {rows.max()}, but there are "
      f"{len(docs)} doc_ids (-1 is a missing place)"
    )
  num_retrieved, tag = rows.shape[1], encode_id(tag)

  def lines() -> Iterator[str]:
    for query, ranking in zip(queries, rows.tolist(), strict=True):
      for rank, row in enumerate(ranking):
        if row >= 0:
          score = num_retrieved - rank
          yield f"{query} Q0 {docs[row]} {rank + 1} {score} {tag}\n"

  _write_lines(path, lines())


def write_qrels(
  path: files.PathLike,
  query_ids: Sequence[object],
  doc_ids: Sequence[object],
  relevant: npt.ArrayLike,
) -> None:
  """Writes relevance as TREC qrels, `query 0 document grade`.

  Only grades above 0 are written, so a query without relevant documents is
  absent, and tools leave it out of their means.

  Args:
    path: where to write; folders are made.
    query_ids: `[num_queries]` distinct ids.
    doc_ids: `[num_docs]` distinct ids.
    relevant: `[num_queries, num_docs]` bool, or whole grades >= 0.

  Raises:
    ValueError: if ids are empty or repeated, or `relevant` does not fit them
      or holds a grade that is no whole number.
  """
  queries = _encode_ids("query_ids", query_ids)
  docs = _encode_ids("doc_ids", doc_ids)
  given = np.asarray(relevant)
  if given.ndim != 2 or given.shape[1] != len(docs):
    raise ValueError(
      f"relevant has shape {given.shape}, but there are {len(queries)} "
      f"query_ids and {len(docs)} doc_ids"
    )
  _check_rows("relevant", given, "query_ids", len(queries))
  grades = given.astype(np.int64)
  if (grades != given).any() or (grades < 0).any():
    raise ValueError(
      "relevant must hold whole grades >= 0: qrels have no other"
    )
  places = zip(*(axis.tolist() for axis in np.nonzero(grades)), strict=True)
  _write_lines(
    path, (f"{queries[i]} 0 {docs[j]} {grades[i, j]}\n" for i, j in places)
  )


def markdown_table(
  rows: Sequence[Mapping[str, Any]],
  columns: Sequence[str],
  *,
  digits: int = 3,
) -> str:
  """A Markdown table, columns padded so that the text reads as one too.

  Args:
    rows: one mapping a row; a column that is absent or None is left empty.
    columns: keys, in order; they are the header.
    digits: decimals of floats; other values print as they are.

  Returns:
    The table, ending in a newline. Columns of numbers are aligned right.

  Raises:
    ValueError: if there are no columns.

  >>> rows = [{"decoder": "dense", "comp@5": 0.5}, {"decoder": "nnn"}]
  >>> print(markdown_table(rows, ["decoder", "comp@5"]), end="")
  | decoder | comp@5 |
  | ------- | -----: |
  | dense   |  0.500 |
  | nnn     |        |
  """
  if not columns:
    raise ValueError("columns is empty; name at least one key of the rows")
  header = [_escape(str(c)) for c in columns]
  cells = [[_cell(row.get(c), digits) for c in columns] for row in rows]
  widths = [
    max(3, *(len(text) for text in texts))
    for texts in zip(header, *cells, strict=True)
  ]
  right = []
  for column in columns:
    values = [row[column] for row in rows if row.get(column) is not None]
    right.append(bool(values) and all(_is_number(v) for v in values))

  def line(texts: Iterable[str]) -> str:
    padded = (
      text.rjust(width) if to_right else text.ljust(width)
      for text, width, to_right in zip(texts, widths, right, strict=True)
    )
    return "| " + " | ".join(padded) + " |\n"

  rule = [
    "-" * (width - 1) + ":" if to_right else "-" * width
    for width, to_right in zip(widths, right, strict=True)
  ]
  return line(header) + line(rule) + "".join(line(row) for row in cells)


def mean_and_spread(values: Sequence[float], digits: int = 1) -> str:
  """The mean, and the standard deviation if there are several.

  >>> mean_and_spread([1.0, 3.0]), mean_and_spread([2.0])
  ('2.0 +- 1.4', '2.0')
  """
  mean = f"{np.mean(values):.{digits}f}"
  if len(values) < 2:
    return mean
  return f"{mean} +- {np.std(values, ddof=1):.{digits}f}"


def write_json(path: files.PathLike, obj: Any) -> None:
  """Writes JSON: numpy and JAX scalars and arrays, paths, named tuples.

  Named tuples become objects; arrays become lists. Keys keep their order.

  Raises:
    ValueError: if a number is NaN or infinite, which JSON cannot hold and no
      result should be. The file is left as it was.
    TypeError: if a value has no JSON form.
  """
  text = json.dumps(_plain(obj), indent=2, allow_nan=False, ensure_ascii=False)
  files.write(path, (text + "\n").encode())


def write_csv(path: files.PathLike, rows: Sequence[Mapping[str, Any]]) -> None:
  """Writes rows under the first one's columns; None is an empty cell."""
  text = io.StringIO()
  writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
  writer.writeheader()
  writer.writerows(rows)
  files.write(path, text.getvalue())


def write_npy(path: files.PathLike, array: npt.ArrayLike) -> None:
  """Writes one array in numpy's own format, atomically."""
  buffer = io.BytesIO()
  np.save(buffer, np.asarray(array))
  files.write(path, buffer.getvalue())


def write_npz(
  path: files.PathLike, arrays: Mapping[str, npt.ArrayLike]
) -> None:
  """Writes named arrays in numpy's own format, atomically."""
  buffer = io.BytesIO()
  with zipfile.ZipFile(buffer, "w") as archive:
    for name, array in arrays.items():
      with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
  files.write(path, buffer.getvalue())


def _write_lines(path: files.PathLike, lines: Iterable[str]) -> None:
  files.write(path, "".join(lines).encode("ascii"))


def _encode_ids(name: str, ids: Sequence[object]) -> list[str]:
  encoded: dict[str, int] = {}
  for row, one in enumerate(ids):
    if not str(one):
      raise ValueError(f"{name}[{row}] is empty")
    first = encoded.setdefault(encode_id(one), row)
    if first != row:
      raise ValueError(f"{name}[{row}] repeats {name}[{first}]: {str(one)!r}")
  return list(encoded)


def _check_rows(name: str, array: np.ndarray, ids: str, num_ids: int) -> None:
  if array.shape[0] != num_ids:
    raise ValueError(
      f"{name} has shape {array.shape}, but there are {num_ids} {ids}"
    )


def _is_number(value: Any) -> bool:
  value = _plain(value)
  return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _escape(text: str) -> str:
  return " ".join(text.replace("|", "\\|").split())


def _cell(value: Any, digits: int) -> str:
  value = _plain(value)
  if value is None:
    return ""
  if isinstance(value, float):
    return f"{value:.{digits}f}"
  return _escape(str(value))


def _plain(obj: Any) -> Any:
  """Python's own types for all that JSON can hold."""
  if isinstance(obj, Mapping):
    return {_plain(key): _plain(value) for key, value in obj.items()}
  if isinstance(obj, tuple) and hasattr(obj, "_asdict"):
    return _plain(obj._asdict())
  if isinstance(obj, (list, tuple)):
    return [_plain(value) for value in obj]
  if isinstance(obj, os.PathLike):
    return os.fspath(obj)
  if hasattr(obj, "tolist"):  # numpy and JAX arrays, scalars included.
    return np.asarray(obj).tolist()
  return obj
