"""Losses that follow a teacher's scores, and targets for mined negatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from nnn_jax import types
from nnn_jax.losses import common

TeacherScale = Literal["logit", "probability"]


def margin_mse(
  scores: types.Array,
  labels: types.Array,
  teacher_scores: types.Array,
  *,
  teacher_scale: TeacherScale,
  where: types.Array | None = None,
) -> jax.Array:
  r"""Squared difference of the student's and the teacher's margins.

    mean over i in S, j not in S of ((s_i - s_j) - (t_i - t_j))^2

  The scale of the teacher has no default: a cross-encoder that gives sigmoid
  outputs of .99 and .01 has a margin of .98 on paper and of 9.2 in logits, and
  a student trained on the wrong one is ten times too flat.

  Source: Hofstaetter et al. (2020), arXiv 2010.02666; used by Hypencoder, arXiv
  2502.05364, section 4.

  Args:
    scores: `[..., num_docs]`.
    labels: `[..., num_docs]`, True (or above 0) at the positives.
    teacher_scores: `[..., num_docs]`.
    teacher_scale: "logit" takes them as they are; "probability" takes their
      logit first, of values between 1e-6 and 1 - 1e-6.
    where: `[..., num_docs]` bool, the documents that exist and that the teacher
      has scored.

  Returns:
    `[...]`, one loss a query; 0 (with gradient 0) for a query without a
    positive or without a negative.

  Raises:
    ValueError: if shapes differ or `teacher_scale` is unknown.

  >>> import jax.numpy as jnp
  >>> from nnn_jax import losses
  >>> student, positive = jnp.asarray([9.0, 0.0]), jnp.asarray([True, False])
  >>> teacher = jnp.asarray([0.99, 0.01])
  >>> for scale in ("logit", "probability"):
  ...   loss = losses.margin_mse(
  ...     student, positive, teacher, teacher_scale=scale
  ...   )
  ...   print(f"{loss:.3f}")
  64.320
  0.036
  """
  if teacher_scale not in get_args(TeacherScale):
    raise ValueError(
      f"teacher_scale must be one of {', '.join(get_args(TeacherScale))}, got "
      f"{teacher_scale!r}."
    )
  scores, positive, exists = common.prepare(scores, labels, where)
  if jnp.shape(teacher_scores) != scores.shape:
    raise ValueError(
      f"teacher_scores has shape {jnp.shape(teacher_scores)} but scores has "
      f"shape {scores.shape}; they must be equal."
    )
  teacher, _, _ = common.prepare(teacher_scores, labels, where)
  if teacher_scale == "probability":
    teacher = jnp.clip(teacher, 1e-6, 1 - 1e-6)
    teacher = jnp.log(teacher) - jnp.log1p(-teacher)
  # ((s_i - s_j) - (t_i - t_j))^2 = (e_i - e_j)^2, and its mean over pairs needs
  # no array of pairs: the variances and the squared difference of the means.
  error = scores - teacher
  mean_p, variance_p, num_p = _moments(error, positive)
  mean_n, variance_n, num_n = _moments(error, exists & ~positive)
  loss = variance_p + variance_n + (mean_p - mean_n) ** 2
  return jnp.where((num_p > 0) & (num_n > 0), loss, 0.0)


def _moments(x, where):
  count = jnp.sum(where, axis=-1)
  size = jnp.maximum(count, 1).astype(x.dtype)
  mean = jnp.sum(jnp.where(where, x, 0.0), axis=-1) / size
  square = jnp.where(where, (x - mean[..., None]) ** 2, 0.0)
  return mean, jnp.sum(square, axis=-1) / size, count


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
