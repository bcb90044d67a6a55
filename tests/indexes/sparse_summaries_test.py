"""The builder in C++ and in numpy give one index."""

import jax
import numpy as np
import pytest

from experiments.bench import sparse_worlds
from nnn_jax import native
from nnn_jax.indexes import sparse_blocks, sparse_summaries


@pytest.mark.parametrize(
  "settings",
  [
    {},
    {"n_postings": 3, "alpha": 1.0, "centroid_fraction": 0.3},
    {"min_cluster_size": 0, "summary_length": 7, "quantize": False},
    {"blocks": "fixed", "prune": "paper", "n_postings": 20},
  ],
  ids=str,
)
def test_native_is_numpy(settings, monkeypatch):
  if native.sparse_blocks() is None:
    pytest.skip("there is no C++ compiler")
  rows = sparse_worlds.make(150, 1).rows
  config = sparse_blocks.BuildConfig(**settings)
  fast = sparse_blocks.build(rows, config=config)
  monkeypatch.setattr(native, "sparse_blocks", lambda: None)
  monkeypatch.setattr(sparse_summaries, "_CHUNK_ENTRIES", 100_000)
  plain = sparse_blocks.build(rows, config=config)
  assert fast.postings.size > 0
  jax.tree.map(np.testing.assert_array_equal, fast, plain)
  if settings.get("blocks") == "fixed":
    assert int(np.diff(fast.block_starts).max()) <= 10
  if "summary_length" in settings:
    assert fast.entry_codes.size == 7 * fast.summary_least.size
