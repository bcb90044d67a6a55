"""The sweep against the decoder, and the rules by hand."""

import numpy as np

from experiments import embeddings as embeddings_lib
from experiments import penalty_sweep
from nnn_jax.decoders import nnn
from nnn_jax.solvers import working_set


def swept(size, residual):
  """One query, one l2; Comp is 1 at the third l1 only."""
  size, residual = (np.float32(x).reshape(1, -1, 1) for x in (size, residual))
  values = np.zeros((*size.shape, 2), np.float32)
  values[0, 2, 0, :] = 1.0
  return penalty_sweep.Sweep(values, size, residual)


def test_the_support_size_rule_by_hand():
  one = swept([1, 2, 4, 3], [0.9, 0.5, 0.3, 0.2])
  # A support may shrink again: the first place that is large enough counts.
  for size, place in ((1, 0), (2, 1), (3, 2), (4, 2), (5, 3)):
    assert penalty_sweep.by_support_size(one, size).tolist() == [[place]]
  np.testing.assert_array_equal(one.support_size[0, :, 0], [1, 2, 4, 3])


def test_the_criterion_by_hand():
  # log residual: -0.105, -0.693, -1.204, -1.609.
  one = swept([1, 2, 4, 9], [0.9, 0.5, 0.3, 0.2])
  assert penalty_sweep.by_criterion(one, 0.0).tolist() == [[3]]
  assert penalty_sweep.by_criterion(one, 0.1).tolist() == [[2]]  # -0.804
  assert penalty_sweep.by_criterion(one, 0.3).tolist() == [[1]]  # -0.093
  assert penalty_sweep.by_criterion(one, 1.0).tolist() == [[0]]


def test_the_criterion_does_not_depend_on_the_scale():
  rng = np.random.default_rng(0)
  size = rng.integers(1, 20, size=8)
  residual = rng.random(8)
  for price in penalty_sweep.PRICES:
    np.testing.assert_array_equal(
      penalty_sweep.by_criterion(swept(size, residual), price),
      penalty_sweep.by_criterion(swept(size, 9.0 * residual), price),
    )


def test_reading_values_at_a_place():
  one = swept([1, 2, 4, 3], [0.9, 0.5, 0.3, 0.2])
  for place, value in ((2, 1.0), (1, 0.0)):
    places = np.asarray([[place]])
    assert penalty_sweep.read(one, places).tolist() == [[[value, value]]]


def test_pick_prefers_comp_then_recall_then_the_first():
  values = np.zeros((4, 2, 2, 2))
  values[0, 1, 0, 0] = values[0, 1, 1, 0] = 1.0
  values[:, 0, 0, 1] = 1.0
  assert penalty_sweep.pick(values) == (1, 0)
  values[1, 1, 1, 1] = 0.1
  assert penalty_sweep.pick(values) == (1, 1)


def toy(num_queries, seed, scale=1.0):
  rng = np.random.default_rng(0)
  corpus = rng.normal(size=(20, 8)) + 0.3
  corpus /= np.linalg.norm(corpus, axis=1, keepdims=True)
  rng = np.random.default_rng(seed)
  labels = np.zeros((num_queries, 20), bool)
  for row in labels:
    row[rng.choice(20, 2, replace=False)] = True
  queries = labels @ corpus + 0.1 * rng.normal(size=(num_queries, 8))
  queries /= np.linalg.norm(queries, axis=1, keepdims=True)
  return embeddings_lib.Embeddings(
    np.float32(scale * queries), np.float32(corpus), labels
  )


def test_a_sweep_is_what_the_decoder_returns():
  embeddings = toy(6, 3)
  absolute, relative = penalty_sweep.sweep(embeddings)
  config = nnn.NnnConfig(solver=working_set.WorkingSet(capacity=20))
  top = (embeddings.queries @ embeddings.corpus.T).max(axis=1)
  rng = np.random.default_rng(0)
  for _ in range(12):
    query, place, column = rng.integers((6, 8, 5))
    for swept, l1 in (
      (absolute, penalty_sweep.L1[place]),
      (relative, penalty_sweep.RHO[place] * top[query]),
    ):
      params = nnn.NnnParams(np.float32(l1), penalty_sweep.L2[column])
      q, corpus = embeddings.queries[query], embeddings.corpus
      result = nnn.decode(params, q, corpus, k=5, config=config)
      hits = embeddings.labels[query][result.indices].sum()
      where = (query, place, column)
      np.testing.assert_allclose(swept.values[where], [hits == 2, hits / 2])
      assert swept.support_size[where] == result.aux.support_size
      residual = q - result.aux.weights.dense(len(corpus)) @ corpus
      np.testing.assert_allclose(
        swept.residual[where], residual @ residual, atol=1e-5
      )


def test_a_relative_sweep_does_not_depend_on_the_query_length():
  """Homogeneity: the ranking, and the residual in units of the query's."""
  (_, one), (_, long) = (penalty_sweep.sweep(toy(6, 1, s)) for s in (1.0, 8.0))
  np.testing.assert_array_equal(one.values, long.values)
  np.testing.assert_array_equal(one.support_size, long.support_size)
  np.testing.assert_allclose(64.0 * one.residual, long.residual, rtol=1e-4)
