"""Maximal marginal relevance against a greedy loop in numpy."""

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st

from nnn_jax.decoders import dense, mmr


def brute_force(trade_off, query, corpus, k, where=None):
  """The definition, one comparison at a time."""
  selected, values = [], []
  allowed = [i for i in range(len(corpus)) if where is None or bool(where[i])]
  for _ in range(k):
    best, best_key, best_value = -1, -np.inf, -np.inf
    for i in allowed:
      if i in selected:
        continue
      relevance = corpus[i] @ query
      redundancy = max((corpus[i] @ corpus[j] for j in selected), default=0.0)
      value = trade_off * relevance - (1 - trade_off) * redundancy
      key = value if selected else relevance
      if key > best_key:
        best, best_key, best_value = i, key, value
    selected.append(best)
    values.append(best_value)
  return selected, values


def world(seed, num_docs=12, dim=4, lean=0.0):
  rng = np.random.default_rng(seed)
  rows = rng.normal(size=(num_docs + 1, dim)) + lean
  rows /= np.linalg.norm(rows, axis=1, keepdims=True)
  return rows[0], rows[1:]


@hypothesis.given(
  seed=st.integers(0, 10_000),
  trade_off=st.floats(0.0, 1.0),
  lean=st.sampled_from([0.0, 1.0]),
  masked=st.booleans(),
)
def test_equals_the_greedy_definition(seed, trade_off, lean, masked):
  query, corpus = world(seed, lean=lean)
  where = np.ones(12, bool)
  if masked:
    where[np.random.default_rng(seed).permutation(12)[:8]] = False
  with jax.enable_x64(True):
    result = mmr.decode(
      mmr.MmrParams(trade_off), query, corpus, k=6, where=where
    )
  selected, values = brute_force(trade_off, query, corpus, 6, where)
  np.testing.assert_array_equal(result.indices, selected)
  np.testing.assert_allclose(result.scores, values, atol=1e-12)


@pytest.mark.parametrize("trade_off", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_exact_arithmetic_ties_go_to_the_lowest_index(trade_off):
  rng = np.random.default_rng(3)
  for _ in range(20):
    corpus = rng.integers(-1, 2, size=(10, 3)).astype(np.float64)
    query = rng.integers(-1, 2, size=3).astype(np.float64)
    with jax.enable_x64(True):
      result = mmr.decode(mmr.MmrParams(trade_off), query, corpus, k=10)
    selected, values = brute_force(trade_off, query, corpus, 10)
    np.testing.assert_array_equal(result.indices, selected)
    np.testing.assert_allclose(result.scores, values, atol=1e-12)


@hypothesis.given(seed=st.integers(0, 10_000))
def test_trade_off_one_is_dense(seed):
  query, corpus = (np.float32(x) for x in world(seed))
  result = mmr.decode(mmr.MmrParams(1.0), query, corpus, k=8)
  expected = dense.decode((), query, corpus, k=8)
  np.testing.assert_array_equal(result.indices, expected.indices)
  np.testing.assert_array_equal(result.scores, expected.scores)


def test_trade_off_zero_starts_with_relevance_then_avoids_redundancy():
  corpus = np.float32([[0.6, 0.8], [1, 0], [0.96, 0.28], [0, 1], [-1, 0]])
  query = np.float32([1, 0])
  result = mmr.decode(mmr.MmrParams(0.0), query, corpus, k=5)
  # [1, 0] is the most relevant; [-1, 0] is most unlike it, then [0, 1].
  assert result.indices.tolist() == [1, 4, 3, 0, 2]
  np.testing.assert_allclose(
    result.scores, [0.0, 1.0, 0.0, -0.8, -0.96], atol=1e-6
  )


def test_negative_similarities_are_rewarded():
  """Redundancy starts undefined, not at zero: a negative maximum counts."""
  corpus = np.float32([[1, 0], [-0.6, 0.8], [-0.8, -0.6]])
  query = np.float32([1, 0])
  result = mmr.decode(mmr.MmrParams(0.25), query, corpus, k=3)
  assert result.indices.tolist() == [0, 2, 1]
  np.testing.assert_allclose(
    result.scores, [0.25, -0.2 + 0.6, -0.15], atol=1e-6
  )


def test_a_copy_is_passed_over():
  corpus = np.float32([[1, 0], [1, 0], [0.6, 0.8]])
  result = mmr.decode(mmr.MmrParams(0.25), np.float32([1, 0]), corpus, k=3)
  assert result.indices.tolist() == [0, 2, 1]


def test_where_leaves_documents_out_of_redundancy_too():
  corpus = np.float32([[1, 0], [1, 0], [0.6, 0.8]])
  result = mmr.decode(
    mmr.MmrParams(0.5),
    np.float32([1, 0]),
    corpus,
    k=3,
    where=np.array([False, True, True]),
  )
  assert result.indices.tolist() == [1, 2, -1]
  assert result.scores[2] == -np.inf


def test_a_sweep_by_vmap_equals_the_loop():
  query, corpus = (np.float32(x) for x in world(5, lean=1.0))
  values = np.linspace(0, 1, 11, dtype=np.float32)

  def decode(t):
    return mmr.decode(mmr.MmrParams(t), query, corpus, k=5)

  swept = jax.vmap(decode)(values)
  for i, value in enumerate(values):
    np.testing.assert_array_equal(swept.indices[i], decode(value).indices)
  assert len(np.unique(swept.indices, axis=0)) > 2


def test_worked_example():
  """The copy A' of A is passed over; then B and C, each new in its way."""
  query = np.float32([1, 0, 0, 0])
  corpus = np.float32(
    [
      [0.9, 0.44, 0, 0],
      [0.88, 0.47, 0, 0],
      [0.7, 0, 0.71, 0],
      [0.65, 0, 0, 0.76],
    ]
  )
  result = mmr.decode(mmr.MmrParams(0.5), query, corpus, k=3)
  assert result.indices.tolist() == [0, 2, 3]
