"""The regulariser of learned sparse vectors."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from nnn_jax import types
from nnn_jax.core import linalg


def flops(
  weights: types.Array, *, where: types.Array | None = None
) -> jax.Array:
  """The FLOPS regulariser: small where few texts use a term.

    sum_c (mean_i |w_ic|)^2

  With activations that are independent between texts it is in proportion to the
  multiplications of an inner product of two of them through an inverted index,
  so it also evens the lengths of the lists out, which an L1 norm does not.

  Source: Paria et al. (2020), Minimizing FLOPs to Learn Efficient Sparse
  Representations, arXiv 2004.05665; in SPLADE (arXiv 2107.05720) with a weight
  for queries and one for documents.

  Args:
    weights: `[batch, vocab]`.
    where: `[batch]` bool; False leaves a text out.

  Returns:
    A scalar, in at least float32; 0 without any text.

  Raises:
    ValueError: While tracing, if shapes do not fit.

  >>> round(float(flops(jnp.asarray([[1.0, 0.0], [1.0, 2.0]]))), 3)
  2.0
  """
  weights = jnp.asarray(weights)
  if weights.ndim != 2:
    raise ValueError(f"weights must be [batch, vocab], got {weights.shape}.")
  weights = jnp.abs(weights.astype(linalg.compute_dtype(weights)))
  if where is None:
    where = jnp.ones(weights.shape[0], bool)
  where = jnp.asarray(where)
  if where.shape != weights.shape[:1]:
    raise ValueError(
      f"where must be [batch] for weights [batch, vocab], got {where.shape} "
      f"and {weights.shape}."
    )
  weights = jnp.where(where[:, None], weights, 0.0)
  count = jnp.maximum(jnp.sum(where), 1).astype(weights.dtype)
  return jnp.sum((jnp.sum(weights, axis=0) / count) ** 2)
