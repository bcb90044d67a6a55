"""Logs of users and items: readers, k-core, and the order of time.

Nothing here knows a data framework. A `Log` holds one row an interaction; ids
are strings, rows hold integers that count users and items from 0.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

PathLike = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True)
class Log:
  """Interactions as read.

  Attributes:
    user_ids: Distinct, in order of first appearance.
    item_ids: Likewise.
    users: int32 `[num_rows]`, rows of user_ids.
    items: int32 `[num_rows]`, rows of item_ids.
    timestamps: int64 `[num_rows]` seconds, or None where only the order is
      known.
    item_texts: One an item; empty where there is none.
    metadata: Facts about the source.
  """

  user_ids: list[str]
  item_ids: list[str]
  users: np.ndarray
  items: np.ndarray
  timestamps: np.ndarray | None
  item_texts: list[str]
  metadata: dict[str, Any] = dataclasses.field(default_factory=dict)

  def with_texts(self, texts: Mapping[str, str]) -> Log:
    """The log with the items' texts; empty for ids that texts lack."""
    return dataclasses.replace(
      self, item_texts=[texts.get(item, "") for item in self.item_ids]
    )


class _Coder(dict):
  """Numbers ids in order of first appearance."""

  def __missing__(self, key: str) -> int:
    self[key] = len(self)
    return self[key]


def _log(users, items, rows, timestamps) -> Log:
  user_rows, item_rows = rows
  if not users:
    raise ValueError("the log is empty: expected at least one interaction")
  return Log(
    list(users),
    list(items),
    np.array(user_rows, np.int32),
    np.array(item_rows, np.int32),
    None if timestamps is None else np.array(timestamps, np.int64),
    [""] * len(items),
  )


def lines(path: PathLike, encoding: str = "utf-8") -> Iterator[tuple[int, str]]:
  """Yields (line number from 1, line without its end); skips empty lines."""
  with open(path, encoding=encoding, newline=None) as rows:
    for number, row in enumerate(rows, start=1):
      row = row.rstrip("\n")
      if row.strip():
        yield number, row


def read_ratings(path: PathLike, *, separator: str, header: bool) -> Log:
  """Reads `user, item, rating, timestamp` rows; the rating is not kept.

  Every rating is an interaction, whatever its value.

  Raises:
    ValueError: A row has not four columns, an empty id, or a time that is no
      whole number; file and line are named.
  """
  users, items = _Coder(), _Coder()
  user_rows, item_rows, times = array("i"), array("i"), array("q")
  for number, line in lines(path):
    if header and number == 1:
      continue
    try:
      user, item, _, time = line.split(separator)
      if not user.strip() or not item.strip():
        raise ValueError
      times.append(int(time))
    except ValueError:
      raise ValueError(
        f"{path}, line {number}: expected user, item, rating and whole seconds,"
        f" separated by {separator!r}; got {line!r}"
      ) from None
    user_rows.append(users[user])
    item_rows.append(items[item])
  return _log(users, items, (user_rows, item_rows), times)


def read_sequences(path: PathLike) -> Log:
  """Reads `user item item ...` lines, oldest item first, without times.

  Raises:
    ValueError: A line has no item, or repeats a user; file and line are named.
  """
  users, items = _Coder(), _Coder()
  user_rows, item_rows = array("i"), array("i")
  for number, line in lines(path):
    user, *row = line.split()
    if not row or user in users:
      fault = "repeats" if user in users else "has no item"
      raise ValueError(f"{path}, line {number}: user {user!r} {fault}")
    user_rows.extend([users[user]] * len(row))
    item_rows.extend(items[item] for item in row)
  return _log(users, items, (user_rows, item_rows), None)


def k_core(log: Log, k: int) -> Log:
  """The largest part where each user and each item has k interactions.

  >>> users, items = np.int32([0, 0, 1, 1, 2]), np.int32([0, 1, 0, 1, 1])
  >>> log = Log(list("abc"), list("xy"), users, items, None, ["", ""])
  >>> k_core(log, 2).user_ids
  ['a', 'b']
  """
  keep = np.ones(len(log.users), bool)
  while True:
    enough = keep.copy()
    for column in (log.users, log.items):
      counts = np.bincount(column[keep], minlength=int(column.max()) + 1)
      enough &= counts[column] >= k
    if (enough == keep).all():
      break
    keep = enough
  if not keep.any():
    raise ValueError(f"no user and item have {k} interactions each: lower k")
  users, user_rows = np.unique(log.users[keep], return_inverse=True)
  items, item_rows = np.unique(log.items[keep], return_inverse=True)
  times = log.timestamps
  return Log(
    [log.user_ids[row] for row in users],
    [log.item_ids[row] for row in items],
    user_rows.astype(np.int32),
    item_rows.astype(np.int32),
    None if times is None else times[keep],
    [log.item_texts[row] for row in items],
    log.metadata | {"k_core": k, "outside_k_core": int((~keep).sum())},
  )


def chronological(log: Log) -> Log:
  """Rows by user, then time, then the order of the file (a stable sort).

  Ties are common: 44 % of the users of MovieLens 100K share their last
  timestamp, so what "the last item" is depends on the rule.
  """
  times = log.timestamps
  keys = (log.users,) if times is None else (times, log.users)
  order = np.lexsort(keys)  # Stable; the last key is the first.
  return dataclasses.replace(
    log,
    users=log.users[order],
    items=log.items[order],
    timestamps=None if times is None else times[order],
  )


def read_titles(
  path: PathLike, *, separator: str, header: bool, encoding: str = "utf-8"
) -> dict[str, str]:
  """Reads `item, title, genres` rows as {item: "title (genres)"}.

  A title may hold the separator, between quotes or not.
  """
  texts = {}
  for number, line in lines(path, encoding):
    if header and number == 1:
      continue
    try:
      item, rest = line.split(separator, 1)
      title, genres = rest.rsplit(separator, 1)
    except ValueError:
      raise ValueError(
        f"{pathlib.Path(path)}, line {number}: expected item, title and genres,"
        f" separated by {separator!r}; got {line!r}"
      ) from None
    title = title.strip().strip('"').replace('""', '"')
    texts[item] = f"{title} [{genres.replace('|', ', ')}]"
  return texts
