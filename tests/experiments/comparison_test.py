"""The geometry that explains a comparison, by hand."""

import numpy as np
import pytest

from experiments import comparison
from experiments import embeddings as embeddings_lib


def test_geometry_by_hand():
  corpus = np.float32([[1, 0], [0, 1], [0.6, 0.8], [-1, 0]])
  queries = np.float32([[1, 0], [0, 1]])
  # The second query has one relevant document and does not count.
  labels = np.asarray([[True, True, False, False], [False, False, True, False]])
  values = comparison.geometry(
    embeddings_lib.Embeddings(queries, corpus, labels)
  )
  assert values == pytest.approx(
    {
      "within relevant": 0.0,
      "to nearest irrelevant": (0.6 + 0.8) / 2,
      "query to relevant": 0.5,
    }
  )


def test_diversity_is_chosen_and_measured_like_the_others():
  rng = np.random.default_rng(0)
  corpus = rng.normal(size=(15, 4)).astype(np.float32)
  corpus /= np.linalg.norm(corpus, axis=1, keepdims=True)
  labels = rng.random((3, 15)) < 0.2
  embeddings = embeddings_lib.Embeddings(corpus[:3], corpus, labels)

  class Encoded:
    def split(self, dataset, name):
      return embeddings

  method = comparison.METHODS["diversity"]
  chosen = comparison.choose(method, Encoded(), None)
  assert len(chosen.values) == len(method.candidates) == 11
  row, indices, _ = comparison.measure(chosen, embeddings)
  assert row["decoder"] == "diversity"
  assert row["parameters"].startswith("trade_off=")
  assert indices.shape == (3, 10)
