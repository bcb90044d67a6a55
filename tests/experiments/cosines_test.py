"""Cosines that explain a comparison, by hand."""

import numpy as np
import pytest

from experiments import cosines
from experiments import embeddings as embeddings_lib


def test_geometry_by_hand():
  corpus = np.float32([[1, 0], [0, 1], [0.6, 0.8], [-1, 0]])
  queries = np.float32([[1, 0], [0, 1]])
  # The second query has one relevant document and does not count.
  labels = np.asarray([[True, True, False, False], [False, False, True, False]])
  values = cosines.geometry(embeddings_lib.Embeddings(queries, corpus, labels))
  assert values == pytest.approx(
    {
      "within relevant": 0.0,
      "to nearest irrelevant": (0.6 + 0.8) / 2,
      "query to relevant": 0.5,
    }
  )


def test_redundancy_by_hand():
  # Ranked 0, 1, 2, 3: the intruder, 1, is nearer to 0 than the missed one, 3.
  angles = np.radians([0.0, 10.0, 20.0, 90.0])
  corpus = np.float32(np.stack([np.cos(angles), np.sin(angles)], axis=1))
  queries = np.float32([[1, 0]] * 4)
  labels = np.zeros((4, 4), bool)
  labels[0, [0, 3]] = True
  labels[1, [0, 1]] = True  # Nothing missed.
  labels[2, [2, 3]] = True  # Nothing found.
  labels[3, [0, 2, 3]] = True  # More than fit.
  embeddings = embeddings_lib.Embeddings(queries, corpus, labels)
  assert cosines.redundancy(embeddings, k=2) == pytest.approx(
    {
      "intruder to found": np.cos(np.radians(10.0)),
      "missed to found": 0.0,
    },
    abs=1e-6,
  )
  nothing = embeddings._replace(labels=labels[1:3])
  nothing = nothing._replace(queries=queries[:2])
  assert np.isnan(list(cosines.redundancy(nothing, k=2).values())).all()
