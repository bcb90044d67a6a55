"""Methods for the cardinality-constrained quadratic: the published, and better.

Each is a frozen, hashable dataclass whose `solve` returns a `Selection`.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from nnn_jax.core import topk
from nnn_jax.solvers import frank_wolfe, kernels, pipage, quadratic, swap


class Selection(NamedTuple):
  """A choice.

  Attributes:
    indices: `[k]` int32, -1 where fewer than k are allowed; in no order.
    num_steps: int32, Frank-Wolfe steps.
    num_swaps: int32, exchanges.
    converged: bool, the method ended as it defines.
  """

  indices: jax.Array
  num_steps: jax.Array
  num_swaps: jax.Array
  converged: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
  """Algorithm 1 of arXiv 2604.02554.

  Attributes:
    loading: lambda of the paper, for unit rows.
    num_steps: At most so many.
    backend: "auto", or "xla" for `jax.export`; see `frank_wolfe`.
  """

  loading: float = 2.0
  num_steps: int = 200
  backend: frank_wolfe.Backend = "auto"
  kernel: ClassVar[kernels.Kernel] = kernels.Linear()

  def __post_init__(self):
    _check(self)

  def solve(self, problem: quadratic.Problem, *, k: int) -> Selection:
    """Frank-Wolfe from the centre, then the k largest entries."""
    end = frank_wolfe.maximize(
      problem,
      frank_wolfe.centre(problem),
      k=k,
      loading=self.loading,
      num_steps=self.num_steps,
      backend=self.backend,
    )
    _, indices = topk.top_k(end.x, k, where=problem.allowed)
    return Selection(
      indices, end.num_steps, jnp.zeros((), jnp.int32), end.stationary
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Polished:
  """Frank-Wolfe, pipage rounding, exchanges.

  Attributes:
    loading: rho of the relaxation. The smallest tight one has the fewest bad
      stationary points; 1 is tight where no similarity is negative.
    stages: Frank-Wolfe solves at loadings that grow evenly up to `loading`,
      each from where the last ended. More than 1 costs time and gains little.
    starts: 1 starts at the centre; each further one at a fixed random choice,
      and the best result counts. The time grows in proportion.
    kernel: The similarity of two documents.
    num_steps: Frank-Wolfe steps a stage, at most. Where it creeps towards a
      fractional point, rounding and exchanges do as well.
    backend: "auto", or "xla" for `jax.export`; see `frank_wolfe`.
  """

  loading: float = 1.0
  stages: int = 1
  starts: int = 1
  kernel: kernels.Kernel = kernels.Linear()
  num_steps: int = 50
  backend: frank_wolfe.Backend = "auto"

  def __post_init__(self):
    _check(self)
    for name in ("stages", "starts"):
      if getattr(self, name) < 1:
        raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}.")

  def solve(self, problem: quadratic.Problem, *, k: int) -> Selection:
    """Solves from each start and returns the best."""
    centre = frank_wolfe.centre(problem)
    if self.starts == 1:
      return self._from(problem, centre, k)[1]
    keys = jax.random.split(jax.random.key(0), self.starts - 1)

    def vertex(key):
      noise = jax.random.uniform(key, centre.shape, centre.dtype)
      return quadratic.best_vertex(problem, noise, k)[2]

    starts = jnp.concatenate([centre[None], jax.vmap(vertex)(keys)])
    # One after the other: a batched loop runs until its slowest has ended.
    values, selections = jax.lax.map(
      lambda start: self._from(problem, start, k), starts
    )
    best = jnp.argmax(values)
    return jax.tree.map(lambda x: x[best], selections)

  def _from(self, problem, x, k):
    """(F, Selection) from one start."""
    num_steps = jnp.zeros((), jnp.int32)
    for stage in range(1, self.stages + 1):
      end = frank_wolfe.maximize(
        problem,
        x,
        k=k,
        loading=self.loading * stage / self.stages,
        num_steps=self.num_steps,
        backend=self.backend,
      )
      x, num_steps = end.x, num_steps + end.num_steps
    x = pipage.round_up(problem, x, end.product)
    _, indices = topk.top_k(x, k, where=problem.allowed)
    polished = swap.polish(problem, indices)
    return polished.value, Selection(
      polished.indices, num_steps, polished.num_swaps, polished.optimal
    )


def largest(problem: quadratic.Problem, values: jax.Array) -> Selection:
  """The allowed entry with the largest value."""
  _, indices = topk.top_k(values, 1, where=problem.allowed)
  none = jnp.zeros((), jnp.int32)
  return Selection(indices, none, none, jnp.ones((), bool))


def _check(method: Published | Polished) -> None:
  if not method.loading >= 0:
    raise ValueError(f"loading must be >= 0, got {method.loading}.")
  if method.num_steps < 1:
    raise ValueError(f"num_steps must be >= 1, got {method.num_steps}.")
  if method.backend not in ("auto", "xla"):
    raise ValueError(
      f'backend must be "auto" or "xla", got {method.backend!r}.'
    )


Method = Published | Polished
