"""Greedy selection: the best entry, given those selected, k times."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

from nnn_jax.core import topk

State = TypeVar("State")


def select(
  start: State,
  rate: Callable[[State], tuple[jax.Array, jax.Array]],
  update: Callable[[State, jax.Array], State],
  allowed: jax.Array,
  *,
  k: int,
) -> tuple[jax.Array, jax.Array]:
  """Selects k entries one by one; ties by lowest index.

  Args:
    start: What is remembered of the entries selected so far: none.
    rate: state -> (priority `[n]`, of which the largest is selected; score
      `[n]`, which is reported).
    update: (state, row `[1]` int32) -> state with that row selected. The row
      is an array: a scalar index would gather a sharded corpus.
    allowed: `[n]` bool.
    k: Static.

  Returns:
    (scores `[k]`, indices `[k]` int32) in the order of selection; -inf and -1
    once no entry is left.
  """

  def step(carry, _):
    state, left = carry
    priority, score = rate(state)
    _, row = topk.top_k(priority, 1, where=left)
    found = jnp.where(row[0] < 0, -jnp.inf, score[row][0])
    left = left & (jnp.arange(left.shape[0]) != row[0])
    return (update(state, row), left), (found, row[0])

  _, selected = jax.lax.scan(step, (start, allowed), None, length=k)
  return selected
