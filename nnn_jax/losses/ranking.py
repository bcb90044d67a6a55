"""Losses over ranked scores, and the targets of in-batch training."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from nnn_jax import types
from nnn_jax.losses import common


def nnn_ranking_loss(
  scores: types.Array,
  labels: types.Array,
  *,
  gamma: types.Scalar = 1.5,
  temperature: types.Scalar = 0.1,
  where: types.Array | None = None,
  num_rest: types.Array | int = 0,
) -> jax.Array:
  r"""Smooth pairwise ranking loss of the NNN paper.

  With S the relevant documents, w the scores and tau the temperature,

    [ gamma tau log sum_{j not in S} exp( w_j / tau)
          + tau log sum_{i in S}     exp(-w_i / tau) ]_+

  a soft form of [gamma max_{j not in S} w_j - min_{i in S} w_i]_+. At w = 0 it
  is gamma tau ln(num_docs - |S|) + tau ln |S|. Where the hinge is off, and
  at the kink itself, the gradient is 0.

  Relevant documents may have scores below zero (extended weights, which give a
  relevant document off the support a gradient) as long as irrelevant ones do
  not. With n irrelevant documents of w_j >= 0 the first term is at least
  gamma tau ln n and the second at least -min_{i in S} w_i, so

    loss >= gamma tau ln n - min_{i in S} w_i,

  and lowering scores can only raise the loss: it is below its value at an empty
  support only where every relevant document has a weight above zero. With
  scores below zero on both sides, lowering all of them by c would gain
  (gamma - 1) c, and for gamma > 1 training would empty the support.

  Source: arXiv 2606.17910, section 3.2; gamma = 1.5 and tau = 0.1 are the
  values of its appendix B.

  Args:
    scores: `[..., num_docs]`, NNN weights in the paper.
    labels: `[..., num_docs]`, True (or above 0) where relevant.
    gamma: how much an irrelevant document counts against a relevant one.
    temperature: tau > 0; the limit at 0 is the hard maximum and minimum.
    where: `[..., num_docs]` bool, the documents that exist.
    num_rest: `[...]` or a number, irrelevant documents of score 0 beside them.

  Returns:
    `[...]`, one loss a query; 0 (with gradient 0) for a query whose relevant
    or irrelevant set is empty.

  Raises:
    ValueError: if shapes differ, or if `temperature` is a Python number that
      is not positive.

  >>> import jax.numpy as jnp
  >>> from nnn_jax import losses
  >>> labels = jnp.array([True, True, False, False, False])
  >>> loss = losses.nnn_ranking_loss(jnp.zeros(5), labels)
  >>> print(f"{loss:.4f} {0.15 * jnp.log(3.0) + 0.1 * jnp.log(2.0):.4f}")
  0.2341 0.2341
  """
  scores, relevant, exists = common.prepare(scores, labels, where)
  common.check_temperature(temperature)
  num_rest = jnp.asarray(num_rest)
  irrelevant = exists & ~relevant
  defined = relevant.any(axis=-1) & (irrelevant.any(axis=-1) | (num_rest > 0))
  loss = temperature * common.logsumexp(-scores / temperature, relevant)
  loss += (
    gamma
    * temperature
    * common.logsumexp(scores / temperature, irrelevant, num_rest)
  )
  # relu and not maximum: its gradient at the kink is 0, not one half.
  return jnp.where(defined, jax.nn.relu(loss), 0.0)


def info_nce(
  scores: types.Array,
  labels: types.Array,
  *,
  temperature: types.Scalar = 0.05,
  where: types.Array | None = None,
  num_rest: types.Array | int = 0,
) -> jax.Array:
  r"""Softmax cross-entropy of the positive against all documents.

    mean_{i in S} -log( exp(s_i / tau) / sum_{j in where} exp(s_j / tau) )

  In-batch training has exactly one positive a row (see `in_batch_targets`) and
  the mean is over that one. With several positives each is set against *all*
  documents, the other positives included, so that the smallest value is
  ln |S| and not 0.

  Source: van den Oord et al. (2018), arXiv 1807.03748, equation 4.

  Args:
    scores: `[..., num_docs]` similarities (`[batch, batch]` in-batch).
    labels: `[..., num_docs]`, True (or above 0) at the positives.
    temperature: tau > 0.
    where: `[..., num_docs]` bool, the columns of the softmax. A positive
      outside it does not count.
    num_rest: `[...]` or a number, further columns, of score 0.

  Returns:
    `[...]`, one loss a query; 0 (with gradient 0) for a query without a
    positive.

  Raises:
    ValueError: if shapes differ, or if `temperature` is a Python number that
      is not positive.

  >>> import jax.numpy as jnp
  >>> from nnn_jax import losses
  >>> scores = jnp.array([[0.9, 0.9], [0.9, 0.9]])
  >>> print(losses.info_nce(scores, jnp.eye(2, dtype=bool)).round(4))
  [0.6931 0.6931]
  """
  scores, positive, exists = common.prepare(scores, labels, where)
  common.check_temperature(temperature)
  logits = scores / temperature
  num_positives = positive.sum(axis=-1)
  total = jnp.where(positive, logits, 0.0).sum(axis=-1)
  mean = total / jnp.maximum(num_positives, 1).astype(total.dtype)
  total = common.logsumexp(logits, exists, jnp.asarray(num_rest))
  return jnp.where(num_positives > 0, total - mean, 0.0)


def in_batch_targets(
  positive: types.Array,
  relevant: types.Array,
  *,
  mask_false_negatives: bool,
) -> tuple[jax.Array, jax.Array]:
  """Labels and columns for in-batch training on (query, positive) pairs.

  Query i of the batch is paired with document `positive[i]`, and column j of
  the in-batch scores is the document of query j. The label of row i is its own
  column i, and no other.

  With `mask_false_negatives` the columns j != i whose document is relevant to
  query i, or is the very document of query i, are left out of the softmax of
  row i. Without it nothing is left out, as in the formula printed in the NNN
  paper: a document drawn twice in a batch is then its own negative.

  Source: arXiv 2606.17910, appendix B, leaves the choice open.

  Args:
    positive: `[batch]` integer corpus rows; -1 marks a row of padding, which
      gets no label (so loss 0) and is nobody's negative.
    relevant: `[batch, max_relevant]` integer corpus rows of the documents that
      are relevant to each query; -1 where fewer.
    mask_false_negatives: static choice, see above.

  Returns:
    `(labels, where)`, both `[batch, batch]` bool.

  Raises:
    ValueError: if the shapes do not fit or `positive` is not integer.

  >>> import jax.numpy as jnp
  >>> from nnn_jax import losses
  >>> relevant = jnp.array([[0, 1], [1, -1]])
  >>> labels, where = losses.in_batch_targets(
  ...     jnp.array([0, 1]), relevant, mask_false_negatives=True)
  >>> print(where)  # document 1 is relevant to query 0 as well
  [[ True False]
   [ True  True]]
  """
  positive, relevant = jnp.asarray(positive), jnp.asarray(relevant)
  if positive.ndim != 1 or not jnp.issubdtype(positive.dtype, jnp.integer):
    raise ValueError(
      "positive must be an integer array [batch] of corpus rows, got shape "
      f"{positive.shape} and dtype {positive.dtype}."
    )
  if (
    relevant.ndim != 2
    or relevant.shape[0] != positive.shape[0]
    or not jnp.issubdtype(relevant.dtype, jnp.integer)
  ):
    raise ValueError(
      f"relevant has shape {relevant.shape} and dtype {relevant.dtype}, and "
      f"positive has shape {positive.shape}; relevant must be integer corpus "
      "rows [batch, max_relevant], -1 where fewer."
    )
  batch = positive.shape[0]
  exists = positive >= 0
  own = jnp.eye(batch, dtype=bool)
  labels = own & exists[:, None]
  where = jnp.broadcast_to(exists[None, :], (batch, batch))
  if mask_false_negatives:
    # [batch, batch]: whether the document of column j is relevant to query i.
    false_negative = (relevant[:, None] == positive[None, :, None]).any(axis=-1)
    false_negative |= positive[:, None] == positive[None, :]
    where = where & (own | ~false_negative)
  return labels, where
