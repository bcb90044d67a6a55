"""COLT's propagation against dense matrices in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnn_jax import losses
from nnn_jax.models import colt

RELEVANT = [
  np.array([0, 2]),
  np.array([1]),
  np.array([2, 0, 2]),  # A repeated pair, and the scene of the first query.
  np.array([3, 4, 1]),
]
NUM_DOCS, DIM = 6, 3  # Nobody needs document 5.


def make_params(seed=0):
  rng = np.random.default_rng(seed)
  return colt.ColtParams(
    rng.normal(size=(len(RELEVANT), DIM)).astype(np.float32),
    rng.normal(size=(NUM_DOCS, DIM)).astype(np.float32),
  )


def unit(x):
  norm = np.linalg.norm(x, axis=1, keepdims=True)
  return np.divide(x, norm, out=np.zeros_like(x), where=norm > 0)


def dense_propagate(a, left, right, num_layers):
  n = len(left)
  g = np.zeros((n + len(right),) * 2)
  g[:n, n:], g[n:, :n] = a, a.T
  scale = 1 / (np.sqrt(g.sum(axis=1)) + 1e-8)
  g = scale[:, None] * g * scale
  x = np.concatenate([left, right])
  total = x.copy()
  for layer in range(num_layers):
    x = g @ x / (layer + 2)
    total += unit(x)
  return total[:n], total[n:]


def dense_views(params, num_layers):
  scenes = [{0, 2}, {1}, {1, 3, 4}]
  a_qt = np.array([[t in set(r) for t in range(NUM_DOCS)] for r in RELEVANT])
  a_qs = np.array([[set(r) == s for s in scenes] for r in RELEVANT])
  mean = np.array([[t in s for t in range(NUM_DOCS)] for s in scenes], float)
  mean /= mean.sum(axis=1, keepdims=True)
  queries, tools = params
  tool_queries, tool_rows = dense_propagate(a_qt, queries, tools, num_layers)
  scene_queries, scene_rows = dense_propagate(
    a_qs, queries, mean @ tools, num_layers
  )
  return colt.Views(
    tool_queries, tool_rows, mean @ tool_rows, scene_queries, scene_rows
  )


@pytest.mark.parametrize("num_layers", [0, 1, 3])
def test_views_equal_dense_matrices(num_layers):
  params, graphs = make_params(), colt.build(RELEVANT)
  assert len(graphs.query_tool.left) == 8  # The repeated pair counts once.
  views = colt.views(
    params, graphs, colt.all_edges(graphs), num_layers=num_layers
  )
  for ours, expected in zip(
    views, dense_views(params, num_layers), strict=True
  ):
    np.testing.assert_allclose(ours, expected, atol=1e-5)
  queries, candidates = jnp.arange(4), jnp.tile(jnp.arange(NUM_DOCS), (4, 1))
  expected = dense_views(params, num_layers)
  cosine = unit(expected.tool_queries) @ unit(expected.tools).T
  cosine += unit(expected.scene_queries) @ unit(expected.tools).T
  np.testing.assert_allclose(
    colt.scores(views, queries, candidates), cosine, atol=1e-5
  )


def test_dropped_edges_are_as_if_never_there():
  params, graphs = make_params(), colt.build(RELEVANT)
  kept = colt.all_edges(graphs)
  kept = kept._replace(
    query_tool=kept.query_tool.at[0].set(0.0)  # Query 0 with document 0.
  )
  views = colt.views(params, graphs, kept, num_layers=1)
  a_qt = np.array([[t in set(r) for t in range(NUM_DOCS)] for r in RELEVANT])
  a_qt[0, 0] = False
  expected = dense_propagate(a_qt, *params, 1)
  np.testing.assert_allclose(views.tool_queries, expected[0], atol=1e-5)
  np.testing.assert_allclose(views.tools, expected[1], atol=1e-5)


def test_dropout_is_of_the_key_and_the_rate():
  graphs = colt.build([np.arange(50)] * 40)
  first = colt.keep_edges(graphs, 0.2, key=jax.random.key(0))
  again = colt.keep_edges(graphs, 0.2, key=jax.random.key(0))
  other = colt.keep_edges(graphs, 0.2, key=jax.random.key(1))
  np.testing.assert_array_equal(first.query_tool, again.query_tool)
  assert (first.query_tool != other.query_tool).any()
  assert float(first.query_tool.mean()) == pytest.approx(0.8, abs=0.03)


def test_gradients_reach_everything_and_are_finite_at_zero():
  graphs = colt.build(RELEVANT)

  def total(params):
    views = colt.views(params, graphs, colt.all_edges(graphs), num_layers=2)
    labels = jnp.asarray([[True, False, False]] * 4)
    candidates = jnp.asarray([[0, 5, 3], [1, 0, 2], [2, 3, 4], [4, 5, 0]])
    scores = colt.scores(views, jnp.arange(4), candidates)
    return losses.completeness(scores, labels).sum()

  for value in jax.grad(total)(make_params()):
    assert np.isfinite(value).all()
    assert (np.abs(value).max(axis=1) > 1e-6).all()
  zeros = jax.tree.map(np.zeros_like, make_params())
  for value in jax.grad(total)(zeros):
    assert np.isfinite(value).all()


def test_completeness_by_hand():
  scores = jnp.asarray([[0.0, 1.0, -1.0, 5.0]])
  labels = jnp.asarray([[True, True, False, False]])
  where = jnp.asarray([[True, True, True, False]])
  p = np.exp([0.0, 1.0, -1.0]) / np.exp([0.0, 1.0, -1.0]).sum()
  y = np.array([0.5, 0.5, 0.0])
  expected = -np.mean(y * np.log(p) + (1 - y) * np.log(1 - p))
  loss = losses.completeness(scores, labels, where=where)
  np.testing.assert_allclose(loss, [expected], rtol=1e-5)
  assert float(losses.completeness(jnp.ones(2), jnp.ones(2, bool))) == 0.0
  huge = jnp.asarray([100.0, 0.0])
  value, gradient = jax.value_and_grad(losses.completeness)(
    huge, jnp.asarray([False, True])
  )
  assert np.isfinite(value)
  assert np.isfinite(gradient).all()
