"""Control flow that stays lazy under `jax.vmap`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

from nnn_jax import types

State = TypeVar("State")


def when(
  predicate: types.Array, fn: Callable[[State], State], state: State
) -> State:
  """`fn(state)` where the predicate holds, `state` elsewhere.

  Under `jax.vmap` a batched `lax.cond` runs both branches; this runs `fn` only
  if some element of the batch needs it (then for all, and keeps the old state
  of the others). Not differentiable in reverse mode.

  Args:
    predicate: Scalar bool.
    fn: state -> state, pure; keeps shapes and dtypes.
    state: A pytree of arrays.

  >>> [int(when(x > 1, lambda x: 10 * x, x)) for x in jnp.arange(3)]
  [0, 1, 20]
  """
  _, state = jax.lax.while_loop(
    lambda carry: carry[0],
    lambda carry: (jnp.zeros_like(carry[0]), fn(carry[1])),
    (jnp.asarray(predicate), state),
  )
  return state
