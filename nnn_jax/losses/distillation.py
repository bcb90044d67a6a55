"""Losses that follow a teacher's scores."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from nnn_jax import types
from nnn_jax.losses import common


def margin_mse(
  scores: types.Array,
  labels: types.Array,
  *,
  teacher: types.Array,
  scale: types.Scalar,
  where: types.Array | None = None,
) -> jax.Array:
  r"""Squared error of margins between the positive and the others.

    mean_{i in S, j not in S} ((s_i - s_j) - scale (t_i - t_j))^2

  A teacher's scores have units: probabilities of .99 and .01 are logits of 4.6
  and -4.6. `scale` brings t to those of s, and so has no default; 1 leaves it.

  Source: Hofstaetter et al. (2020), arXiv 2010.02666; used by Hypencoder, arXiv
  2502.05364, section 4.

  Args:
    scores: `[..., num_docs]`.
    labels: `[..., num_docs]`, True (or above 0) at the positives.
    teacher: `[..., num_docs]`.
    scale: Of the teacher's scores.
    where: `[..., num_docs]` bool, the documents of the list.

  Returns:
    `[...]`, one loss a query; 0 (with gradient 0) where there is no pair.

  Raises:
    ValueError: if shapes differ.

  >>> labels = jnp.asarray([True, False, False])
  >>> teacher = jnp.asarray([2.0, 1.0, 0.0])
  >>> loss = margin_mse(jnp.zeros(3), labels, teacher=teacher, scale=1.0)
  >>> float(loss)  # (1 + 4) / 2
  2.5
  """
  scores, relevant, exists = common.prepare(scores, labels, where)
  teacher = jnp.asarray(teacher)
  if teacher.shape != scores.shape:
    raise ValueError(
      f"teacher has shape {teacher.shape} but scores has shape "
      f"{scores.shape}; they must be equal."
    )
  teacher = jnp.where(exists, teacher.astype(scores.dtype), 0.0)
  error = scores - scale * teacher
  pairs = relevant[..., :, None] & (exists & ~relevant)[..., None, :]
  square = (error[..., :, None] - error[..., None, :]) ** 2
  count = jnp.sum(pairs, axis=(-2, -1))
  total = jnp.sum(jnp.where(pairs, square, 0.0), axis=(-2, -1))
  return total / jnp.maximum(count, 1).astype(scores.dtype)
