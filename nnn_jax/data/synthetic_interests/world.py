"""A synthetic world of users with several interests. Not real data.

Items lie around the centres of genres, points of a taste space R^d; a few are
popular (a log-normal weight). A user has two to four interests, points near
centres. A session is about one of them, and a new session often about another;
each choice is drawn, without repetition, with probability proportional to

  popularity_i exp(-||item_i - interest||^2 / (2 width^2))

which is no inner product of a user vector and item vectors of low dimension,
and with several interests has several modes. Choices within a session are
minutes apart, sessions days.
"""

from __future__ import annotations

import numpy as np

from nnn_jax.data import interactions

_START = 1_600_000_000  # Seconds; any.


def build(
  seed: int,
  *,
  num_users: int = 1_000,
  num_items: int = 1_000,
  num_genres: int = 25,
  dim: int = 4,
  width: float = 0.35,
  stay: float = 0.85,
) -> interactions.Log:
  """A log of 20 to 60 choices a user.

  Args:
    seed: Of everything; one numpy version gives one world for one seed.
    num_users: Users.
    num_items: Items; at least 60.
    num_genres: Centres in the taste space.
    dim: Of the taste space.
    width: Of an interest, in units of the spread of the centres.
    stay: Probability that a choice stays within the session.

  >>> log = build(0, num_users=2, num_items=100)
  >>> len(log.user_ids), bool(np.bincount(log.users).min() >= 20)
  (2, True)
  """
  rng = np.random.default_rng(seed)
  centres = rng.normal(size=(num_genres, dim))
  genres = rng.integers(num_genres, size=num_items)
  items = centres[genres] + 0.3 * rng.normal(size=(num_items, dim))
  popularity = np.exp(rng.normal(size=num_items))
  users, rows, times = [], [], []
  for user in range(num_users):
    chosen = rng.choice(num_genres, size=rng.integers(2, 5), replace=False)
    interests = centres[chosen] + 0.2 * rng.normal(size=(len(chosen), dim))
    squares = ((items[None] - interests[:, None]) ** 2).sum(axis=-1)
    weights = popularity * np.exp(-squares / (2 * width**2)) + 1e-12
    interest = rng.integers(len(chosen))
    time = _START + int(rng.integers(30 * 86_400))
    for _ in range(rng.integers(20, 61)):
      if rng.random() < stay:
        time += 1 + int(rng.exponential(600))
      else:
        time += 3_600 + int(rng.exponential(5 * 86_400))
        interest = rng.integers(len(chosen))
      item = rng.choice(
        num_items, p=weights[interest] / weights[interest].sum()
      )
      weights[:, item] = 0.0  # Nobody chooses an item twice.
      users.append(user)
      rows.append(item)
      times.append(time)
  return interactions.Log(
    [f"user-{n}" for n in range(num_users)],
    [f"item-{n}" for n in range(num_items)],
    np.array(users, np.int32),
    np.array(rows, np.int32),
    np.array(times, np.int64),
    [f"synthetic item {n} of genre {g}" for n, g in enumerate(genres)],
    {"synthetic": True, "seed": seed, "numpy_version": np.__version__},
  )
