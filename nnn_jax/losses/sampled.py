"""Losses of sampled items, and what keeps a mixture's gates in use.

Reference: "Retrieval with Learned Similarities" (2025), arXiv 2407.15462.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from nnn_jax import types
from nnn_jax.core import linalg
from nnn_jax.losses import common


def sampled_softmax(
  positive: types.Array,
  negatives: types.Array,
  *,
  positive_ids: types.Array,
  negative_ids: types.Array,
  where: types.Array | None = None,
) -> jax.Array:
  """Softmax cross-entropy of a positive against sampled negatives.

    -log( e^s+ / (e^s+ + sum_{j: id_j != id+} e^s_j) )

  An accidental hit, a sample that is the positive itself, is left out. There
  is no temperature: that of a mixture of logits is inside its scores.

  Args:
    positive: `[...]` scores.
    negatives: `[..., num_negatives]` scores.
    positive_ids: `[...]` integer item ids.
    negative_ids: `[..., num_negatives]`, or `[num_negatives]` if shared.
    where: `[...]` bool; False, such as at padding, has loss 0 and gradient 0.

  Returns:
    `[...]`, in at least float32; 0 where every negative is an accidental hit.

  Raises:
    ValueError: While tracing, if shapes do not fit.

  >>> loss = sampled_softmax(
  ...   jnp.float32(3.0),
  ...   jnp.asarray([1.0, 2.0, 4.0]),
  ...   positive_ids=7,
  ...   negative_ids=jnp.asarray([7, 5, 8]),
  ... )
  >>> round(float(jnp.exp(-loss)), 3)  # e^3 / (e^3 + e^2 + e^4)
  0.245
  """
  positive, negatives = jnp.asarray(positive), jnp.asarray(negatives)
  positive_ids = jnp.asarray(positive_ids)
  negative_ids = jnp.asarray(negative_ids)
  if negatives.ndim < 1 or negatives.shape[:-1] != positive.shape:
    raise ValueError(
      "negatives must be [..., num_negatives] for positive [...], got "
      f"{negatives.shape} and {positive.shape}."
    )
  shared = negatives.shape[-1:]
  for name, ids, shapes in (
    ("positive_ids", positive_ids, (positive.shape,)),
    ("negative_ids", negative_ids, (negatives.shape, shared)),
  ):
    if ids.shape not in shapes or not jnp.issubdtype(ids.dtype, jnp.integer):
      raise ValueError(
        f"{name} must be integers of shape "
        f"{' or '.join(map(str, dict.fromkeys(shapes)))}, got {ids.dtype} "
        f"{ids.shape}."
      )
  negative_ids = jnp.broadcast_to(negative_ids, negatives.shape)
  is_other = negative_ids != positive_ids[..., None]
  own = jnp.ones_like(positive, bool) if where is None else jnp.asarray(where)
  if own.shape != positive.shape or own.dtype != jnp.bool_:
    raise ValueError(
      f"where must be bool of shape {positive.shape}, got {own.dtype} "
      f"{own.shape}."
    )
  dtype = linalg.compute_dtype(positive, negatives)
  scores = jnp.concatenate(
    [positive[..., None], negatives], axis=-1, dtype=dtype
  )
  columns = jnp.concatenate([own[..., None], is_other & own[..., None]], -1)
  scores = jnp.where(columns, scores, 0.0)
  loss = common.logsumexp(scores, columns) - scores[..., 0]
  return jnp.where(own, loss, 0.0)


def in_batch_softmax(
  scores: types.Array,
  ids: types.Array,
  *,
  where: types.Array | None = None,
) -> jax.Array:
  """`sampled_softmax` whose negatives are the positives of the other rows.

  Shapes do not depend on the ids: an item that several rows share is no
  negative of theirs, and for another row it counts once, at its first place.

  Args:
    scores: `[batch, batch]`, of query i and the positive item of row j.
    ids: `[batch]` integers, the items.
    where: `[batch]` bool; a row of padding has loss 0 and is no negative.

  Returns:
    `[batch]`.

  Raises:
    ValueError: While tracing, if shapes do not fit.

  >>> loss = in_batch_softmax(jnp.zeros((3, 3)), jnp.asarray([4, 4, 9]))
  >>> jnp.exp(loss).round(3).tolist()  # Two items: chance is a half.
  [2.0, 2.0, 2.0]
  """
  scores, ids = jnp.asarray(scores), jnp.asarray(ids)
  if ids.ndim != 1 or scores.shape != ids.shape * 2:
    raise ValueError(
      f"scores must be [batch, batch] for ids [batch], got {scores.shape} and "
      f"{ids.shape}."
    )
  own = jnp.ones_like(ids, bool) if where is None else jnp.asarray(where)
  same = ids[:, None] == ids[None, :]
  batch = ids.shape[0]
  earlier = jnp.tri(batch, k=-1, dtype=bool) & own[None, :]
  first = own & ~(same & earlier).any(axis=1)
  # A column that does not count is given the row's own id: a hit.
  negative_ids = jnp.where(first[None, :], ids[None, :], ids[:, None])
  return sampled_softmax(
    jnp.diagonal(scores),
    scores,
    positive_ids=ids,
    negative_ids=negative_ids,
    where=own,
  )


def load_balancing(
  gates: types.Array, *, where: types.Array | None = None, eps: float = 1e-6
) -> jax.Array:
  """Minus the mutual information of the mixture's component and the pair.

    L_MI = -H(p) + H(p | q, x)
         = sum_p pibar_p log(pibar_p) - mean sum_p pi_p log(pi_p)

  with pibar the mean of pi over the pairs. It is smallest where each pair uses
  one component, and all pairs together use every one alike. The published
  weight is .001, on the positive pairs of a batch.

  Args:
    gates: pi, `[..., P]`.
    where: `[...]` bool; False leaves a pair out.
    eps: Added inside the logarithms.

  Returns:
    A scalar between -log P and 0, in at least float32; 0 without any pair.

  Raises:
    ValueError: While tracing, if shapes do not fit.

  >>> round(float(load_balancing(jnp.eye(2))), 3)  # -log 2
  -0.693
  """
  gates = jnp.asarray(gates)
  gates = gates.astype(linalg.compute_dtype(gates))
  if where is None:
    where = jnp.ones(gates.shape[:-1], bool)
  where = jnp.asarray(where)
  if gates.ndim < 1 or where.shape != gates.shape[:-1]:
    raise ValueError(
      f"where must be [...] for gates [..., P], got {where.shape} and "
      f"{gates.shape}."
    )
  gates = jnp.where(where[..., None], gates, 0.0)
  pairs = tuple(range(gates.ndim - 1))
  count = jnp.maximum(jnp.sum(where), 1).astype(gates.dtype)
  mean = jnp.sum(gates, axis=pairs) / count
  conditional = jnp.sum(gates * jnp.log(gates + eps)) / count
  return jnp.sum(mean * jnp.log(mean + eps)) - conditional
