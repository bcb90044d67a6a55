"""The head: its law of scale, its gradient through the solver, learning."""

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

from experiments import embeddings as embeddings_lib
from experiments import penalty_head
from nnn_jax.decoders import nnn
from nnn_jax.solvers import working_set

NUM_DOCS, DIM = 24, 8
CONFIG = nnn.NnnConfig(solver=working_set.WorkingSet(capacity=NUM_DOCS))


def world(seed, num_queries=4):
  rng = np.random.default_rng(seed)
  rows = rng.normal(size=(num_queries + NUM_DOCS, DIM)) + 0.3
  rows /= np.linalg.norm(rows, axis=1, keepdims=True)
  labels = rng.random((num_queries, NUM_DOCS)) < 0.15
  labels[:, 0] = True
  return rows[:num_queries], rows[num_queries:], labels


def make_head(rho=0.4, l2=0.1, spread=0.3):
  """A head whose last layer is not zero, so that queries differ."""
  head = penalty_head.PenaltyHead(
    penalty_head.HeadConfig(rho=rho, l2=l2, profile=16, hidden=6),
    rngs=nnx.Rngs(0),
  )
  kernel = head.mlp_out.kernel
  noise = jax.random.normal(jax.random.key(1), kernel.shape, kernel.dtype)
  kernel[...] = spread * noise
  return head


def test_starts_at_the_pair():
  queries, corpus, _ = world(0)
  params = jax.vmap(make_head(spread=0.0), in_axes=(0, None))(queries, corpus)
  top = (queries @ corpus.T).max(axis=1)
  np.testing.assert_allclose(params.l1, 0.4 * top, rtol=1e-6)
  np.testing.assert_allclose(params.l2, 0.1, rtol=1e-6)


@hypothesis.settings(deadline=None, max_examples=20)
@hypothesis.given(seed=st.integers(0, 10**6), scale=st.floats(0.1, 10.0))
def test_a_longer_query_gets_the_same_documents(seed, scale):
  """(l1, l2) -> (c l1, l2), so the weights scale by c."""
  (query,), corpus, _ = world(seed, num_queries=1)
  head = make_head()
  params, scaled = head(query, corpus), head(scale * query, corpus)
  np.testing.assert_allclose(scaled.l1, scale * params.l1, rtol=1e-4)
  np.testing.assert_allclose(scaled.l2, params.l2, rtol=1e-4)


def test_queries_get_penalties_of_their_own():
  queries, corpus, _ = world(0)
  result = penalty_head.decode(make_head(), queries, corpus, k=5, config=CONFIG)
  for i, query in enumerate(queries):
    params = make_head()(query, corpus)
    one = nnn.decode(params, query, corpus, k=5, config=CONFIG)
    np.testing.assert_array_equal(result.indices[i], one.indices)
  params = jax.vmap(make_head(), in_axes=(0, None))(queries, corpus)
  assert np.ptp(params.l1 / (queries @ corpus.T).max(axis=1)) > 0.01


def test_gradient_through_the_solver_matches_finite_differences():
  with jax.enable_x64(True):
    queries, corpus, labels = world(3)
    graphdef, params = nnx.split(make_head())
    flat, unravel = ravel_pytree(jax.tree.map(np.float64, params))

    @jax.jit
    def value(flat):
      head = nnx.merge(graphdef, unravel(flat))
      return penalty_head.loss(head, queries, corpus, labels, config=CONFIG)

    grad = jax.grad(value)(flat)
    assert np.abs(grad).max() > 1e-3
    rng = np.random.default_rng(0)
    for _ in range(4):
      direction = rng.normal(size=flat.shape)
      step = 1e-6 * direction
      numeric = float(value(flat + step) - value(flat - step)) / 2e-6
      assert numeric == pytest.approx(np.vdot(grad, direction), rel=1e-4)


def test_a_zero_query_has_finite_penalties():
  _, corpus, _ = world(0)
  assert all(np.isfinite(x) for x in make_head()(jnp.zeros(DIM), corpus))


def planted(seed, num_queries):
  """Queries 2 a + b; five documents near a stand between a and b.

  Dense retrieval, and l1 above b's score, rank those five before b.
  """
  rng = np.random.default_rng(seed)
  topics, near = 6, 5
  basis = np.eye(2 * topics + topics * near, dtype=np.float32)
  a, b, noise = np.split(basis, [topics, 2 * topics])
  around = np.repeat(a, near, axis=0) + 0.3 * noise
  corpus = np.concatenate([a, b, around])
  corpus /= np.linalg.norm(corpus, axis=1, keepdims=True)
  i, j = rng.integers(topics, size=(2, num_queries))
  queries = (
    2.0 * a[i] + b[j] + 0.05 * rng.normal(size=(num_queries, len(basis)))
  )
  queries /= np.linalg.norm(queries, axis=1, keepdims=True)
  labels = np.zeros((num_queries, len(corpus)), bool)
  labels[np.arange(num_queries), i] = True
  labels[np.arange(num_queries), topics + j] = True
  return embeddings_lib.Embeddings(np.float32(queries), corpus, labels)


def test_learns_a_planted_problem():
  head = penalty_head.PenaltyHead(
    penalty_head.HeadConfig(rho=0.9, l2=0.1), rngs=nnx.Rngs(0)
  )
  held_out = planted(1, 64)
  trained, history = penalty_head.train(
    head,
    planted(0, 64),
    held_out,
    config=CONFIG,
    num_steps=60,
    learning_rate=1e-2,
    batch_size=32,
  )
  assert history[0] < 0.1
  assert max(history) > 0.9
  # What comes back is the best step.
  indices = penalty_head.rank(trained, held_out, config=CONFIG)
  found = np.take_along_axis(held_out.labels, indices, axis=1).sum(axis=1)
  assert np.mean(found == 2) == pytest.approx(max(history))


def test_errors():
  with pytest.raises(ValueError, match=r"rho must be in \(0, 1\), got 1"):
    penalty_head.HeadConfig(rho=1.0, l2=0.1)
  with pytest.raises(ValueError, match="l2 must be > 0, got 0"):
    penalty_head.HeadConfig(rho=0.5, l2=0.0)
