"""Tests of losses.margin_mse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnn_jax import losses


def test_margin_mse_is_the_mean_over_pairs():
  rng = np.random.default_rng(0)
  scores, teacher = rng.normal(size=(2, 4, 9))
  labels, where = rng.random((2, 4, 9)) < 0.5
  result = losses.margin_mse(
    scores, labels, teacher, teacher_scale="logit", where=where
  )
  for i in range(4):
    pairs = [
      (scores[i, p] - scores[i, n] - teacher[i, p] + teacher[i, n]) ** 2
      for p in np.flatnonzero(labels[i] & where[i])
      for n in np.flatnonzero(~labels[i] & where[i])
    ]
    assert result[i] == pytest.approx(np.mean(pairs) if pairs else 0, rel=1e-5)


def test_the_scale_of_the_teacher_must_be_stated():
  scores, labels = np.asarray([4.6, -4.6]), np.asarray([1, 0])
  with pytest.raises(TypeError, match="teacher_scale"):
    losses.margin_mse(scores, labels, scores)
  with pytest.raises(ValueError, match="teacher_scale must be one of logit"):
    losses.margin_mse(scores, labels, scores, teacher_scale="sigmoid")
  # .99 and .01 are these logits, so the student is right.
  probabilities = np.asarray([0.99, 0.01])
  for teacher, scale in ((scores, "logit"), (probabilities, "probability")):
    loss = losses.margin_mse(scores, labels, teacher, teacher_scale=scale)
    assert float(loss) < 1e-3
  wrong = losses.margin_mse(
    scores, labels, probabilities, teacher_scale="logit"
  )
  assert float(wrong) > 60


def test_margin_mse_survives_what_is_missing():
  scores = jnp.asarray([[1.0, jnp.inf], [1.0, 2.0]])
  labels = jnp.asarray([[True, False], [False, False]])
  where = jnp.asarray([[True, False], [True, True]])

  def total(scores):
    return jnp.sum(
      losses.margin_mse(
        scores,
        labels,
        jnp.asarray([[1.0, jnp.nan], [0.0, 1.0]]),
        teacher_scale="probability",
        where=where,
      )
    )

  value, gradient = jax.value_and_grad(total)(scores)
  assert float(value) == 0.0
  np.testing.assert_array_equal(gradient, 0.0)
  with pytest.raises(ValueError, match="teacher_scores"):
    losses.margin_mse(
      jnp.ones((2, 2)), labels, jnp.ones(2), teacher_scale="logit"
    )
