"""Sequence data sets in memory, their splits, and shuffled training batches.

  dataset = load("movielens/latest_small", manual_dir=...)
  train = leave_one_out(dataset, "train")
  batches = train_batches(train, length=50, batch_size=128, seed=0)
  batches[step]  # {"query": users [batch], "ids": [batch, 51], "timestamps"}

Items have ids 1 to num_items; 0 is padding, which is always on the right.
Of a user's items s_1 .. s_n, oldest first,

  test        s_n       after s_1 .. s_{n-1}
  validation  s_{n-1}   after s_1 .. s_{n-2}
  train       s_1 .. s_{n-2}, each item after those before it
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Literal, get_args

import grain
import numpy as np

from nnn_jax.data import pipeline

NAMES = (
  "synthetic_interests",
  "movielens/latest_small",
  "movielens/1m",
  "movielens/20m",
  "amazon/beauty",
  "amazon/sports",
  "amazon/toys",
  "amazon/books",
)
Split = Literal["train", "validation", "test"]
# How many of a user's last items are for validation and test.
_HELD_OUT = 2
_SHORTEST = _HELD_OUT + 1


@dataclasses.dataclass(frozen=True)
class SequenceDataset:
  """Users and what they chose, in order of time.

  Attributes:
    name: Of the data set.
    item_ids: External ids; the item with id n is `item_ids[n - 1]`.
    item_texts: One an item; may be empty.
    user_ids: External ids.
    items: int32 ids, one array a user, oldest first.
    timestamps: int64 seconds, like items; None where only the order is known.
    metadata: Of the builder.
  """

  name: str
  item_ids: list[str]
  item_texts: list[str]
  user_ids: list[str]
  items: list[np.ndarray]
  timestamps: list[np.ndarray] | None
  metadata: dict[str, Any]

  def __post_init__(self) -> None:
    for name, ids in (("item", self.item_ids), ("user", self.user_ids)):
      if len(set(ids)) < len(ids) or not all(ids):
        row = next(n for n, i in enumerate(ids) if not i or ids.index(i) < n)
        raise ValueError(
          f"{self.name}: {name} row {row}: id {ids[row]!r} is empty or repeats"
        )
    for user, items in zip(self.user_ids, self.items, strict=True):
      if len(items) and not 1 <= items.min() <= items.max() <= self.num_items:
        raise ValueError(
          f"{self.name}: user {user!r}: item ids must be 1 to "
          f"{self.num_items}; 0 is padding"
        )

  @property
  def num_items(self) -> int:
    """How many items there are; the largest id."""
    return len(self.item_ids)


@dataclasses.dataclass(frozen=True)
class Histories:
  """One split.

  Attributes:
    users: int32 `[num]`, rows of the data set's users.
    items: What comes before the target, one array a user, oldest first (train:
      all items that are trained on).
    timestamps: Likewise; None where only the order is known.
    targets: int32 `[num]`, the held-out item (train: 0).
    requested: int64 `[num]`, when it was chosen, or None.
    num_items: Of the data set.
  """

  users: np.ndarray
  items: list[np.ndarray]
  timestamps: list[np.ndarray] | None
  targets: np.ndarray
  requested: np.ndarray | None
  num_items: int

  def __len__(self) -> int:
    return len(self.users)

  def take(self, rows: np.ndarray) -> Histories:
    """The histories of some rows."""
    times = self.timestamps
    return Histories(
      self.users[rows],
      [self.items[row] for row in rows],
      None if times is None else [times[row] for row in rows],
      self.targets[rows],
      None if self.requested is None else self.requested[rows],
      self.num_items,
    )

  def padded(self, length: int) -> dict[str, np.ndarray]:
    """The last `length` items of each history, padded on the right.

    One place more than length is free, for the time of the request.

    Returns:
      "ids" int32 `[num, length + 1]`, "timestamps" likewise or absent, "last"
      int32 `[num]`, the place of the newest item (0 for an empty history), and
      "query" int32 `[num]`, the users.
    """
    rows = {
      "query": self.users,
      "ids": np.zeros((len(self), length + 1), np.int32),
      "last": np.zeros(len(self), np.int32),
    }
    if self.timestamps is not None:
      rows["timestamps"] = np.zeros_like(rows["ids"])
    for n, items in enumerate(self.items):
      kept = items[-length:]
      rows["ids"][n, : len(kept)] = kept
      rows["last"][n] = max(len(kept) - 1, 0)
      if self.timestamps is not None and self.requested is not None:
        times = [*self.timestamps[n][-length:], self.requested[n]]
        rows["timestamps"][n, : len(times)] = since_first(np.array(times))
    return rows

  def unseen(self, rows: np.ndarray | None = None) -> np.ndarray:
    """Bool `[num, num_items]`: items that the whole history does not hold.

    Column n is the item with id n + 1. Of a target that the history holds
    already it is False too: whoever removes seen items cannot find it.

    >>> one = np.int32([0])
    >>> histories = Histories(one, [np.int32([3, 1, 3])], None, one, None, 4)
    >>> histories.unseen()
    array([[False,  True, False,  True]])
    """
    rows = np.arange(len(self)) if rows is None else rows
    unseen = np.ones((len(rows), self.num_items), bool)
    for where, row in zip(unseen, rows, strict=True):
      where[self.items[row] - 1] = False
    return unseen


def since_first(timestamps: np.ndarray) -> np.ndarray:
  """int32 seconds since the first: int64 would not survive on device.

  >>> since_first(np.array([1_600_000_000, 1_600_000_060]))
  array([ 0, 60], dtype=int32)
  """
  if not len(timestamps):
    return np.zeros(0, np.int32)
  since = timestamps - timestamps[0]
  return np.minimum(since, np.iinfo(np.int32).max).astype(np.int32)


def load(
  name: str,
  *,
  data_dir: str | os.PathLike[str] | None = None,
  manual_dir: str | os.PathLike[str] | None = None,
) -> SequenceDataset:
  """Loads a data set of `NAMES`, preparing it at first use.

  Arguments and errors are those of `pipeline.load`.
  """
  if name not in NAMES:
    raise ValueError(
      f"unknown sequence data set {name!r}: expected one of {', '.join(NAMES)}"
    )
  builder = pipeline.prepare(name, data_dir, manual_dir)
  items = list(builder.as_data_source(split="items"))
  users = list(builder.as_data_source(split="users"))
  # Only whole data sets lack times.
  timed = any(len(user["timestamps"]) for user in users)
  return SequenceDataset(
    name,
    [pipeline.to_str(item["id"]) for item in items],
    [pipeline.to_str(item["text"]) for item in items],
    [pipeline.to_str(user["id"]) for user in users],
    [np.asarray(user["items"], np.int32) + 1 for user in users],
    [np.asarray(user["timestamps"]) for user in users] if timed else None,
    dict(builder.info.metadata),
  )


def leave_one_out(dataset: SequenceDataset, split: Split) -> Histories:
  """One split; see the module's docstring.

  Users with fewer than three items are in train only, with all their items.

  Raises:
    ValueError: The split is unknown, or empty.
  """
  if split not in get_args(Split):
    raise ValueError(
      f"split must be one of {', '.join(get_args(Split))}, got {split!r}."
    )
  lengths = np.array([len(items) for items in dataset.items])
  short = lengths < _SHORTEST
  if split == "train":
    ends = np.where(short, lengths, lengths - _HELD_OUT)
    users = np.flatnonzero(ends > 0)
  else:
    ends = lengths - (1 if split == "test" else 2)
    users = np.flatnonzero(~short)
  if not len(users):
    raise ValueError(f"{dataset.name}: no user is in the split {split!r}")
  times = dataset.timestamps
  held = split != "train"
  return Histories(
    users.astype(np.int32),
    [dataset.items[user][: ends[user]] for user in users],
    None if times is None else [times[user][: ends[user]] for user in users],
    np.array(
      [dataset.items[user][ends[user]] if held else 0 for user in users],
      np.int32,
    ),
    np.array([times[user][ends[user]] for user in users])
    if held and times is not None
    else None,
    dataset.num_items,
  )


def train_batches(
  train: Histories,
  *,
  length: int,
  batch_size: int,
  seed: int,
  window: Literal["last", "random"] = "last",
) -> grain.MapDataset:
  """Infinite batches of windows, indexed by the global step.

  A pass visits each user with two items or more once, in a fresh order,
  without the last incomplete batch; `num_trainable(train) // batch_size` steps.
  `batches[step]` depends on nothing but `seed` and `step`.

  Args:
    train: Of `leave_one_out(dataset, "train")`.
    length: Predictions a window: it holds length + 1 items.
    batch_size: Users a batch.
    seed: Of orders and windows.
    window: "last", the newest items, as published; "random", each pass
      anew any window of a longer history, so that all of it is learned.

  Returns:
    A data set of {"query": users int32 `[batch]`, "ids": int32
    `[batch, length + 1]`, 0 at padding, "timestamps": likewise, if there are}.

  Raises:
    ValueError: window is unknown; batch_size exceeds the number of users.
  """
  if window not in ("last", "random"):
    raise ValueError(f"window must be last or random, got {window!r}.")
  rows = np.flatnonzero([len(items) > 1 for items in train.items])
  if not 0 < batch_size <= len(rows):
    raise ValueError(
      f"batch_size is {batch_size}: expected 1 to {len(rows)}, the number of "
      "users with two training items"
    )

  def cut(n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    row = rows[n]
    size = len(train.items[row])
    start = max(size - length - 1, 0)
    if window == "random":
      start = int(rng.integers(start + 1))
    kept = train.items[row][start : start + length + 1]
    ids = np.zeros(length + 1, np.int32)
    ids[: len(kept)] = kept
    batch = {"query": train.users[row], "ids": ids}
    if train.timestamps is not None:
      times = train.timestamps[row][start : start + length + 1]
      batch["timestamps"] = np.zeros(length + 1, np.int32)
      batch["timestamps"][: len(kept)] = since_first(times)
    return batch

  return (
    grain.MapDataset.range(len(rows))
    .seed(seed)
    .shuffle()
    .random_map(cut)
    .batch(batch_size, drop_remainder=True)
    .repeat()
  )


def num_trainable(train: Histories) -> int:
  """Users with at least one prediction to learn from."""
  return sum(len(items) > 1 for items in train.items)


def describe(dataset: SequenceDataset) -> str:
  """A Markdown table of sizes.

  >>> one = SequenceDataset(
  ...   "x", ["a", "b"], ["", ""], ["u"], [np.int32([2, 1, 2])], None, {})
  >>> print(describe(one))
  | data set | users | items | interactions | length min/median/max | times |
  |---|--:|--:|--:|---|---|
  | x | 1 | 2 | 3 | 3/3/3 | no |
  """
  lengths = [len(items) for items in dataset.items]
  return "\n".join(
    [
      "| data set | users | items | interactions | length min/median/max "
      "| times |",
      "|---|--:|--:|--:|---|---|",
      f"| {dataset.name} | {len(lengths):,} | {dataset.num_items:,} | "
      f"{sum(lengths):,} | {min(lengths)}/{np.median(lengths):g}/{max(lengths)}"
      f" | {'no' if dataset.timestamps is None else 'yes'} |",
    ]
  )
