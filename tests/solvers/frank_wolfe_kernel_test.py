"""The kernel in C++ against the same loop in XLA, which others test."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quadratic_worlds as worlds

from nnn_jax import native
from nnn_jax.decoders import diversity
from nnn_jax.solvers import frank_wolfe, kernels, quadratic

KERNEL, XLA = (
  jax.jit(run, static_argnames=("k", "loading", "num_steps", "tol"))
  for run in (frank_wolfe._natively, frank_wolfe._ascend)
)


@pytest.fixture(autouse=True)
def compiler():
  if not native.frank_wolfe():
    pytest.skip("there is no C++ compiler")


def instance(seed, num_docs, dim, k, *, scale=None, penalty=0.6):
  rng = np.random.default_rng(seed)
  rows = worlds.unit_rows(rng, num_docs, dim, clusters=max(num_docs // 8, 2))
  if scale is not None:
    rows = rows * rng.uniform(*scale, size=(num_docs, 1))
  gain = (1.0 - penalty) * (k - 1) * rows @ worlds.query_of(rng, rows)
  return quadratic.Problem(
    jnp.asarray(gain, jnp.float32),
    jnp.asarray(penalty, jnp.float32),
    kernels.Linear().similarity(jnp.asarray(rows, jnp.float32)),
    jnp.ones(num_docs, bool),
    jnp.asarray(k, jnp.float32),
  )


def both(problem, start, **static):
  """(by the kernel, by XLA)."""
  static = {"num_steps": 200, "tol": 1e-6, "loading": 2.0} | static
  assert frank_wolfe._has_kernel(problem)
  return KERNEL(problem, start, **static), XLA(problem, start, **static)


def assert_alike(kernel, xla):
  assert int(kernel.num_steps) == int(xla.num_steps)
  assert bool(kernel.stationary) == bool(xla.stationary)
  np.testing.assert_allclose(kernel.x, xla.x, atol=1e-5)
  np.testing.assert_allclose(kernel.product, xla.product, atol=1e-4)
  np.testing.assert_allclose(kernel.bound, xla.bound, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
  ("num_docs", "dim", "k"),
  [(200, 64, 20), (61, 21, 9), (7, 3, 7), (9, 1, 1), (1, 16, 1)],
)
@pytest.mark.parametrize("loading", [0.0, 1.0, 2.0])
def test_the_same_ascent(num_docs, dim, k, loading):
  for seed in range(3):
    problem = instance(seed, num_docs, dim, k, scale=(0.3, 2.0))
    start = frank_wolfe.centre(problem)
    # The concave relaxation is approached for ever.
    num_steps = 3 if loading == 0.0 else 200
    assert_alike(
      *both(problem, start, k=k, loading=loading, num_steps=num_steps)
    )


def test_from_a_vertex_with_documents_left_out_and_broken_rows():
  problem = instance(0, 90, 24, 10)
  rows = np.array(problem.similarity.rows)
  rows[3], rows[50, 7] = np.nan, np.inf
  similarity = kernels.Linear().similarity(jnp.asarray(rows))
  allowed = np.random.default_rng(0).random(90) < 0.5
  allowed &= np.asarray(similarity.finite)
  problem = problem._replace(
    similarity=similarity,
    allowed=jnp.asarray(allowed),
    gain=jnp.where(allowed, problem.gain, 0.0),
  )
  start = np.zeros(90, np.float32)
  start[np.flatnonzero(allowed)[:10]] = 1.0
  kernel, xla = both(problem, jnp.asarray(start), k=10)
  assert_alike(kernel, xla)
  assert not np.asarray(kernel.x)[~allowed].any()


@pytest.mark.parametrize("num_allowed", [0, 1, 4, 5])
def test_no_more_than_k_are_allowed(num_allowed):
  problem = instance(0, 12, 8, 5)
  problem = problem._replace(
    allowed=jnp.arange(12) < num_allowed,
    total=jnp.asarray(min(num_allowed, 5), jnp.float32),
  )
  kernel, xla = both(problem, frank_wolfe.centre(problem), k=5)
  assert_alike(kernel, xla)
  assert float(jnp.sum(kernel.x)) == pytest.approx(num_allowed, abs=1e-6)


def test_equal_slopes_go_to_the_lowest_index():
  """Documents all alike, and slopes of both zeros and either sign."""
  alike = instance(0, 20, 8, 6)
  rows = jnp.ones_like(alike.similarity.rows) / 8**0.5
  alike = alike._replace(
    gain=jnp.zeros(20), similarity=kernels.Linear().similarity(rows)
  )
  start = jnp.zeros(20).at[jnp.arange(14, 20)].set(1.0)
  assert_alike(*both(alike, start, k=6, num_steps=1))
  gain = jnp.asarray([-1.0, -0.0, 0.0, 2.0, -0.0, -3.0, 0.0, 2.0])
  signs = quadratic.Problem(
    gain,
    jnp.asarray(0.0),
    kernels.Linear().similarity(jnp.eye(8)),
    jnp.ones(8, bool),
    jnp.asarray(4.0),
  )
  kernel, xla = both(signs, frank_wolfe.centre(signs), k=4)
  assert_alike(kernel, xla)
  assert kernel.x.tolist() == [0, 1, 1, 1, 0, 0, 0, 1]


def test_batched_and_under_a_gradient():
  problem = instance(0, 64, 16, 8)
  gains = jnp.stack([problem.gain, problem.gain[::-1]])

  def solve(gain):
    one = problem._replace(gain=gain)
    return frank_wolfe.maximize(one, frank_wolfe.centre(one), k=8, loading=2.0)

  batch = jax.jit(jax.vmap(solve))(gains)
  for i, gain in enumerate(gains):
    one = jax.tree.map(lambda x, i=i: x[i], batch)
    assert_alike(one, solve(gain))
  rows = problem.similarity.rows

  def score(query):
    return jnp.sum(
      diversity.decode(diversity.DiversityParams(0.5), query, rows, k=8).scores
    )

  gradient = jax.grad(score)(rows[0])
  chosen = diversity.decode(
    diversity.DiversityParams(0.5), rows[0], rows, k=8
  ).indices
  np.testing.assert_allclose(gradient, rows[chosen].sum(axis=0), atol=1e-5)


def test_export_for_another_platform_has_no_kernel():
  problem = instance(0, 64, 16, 8)
  solve = jax.jit(
    lambda problem: (
      frank_wolfe.maximize(
        problem, frank_wolfe.centre(problem), k=8, loading=2.0
      ).x
    )
  )
  exported = jax.export.export(solve, platforms=("tpu", "cuda"))(problem)
  assert native.FRANK_WOLFE not in exported.mlir_module()
  with pytest.raises(ValueError, match=native.FRANK_WOLFE):
    jax.export.export(solve)(problem)


def test_who_has_no_kernel(monkeypatch):
  problem = instance(0, 64, 16, 8)
  formed = kernels.Power(power=2).similarity(problem.similarity.rows)
  assert not frank_wolfe._has_kernel(problem._replace(similarity=formed))
  with jax.enable_x64(True):
    double = jax.tree.map(lambda x: x.astype(jnp.float64), problem)
    assert not frank_wolfe._has_kernel(double)
  monkeypatch.setattr(frank_wolfe, "_MOST_ENTRIES", 64 * 16 - 1)
  assert not frank_wolfe._has_kernel(problem)
