"""Losses that follow a teacher's scores, and targets for mined negatives."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

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


def mined_targets(
  positive: types.Array,
  negatives: types.Array,
  relevant: types.Array,
  *,
  same_text: types.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Labels and columns for in-batch and mined negatives, masked by identity.

  Column j of `batch` is the positive of query j, and the columns after are the
  mined negatives, query by query: every query is trained against all of them.
  Left out of the row of query i are, beside its own positive: that document
  again, in whichever column; documents relevant to query i (one query's mined
  negative may be another's positive); and of a document that stands in several
  columns all but the first, which would count it twice.

  With the losses of this package (`losses.info_nce`) that is the cross-entropy
  of the Hypencoder.

  Args:
    positive: `[batch]` integer corpus rows; -1 marks a row of padding.
    negatives: `[batch, num_mined]` integer corpus rows; -1 where fewer.
    relevant: `[batch, max_relevant]` integer corpus rows; -1 where fewer.
    same_text: `[num_docs]` integer, of every corpus row the first one with the
      same text (`first_of_text`), so that a document with two ids is one
      document; None goes by row alone.

  Returns:
    `(labels, where)`, both `[batch, batch (1 + num_mined)]` bool.

  Raises:
    ValueError: if the shapes do not fit.

  >>> import jax.numpy as jnp
  >>> from nnn_jax import losses
  >>> labels, where = losses.mined_targets(
  ...   jnp.asarray([7, 7, 3]),
  ...   jnp.asarray([[3], [5], [5]]),
  ...   jnp.asarray([[7], [7], [3]]),
  ... )
  >>> print(where.astype(int))  # Columns 7, 7, 3 | 3, 5, 5.
  [[1 0 1 0 1 0]
   [0 1 1 0 1 0]
   [1 0 1 0 1 0]]
  """
  positive, negatives, relevant = map(
    jnp.asarray, (positive, negatives, relevant)
  )
  batch = positive.shape[0]
  if positive.ndim != 1:
    raise ValueError(f"positive must be [batch], got {positive.shape}.")
  for name, array in {"negatives": negatives, "relevant": relevant}.items():
    if array.ndim != 2 or array.shape[0] != batch:
      raise ValueError(
        f"{name} must be [batch, ...] corpus rows with batch = {batch} of "
        f"positive, got {array.shape}."
      )
  columns = jnp.concatenate([positive, negatives.ravel()])
  if same_text is not None:
    first = jnp.asarray(same_text)
    columns, positive, relevant = (
      jnp.where(rows >= 0, first[rows], -1)
      for rows in (columns, positive, relevant)
    )
  size = columns.shape[0]
  own = jnp.eye(batch, size, dtype=bool)
  same = columns[:, None] == columns[None, :]
  repeated = jnp.any(jnp.tril(same, -1), axis=1)
  false_negative = (relevant[:, None, :] == columns[None, :, None]).any(axis=-1)
  false_negative |= positive[:, None] == columns[None, :]
  exists = columns >= 0
  keep = (exists & ~repeated)[None, :] & ~false_negative
  return own & exists[None, :], (own & exists[None, :]) | keep


def first_of_text(texts: Sequence[str]) -> np.ndarray:
  """Of every text the first row that has it, `[num_docs]` int32.

  >>> first_of_text(["a", "b", "a"]).tolist()
  [0, 1, 0]
  """
  first: dict[str, int] = {}
  return np.asarray(
    [first.setdefault(text, row) for row, text in enumerate(texts)], np.int32
  )
