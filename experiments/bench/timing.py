"""How a benchmark times a call."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple


class Timing(NamedTuple):
  """Attributes: median_s of `calls` timed calls, the warm-up left out."""

  median_s: float
  calls: int


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
  """Returns (seconds, result) of one call, which must block until done."""
  start = time.perf_counter()
  result = call()
  return time.perf_counter() - start, result


def measure(call: Callable[[], Any], *, repeats: int, limit_s: float) -> Timing:
  """The median over calls after one that warms up.

  `repeats` calls, or up to 50 of a call of milliseconds, as fit in .2 s.
  A call that takes more than half of limit_s is not repeated: what was to warm
  up is then the measurement, and compilation has to be over before.
  """
  first, _ = timed(call)
  repeats = max(repeats, min(50, int(0.2 / first)))
  repeats = min(repeats, int(limit_s / first) - 1)
  if repeats < 1:
    return Timing(first, 1)
  spent = [timed(call)[0] for _ in range(repeats)]
  return Timing(statistics.median(spent), repeats)
