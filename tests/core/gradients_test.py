"""Iterating a step, and what is stored for the backward pass."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnn_jax.core import gradients
from nnn_jax.core.gradients import Unroll


def logistic_map(state):
  x, count = state
  return 3.3 * x * (1.0 - x), count + 1


@pytest.mark.parametrize("num_steps", [0, 1, 7, 12])
@pytest.mark.parametrize("remat_every", [None, 1, 4, 100])
def test_iterate_equals_a_loop(num_steps, remat_every):
  gradient = Unroll(remat_every=remat_every)

  def run(x):
    return gradients.iterate(
      logistic_map, (x, 0), num_steps=num_steps, gradient=gradient
    )

  x, slope = 0.3, 1.0
  for _ in range(num_steps):
    x, slope = 3.3 * x * (1 - x), slope * 3.3 * (1 - 2 * x)
  with jax.enable_x64(True):
    value, count = run(jnp.float64(0.3))
    grad = jax.grad(lambda x: run(x)[0])(jnp.float64(0.3))
  assert int(count) == num_steps
  assert float(value) == pytest.approx(x, rel=1e-12)
  assert float(grad) == pytest.approx(slope, rel=1e-9)


def test_remat_stores_fewer_states():
  def temp_bytes(gradient):
    def run(x):
      def step(x):
        return jnp.sin(x) * 1.1

      return jnp.sum(
        gradients.iterate(step, x, num_steps=400, gradient=gradient)
      )

    compiled = jax.jit(jax.grad(run)).lower(np.ones(1_000, np.float32))
    return compiled.compile().memory_analysis().temp_size_in_bytes

  assert temp_bytes(Unroll(remat_every=20)) < temp_bytes(Unroll()) / 5


@pytest.mark.parametrize("remat_every", [0, -3])
def test_remat_every_is_positive(remat_every):
  with pytest.raises(
    ValueError, match=f"remat_every must be None or >= 1, got {remat_every}"
  ):
    Unroll(remat_every=remat_every)


def test_policies_are_static():
  assert hash(Unroll(remat_every=3)) == hash(Unroll(remat_every=3))
  assert Unroll() != Unroll(remat_every=3)
  with pytest.raises(TypeError):
    Unroll(3)
