"""What the losses share: which documents count, and sums over them."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from nnn_jax import types
from nnn_jax.core import linalg


def prepare(
  scores: types.Array, labels: types.Array, where: types.Array | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Checks shapes; returns scores, relevant (inside where) and where."""
  scores, labels = jnp.asarray(scores), jnp.asarray(labels)
  if scores.ndim < 1:
    raise ValueError("scores must be [..., num_docs], got a scalar.")
  named = {"labels": labels}
  if where is not None:
    named["where"] = where = jnp.asarray(where)
  for name, array in named.items():
    if array.shape != scores.shape:
      raise ValueError(
        f"{name} has shape {array.shape} but scores has shape {scores.shape}; "
        "they must be equal (spread a shared array with jnp.broadcast_to)."
      )
  if where is None:
    where = jnp.ones(scores.shape, bool)
  if where.dtype != jnp.bool_:
    raise ValueError(f"where must be bool, got {where.dtype}.")
  scores = scores.astype(linalg.compute_dtype(scores))
  # A masked score may be -inf or NaN; it must not reach a product or a
  # gradient.
  return jnp.where(where, scores, 0.0), (labels > 0) & where, where


def check_temperature(temperature: types.Scalar) -> None:
  """Refuses a temperature known to be zero or less."""
  if isinstance(temperature, (int, float)) and temperature <= 0:
    raise ValueError(f"temperature must be positive, got {temperature}.")


def logsumexp(
  x: jax.Array, where: jax.Array, num_rest: jax.Array | int = 0
) -> jax.Array:
  """Log-sum-exp over `where` and num_rest zeros; finite where none is left."""
  # The log of an empty sum is -inf and its gradient NaN, even behind a later
  # jnp.where: let empty rows (whose value has no meaning) sum to one instead.
  rest = jnp.broadcast_to(num_rest, x.shape[:-1])[..., None].astype(x.dtype)
  rest = jnp.where(where.any(axis=-1, keepdims=True) | (rest > 0), rest, 1.0)
  x = jnp.where(where, x, 0.0)
  return jax.nn.logsumexp(
    jnp.concatenate([x, jnp.zeros_like(rest)], axis=-1),
    axis=-1,
    b=jnp.concatenate([where.astype(x.dtype), rest], axis=-1),
  )
