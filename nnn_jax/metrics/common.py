"""What every metric reads a ranking with."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from nnn_jax import types
from nnn_jax.core import linalg

Array = types.Array


def gains(
  indices: Array, labels: Array, k: int | None, where: Array | None
) -> tuple[jax.Array, jax.Array]:
  """Grades at the first k places, and all grades; both >= 0 and masked."""
  indices, labels = jnp.asarray(indices), jnp.asarray(labels)
  if labels.ndim < 1:
    raise ValueError("labels must be [..., num_docs], got a scalar.")
  dtype = linalg.compute_dtype(labels)
  labels = jnp.maximum(labels.astype(dtype), 0.0)
  if where is not None:
    where = jnp.asarray(where)
    if where.shape != labels.shape or where.dtype != jnp.bool_:
      raise ValueError(
        f"where has shape {where.shape} and dtype {where.dtype} but labels has "
        f"shape {labels.shape}; where must be bool and of the shape of labels "
        "(spread a shared mask with jnp.broadcast_to)."
      )
    labels = jnp.where(where, labels, 0.0)
  check_leading("labels", labels, "indices", indices)
  indices = top(indices, k, "indices")
  num_docs = labels.shape[-1]
  if num_docs == 0:  # Nothing to gather from: every place is a miss.
    return jnp.zeros(indices.shape, dtype), labels
  found = (indices >= 0) & (indices < num_docs) & ~repeated(indices)
  rows = jnp.where(found, indices, 0)
  gains = jnp.take_along_axis(labels, rows, axis=-1)
  return jnp.where(found, gains, 0.0), labels


def top(indices: jax.Array, k: int | None, name: str) -> jax.Array:
  """The first k places, after checking that they are there."""
  if indices.ndim < 1 or not jnp.issubdtype(indices.dtype, jnp.integer):
    raise ValueError(
      f"{name} must be an integer array [..., num_retrieved] of ranked corpus "
      f"rows (not scores), got shape {indices.shape} and dtype {indices.dtype}."
    )
  num_retrieved = indices.shape[-1]
  k = num_retrieved if k is None else k
  if k > num_retrieved or k < min(1, num_retrieved):
    raise ValueError(
      f"k={k} must be between 1 and num_retrieved={num_retrieved}, the last "
      f"axis of {name}; retrieve more documents or ask for a smaller k."
    )
  return indices[..., :k]


def check_leading(
  name: str, array: jax.Array, other_name: str, other: jax.Array
) -> None:
  """Raises ValueError unless all axes but the last are equal."""
  if array.shape[:-1] != other.shape[:-1] or array.ndim != other.ndim:
    raise ValueError(
      f"{name} has shape {array.shape} but {other_name} has shape "
      f"{other.shape}; all axes but the last must be equal."
    )


def repeated(indices: jax.Array) -> jax.Array:
  """True where the same row stands at an earlier place."""
  same = indices[..., :, None] == indices[..., None, :]
  earlier = np.tri(indices.shape[-1], k=-1, dtype=bool)  # [place, earlier]
  return (same & jnp.broadcast_to(earlier, same.shape)).any(axis=-1)


def ratio(numerator: jax.Array, denominator: jax.Array) -> jax.Array:
  """The ratio, and 0 where the denominator is 0."""
  empty = denominator == 0
  return jnp.where(empty, 0.0, numerator / jnp.where(empty, 1.0, denominator))
