"""Dense retrieval against a sort in numpy."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from nnn_jax.decoders import dense


@hypothesis.given(seed=st.integers(0, 10_000), ties=st.booleans())
def test_equals_a_stable_sort(seed, ties):
  rng = np.random.default_rng(seed)
  corpus, query = rng.normal(size=(17, 4)), rng.normal(size=4)
  if ties:  # Small integers: exact sums.
    corpus, query = np.round(corpus), np.round(query)
  scores = np.float32(corpus) @ np.float32(query)
  expected = np.argsort(-scores, kind="stable")[:6]
  result = dense.decode((), query, corpus, k=6)
  np.testing.assert_array_equal(result.indices, expected)
  np.testing.assert_allclose(result.scores, scores[expected], atol=1e-5)
  assert bool(result.aux.exact)


def test_where_and_default_config():
  corpus = np.float32([[1, 0], [0.8, 0.6], [0, 1]])
  result = dense.decode(
    (), np.float32([1, 0]), corpus, k=2, where=np.array([False, True, True])
  )
  assert result.indices.tolist() == [1, 2]
  assert result.aux._fields == ("num_scored", "exact", "finite")


def test_negative_scores_are_ranked():
  result = dense.decode(
    (), np.float32([1.0]), np.float32([[-3], [-1], [-2]]), k=3
  )
  assert result.indices.tolist() == [1, 2, 0]
  assert result.scores.tolist() == [-1.0, -2.0, -3.0]


def test_approximate_search_says_so():
  rng = np.random.default_rng(0)
  query, corpus = rng.normal(size=8), rng.normal(size=(3_000, 8))
  config = dense.DenseConfig(recall_target=0.9)
  found = dense.decode((), query, corpus, k=20, config=config)
  exact = dense.decode((), query, corpus, k=20)
  assert not bool(found.aux.exact)
  assert bool(exact.aux.exact)
  shared = set(found.indices.tolist()) & set(exact.indices.tolist())
  assert len(shared) >= 14
  with pytest.raises(ValueError, match=r"recall_target must be in \(0, 1\]"):
    dense.DenseConfig(recall_target=1.5)
