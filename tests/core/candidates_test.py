"""Relevance given or computed, and the pool, by hand."""

import numpy as np
import pytest

from nnn_jax.core import candidates

CORPUS = np.float32([[1, 0], [0, 1], [0.6, 0.8], [np.nan, 1]])


def test_relevance():
  query = np.float32([1, 0])
  computed = candidates.relevance(query, CORPUS)
  np.testing.assert_allclose(computed[:3], [1.0, 0.0, 0.6], atol=1e-6)
  assert np.isnan(computed[3])
  given = candidates.Scores(np.float32([1, 2, 3, 4]))
  np.testing.assert_array_equal(
    candidates.relevance(given, CORPUS), [1.0, 2.0, 3.0, np.nan]
  )


@pytest.mark.parametrize("size", [2, 4])
def test_pool(size):
  relevance = np.float32([1.0, 3.0, 3.0, np.nan])
  where = np.asarray([True, True, False, True])
  pool = candidates.pool(relevance, CORPUS, where, size=size)
  kept = np.asarray(pool.allowed)
  assert set(np.asarray(pool.indices)[kept].tolist()) == {0, 1}
  for row, value, index in zip(
    pool.rows[kept], pool.relevance[kept], pool.indices[kept], strict=True
  ):
    np.testing.assert_array_equal(row, CORPUS[index])
    assert value == relevance[index]
  assert np.isfinite(pool.relevance).all()


def test_inputs():
  given = candidates.Scores([1, 2, 3, 4])
  query, corpus, where = candidates.check_inputs(given, CORPUS, None, k=2)
  assert query.relevance.dtype == np.float32
  assert corpus.shape == (4, 2)
  assert where is None
  with pytest.raises(ValueError, match="num_docs is 4 in `corpus` and 3 here"):
    candidates.check_inputs(candidates.Scores([1, 2, 3]), CORPUS, None, k=2)
  with pytest.raises(ValueError, match="k must be between 1 and num_docs = 4"):
    candidates.check_inputs(given, CORPUS, None, k=5)
