"""Greedy DPP against determinants recomputed from scratch."""

import jax
import numpy as np
import pytest

from nnn_jax.decoders import dense, dpp


def world(seed, num_docs=12, dim=8):
  rng = np.random.default_rng(seed)
  rows = rng.normal(size=(num_docs + 1, dim)) + 0.5
  rows /= np.linalg.norm(rows, axis=1, keepdims=True)
  return rows[0], rows[1:]


def brute_force(trade_off, query, corpus, k):
  """The definition: the largest relevance plus log-determinant, each step."""

  def value(rows):
    if not rows:
      return 0.0
    gram = corpus[rows] @ corpus[rows].T
    volume = np.linalg.slogdet(gram)[1]
    return trade_off * (corpus[rows] @ query).sum() + (1 - trade_off) * volume

  selected, scores = [], []
  for _ in range(k):
    gains = {
      i: value([*selected, i]) - value(selected)
      for i in range(len(corpus))
      if i not in selected
    }
    best = max(gains, key=gains.__getitem__)
    selected.append(best)
    scores.append(gains[best])
  return selected, scores


@pytest.mark.parametrize("trade_off", [0.0, 0.3, 0.7, 0.95])
def test_equals_the_greedy_definition(trade_off):
  for seed in range(5):
    query, corpus = world(seed)
    corpus = corpus * np.random.default_rng(seed).uniform(0.5, 2, (12, 1))
    with jax.enable_x64(True):
      result = dpp.decode(dpp.DppParams(trade_off), query, corpus, k=6)
    selected, scores = brute_force(trade_off, query, corpus, 6)
    np.testing.assert_array_equal(result.indices, selected)
    np.testing.assert_allclose(result.scores, scores, atol=1e-8)


def test_trade_off_one_is_dense():
  query, corpus = (np.float32(x) for x in world(0))
  result = dpp.decode((1.0,), query, corpus, k=8)
  expected = dense.decode((), query, corpus, k=8)
  np.testing.assert_array_equal(result.indices, expected.indices)
  np.testing.assert_array_equal(result.scores, expected.scores)


@pytest.mark.parametrize("double", [False, True])
def test_more_documents_than_the_rank(double):
  """12 points in R^3, k = 8: all distinct, those in the span by relevance."""
  query, corpus = world(1, dim=3)
  with jax.enable_x64(double):
    result = dpp.decode((0.5,), query, corpus, k=8)
  indices = result.indices.tolist()
  assert len(set(indices)) == 8
  assert min(indices) >= 0
  rest = corpus[indices[3:]] @ query
  assert (np.diff(rest) <= 1e-6).all()
  selected, _ = brute_force(0.5, query, corpus, 3)
  assert indices[:3] == selected


def test_copies_come_last():
  corpus = np.repeat(np.eye(4, dtype=np.float32), 2, axis=0)
  result = dpp.decode((0.2,), np.float32([4, 3, 2, 1]) / 10, corpus, k=8)
  assert result.indices.tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
