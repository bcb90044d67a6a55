"""The geometry that explains a comparison, by hand."""

import numpy as np
import pytest

from experiments import comparison


def test_geometry_by_hand():
  corpus = np.float32([[1, 0], [0, 1], [0.6, 0.8], [-1, 0]])
  queries = np.float32([[1, 0], [0, 1]])
  # The second query has one relevant document and does not count.
  labels = np.asarray([[True, True, False, False], [False, False, True, False]])
  values = comparison.geometry(comparison.Embeddings(queries, corpus, labels))
  assert values == pytest.approx(
    {
      "within relevant": 0.0,
      "to nearest irrelevant": (0.6 + 0.8) / 2,
      "query to relevant": 0.5,
    }
  )
