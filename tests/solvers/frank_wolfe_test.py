"""The facts of the relaxation, by enumeration, and Frank-Wolfe on it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quadratic_worlds as worlds

from nnn_jax.solvers import frank_wolfe, kernels, pipage, quadratic, swap

N, K = 14, 4
SETS = worlds.subsets(N, K)


def instance(seed, trade_off=0.4, lean=1.0, num_docs=N, k=K, scale=None):
  """(numpy gain, penalty, gram; the same as a Problem in float64)."""
  rng = np.random.default_rng(seed)
  rows = worlds.unit_rows(rng, num_docs, 6, clusters=5, lean=lean)
  if scale is not None:
    rows = rows * rng.uniform(*scale, size=(num_docs, 1))
  gain = trade_off * (k - 1) * rows @ worlds.query_of(rng, rows)
  penalty = 1.0 - trade_off
  problem = quadratic.Problem(
    jnp.asarray(gain),
    jnp.asarray(penalty),
    kernels.Linear().similarity(jnp.asarray(rows)),
    jnp.ones(num_docs, bool),
    jnp.asarray(float(k)),
  )
  return gain, penalty, rows @ rows.T, problem


@pytest.fixture(autouse=True)
def double():
  with jax.enable_x64(True):
    yield


@functools.partial(jax.jit, static_argnames="loading")
def f(problem, x, loading):
  return quadratic.value(problem, x, problem.similarity.product(x), loading)


@functools.partial(jax.jit, static_argnames="loading")
def slope(problem, x, loading):
  return quadratic.slope(problem, x, problem.similarity.product(x), loading)


def smallest_tight(gram):
  return 1.0 - gram[~np.eye(len(gram), dtype=bool)].min()


@pytest.mark.parametrize("loading", [0.0, 1.0, 2.0, 3.5])
@pytest.mark.parametrize("scale", [None, (0.0, 3.0)])
def test_every_relaxation_is_the_objective_at_vertices(loading, scale):
  gain, penalty, gram, problem = instance(0, scale=scale)
  values = jax.vmap(lambda x: f(problem, x, loading))(SETS[::17])
  expected = worlds.choice_values(gain, penalty, gram, SETS[::17])
  np.testing.assert_allclose(values, expected, atol=1e-12)


def test_the_published_relaxation_is_this_one_up_to_a_constant():
  """On unit rows: a.x + b x^T (lam I - S) x, as printed."""
  gain, penalty, gram, problem = instance(0)
  rng = np.random.default_rng(0)
  points = rng.dirichlet(np.ones(len(SETS)), size=5) @ SETS
  printed = [
    gain @ x + penalty * x @ (2 * np.eye(N) - gram) @ x for x in points
  ]
  ours = [float(f(problem, x, 2.0)) for x in points]
  constant = penalty * (2.0 - 1.0) * K
  np.testing.assert_allclose(np.subtract(printed, ours), constant, atol=1e-12)


def test_slope_is_the_gradient():
  _, _, _, problem = instance(1, scale=(0.5, 2.0))
  x = jnp.asarray(np.random.default_rng(0).uniform(size=N))
  for loading in (0.0, 1.0, 2.0):
    expected = jax.grad(lambda x, loading=loading: f(problem, x, loading))(x)
    np.testing.assert_allclose(slope(problem, x, loading), expected, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("lean", [0.0, 1.0])
def test_t1_tight_at_the_smallest_loading(seed, lean):
  gain, penalty, gram, problem = instance(seed, lean=lean)
  loading = smallest_tight(gram)
  best = worlds.choice_values(gain, penalty, gram, SETS).max()
  rng = np.random.default_rng(seed)
  mixes = [rng.dirichlet(np.full(len(SETS), a), size=200) for a in (0.001, 1.0)]
  points = np.concatenate(mixes) @ SETS
  values = jax.vmap(lambda x: f(problem, x, loading))(points)
  assert values.max() <= best + 1e-12


@pytest.mark.parametrize("similarity", [-0.9, 0.0, 0.5])
def test_t1_not_tight_below(similarity):
  """Two documents, choose one: the middle wins below 1 - S_12."""
  rows = jnp.asarray([[1.0, 0.0], [similarity, (1 - similarity**2) ** 0.5]])
  problem = quadratic.Problem(
    jnp.ones(2),
    jnp.asarray(0.5),
    kernels.Linear().similarity(rows),
    jnp.ones(2, bool),
    jnp.asarray(1.0),
  )
  middle = jnp.full(2, 0.5)
  assert f(problem, middle, 1 - similarity - 0.01) > 1.0
  assert f(problem, middle, 1 - similarity + 0.01) < 1.0


def test_t2_above_it_no_fractional_point_is_a_local_maximum():
  _, _, gram, problem = instance(2)
  loading = smallest_tight(gram) + 1e-3
  rng = np.random.default_rng(2)
  for x in rng.dirichlet(np.full(len(SETS), 0.01), size=20) @ SETS:
    i, j = np.flatnonzero((x > 1e-3) & (x < 1 - 1e-3))[:2]
    d = np.eye(N)[i] - np.eye(N)[j]
    ends = [f(problem, x + t * d, loading) for t in (1e-3, -1e-3)]
    assert max(ends) > f(problem, x, loading)


@pytest.mark.parametrize("seed", range(2))
def test_t3_stationary_vertices_leave_bounded_swaps(seed):
  gain, penalty, gram, problem = instance(seed)
  best, counts = smallest_tight(gram), []
  swaps = [worlds.swap_gains(gain, penalty, gram, x) for x in SETS]
  for loading in (best, 2.0, 4.0):
    g = np.asarray(jax.vmap(lambda x: slope(problem, x, loading))(SETS))  # noqa: B023
    lowest = np.where(SETS == 1, g, np.inf).min(axis=1)
    highest = np.where(SETS == 0, g, -np.inf).max(axis=1)
    stationary = highest <= lowest + 1e-9
    allowed = [
      2 * penalty * (loading - 1 + gram[np.ix_(x == 1, x == 0)]) for x in SETS
    ]
    expected = [
      bool((s <= a + 1e-9).all()) for s, a in zip(swaps, allowed, strict=True)
    ]
    np.testing.assert_array_equal(stationary, expected)
    counts.append(stationary.sum())
  # Stationary sets grow with the loading; few are swap-optimal.
  assert counts[0] <= counts[1] <= counts[2] <= len(SETS)
  assert counts[0] < counts[2]
  assert sum(bool((s <= 1e-9).all()) for s in swaps) < counts[0]


@pytest.mark.parametrize("loading", [0.0, 1.0, 2.0])
def test_t4_line_search_is_exact_and_monotone(loading):
  _, penalty, gram, problem = instance(3)
  x = np.asarray(frank_wolfe.centre(problem))
  run = jax.jit(
    lambda x: frank_wolfe.maximize(
      problem, x, k=K, loading=loading, num_steps=1
    )
  )
  for _ in range(8):
    end = run(x)
    g = np.asarray(slope(problem, x, loading))
    vertex = np.zeros(N)
    vertex[np.argsort(-g, kind="stable")[:K]] = 1.0
    d, after = vertex - x, np.asarray(end.x)
    line = np.linspace(0, 1, 2_001)
    values = [float(f(problem, x + t * d, loading)) for t in line[::50]]
    assert f(problem, after, loading) >= max(values) - 1e-9
    bend = 2 * penalty * (loading * d @ d - d @ gram @ d)
    if bend >= 0:
      np.testing.assert_array_equal(after, vertex)
    x = after
  np.testing.assert_allclose(x.sum(), K, atol=1e-12)
  np.testing.assert_allclose(end.product, gram @ x, atol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_t5_bounds_from_any_start_hold(seed):
  gain, penalty, gram, problem = instance(seed, scale=(0.3, 2.0))
  best = worlds.choice_values(gain, penalty, gram, SETS).max()
  bound = jax.jit(
    lambda x, steps: frank_wolfe.upper_bound(problem, x, k=K, num_steps=steps)
  )
  starts = [SETS[0], SETS[500], np.full(N, K / N)]
  for start in starts:
    loose, tight = bound(start, 1), bound(start, 2_000)
    assert best - 1e-9 <= tight <= loose + 1e-12


@pytest.mark.parametrize("seed", range(10))
def test_t6_and_t7_guarantees(seed):
  gain, penalty, gram, problem = instance(seed, lean=2.5)
  assert gram.min() >= 0  # So that loading 1 is tight.
  best = worlds.choice_values(gain, penalty, gram, SETS).max()

  @jax.jit
  def solve(problem):
    concave = frank_wolfe.maximize(
      problem, frank_wolfe.centre(problem), k=K, loading=0.0, num_steps=2_000
    )
    x = pipage.round_up(problem, concave.x, concave.product)
    _, rows = jax.lax.top_k(x, K)
    gap = concave.bound - f(problem, concave.x, 0.0)
    polished = swap.polish(problem, jnp.arange(K))  # From a bad choice.
    return concave, x, rows, gap, polished

  concave, x, rows, gap, polished = solve(problem)
  # Pipage loses nothing in f_1, and all but one entry are settled.
  fractional = (x > 1e-4) & (x < 1 - 1e-4)
  assert fractional.sum() <= 1
  assert f(problem, x, 1.0) >= f(problem, concave.x, 1.0) - 1e-9
  rounded = np.zeros(N)
  rounded[rows] = 1.0
  (value,) = worlds.choice_values(gain, penalty, gram, rounded[None])
  assert best - value <= penalty * K + gap + 1e-9

  chosen = np.zeros(N)
  chosen[polished.indices] = 1.0
  (value,) = worlds.choice_values(gain, penalty, gram, chosen[None])
  assert float(polished.value) == pytest.approx(value, abs=1e-9)
  assert worlds.swap_gains(gain, penalty, gram, chosen).max() <= 1e-9
  assert bool(polished.optimal)
  assert best - value <= 2 * penalty * K


@pytest.mark.parametrize("block_size", [1, 3, 32])
def test_swap_polish_is_optimal_at_every_block_size(block_size):
  polish = jax.jit(
    lambda problem, rows: swap.polish(problem, rows, block_size=block_size)
  )
  for seed in range(8):
    gain, penalty, gram, problem = instance(
      seed, num_docs=40, k=8, lean=0.0, trade_off=0.2, scale=(0.2, 1.5)
    )
    end = polish(problem, jnp.arange(8))
    chosen = np.zeros(40)
    chosen[end.indices] = 1.0
    assert chosen.sum() == 8
    assert bool(end.optimal)
    assert worlds.swap_gains(gain, penalty, gram, chosen).max() <= 1e-9


def test_swap_polish_says_where_it_was_cut_short():
  _, _, _, problem = instance(0, num_docs=40, k=8)
  end = swap.polish(problem, jnp.arange(8), max_swaps=1)
  assert int(end.num_swaps) == 1
  assert not bool(end.optimal)


def test_pipage_takes_the_better_end():
  """Mass leaves the entry whose end is worse, even against the slope."""
  rows = jnp.asarray([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
  problem = quadratic.Problem(
    jnp.asarray([0.1, 0.2, 0.0]),
    jnp.asarray(0.5),
    kernels.Linear().similarity(rows),
    jnp.ones(3, bool),
    jnp.asarray(2.0),
  )
  x = jnp.asarray([0.6, 0.4, 1.0])
  x = pipage.round_up(problem, x, problem.similarity.product(x))
  assert x.tolist() == [0.0, 1.0, 1.0]
