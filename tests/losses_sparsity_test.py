"""The FLOPS regulariser against its definition, by hand and by autograd."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnn_jax import losses


def test_definition():
  weights = np.random.default_rng(0).normal(size=(5, 7))
  expected = sum(np.abs(weights[:, c]).mean() ** 2 for c in range(7))
  np.testing.assert_allclose(losses.flops(weights), expected, rtol=1e-6)


def test_where_leaves_texts_out():
  weights = jnp.asarray([[1.0, 2.0], [jnp.nan, 5.0], [3.0, 0.5]])
  where = jnp.asarray([True, False, True])
  value, gradient = jax.value_and_grad(losses.flops)(weights, where=where)
  assert value == 2.0**2 + 1.25**2
  np.testing.assert_allclose(gradient, [[2.0, 1.25], [0, 0], [2.0, 1.25]])
  assert losses.flops(weights, where=jnp.zeros(3, bool)) == 0


def test_it_prefers_even_lists():
  even = losses.flops(jnp.eye(4))
  uneven = losses.flops(jnp.zeros((4, 4)).at[:, 0].set(1.0))
  assert even < uneven  # The L1 norms are equal.


def test_bad_shapes():
  with pytest.raises(ValueError, match="weights"):
    losses.flops(jnp.ones(3))
  with pytest.raises(ValueError, match="where"):
    losses.flops(jnp.ones((3, 2)), where=jnp.ones(2, bool))
