"""How a solver is differentiated: one static choice, apart from the solver."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar

import jax

State = TypeVar("State")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unroll:
  """Backpropagate through the solver's steps, as published.

  Attributes:
    remat_every: Store the state at every so many steps only and recompute the
      rest in the backward pass: memory falls from num_steps states to about
      num_steps / remat_every + remat_every. None stores every step.
  """

  remat_every: int | None = None

  def __post_init__(self):
    if self.remat_every is not None and self.remat_every < 1:
      raise ValueError(
        f"remat_every must be None or >= 1, got {self.remat_every}."
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Implicit:
  """Differentiate the optimality conditions at the solution: no tape.

  Memory and time do not depend on the number of steps. Gradients are those of
  the optimum, so they are biased where the solver has not reached it: look at
  the KKT violation.

  Attributes:
    capacity: A bound on the support. Of a larger one the largest weights are
      differentiated. A small support costs no more at a larger capacity.
  """

  capacity: int = 256

  def __post_init__(self):
    if self.capacity < 1:
      raise ValueError(f"capacity must be >= 1, got {self.capacity}.")


Gradient = Unroll | Implicit


def iterate(
  step: Callable[[State], State],
  state: State,
  *,
  num_steps: int,
  gradient: Gradient,
) -> State:
  """Applies `step` num_steps times, differentiable as `gradient` says.

  Args:
    step: state -> state, pure.
    state: A pytree of arrays whose shapes and dtypes `step` keeps.
    num_steps: Static.
    gradient: The differentiation policy.

  >>> float(iterate(lambda x: 2 * x, 1.0, num_steps=3, gradient=Unroll()))
  8.0
  """

  def repeat(state, length):
    return jax.lax.scan(
      lambda carry, _: (step(carry), None), state, None, length=length
    )[0]

  if isinstance(gradient, Implicit) or gradient.remat_every is None:
    return repeat(state, num_steps)
  num_chunks, rest = divmod(num_steps, gradient.remat_every)
  # prevent_cse guards against a merge that cannot happen across a scan.
  chunk = jax.checkpoint(
    lambda carry: repeat(carry, gradient.remat_every), prevent_cse=False
  )
  state, _ = jax.lax.scan(
    lambda carry, _: (chunk(carry), None), state, None, length=num_chunks
  )
  return repeat(state, rest)
