"""The list-wise loss of COLT."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from nnn_jax import types
from nnn_jax.losses import common


def completeness(
  scores: types.Array,
  labels: types.Array,
  *,
  where: types.Array | None = None,
) -> jax.Array:
  r"""Binary cross-entropy of a softmax with the uniform one of the relevant.

    p = softmax(s),  y_j = 1 / |S| for j in S, else 0
    mean_j -( y_j ln p_j + (1 - y_j) ln(1 - p_j) )

  It is least where all relevant documents have the same p: none is left out.

  Source: COLT (CIKM 2024), arXiv 2405.16089, section 3.3.

  Args:
    scores: `[..., num_docs]`.
    labels: `[..., num_docs]`, True (or above 0) where relevant.
    where: `[..., num_docs]` bool, the documents of the list.

  Returns:
    `[...]`, one loss a query; 0 (with gradient 0) for a query without relevant
    or without irrelevant documents.

  Raises:
    ValueError: if shapes differ.

  >>> loss = completeness(jnp.zeros(2), jnp.asarray([True, False]))
  >>> round(float(loss), 4)  # Both p are one half: ln 2.
  0.6931
  """
  scores, relevant, exists = common.prepare(scores, labels, where)
  defined = relevant.any(axis=-1) & (exists & ~relevant).any(axis=-1)
  log_p = scores - common.logsumexp(scores, exists)[..., None]
  # 1 - p, held above the rounding of p.
  eps = jnp.finfo(scores.dtype).eps
  log_rest = jnp.log(-jnp.expm1(jnp.minimum(log_p, -eps)))
  count = jnp.maximum(jnp.sum(relevant, axis=-1, keepdims=True), 1)
  target = relevant / count.astype(scores.dtype)
  terms = jnp.where(exists, target * log_p + (1 - target) * log_rest, 0.0)
  size = jnp.maximum(jnp.sum(exists, axis=-1), 1).astype(scores.dtype)
  return jnp.where(defined, -jnp.sum(terms, axis=-1) / size, 0.0)
