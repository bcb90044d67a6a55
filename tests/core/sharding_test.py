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


def test_one_process_holds_every_document():
  mesh = sharding.make_mesh()
  assert sharding.local_rows(13, mesh) == slice(0, 13)
  rows, where = sharding.shard_local(np.ones((13, 3), np.float32), 13, mesh)
  expected = sharding.pad_and_shard(np.ones((13, 3), np.float32), mesh)
  np.testing.assert_array_equal(rows, expected[0])
  np.testing.assert_array_equal(where, expected[1])


class Process:
  """How the rows of a mesh look to one of several processes."""

  def __init__(self, *spans):
    self.spans = spans

  def addressable_devices_indices_map(self, shape):
    assert shape == (16,)
    return {i: (slice(*span),) for i, span in enumerate(self.spans)}


@pytest.mark.parametrize(
  ("spans", "expected"),
  [
    ([(0, 2), (2, 4)], slice(0, 4)),
    ([(10, 12), (8, 10)], slice(8, 12)),
    ([(12, 14), (14, 16)], slice(12, 13)),
    ([(14, 16)], slice(13, 13)),  # Padding alone.
  ],
)
def test_local_rows_of_one_of_several_processes(monkeypatch, spans, expected):
  monkeypatch.setattr(sharding, "_by_rows", lambda _: Process(*spans))
  assert sharding.local_rows(13, sharding.make_mesh()) == expected


@pytest.mark.parametrize("spans", [[], [(0, 2), (4, 6)]])
def test_a_process_without_consecutive_rows_is_refused(monkeypatch, spans):
  monkeypatch.setattr(sharding, "_by_rows", lambda _: Process(*spans))
  with pytest.raises(ValueError, match="mesh must hold this process"):
    sharding.local_rows(13, sharding.make_mesh())


@pytest.mark.parametrize("shape", [(12, 3), (16, 3), (13,)])
def test_rows_that_do_not_fit_are_refused(shape):
  with pytest.raises(ValueError, match=r"rows must have shape \[13, dim\]"):
    sharding.shard_local(np.ones(shape), 13, sharding.make_mesh())


def test_a_memory_mapped_corpus_is_read_in_place(tmp_path):
  corpus = np.random.default_rng(0).normal(size=(13, 3)).astype(np.float32)
  np.save(tmp_path / "corpus.npy", corpus)
  mapped = np.load(tmp_path / "corpus.npy", mmap_mode="r")
  rows, _ = sharding.pad_and_shard(mapped, sharding.make_mesh())
  np.testing.assert_array_equal(rows[:13], corpus)
