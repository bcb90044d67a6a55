"""Tests of nnn_jax.models.adapter."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnn_jax.models import adapter


def make_adapter(dim=16, hidden=24):
  config = adapter.AdapterConfig(dim=dim, hidden=hidden)
  return adapter.Adapter(config, rngs=nnx.Rngs(0))


def unit_rows(*shape):
  x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
  return x / np.linalg.norm(x, axis=-1, keepdims=True)


def test_matches_the_formula():
  module = make_adapter()
  module.gate[...] = jnp.float32(0.3)
  module.mlp_in.bias[...] = jnp.linspace(-1, 1, 24)
  x = unit_rows(5, 16).astype(np.float64)
  w1, b1, w2, b2 = (
    np.asarray(p[...], np.float64)
    for p in (
      module.mlp_in.kernel,
      module.mlp_in.bias,
      module.mlp_out.kernel,
      module.mlp_out.bias,
    )
  )
  hidden = x @ w1 + b1
  hidden *= 0.5 * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2)))
  share = 1 / (1 + math.exp(-0.3))
  expected = (1 - share) * x + share * (hidden @ w2 + b2)
  expected /= np.linalg.norm(expected, axis=-1, keepdims=True)
  np.testing.assert_allclose(module(jnp.asarray(x)), expected, atol=1e-6)


def test_is_close_to_the_identity_at_the_start():
  x = unit_rows(100, 384)
  y = np.asarray(make_adapter(dim=384, hidden=768)(jnp.asarray(x)))
  assert np.min(np.sum(x * y, axis=-1)) > 0.9999
  np.testing.assert_allclose(np.linalg.norm(y, axis=-1), 1.0, atol=1e-6)


def test_gradients_are_finite_at_zero():
  graphdef, params = nnx.split(make_adapter())

  def loss(params, x):
    return jnp.sum(nnx.merge(graphdef, params)(x) ** 2 + x)

  gradients = jax.jit(jax.grad(loss, argnums=(0, 1)))(
    params, jnp.zeros((3, 16))
  )
  assert all(np.all(np.isfinite(g)) for g in jax.tree.leaves(gradients))


def test_every_parameter_gets_a_gradient():
  graphdef, params = nnx.split(make_adapter())
  x = jnp.asarray(unit_rows(8, 16))
  target = jnp.roll(x, 1, axis=0)

  @jax.jit
  @jax.grad
  def gradient(params):
    return jnp.sum(nnx.merge(graphdef, params)(x) * target)

  gradients = gradient(params)
  assert all(np.any(np.asarray(g) != 0) for g in jax.tree.leaves(gradients))


@pytest.mark.parametrize("shape", [(16,), (3, 16), (2, 3, 16)])
def test_any_leading_axes(shape):
  module = make_adapter()
  x = unit_rows(*shape)
  with jax.numpy_rank_promotion("raise"):
    y = module(jnp.asarray(x))
  rows = module(jnp.asarray(x.reshape(-1, 16)))
  np.testing.assert_allclose(y.reshape(-1, 16), rows, atol=1e-6)


@pytest.mark.parametrize("x", [jnp.ones((3, 15)), jnp.ones(())])
def test_a_wrong_width_is_an_error(x):
  with pytest.raises(ValueError, match=r"x must be .* with dim 16"):
    jax.jit(lambda x: make_adapter()(x))(x)


@pytest.mark.parametrize("name", ["dim", "hidden"])
def test_config_errors(name):
  with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
    adapter.AdapterConfig(**{"dim": 4, name: 0})


def test_the_papers_hidden_size_is_the_default():
  assert adapter.AdapterConfig(dim=384).hidden == 768
