"""K-means against scikit-learn, and the splitting of what is too large."""

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.cluster import KMeans

from nnn_jax.indexes import kmeans


def spread_of(rows, labels):
  """The sum of squares that k-means minimises."""
  groups = [rows[labels == label] for label in np.unique(labels)]
  return sum(np.square(group - group.mean(axis=0)).sum() for group in groups)


def test_as_good_as_scikit_learn():
  rng = np.random.default_rng(0)
  topics = rng.normal(size=(10, 8))
  rows = topics[rng.integers(10, size=500)] + 0.5 * rng.normal(size=(500, 8))
  rows = rows.astype(np.float32)
  first = np.random.default_rng(3).choice(500, 10, replace=False)
  labels = kmeans.lloyd(
    jnp.asarray(rows), num_clusters=10, num_steps=100, seed=3
  )
  peer = KMeans(10, init=rows[first], n_init=1, max_iter=100, tol=0).fit(rows)
  assert spread_of(rows, labels) == pytest.approx(peer.inertia_, rel=1e-4)


def test_blocks_do_not_change_the_labels(monkeypatch):
  rows = jnp.asarray(np.random.default_rng(0).normal(size=(103, 4)), "float32")
  whole = kmeans.lloyd(rows, num_clusters=7, num_steps=5, seed=0)
  monkeypatch.setattr(kmeans, "_BLOCK_ENTRIES", 7 * 10)
  blocks = kmeans.lloyd(
    rows, num_clusters=7, num_steps=5, seed=0, progress=True
  )
  np.testing.assert_array_equal(whole, blocks)


@pytest.mark.parametrize(
  "rows",
  [
    np.random.default_rng(0).normal(size=(300, 5)),
    np.ones((300, 5)),
    np.zeros((300, 5)),
    np.eye(300)[:, :50],
    np.exp(np.random.default_rng(0).normal(size=(300, 1)) * 9),
  ],
  ids=["normal", "equal", "zero", "unit", "lengths"],
)
@pytest.mark.parametrize("max_size", [1, 7, 300])
def test_parts_are_small_and_hold_every_row_once(rows, max_size):
  parts = kmeans.split(rows.astype(np.float32), max_size=max_size)
  assert all(0 < part.size <= max_size for part in parts)
  assert all((np.diff(part) > 0).all() for part in parts)
  assert sorted(np.concatenate(parts)) == list(range(300))


def test_groups_far_apart_are_separated():
  rng = np.random.default_rng(0)
  centres = np.repeat(100 * np.eye(3), 20, axis=0)
  rows = (centres + rng.normal(size=(60, 3))).astype(np.float32)
  parts = kmeans.split(rows, max_size=20)
  assert sorted(part.tolist() for part in parts) == [
    list(range(start, start + 20)) for start in (0, 20, 40)
  ]
