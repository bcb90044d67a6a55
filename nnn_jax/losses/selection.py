"""Losses of the selection of a set."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from nnn_jax import types
from nnn_jax.core import linalg
from nnn_jax.losses import common
from nnn_jax.solvers import kernels, quadratic, relaxation


def fenchel_young(
  scores: types.Array,
  labels: types.Array,
  corpus: types.Array,
  *,
  trade_off: types.Scalar = 0.5,
  strength: float = 1.0,
  where: types.Array | None = None,
) -> jax.Array:
  r"""Fenchel-Young loss of selecting the labelled set by `decoders.diversity`.

  With y the indicator of the k labelled documents, c the scores, K = corpus
  corpus^T and f the concave relaxation of the selection's objective,

    f(x) = trade_off (k - 1) c . x
           + (1 - trade_off) (diag(K) . x - x^T K x)
           + strength sum x_i (1 - x_i)
    loss = max_x f(x) - f(y)  over  0 <= x <= 1, sum(x) = k

  It is >= 0, zero where y is the relaxation's optimum x*, convex in c, and its
  gradient in c is trade_off (k - 1) (x* - y): documents the selection
  would take wrongly go down, those it misses go up, and similarity to what is
  taken anyway counts. The gradient reaches the corpus too.

  Source: Blondel, Martins and Niculae (2020), Learning with Fenchel-Young
  losses; the relaxation is f_{-mu} of arXiv 2604.02554, with mu =
  strength / (1 - trade_off).

  Args:
    scores: `[..., num_docs]`, such as queries @ corpus.T.
    labels: `[..., num_docs]`, True (or above 0) in the set to be selected.
    corpus: `[num_docs, dim]`.
    trade_off: of the decoder, 0 to 1.
    strength: of the relaxation, > 0; static.
    where: `[..., num_docs]` bool, the documents that exist.

  Returns:
    `[...]`, one loss a query; 0 (with gradient 0) for a query without labels.

  Raises:
    ValueError: if shapes do not fit or `strength` is not positive.

  >>> import jax.numpy as jnp
  >>> from nnn_jax import losses
  >>> labels = jnp.array([True, True, False])
  >>> good, bad = jnp.array([9.0, 9.0, 0.0]), jnp.array([0.0, 0.0, 9.0])
  >>> print(losses.fenchel_young(good, labels, jnp.eye(3)))
  0.0
  >>> bool(losses.fenchel_young(bad, labels, jnp.eye(3)) > 1.0)
  True
  """
  scores, labelled, exists = common.prepare(scores, labels, where)
  rows = jnp.asarray(corpus)
  if rows.ndim != 2 or rows.shape[0] != scores.shape[-1]:
    raise ValueError(
      f"corpus must be [num_docs, dim] with num_docs = {scores.shape[-1]} of "
      f"scores, got {rows.shape}."
    )
  rows = rows.astype(linalg.compute_dtype(scores, rows))
  smooth = relaxation.Concave(strength=strength)

  def one(c, y, allowed):
    x_labelled = y.astype(rows.dtype)
    total = jnp.sum(x_labelled)
    problem = quadratic.Problem(
      trade_off * jnp.maximum(total - 1.0, 1.0) * c,
      1.0 - jnp.asarray(trade_off, rows.dtype),
      kernels.Linear().similarity(rows),
      allowed,
      total,
    )

    def f(x):
      product = problem.similarity.product(x)
      return quadratic.value(problem, x, product, 0.0) + smooth.regularizer(x)

    # By Danskin's theorem the optimum is a constant to differentiation.
    optimum = smooth.solve(jax.lax.stop_gradient(problem))
    return jnp.where(total > 0, f(optimum) - f(x_labelled), 0.0)

  batch, num_docs = scores.shape[:-1], scores.shape[-1]
  inputs = [x.reshape(-1, num_docs) for x in (scores, labelled, exists)]
  return jax.vmap(one)(*inputs).reshape(batch)
