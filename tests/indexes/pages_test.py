"""Huge pages: asked for, without a change of values."""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnn_jax.indexes import pages


def _huge_kib(array):
  """KiB on huge pages of the mappings that hold an array."""
  address = np.asarray(array).ctypes.data
  end = address + array.nbytes
  total, within = 0, False
  for line in pathlib.Path("/proc/self/smaps").read_text().splitlines():
    span = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
    if span:
      within = int(span[1], 16) < end and int(span[2], 16) > address
    elif within and line.startswith("AnonHugePages:"):
      total += int(line.split()[1])
  return total


def test_a_large_array_moves_and_keeps_its_values_and_address():
  values = np.random.default_rng(0).normal(size=3 * 2**20).astype(np.float32)
  array = jnp.array(values)
  address = np.asarray(array).ctypes.data
  tree = {"large": array, "small": jnp.arange(3)}
  before = _huge_kib(array)
  assert pages.on_huge_pages(tree) is tree
  np.testing.assert_array_equal(array, values)
  assert np.asarray(array).ctypes.data == address
  if _huge_kib(array) == before == 0:
    pytest.skip("this kernel gives no huge pages")
  assert _huge_kib(array) >= array.nbytes // 2**10 - 2 * 2**11


def test_a_sharded_array_and_an_empty_one_pass():
  devices = jax.devices()[:2]
  mesh = jax.make_mesh((len(devices),), ("docs",), devices=devices)
  spec = jax.sharding.NamedSharding(mesh, jax.P("docs"))
  x = jax.device_put(jnp.ones((2**20 * len(devices), 2)), spec)
  pages.on_huge_pages((x, jnp.zeros((0, 4))))
  np.testing.assert_array_equal(x, 1)
