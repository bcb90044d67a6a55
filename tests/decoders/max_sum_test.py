"""Greedy max-sum diversification against its definition."""

import jax
import numpy as np
import pytest

from nnn_jax.decoders import dense, max_sum


def world(seed, num_docs=12, dim=4):
  rng = np.random.default_rng(seed)
  rows = rng.normal(size=(num_docs + 1, dim)) + 0.5
  rows /= np.linalg.norm(rows, axis=1, keepdims=True)
  return rows[0], rows[1:]


@pytest.mark.parametrize("trade_off", [0.1, 0.5, 0.9])
def test_equals_the_greedy_definition(trade_off):
  k = 6
  for seed in range(5):
    query, corpus = world(seed)
    with jax.enable_x64(True):
      result = max_sum.decode((trade_off,), query, corpus, k=k)

    def objective(rows, query=query, corpus=corpus):
      gram = corpus[rows] @ corpus[rows].T
      together = gram.sum() - np.trace(gram)
      relevance = trade_off * (corpus[rows] @ query).sum()
      return relevance - (1 - trade_off) / (k - 1) * together

    selected, scores = [], []
    for _ in range(k):
      left = [i for i in range(12) if i not in selected]
      gains = [objective([*selected, i]) - objective(selected) for i in left]
      best = int(np.argmax(gains))
      selected.append(left[best])
      scores.append(gains[best])
    np.testing.assert_array_equal(result.indices, selected)
    np.testing.assert_allclose(result.scores, scores, atol=1e-12)
    assert np.sum(result.scores) == pytest.approx(objective(selected))


def test_ends_of_the_trade_off():
  query, corpus = (np.float32(x) for x in world(0))
  result = max_sum.decode((1.0,), query, corpus, k=8)
  expected = dense.decode((), query, corpus, k=8)
  np.testing.assert_array_equal(result.indices, expected.indices)
  first = max_sum.decode((0.0,), query, corpus, k=2).indices
  assert int(first[0]) == int(np.argmax(corpus @ query))
  assert int(first[1]) == int(np.argmin(corpus @ corpus[first[0]]))
