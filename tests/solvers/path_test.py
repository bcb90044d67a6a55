"""The path against scikit-learn's, exact solves and its own laws."""

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from sklearn import linear_model

from nnn_jax.core import corpora
from nnn_jax.solvers import elastic_net, path

NUM_DOCS, DIM = 30, 12
CONFIG = path.PathConfig(capacity=NUM_DOCS, num_pieces=64)


@pytest.fixture
def x64():
  with jax.enable_x64(True):
    yield


def world(seed, num_docs=NUM_DOCS, dim=DIM, lean=0.3):
  rng = np.random.default_rng(seed)
  rows = rng.normal(size=(num_docs + 1, dim)) + lean
  rows /= np.linalg.norm(rows, axis=1, keepdims=True)
  return rows[0], rows[1:]


def dense_weights(point, num_docs=NUM_DOCS):
  weights = np.zeros(num_docs + 1)  # A free slot writes to the last place.
  weights[np.asarray(point.indices)] = point.weights
  return weights[:num_docs]


def augmented(query, corpus, l2):
  """l2 as further dimensions: scikit-learn's path has l1 only."""
  extra = np.sqrt(l2) * np.eye(len(corpus))
  return np.pad(query, (0, len(corpus))), np.hstack([corpus, extra])


@pytest.mark.parametrize("l2", [0.0, 0.05, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_breakpoints_and_weights_agree_with_scikit_learn(x64, seed, l2):
  query, corpus = world(seed)
  target, features = augmented(query, corpus, l2)
  alphas, _, coefs = linear_model.lars_path(
    features.T, target, method="lasso", positive=True, alpha_min=0.0
  )
  alphas = alphas * len(target)  # It divides by the number of samples.
  ours = path.solve(query, corpus, l2, config=CONFIG)
  num = len(alphas)
  np.testing.assert_allclose(ours.lower[:num], alphas, atol=1e-9)
  np.testing.assert_allclose(ours.lower[num:], 0.0, atol=1e-9)
  # Its documentation warns of positive=True: at alpha = 0 it is off.
  for l1, expected in zip(alphas[:-1], coefs.T[:-1], strict=True):
    point = path.at(ours, l1)
    assert bool(point.exact)
    np.testing.assert_allclose(dense_weights(point), expected, atol=1e-8)


@pytest.mark.parametrize("l2", [0.01, 0.3])
def test_optimal_to_float32_at_every_l1(l2):
  query, corpus = (np.float32(x) for x in world(7, num_docs=300, dim=32))
  ours = path.solve(
    query, corpus, l2, config=path.PathConfig(capacity=64, num_pieces=128)
  )
  assert ours.lower.dtype == jnp.float32
  for l1 in np.linspace(float(ours.lower[-1]) + 1e-3, 1.0, 40):
    point = path.at(ours, l1)
    weights = jnp.asarray(dense_weights(point, 300), jnp.float32)
    problem = elastic_net.Problem(
      query, corpora.searchable(corpus), np.float32(l1), np.float32(l2)
    )
    solution = elastic_net.solution_of(problem, weights)
    gap = elastic_net.optimality(problem, solution)
    assert float(gap.kkt_violation) < 5e-6
    assert int(point.support_size) >= int((weights > 0).sum())


def test_a_batch_equals_the_loop():
  queries = np.stack([world(s)[0] for s in range(4)])
  corpus = world(0)[1]
  penalties = np.array([0.0, 0.1, 0.5, 2.0])
  batched = jax.vmap(lambda q, l2: path.solve(q, corpus, l2, config=CONFIG))(
    queries, penalties
  )
  for i, (query, l2) in enumerate(zip(queries, penalties, strict=True)):
    one = path.solve(query, corpus, l2, config=CONFIG)
    np.testing.assert_allclose(batched.lower[i], one.lower, atol=1e-5)


@hypothesis.settings(deadline=None, max_examples=25)
@hypothesis.given(
  seed=st.integers(0, 10**6),
  scale=st.floats(1e-2, 1e2),
  l2=st.floats(0.01, 3.0),
)
def test_homogeneous_in_the_query(seed, scale, l2):
  """w(c query, c l1, l2) = c w(query, l1, l2), so breakpoints scale too."""
  with jax.enable_x64(True):
    query, corpus = world(seed)
    ours = path.solve(query, corpus, l2, config=CONFIG)
    scaled = path.solve(scale * query, corpus, l2, config=CONFIG)
    np.testing.assert_allclose(
      scaled.lower, scale * ours.lower, rtol=1e-6, atol=1e-9 * scale
    )
    l1 = 0.4 * ours.lower[0]
    np.testing.assert_allclose(
      dense_weights(path.at(scaled, scale * l1)),
      scale * dense_weights(path.at(ours, l1)),
      atol=1e-8 * scale,
    )


@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_duplicates(x64, l2):
  """With l2 they join together and share; without, the first stands alone."""
  query, corpus = world(2)
  corpus = np.vstack([corpus, corpus])
  ours = path.solve(
    query, corpus, l2, config=path.PathConfig(capacity=60, num_pieces=128)
  )
  l1 = 0.5 * float(ours.lower[0])
  weights = dense_weights(path.at(ours, l1), 60).reshape(2, 30)
  if l2 > 0:
    np.testing.assert_allclose(weights[0], weights[1], atol=1e-9)
    expected = path.at(
      path.solve(query, corpus[:30], l2 / 2, config=CONFIG), l1
    )
  else:
    expected = path.at(path.solve(query, corpus[:30], l2, config=CONFIG), l1)
  np.testing.assert_allclose(
    weights.sum(axis=0), dense_weights(expected), atol=1e-8
  )


def test_where_equals_removing_documents(x64):
  query, corpus = world(3)
  where = np.arange(NUM_DOCS) % 3 != 0
  masked = path.solve(query, corpus, 0.1, config=CONFIG, where=where)
  removed = path.solve(query, corpus[where], 0.1, config=CONFIG)
  np.testing.assert_allclose(masked.lower, removed.lower, atol=1e-12)


def test_the_end_of_the_path_is_reported():
  query, corpus = world(4)
  full = path.solve(query, corpus, 0.1, config=CONFIG)
  short = path.solve(
    query, corpus, 0.1, config=path.PathConfig(capacity=3, num_pieces=64)
  )
  assert int(short.support_size.max()) == 3
  # It ends where a fourth document joins.
  fourth = int(np.argmax(np.asarray(full.support_size) > 3))
  np.testing.assert_allclose(short.lower[-1], full.lower[fourth - 1], rtol=1e-5)
  assert bool(path.at(short, 1.01 * short.lower[-1]).exact)
  assert not bool(path.at(short, 0.99 * short.lower[-1]).exact)
  few = path.solve(
    query, corpus, 0.1, config=path.PathConfig(capacity=30, num_pieces=2)
  )
  assert not bool(path.at(few, 0.99 * few.lower[-1]).exact)


def test_nothing_correlates():
  query, corpus = world(5)
  corpus = -np.abs(corpus)
  ours = path.solve(np.abs(query), corpus, 0.1, config=CONFIG)
  assert (ours.lower == 0).all()
  point = path.at(ours, 0.1)
  assert int(point.support_size) == 0
  assert (point.weights == 0).all()
  assert bool(point.exact)


def test_errors():
  query, corpus = world(0)
  with pytest.raises(ValueError, match="capacity must be >= 1, got 0"):
    path.PathConfig(capacity=0)
  with pytest.raises(ValueError, match="num_pieces must be >= 1, got 0"):
    path.PathConfig(num_pieces=0)
  with pytest.raises(ValueError, match="dim is 5 in `query`"):
    path.solve(query[:5], corpus, 0.1)
