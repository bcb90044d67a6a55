"""Tests of nnn_jax.core.blocks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnn_jax.core import blocks, sharding


@pytest.mark.parametrize("block_size", [1, 3, 8, 16, 100])
def test_equals_the_function_of_all_rows(block_size):
  rows = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
  shared = np.random.default_rng(1).normal(size=(2, 3)).astype(np.float32)

  def mapped(query, rows):
    return blocks.map_rows(
      lambda q, x: jnp.exp(x @ q), query, rows, block_size=block_size
    )

  expected = np.exp(shared @ rows.T)
  batched = jax.jit(jax.vmap(mapped, in_axes=(0, None)))
  np.testing.assert_allclose(batched(shared, rows), expected, rtol=1e-5)
  with jax.set_mesh(sharding.make_mesh()) as _:
    placed, _ = sharding.pad_and_shard(rows, sharding.make_mesh())
    result = batched(shared, placed)
    np.testing.assert_allclose(result, expected, rtol=1e-5)
