"""Losses of sampled items, against sums in numpy."""

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from nnn_jax import losses


def by_hand(positive, negatives, positive_id, negative_ids):
  others = [
    s for s, i in zip(negatives, negative_ids, strict=True) if i != positive_id
  ]
  return np.log(np.exp([positive, *others]).sum()) - positive


@hypothesis.given(seed=st.integers(0, 10_000), shared=st.booleans())
def test_equals_a_sum_by_hand(seed, shared):
  rng = np.random.default_rng(seed)
  positive, negatives = rng.normal(size=6), rng.normal(size=(6, 4))
  ids = rng.integers(0, 5, 6)
  other = rng.integers(0, 5, 4 if shared else (6, 4))
  loss = losses.sampled_softmax(
    positive, negatives, positive_ids=ids, negative_ids=other
  )
  rows = np.broadcast_to(other, (6, 4))
  expected = [
    by_hand(*row) for row in zip(positive, negatives, ids, rows, strict=True)
  ]
  np.testing.assert_allclose(loss, expected, atol=1e-5)


def test_an_accidental_hit_is_left_out():
  # Logits [1, 2, 3, 4] of items [7, 5, 7, 8]; the label is the third. The
  # gradient is the softmax, less one at the label.
  def loss(logits):
    return losses.sampled_softmax(
      logits[2],
      logits[np.asarray([0, 1, 3])],
      positive_ids=7,
      negative_ids=np.asarray([7, 5, 8]),
    )

  gradient = jax.grad(loss)(jnp.asarray([1.0, 2.0, 3.0, 4.0]))
  probabilities = gradient + jnp.asarray([0.0, 0.0, 1.0, 0.0])
  np.testing.assert_allclose(probabilities, [0, 0.090, 0.245, 0.665], atol=5e-4)


def test_all_negatives_equal_to_the_positive():
  def loss(positive, negatives):
    return losses.sampled_softmax(
      positive,
      negatives,
      positive_ids=3,
      negative_ids=np.asarray([3, 3]),
    )

  value, gradients = jax.value_and_grad(loss, argnums=(0, 1))(
    jnp.float32(2.0), jnp.asarray([5.0, jnp.nan])
  )
  assert value == 0
  assert all(np.all(np.asarray(g) == 0) for g in gradients)


def test_constant_scores_do_no_better_than_chance():
  loss = losses.sampled_softmax(
    np.ones(2),
    np.ones((2, 3)),
    positive_ids=np.asarray([0, 1]),
    negative_ids=np.asarray([1, 2, 3]),
  )
  np.testing.assert_allclose(loss, np.log([4, 3]), atol=1e-6)


def test_padding_has_no_loss_and_no_gradient():
  def loss(positive):
    values = losses.sampled_softmax(
      positive,
      jnp.asarray([[1.0], [jnp.nan]]),
      positive_ids=np.asarray([4, 0]),
      negative_ids=np.asarray([[5], [6]]),
      where=np.asarray([True, False]),
    )
    return jnp.sum(values), values

  gradient, values = jax.grad(loss, has_aux=True)(jnp.asarray([1.0, jnp.inf]))
  assert values[1] == 0
  assert gradient[1] == 0
  assert np.isfinite(gradient).all()


def test_bfloat16_is_computed_in_float32():
  rng = np.random.default_rng(0)
  positive = jnp.asarray(20 * rng.normal(size=5), jnp.bfloat16)
  negatives = jnp.asarray(20 * rng.normal(size=(5, 64)), jnp.bfloat16)
  ids = dict(positive_ids=np.arange(5), negative_ids=np.arange(5, 69))
  loss = losses.sampled_softmax(positive, negatives, **ids)
  exact = losses.sampled_softmax(
    positive.astype(jnp.float32), negatives.astype(jnp.float32), **ids
  )
  assert loss.dtype == jnp.float32
  np.testing.assert_array_equal(loss, exact)
  gates = jnp.asarray([[0.5, 0.5], [1.0, 0.0]], jnp.bfloat16)
  assert losses.load_balancing(gates).dtype == jnp.float32


@hypothesis.given(seed=st.integers(0, 10_000))
def test_in_batch_negatives_are_the_other_items(seed):
  rng = np.random.default_rng(seed)
  ids, where = rng.integers(0, 4, 6), rng.random(6) < 0.7
  items = rng.normal(size=4)  # An item's score is the same in each column.
  scores = np.where(where[None, :], items[ids][None, :], np.nan)
  scores = scores + 0 * rng.normal(size=(6, 1))
  loss = losses.in_batch_softmax(scores, ids, where=where)
  for i in range(6):
    if not where[i]:
      assert loss[i] == 0
      continue
    others = sorted(set(ids[where]) - {ids[i]})
    expected = by_hand(items[ids[i]], items[others], ids[i], others)
    np.testing.assert_allclose(loss[i], expected, atol=1e-5)


def test_load_balancing_is_minus_the_mutual_information():
  rng = np.random.default_rng(0)
  gates = rng.dirichlet(np.ones(5), size=(4, 3))
  flat = gates.reshape(-1, 5)
  mean = flat.mean(axis=0)
  entropy = -np.sum(mean * np.log(mean))
  conditional = -np.mean(np.sum(flat * np.log(flat), axis=1))
  loss = losses.load_balancing(gates)
  np.testing.assert_allclose(loss, conditional - entropy, atol=1e-4)
  # Pairs that are left out do not matter, NaN included.
  padded = np.concatenate([gates, np.full((1, 3, 5), np.nan)])
  where = np.arange(5)[:, None].repeat(3, axis=1) < 4
  np.testing.assert_allclose(
    losses.load_balancing(padded, where=where), loss, atol=1e-6
  )
  assert losses.load_balancing(padded, where=where & False) == 0
  one = np.tile(np.eye(5)[0], (4, 1))  # A mixture that collapsed.
  np.testing.assert_allclose(losses.load_balancing(one), 0.0, atol=1e-5)
  np.testing.assert_allclose(
    losses.load_balancing(np.eye(5)), -np.log(5), atol=1e-4
  )


def test_load_balancing_gradient_is_finite_at_the_corners():
  gradient = jax.grad(losses.load_balancing)(jnp.eye(3))
  assert np.isfinite(gradient).all()


def test_shape_errors():
  ids = dict(positive_ids=np.asarray([1, 2]), negative_ids=np.asarray([3]))
  with pytest.raises(ValueError, match=r"negatives must be"):
    losses.sampled_softmax(np.ones(2), np.ones((3, 1)), **ids)
  with pytest.raises(ValueError, match=r"negative_ids must be integers"):
    losses.sampled_softmax(np.ones(2), np.ones((2, 4)), **ids)
  with pytest.raises(ValueError, match=r"where must be bool"):
    losses.sampled_softmax(np.ones(2), np.ones((2, 1)), where=np.ones(2), **ids)
  with pytest.raises(ValueError, match=r"scores must be \[batch, batch\]"):
    losses.in_batch_softmax(np.ones((2, 3)), np.asarray([1, 2]))
  with pytest.raises(ValueError, match=r"where must be \[...\]"):
    losses.load_balancing(np.ones((2, 3)), where=np.ones(3, bool))
