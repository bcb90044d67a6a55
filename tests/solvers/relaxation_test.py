"""Smooth relaxations against cvxpy, and their gradients by differences."""

import cvxpy
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quadratic_worlds as worlds

from nnn_jax.solvers import kernels, quadratic, relaxation

N, K, PENALTY = 24, 5, 0.5
KINDS = [
  relaxation.Concave(strength=0.3),
  relaxation.Entropic(temperature=0.4),
  relaxation.Entropic(temperature=0.4, loading=0.5),
]
per_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


@pytest.fixture(autouse=True)
def double():
  with jax.enable_x64(True):
    yield


def arrays(seed=0):
  """(gain, penalty, rows): unit rows in clusters."""
  rng = np.random.default_rng(seed)
  rows = worlds.unit_rows(rng, N, 6, clusters=8)
  return 2.0 * rows @ worlds.query_of(rng, rows), np.float64(PENALTY), rows


def problem_of(gain, penalty, rows, allowed=None, total=K):
  return quadratic.Problem(
    jnp.asarray(gain),
    jnp.asarray(penalty),
    kernels.Linear().similarity(jnp.asarray(rows)),
    jnp.ones(N, bool) if allowed is None else jnp.asarray(allowed),
    jnp.asarray(float(total)),
  )


def solve(kind, *args, **kwargs):
  return np.asarray(jax.jit(kind.solve)(problem_of(*args, **kwargs)))


@pytest.mark.parametrize("penalty", [0.0, PENALTY])
def test_concave_equals_cvxpy(penalty):
  gain, _, rows = arrays()
  kind = KINDS[0]
  x = cvxpy.Variable(N)
  value = (
    gain @ x
    + penalty * (cvxpy.sum(x) - cvxpy.sum_squares(rows.T @ x))
    + kind.strength * (cvxpy.sum(x) - cvxpy.sum_squares(x))
  )
  constraints = [x >= 0, x <= 1, cvxpy.sum(x) == K]
  cvxpy.Problem(cvxpy.Maximize(value), constraints).solve(
    "CLARABEL", tol_gap_abs=1e-12, tol_gap_rel=1e-12
  )
  np.testing.assert_allclose(
    solve(kind, gain, penalty, rows), x.value, atol=1e-6
  )


def test_entropic_is_no_worse_than_cvxpy():
  """Values first: cvxpy solves for an entropy's maximiser to 1e-4 only."""
  gain, penalty, rows = arrays()
  kind = KINDS[1]
  x = cvxpy.Variable(N)
  entropy = cvxpy.sum(cvxpy.entr(x)) + cvxpy.sum(cvxpy.entr(1 - x))
  value = (
    gain @ x
    + penalty * (cvxpy.sum(x) - cvxpy.sum_squares(rows.T @ x))
    + kind.temperature * entropy
  )
  problem = cvxpy.Problem(cvxpy.Maximize(value), [cvxpy.sum(x) == K])
  best = problem.solve("CLARABEL", tol_gap_abs=1e-12, tol_gap_rel=1e-12)
  theirs = x.value
  ours = solve(kind, gain, penalty, rows)
  x.value = ours
  assert value.value >= best - 1e-10
  np.testing.assert_allclose(ours, theirs, atol=1e-4)


@per_kind
def test_the_optimum_satisfies_its_conditions(kind):
  gain, penalty, rows = arrays(1)
  x = solve(kind, gain, penalty, rows)
  assert x.sum() == pytest.approx(K, abs=1e-10)
  rho = getattr(kind, "loading", 0.0)
  g = gain + penalty * (1 - rho * (1 - 2 * x) - 2 * rows @ (rows.T @ x))
  if isinstance(kind, relaxation.Concave):
    g = g + kind.strength * (1 - 2 * x)
    inside = (x > 0) & (x < 1)
    assert 0 < inside.sum() < N
    assert np.ptp(g[inside]) < 1e-9
    assert g[x == 0].max() <= g[inside].min() + 1e-9
  else:
    nu = g - kind.temperature * np.log(x / (1 - x))
    np.testing.assert_allclose(nu, nu.mean(), atol=1e-8)


@per_kind
def test_small_regularisation_approaches_the_choice(kind):
  """A wide margin: the relaxation is the set itself."""
  gain = np.where(np.arange(N) < K, 40.0, 0.0)
  _, penalty, rows = arrays()
  x = solve(kind, gain, penalty, rows)
  np.testing.assert_allclose(x, np.arange(N) < K, atol=1e-6)


@per_kind
def test_left_out_documents_have_no_weight(kind):
  gain, penalty, rows = arrays(2)
  allowed = np.arange(N) % 3 != 0
  kept = np.where(allowed[:, None], rows, 0.0)
  x = solve(kind, gain, penalty, kept, allowed=allowed)
  assert (x[~allowed] == 0).all()
  assert x.sum() == pytest.approx(K, abs=1e-10)
  full = np.flatnonzero(allowed)[:K]
  allowed = np.isin(np.arange(N), full)
  kept = np.where(allowed[:, None], rows, 0.0)
  x = solve(kind, gain, penalty, kept, allowed=allowed)
  np.testing.assert_allclose(x, allowed, atol=1e-6)


@per_kind
def test_implicit_gradients_equal_finite_differences(kind):
  inputs = arrays(3)
  rng = np.random.default_rng(3)
  cotangent = rng.normal(size=N)

  @jax.jit
  def loss(gain, penalty, rows):
    x = relaxation.differentiable(problem_of(gain, penalty, rows), kind)
    return x @ cotangent

  grads = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*inputs)
  for place, (value, grad) in enumerate(zip(inputs, grads, strict=True)):
    direction = rng.normal(size=np.shape(value))
    ends = []
    for eps in (1e-5, -1e-5):
      moved = list(inputs)
      moved[place] = value + eps * direction
      ends.append(float(loss(*moved)))
    numeric = (ends[0] - ends[1]) / 2e-5
    exact = float(np.vdot(grad, direction))
    assert exact == pytest.approx(numeric, rel=1e-5, abs=1e-8)
  assert abs(np.asarray(grads[0])).max() > 1e-3


def test_kernels_are_differentiated_too():
  kind = KINDS[0]
  gain, penalty, rows = arrays(4)

  @jax.jit
  def loss(rows):
    problem = problem_of(gain, penalty, rows)
    problem = problem._replace(similarity=kernels.Power().similarity(rows))
    return relaxation.differentiable(problem, kind) @ np.arange(N)

  direction = np.random.default_rng(0).normal(size=rows.shape)
  grad = np.vdot(jax.jit(jax.grad(loss))(rows), direction)
  ends = [float(loss(rows + eps * direction)) for eps in (1e-5, -1e-5)]
  assert grad == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS[:2], ids=str)
def test_float32_is_close_to_float64(kind):
  gain, penalty, rows = arrays(5)
  exact = solve(kind, gain, penalty, rows)
  single = problem_of(gain, penalty, rows)
  single = jax.tree.map(
    lambda v: v if v.dtype == bool else v.astype(jnp.float32), single
  )

  def loss(problem):
    return relaxation.differentiable(problem, kind) @ jnp.arange(
      N, dtype=problem.gain.dtype
    )

  np.testing.assert_allclose(jax.jit(kind.solve)(single), exact, atol=1e-4)
  ours = jax.jit(jax.grad(loss, allow_int=True))(single).gain
  theirs = jax.jit(jax.grad(loss, allow_int=True))(
    problem_of(gain, penalty, rows)
  ).gain
  np.testing.assert_allclose(ours, theirs, atol=2e-3 * abs(theirs).max())


@pytest.mark.parametrize("kernel", [kernels.Linear(), kernels.Power()])
def test_the_norm_bound_holds_for_directions_that_sum_to_zero(kernel):
  _, _, rows = arrays()
  similarity = kernel.similarity(jnp.asarray(rows))
  gram = (rows @ rows.T) ** getattr(kernel, "power", 1)
  flat = np.eye(N) - 1 / N
  largest = np.linalg.eigvalsh(flat @ gram @ flat).max()
  assert largest <= float(similarity.centred_norm()) < 3 * largest
