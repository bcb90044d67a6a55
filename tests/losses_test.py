"""Tests of nnn_jax.losses."""

from __future__ import annotations

import functools
import math

import cvxpy
import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnn_jax import losses

LOSSES = [losses.nnn_ranking_loss, losses.info_nce]
NUM_DOCS = 6  # One shape, so that properties compile once.

scores_strategy = hnp.arrays(
  np.float32, NUM_DOCS, elements=st.floats(-100, 100, width=32)
)
bools_strategy = hnp.arrays(bool, NUM_DOCS)
fast = hypothesis.settings(max_examples=50)


@functools.cache
def _value_and_grad(loss):
  return jax.jit(
    jax.value_and_grad(lambda s, labels, where: loss(s, labels, where=where))
  )


@functools.cache
def _batch_value_and_grad(loss):
  def total(scores, labels, where):
    values = loss(scores, labels, where=where)
    return values.sum(), values

  grad = jax.grad(total, has_aux=True)

  @jax.jit
  def run(*args):
    gradient, values = grad(*args)
    return values, gradient

  return run


def _nnn_numpy(w, relevant, gamma=1.5, tau=0.1):
  irrelevant = [
    math.exp(x / tau) for x, r in zip(w, relevant, strict=True) if not r
  ]
  inside = [math.exp(-x / tau) for x, r in zip(w, relevant, strict=True) if r]
  value = gamma * tau * math.log(sum(irrelevant)) + tau * math.log(sum(inside))
  return max(value, 0.0)


@pytest.mark.parametrize(("num_docs", "k"), [(464, 3), (10, 1), (5, 4)])
def test_nnn_loss_at_zero(num_docs, k):
  loss = jax.jit(losses.nnn_ranking_loss)(
    np.zeros(num_docs, np.float32), np.arange(num_docs) < k
  )
  want = 1.5 * 0.1 * math.log(num_docs - k) + 0.1 * math.log(k)
  np.testing.assert_allclose(loss, want, rtol=1e-5, atol=1e-7)


def test_nnn_loss_by_hand():
  w = [0.3, 0.0, 0.25, 0.1]
  relevant = [True, False, True, False]
  loss = losses.nnn_ranking_loss(jnp.array(w), jnp.array(relevant))
  np.testing.assert_allclose(loss, _nnn_numpy(w, relevant), rtol=1e-4)


def test_nnn_loss_hinge_is_off_with_zero_gradient():
  w = jnp.array([5.0, 0.0, 4.0, -1.0])
  labels = jnp.array([True, False, True, False])
  value, grad = _value_and_grad(losses.nnn_ranking_loss)(w, labels, None)
  assert value == 0.0
  np.testing.assert_array_equal(grad, np.zeros(4))


def test_nnn_loss_gradient_at_the_kink_is_zero():
  # One relevant and one irrelevant document at w = 0: exactly at the kink.
  labels = jnp.array([True, False])
  value, grad = _value_and_grad(losses.nnn_ranking_loss)(
    jnp.zeros(2), labels, None
  )
  assert value == 0.0
  np.testing.assert_array_equal(grad, np.zeros(2))


def test_nnn_loss_approaches_hard_margin():
  w, labels = jnp.array([0.2, 0.5, 0.4]), jnp.array([True, False, True])
  loss = losses.nnn_ranking_loss(w, labels, gamma=1.5, temperature=1e-4)
  np.testing.assert_allclose(loss, 1.5 * 0.5 - 0.2, atol=1e-3)


def test_info_nce_by_hand():
  scores = np.array([0.9, 0.2, 0.5])
  logits = scores / 0.05
  want = -(logits[0] - np.log(np.exp(logits).sum()))
  got = losses.info_nce(jnp.array(scores), jnp.array([True, False, False]))
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_info_nce_several_positives_is_the_mean_over_them():
  scores = jnp.array([0.9, 0.2, 0.5, 0.4])
  both = losses.info_nce(scores, jnp.array([True, False, True, False]))
  one = losses.info_nce(scores, jnp.arange(4) == 0)
  two = losses.info_nce(scores, jnp.arange(4) == 2)
  np.testing.assert_allclose(both, (one + two) / 2, rtol=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
  ("labels", "where"),
  [
    ([0, 0, 0, 0], [1, 1, 1, 1]),
    ([1, 1, 1, 1], [1, 1, 1, 1]),
    ([1, 0, 0, 0], [1, 0, 0, 0]),
    ([1, 0, 0, 0], [0, 1, 1, 1]),
    ([1, 0, 0, 0], [0, 0, 0, 0]),
  ],
)
def test_degenerate_queries_are_finite_and_do_not_touch_others(
  loss, labels, where
):
  scores = jnp.array([[0.3, 0.1, 0.2, 0.0]] * 2)
  labels = jnp.array([labels, [1, 0, 1, 0]], bool)
  where = jnp.array([where, [1, 1, 1, 1]], bool)
  values, grad = _batch_value_and_grad(loss)(scores, labels, where)
  assert np.isfinite(values).all()
  assert np.isfinite(grad).all()
  assert np.abs(grad[1]).max() > 0
  relevant = labels[0] & where[0]
  defined = relevant.any()
  if loss is losses.nnn_ranking_loss:
    defined &= (where[0] & ~relevant).any()
  if not defined:
    assert values[0] == 0.0
    np.testing.assert_array_equal(grad[0], np.zeros(4))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("masked", [np.inf, -np.inf, np.nan])
def test_masked_scores_may_be_anything(loss, masked):
  scores = jnp.array([0.3, masked, 0.25])  # Off the hinge's kink.
  labels = jnp.array([True, False, False])
  where = jnp.array([True, False, True])
  value, grad = _value_and_grad(loss)(scores, labels, where)
  want = loss(scores[jnp.array([0, 2])], jnp.array([True, False]))
  np.testing.assert_allclose(value, want, rtol=1e-6)
  assert np.isfinite(grad).all()
  assert grad[1] == 0.0


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("with_where", [False, True])
def test_gradient_matches_finite_differences(loss, with_where):
  rng = np.random.default_rng(0)
  with jax.enable_x64(True):
    scores = jnp.asarray(rng.normal(0, 0.2, (3, 5)))
    assert scores.dtype == jnp.float64
    labels = jnp.asarray(np.arange(5) < [[1], [2], [4]])
    where = jnp.ones((3, 5), bool).at[0, 3].set(False) if with_where else None
    fn = jax.jit(lambda s: loss(s, labels, where=where).sum())
    grad = jax.jit(jax.grad(fn))(scores)
    for place in np.ndindex(3, 5):
      up, down = scores.at[place].add(1e-5), scores.at[place].add(-1e-5)
      numeric = (fn(up) - fn(down)) / 2e-5
      np.testing.assert_allclose(grad[place], numeric, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("loss", LOSSES)
@fast
@hypothesis.given(scores_strategy, bools_strategy, bools_strategy)
def test_value_and_gradient_are_always_finite(loss, scores, labels, where):
  value, grad = _value_and_grad(loss)(scores, labels, where)
  assert np.isfinite(value)
  assert value >= -1e-3
  assert np.isfinite(grad).all()
  assert (np.asarray(grad)[~where] == 0).all()


@pytest.mark.parametrize("loss", LOSSES)
@fast
@hypothesis.given(
  scores_strategy, bools_strategy, st.permutations(range(NUM_DOCS))
)
def test_permutation_of_documents(loss, scores, labels, order):
  order = np.array(order)
  where = np.ones(NUM_DOCS, bool)
  value, grad = _value_and_grad(loss)(scores, labels, where)
  permuted, permuted_grad = _value_and_grad(loss)(
    scores[order], labels[order], where
  )
  hypothesis.assume(not 0 < max(value, permuted) < 1e-3)  # Near the kink.
  np.testing.assert_allclose(value, permuted, rtol=1e-4, atol=1e-4)
  np.testing.assert_allclose(
    np.asarray(grad)[order], permuted_grad, rtol=1e-3, atol=1e-4
  )


@pytest.mark.parametrize("loss", LOSSES)
@fast
@hypothesis.given(scores_strategy, bools_strategy, bools_strategy)
def test_where_is_the_same_as_removing_columns(loss, scores, labels, where):
  hypothesis.assume(where.any())
  value, grad = _value_and_grad(loss)(scores, labels, where)
  keep = np.ones(where.sum(), bool)
  want, want_grad = _value_and_grad(loss)(scores[where], labels[where], keep)
  hypothesis.assume(not 0 < max(value, want) < 1e-3)  # Near the kink.
  np.testing.assert_allclose(value, want, rtol=1e-4, atol=1e-4)
  np.testing.assert_allclose(
    np.asarray(grad)[where], want_grad, rtol=1e-3, atol=1e-4
  )


@pytest.mark.parametrize("loss", LOSSES)
def test_vmap_equals_leading_axes(loss):
  scores = jax.random.normal(jax.random.key(0), (2, 3, 5))
  labels = scores > 0.5
  got = jax.jit(loss)(scores, labels)
  assert got.shape == (2, 3)
  want = jax.jit(jax.vmap(jax.vmap(loss)))(scores, labels)
  np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_low_precision_scores_are_computed_in_float32(loss, dtype):
  scores = jnp.array([0.5, 0.25, 0.125], dtype)
  labels = jnp.array([True, False, False])
  got = loss(scores, labels)
  assert got.dtype == jnp.float32
  np.testing.assert_allclose(got, loss(scores.astype(jnp.float32), labels))


@pytest.mark.parametrize("loss", LOSSES)
def test_float64_only_when_given(loss):
  assert loss(jnp.ones(3), jnp.arange(3) < 1).dtype == jnp.float32
  with jax.enable_x64(True):
    scores = jnp.ones(3, jnp.float64)
    assert loss(scores, jnp.arange(3) < 1).dtype == jnp.float64


@pytest.mark.parametrize("loss", LOSSES)
def test_temperature_is_traced(loss):
  labels = jnp.array([True, False, False])
  traced = jax.jit(lambda s, t: loss(s, labels, temperature=t))
  scores = jnp.array([0.1, 0.2, 0.3])
  for temperature in (0.05, 0.5):
    np.testing.assert_allclose(
      traced(scores, temperature),
      loss(scores, labels, temperature=temperature),
      rtol=1e-5,
    )
  assert traced._cache_size() == 1


@pytest.mark.parametrize("loss", LOSSES)
def test_errors_name_the_argument_while_tracing(loss):
  with pytest.raises(
    ValueError, match=r"labels has shape \(4,\) but scores has shape \(5,\)"
  ):
    jax.eval_shape(loss, jnp.zeros(5), jnp.zeros(4, bool))
  with pytest.raises(
    ValueError, match=r"where has shape \(5,\) but scores has shape \(2, 5\)"
  ):
    loss(jnp.zeros((2, 5)), jnp.zeros((2, 5)), where=jnp.ones(5, bool))
  with pytest.raises(ValueError, match="where must be bool, got float32"):
    loss(jnp.zeros(5), jnp.zeros(5), where=jnp.ones(5))
  with pytest.raises(ValueError, match="temperature must be positive, got 0"):
    loss(jnp.zeros(5), jnp.zeros(5), temperature=0.0)
  with pytest.raises(ValueError, match=r"scores must be .*got a scalar"):
    loss(jnp.zeros(()), jnp.zeros(()))


def test_in_batch_targets_without_masking_is_the_printed_formula():
  positive = jnp.array([2, 2, 0])
  relevant = jnp.tile(jnp.arange(4), (3, 1))
  labels, where = losses.in_batch_targets(
    positive, relevant, mask_false_negatives=False
  )
  np.testing.assert_array_equal(labels, np.eye(3, dtype=bool))
  assert where.all()


def test_in_batch_targets_masks_false_negatives():
  relevant = jnp.array([[0, 2], [2, -1], [1, -1], [0, -1]])
  positive = jnp.array([0, 2, 1, 0])
  labels, where = losses.in_batch_targets(
    positive, relevant, mask_false_negatives=True
  )
  np.testing.assert_array_equal(labels, np.eye(4, dtype=bool))
  np.testing.assert_array_equal(
    where,
    np.array([[1, 0, 1, 0], [1, 1, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1]], bool),
  )


def test_in_batch_targets_masks_own_duplicate_even_if_not_labelled():
  _, where = losses.in_batch_targets(
    jnp.array([1, 1]), jnp.full((2, 3), -1), mask_false_negatives=True
  )
  np.testing.assert_array_equal(where, np.eye(2, dtype=bool))


@pytest.mark.parametrize("mask_false_negatives", [False, True])
def test_in_batch_targets_padding_has_no_part(mask_false_negatives):
  # Document 2, the last, is where row -1 would wrap to.
  relevant = jnp.array([[0, 2], [1, -1], [-1, -1]])
  labels, where = jax.jit(
    functools.partial(
      losses.in_batch_targets, mask_false_negatives=mask_false_negatives
    )
  )(jnp.array([0, 1, -1]), relevant)
  assert not labels[2].any()
  assert not where[:, 2].any()
  scores = jax.random.normal(jax.random.key(0), (3, 3))
  padded = losses.info_nce(scores, labels, where=where)
  assert padded[2] == 0.0
  alone = losses.in_batch_targets(
    jnp.array([0, 1]), relevant[:2], mask_false_negatives=mask_false_negatives
  )
  want = losses.info_nce(scores[:2, :2], alone[0], where=alone[1])
  np.testing.assert_allclose(padded[:2], want, rtol=1e-6)


def test_in_batch_targets_errors():
  with pytest.raises(ValueError, match="positive must be an integer array"):
    losses.in_batch_targets(
      jnp.zeros(2), jnp.zeros((2, 3)), mask_false_negatives=True
    )
  with pytest.raises(
    ValueError, match=r"relevant has shape \(3, 4\) and dtype .* positive has"
  ):
    losses.in_batch_targets(
      jnp.zeros(2, int), jnp.zeros((3, 4), int), mask_false_negatives=True
    )
  with pytest.raises(ValueError, match=r"relevant .* dtype bool"):
    losses.in_batch_targets(
      jnp.zeros(2, int), jnp.zeros((2, 4), bool), mask_false_negatives=True
    )


@pytest.mark.parametrize("loss", LOSSES)
@hypothesis.given(scores_strategy, bools_strategy, st.integers(0, 3))
@fast
def test_the_rest_counts_as_documents_of_score_zero(
  loss, scores, labels, num_rest
):
  # The last three are irrelevant: zeros that are listed, or num_rest of them.
  scores, labels = np.where(np.arange(6) < 3, scores, 0), labels.copy()
  labels[3:] = False
  run = _short_and_full(loss)
  short, full = run(scores, labels, num_rest, np.arange(6) < 3 + num_rest)
  for one, other in zip(short, full, strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@functools.cache
def _short_and_full(loss):
  @jax.jit
  def run(scores, labels, num_rest, where):
    def short(scores):
      return loss(scores[:3], labels[:3], num_rest=num_rest)

    def full(scores):
      return loss(scores, labels, where=where)

    results = [jax.value_and_grad(fn)(scores) for fn in (short, full)]
    return [jnp.append(gradient[:3], value) for value, gradient in results]

  return run


@hypothesis.given(scores_strategy, st.floats(0, 10))
@fast
def test_nnn_loss_is_bounded_if_irrelevant_scores_are_not_negative(
  scores, drop
):
  # Three relevant documents with extended weights, three irrelevant with
  # clipped ones. Lowering every score, as far as clipping lets it.
  relevant = np.arange(NUM_DOCS) < 3
  clipped = np.where(relevant, scores, np.maximum(scores, 0))
  lowered = np.where(relevant, scores - drop, np.maximum(scores - drop, 0))
  run = _value_and_grad(losses.nnn_ranking_loss)
  value, gradient = run(clipped, relevant, None)
  bound = 1.5 * 0.1 * math.log(3) - scores[:3].min()
  assert value >= bound - 1e-4 * (1 + abs(bound))
  at_rest = 1.5 * 0.1 * math.log(3)
  if scores[:3].min() <= 0:
    # Off the support: no better than any empty support with it at zero, and
    # pushed inward.
    assert value >= at_rest - 1e-5
    assert np.all(gradient[:3] <= 0)
    assert gradient[np.argmin(scores[:3])] < 0
  # With the irrelevant at zero there is nothing to gain by lowering.
  if np.all(scores[3:] <= 0):
    after, _ = run(lowered, relevant, None)
    assert after >= value - 1e-4 * (1 + abs(value))


# Fenchel-Young.


def fenchel_young_world(seed=0, num_docs=12, k=4):
  rng = np.random.default_rng(seed)
  corpus = rng.normal(size=(num_docs, 5)) + 0.5
  corpus /= np.linalg.norm(corpus, axis=1, keepdims=True)
  labels = np.zeros((2, num_docs), bool)
  labels[0, :k] = labels[1, -k:] = True
  return rng.normal(size=(2, num_docs)), labels, corpus


def fenchel_young_by_cvxpy(scores, labels, corpus, trade_off, strength):
  k = labels.sum()

  def f(x, total, square):
    return (
      trade_off * (k - 1) * scores @ x
      + (1 - trade_off) * (total(x) - square(corpus.T @ x))
      + strength * (total(x) - square(x))
    )

  x = cvxpy.Variable(len(scores))
  problem = cvxpy.Problem(
    cvxpy.Maximize(f(x, cvxpy.sum, cvxpy.sum_squares)),
    [x >= 0, x <= 1, cvxpy.sum(x) == k],
  )
  best = problem.solve("CLARABEL", tol_gap_abs=1e-12, tol_gap_rel=1e-12)
  return best - f(labels.astype(float), np.sum, lambda v: v @ v), x.value


def test_fenchel_young_equals_its_definition():
  scores, labels, corpus = fenchel_young_world()
  with jax.enable_x64(True):
    loss, grad = jax.jit(
      jax.value_and_grad(
        lambda s, c: losses.fenchel_young(
          s, labels, c, trade_off=0.4, strength=0.2
        ).sum(),
        argnums=(0, 1),
      )
    )(scores, corpus)
    expected = [
      fenchel_young_by_cvxpy(s, y, corpus, 0.4, 0.2)
      for s, y in zip(scores, labels, strict=True)
    ]
    assert loss == pytest.approx(sum(v for v, _ in expected), abs=1e-8)
    for row, (_, x) in enumerate(expected):
      np.testing.assert_allclose(
        grad[0][row], 0.4 * 3 * (x - labels[row]), atol=1e-6
      )
    direction = np.random.default_rng(1).normal(size=corpus.shape)
    ends = [
      losses.fenchel_young(
        scores, labels, corpus + eps * direction, trade_off=0.4, strength=0.2
      ).sum()
      for eps in (1e-5, -1e-5)
    ]
    numeric = float(ends[0] - ends[1]) / 2e-5
    assert np.vdot(grad[1], direction) == pytest.approx(numeric, rel=1e-6)


def test_fenchel_young_is_convex_and_zero_at_the_optimum():
  scores, labels, corpus = fenchel_young_world(1)
  loss = jax.jit(lambda s: losses.fenchel_young(s, labels, corpus))
  middle = loss(0.5 * (scores[:1] + scores[1:]).repeat(2, axis=0))
  ends = [loss(scores[i : i + 1].repeat(2, axis=0)) for i in (0, 1)]
  assert (middle <= 0.5 * (ends[0] + ends[1]) + 1e-5).all()
  assert (np.asarray(ends) >= -1e-5).all()
  perfect = loss(np.where(labels, 50.0, 0.0))
  np.testing.assert_allclose(perfect, 0.0, atol=1e-3)


def test_fenchel_young_without_labels_and_under_a_mask():
  scores, labels, corpus = fenchel_young_world(2)
  labels[1] = False
  where = np.arange(12) < 8
  where = np.broadcast_to(where, labels.shape)
  spoiled = np.where(where, scores, np.nan)
  value, grad = jax.value_and_grad(
    lambda s: losses.fenchel_young(s, labels, corpus, where=where).sum()
  )(spoiled)
  expected = losses.fenchel_young(
    scores[:1, :8], labels[:1, :8], corpus[:8]
  ).sum()
  assert value == pytest.approx(float(expected), rel=1e-5)
  assert (np.asarray(grad)[~where] == 0).all()
  assert (np.asarray(grad)[1] == 0).all()
  with pytest.raises(ValueError, match="corpus must be"):
    losses.fenchel_young(scores, labels, corpus[:5])
