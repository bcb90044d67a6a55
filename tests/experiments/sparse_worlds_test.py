"""The sparse worlds are as concentrated as their source says."""

import numpy as np

from experiments.bench import sparse_worlds


def _share(values, num):
  return np.sort(values)[::-1][:num].sum() / values.sum()


def test_importance_is_as_concentrated_as_splades():
  world = sparse_worlds.make(2000, 256)
  rows = world.rows
  docs = np.split(rows.values, rows.starts[1:-1])
  np.testing.assert_allclose(len(rows.values) / rows.num_docs, 116, atol=4)
  assert world.coords.shape == (256, 42)
  np.testing.assert_allclose(
    np.mean([_share(query, 10) for query in world.weights]), 0.75, atol=0.01
  )
  np.testing.assert_allclose(
    np.mean([_share(doc, 50) for doc in docs]), 0.76, atol=0.01
  )
