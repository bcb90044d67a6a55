"""How a benchmark times a jitted function."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax


class Timing(NamedTuple):
  """Attributes: compile_s: first call; median_s: of the later calls."""

  compile_s: float
  median_s: float


def measure(fn: Callable[..., Any], *args: Any, repeats: int) -> Timing:
  """Times `fn(*args)`: the first call apart, then the median of repeats."""

  def once() -> float:
    start = time.perf_counter()
    jax.block_until_ready(fn(*args))
    return time.perf_counter() - start

  first = once()
  return Timing(first, statistics.median(once() for _ in range(repeats)))
