"""What every decoder measured has in common."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from experiments.bench import scoring

K = 10
# A solver "to convergence" stops at this KKT violation or below it.
KKT_TOL = 1e-5


class Task(NamedTuple):
  """Attributes: queries `[batch, dim]`, the penalties, the time for a cell."""

  queries: np.ndarray
  l1: float
  l2: float
  limit_s: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
  """A decoder that is compiled and loaded, ready to be timed.

  Attributes:
    call: Decodes the task's queries and blocks until it is done.
    weights: What `call` returned -> each query's weights.
    indices: What `call` returned -> `[batch, K]`, for decoders without weights.
    compile_s: Seconds spent compiling.
    note: What a reader of the row has to know.
  """

  call: Callable[[], Any]
  weights: Callable[[Any], list[scoring.Sparse]] | None = None
  indices: Callable[[Any], np.ndarray] | None = None
  compile_s: float = 0.0
  note: str = ""


# Prepares a task on the corpus that is loaded.
Prepare = Callable[[Task], Prepared]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contestant:
  """A decoder to measure.

  Attributes:
    load: (corpus `[num_docs, dim]` float32, dtype=storage dtype) -> Prepare.
      It imports the peer, so only its own process has it.
    package: What has to be importable.
    has_penalties: Whether l1 and l2 change anything.
    all_penalties: Whether every pair of penalties is measured, not the first.
    is_batched: False for one query at a time: fewer queries scale exactly.
  """

  load: Callable[..., Prepare]
  package: str = "nnn_jax"
  has_penalties: bool = True
  all_penalties: bool = False
  is_batched: bool = True
