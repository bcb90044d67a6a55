"""Meshes and padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnn_jax.core import sharding


def test_make_mesh_takes_all_devices_with_auto_axes():
  mesh = sharding.make_mesh()
  assert mesh.shape == {sharding.DOCS_AXIS: 8}
  assert mesh.axis_types == (jax.sharding.AxisType.Auto,)
  assert sharding.make_mesh(jax.devices()[:2]).size == 2


@pytest.mark.parametrize("num_docs", [1, 8, 13, 16])
def test_pad_and_shard(num_docs):
  mesh = sharding.make_mesh()
  corpus = np.random.default_rng(0).normal(size=(num_docs, 3))
  corpus = corpus.astype(np.float32)
  rows, where = sharding.pad_and_shard(corpus, mesh)
  assert rows.shape == (-(-num_docs // 8) * 8, 3)
  np.testing.assert_array_equal(rows[:num_docs], corpus)
  assert (np.asarray(rows[num_docs:]) == 0).all()
  assert where.dtype == jnp.bool_
  np.testing.assert_array_equal(where, np.arange(len(rows)) < num_docs)
  for array in (rows, where):
    assert len(array.sharding.device_set) == 8
    assert array.addressable_shards[0].data.shape[0] == len(rows) // 8


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_pad_and_shard_keeps_the_storage_dtype(dtype):
  corpus = jnp.ones((5, 3), dtype)
  rows, _ = sharding.pad_and_shard(corpus, sharding.make_mesh())
  assert rows.dtype == dtype
  np.testing.assert_array_equal(np.float32(rows[:5]), 1.0)


def test_one_device_needs_no_padding():
  mesh = sharding.make_mesh(jax.devices()[:1])
  rows, where = sharding.pad_and_shard(np.ones((5, 3)), mesh)
  assert rows.shape == (5, 3)
  assert where.all()
