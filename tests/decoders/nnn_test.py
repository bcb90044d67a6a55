"""NNN decoding against its published facts and two independent solvers."""

import itertools

import cvxpy
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from sklearn import linear_model

from nnn_jax.core import corpora
from nnn_jax.core.gradients import Unroll
from nnn_jax.decoders import dense, nnn
from nnn_jax.solvers import elastic_net, fista, working_set

GRID = (0.01, 0.03, 0.06, 0.1, 0.3, 0.6, 1.0)


@pytest.fixture
def x64():
  with jax.enable_x64(True):
    yield


def config(num_steps, **kwargs):
  return nnn.NnnConfig(solver=fista.Fista(num_steps=num_steps), **kwargs)


def decode(params, query, corpus, *, num_steps=20_000, k=1, **kwargs):
  return nnn.decode(
    nnn.NnnParams(*params),
    query,
    corpus,
    k=k,
    config=config(num_steps),
    **kwargs,
  )


def weights_of(params, query, corpus, **kwargs):
  result = decode(params, query, corpus, **kwargs)
  return result.aux.weights.dense(corpus.shape[0])


def problem(seed, num_docs=30, dim=20, lean=0.3):
  """A unit query and unit rows, in float64."""
  rng = np.random.default_rng(seed)
  rows = rng.normal(size=(num_docs + 1, dim)) + lean
  rows /= np.linalg.norm(rows, axis=1, keepdims=True)
  return rows[0], rows[1:]


def objective(weights, query, corpus, l1, l2):
  residual = query - weights @ corpus
  return (
    0.5 * residual @ residual
    + l1 * weights.sum()
    + 0.5 * l2 * weights @ weights
  )


def cvxpy_weights(query, corpus, l1, l2):
  weights = cvxpy.Variable(corpus.shape[0], nonneg=True)
  loss = (
    0.5 * cvxpy.sum_squares(query - corpus.T @ weights)
    + l1 * cvxpy.sum(weights)
    + 0.5 * l2 * cvxpy.sum_squares(weights)
  )
  cvxpy.Problem(cvxpy.Minimize(loss)).solve(
    solver=cvxpy.CLARABEL,
    tol_gap_abs=1e-13,
    tol_gap_rel=1e-13,
    tol_feas=1e-13,
  )
  return np.maximum(weights.value, 0.0)


# Proposition 1.

PROP_CORPUS = np.array([[1, 0, 0], [0.5**0.5, 0.5**0.5, 0], [0, 0, 1]])
PROP_QUERY = np.array([2, 2, 1]) / 3


@pytest.mark.parametrize(
  ("penalties", "expected"),
  [
    ((0.1, 0.0), (0.0, 0.84280904, 0.23333333)),
    ((0.1, 0.03), (0.0, 0.81826121, 0.22653722)),
    ((0.1, 1.0), (0.15353638, 0.36712121, 0.11666667)),
  ],
)
def test_proposition_1_values(penalties, expected):
  weights = weights_of(penalties, PROP_QUERY, PROP_CORPUS)
  assert weights.dtype == jnp.float32
  np.testing.assert_allclose(weights, expected, atol=1e-6)


def test_proposition_1_dense_returns_the_wrong_set():
  result = dense.decode((), PROP_QUERY, PROP_CORPUS, k=3)
  assert result.indices.tolist() == [1, 0, 2]
  np.testing.assert_allclose(
    result.scores, [0.94280904, 2 / 3, 1 / 3], atol=1e-6
  )
  assert decode((0.1, 0.03), PROP_QUERY, PROP_CORPUS, k=3).indices.tolist() == [
    1,
    2,
    0,
  ]


def test_proposition_1_support_condition(x64):
  l1, l2 = np.meshgrid(
    np.linspace(0.0, 0.6, 61), np.concatenate([[0.0], np.logspace(-3, 1, 60)])
  )
  l1, l2 = l1.ravel(), l2.ravel()
  weights = np.asarray(
    jax.vmap(
      lambda *p: weights_of(p, PROP_QUERY, PROP_CORPUS, num_steps=2_000)
    )(l1, l2)
  )
  with np.errstate(divide="ignore"):
    bound = np.where(l1 < 2 / 3, l1 * (1 - 0.5**0.5) / (2 / 3 - l1), np.inf)
  expected = (l1 < 1 / 3) & (l2 <= bound)
  away = (np.abs(l1 - 1 / 3) > 1e-3) & (np.abs(l2 - bound) > 1e-3 * (1 + l2))
  assert away.sum() > 3_000
  assert 200 < expected[away].sum() < away.sum() - 200
  support = (weights > 0)[away]
  found = (support == [False, True, True]).all(axis=1)
  np.testing.assert_array_equal(found, expected[away])
  np.testing.assert_allclose(
    weights[expected & away, 1:],
    np.stack([2 * 2**0.5 / 3 - l1, 1 / 3 - l1], axis=1)[expected & away]
    / (1 + l2[expected & away, None]),
    atol=1e-9,
  )


def test_proposition_1_published_grid_and_one_compilation():
  query, corpus = np.float32(PROP_QUERY), np.float32(PROP_CORPUS)
  before = nnn._decode._cache_size()
  found = []
  for l1, l2 in itertools.product(GRID, GRID):
    weights = weights_of((l1, l2), query, corpus, num_steps=2_000)
    if (weights > 0).tolist() == [False, True, True]:
      found.append((l1, l2))
  assert nnn._decode._cache_size() == before + 1
  assert found == [
    (0.03, 0.01),
    (0.06, 0.01),
    (0.1, 0.01),
    (0.1, 0.03),
    (0.3, 0.01),
    (0.3, 0.03),
    (0.3, 0.06),
    (0.3, 0.1),
  ]


def test_a_vmapped_sweep_equals_the_loop():
  pairs = np.float32(list(itertools.product(GRID, GRID)))
  query, corpus = np.float32(PROP_QUERY), np.float32(PROP_CORPUS)
  swept = jax.vmap(
    lambda p: weights_of((p[0], p[1]), query, corpus, num_steps=2_000)
  )(pairs)
  looped = [weights_of(p, query, corpus, num_steps=2_000) for p in pairs]
  np.testing.assert_allclose(swept, looped, atol=1e-6)


# Theorem 1 and the other facts of the specification.


def test_theorem_1_on_random_worlds(x64):
  """Wherever dense retrieval finds S, the published penalties do too."""
  num_worlds, num_docs, dim = 1_100, 20, 8
  rng = np.random.default_rng(0)
  rows = rng.normal(size=(num_worlds, num_docs + 1, dim))
  rows /= np.linalg.norm(rows, axis=-1, keepdims=True)
  queries, corpora = rows[:, 0], rows[:, 1:]
  size = rng.integers(1, 6, num_worlds)

  scores = np.einsum("wnd,wd->wn", corpora, queries)
  ranked = -np.sort(-scores, axis=1)
  at = np.arange(num_worlds)
  low = ranked[at, size - 1]  # The worst relevant document.
  high = np.maximum(ranked[at, size], 0.0)  # The best other.
  success = low > high
  assert success.sum() >= 1_000
  queries, corpora, scores = queries[success], corpora[success], scores[success]
  size, low, high = size[success], low[success], high[success]
  relevant = scores >= low[:, None]

  margin = (low - high) / 2
  l1, l2 = (low + high) / 2, size / margin + size - 1
  weights = jax.vmap(
    lambda l1, l2, q, c: weights_of((l1, l2), q, c, num_steps=200)
  )(l1, l2, queries, corpora)
  np.testing.assert_array_equal(weights > 0, relevant)


@pytest.mark.parametrize(
  ("l2", "error"), [(1e2, 0.05), (1e3, 0.005), (1e4, 0.0005)]
)
def test_a_large_l2_ranks_like_dense(x64, l2, error):
  query, corpus = problem(0, num_docs=20, dim=16, lean=0.0)
  weights = np.asarray(weights_of((0.05, l2), query, corpus))
  limit = np.maximum(corpus @ query - 0.05, 0.0)
  gap = np.linalg.norm(l2 * weights - limit) / np.linalg.norm(limit)
  assert gap < error
  assert gap > error / 100  # First order in 1 / l2, not equal.
  np.testing.assert_array_equal(
    np.argsort(-weights, kind="stable"), np.argsort(-limit, kind="stable")
  )


def test_zero_exactly_from_the_largest_correlation_on(x64):
  query, corpus = problem(1)
  top = (corpus @ query).max()
  # The step of the solver's own rounding is left out: 1e-12 either side.
  for l2 in (0.0, 0.1, 1.0):
    above = decode((top * (1 + 1e-12), l2), query, corpus, k=30)
    below = decode((top * (1 - 1e-9), l2), query, corpus, k=30)
    assert (np.asarray(above.aux.weights.values) == 0).all()
    assert int(above.aux.support_size) == 0
    assert (np.asarray(above.scores) <= 0).all()
    assert bool(above.aux.exact)
    assert int(below.aux.support_size) == 1
    assert int(below.indices[0]) == int(np.argmax(corpus @ query))


def test_l1_of_one_returns_nothing_for_unit_vectors_with_zero_gradient():
  query, corpus = problem(2)

  def total(q, c):
    return jnp.sum(weights_of((1.0, 0.1), q, c, num_steps=50))

  value, grads = jax.value_and_grad(total, (0, 1))(query, corpus)
  assert float(value) == 0.0
  for grad in grads:
    assert (np.asarray(grad) == 0).all()


def test_homogeneity(x64):
  query, corpus = problem(3)
  base = np.asarray(weights_of((0.1, 0.05), query, corpus))
  assert (base > 0).sum() > 2
  for scale in (0.01, 7.0, 1e3):
    # l2 multiplies the weights themselves: only query and l1 scale.
    scaled = weights_of((scale * 0.1, 0.05), scale * query, corpus)
    np.testing.assert_allclose(scaled, scale * base, rtol=1e-9)


@pytest.mark.parametrize("l2", [1e-2, 0.1, 1.0])
def test_duplicates_share_the_weight(x64, l2):
  query, corpus = problem(4)
  best = int(np.argmax(corpus @ query))
  copies = np.concatenate([corpus, corpus[[best, best]]])
  result = decode((0.05, l2), query, copies, k=32)
  group = np.asarray(result.aux.weights.values)[[best, 30, 31]]
  assert (group > 0).all()
  np.testing.assert_allclose(group, group[0], rtol=1e-10)
  retrieved = result.indices[: int(result.aux.support_size)].tolist()
  assert {best, 30, 31} <= set(retrieved)


def test_duplicates_without_l2_share_only_the_sum(x64):
  query, corpus = problem(4)
  best = int(np.argmax(corpus @ query))
  copies = np.concatenate([corpus, corpus[[best]]])
  single = np.asarray(weights_of((0.05, 0.0), query, corpus))
  double = np.asarray(weights_of((0.05, 0.0), query, copies))
  assert double[best] + double[30] == pytest.approx(single[best], abs=1e-8)


def test_optimality_conditions_hold(x64):
  query, corpus = problem(5)
  l1, l2 = 0.08, 0.02
  result = decode((l1, l2), query, corpus)
  weights = np.asarray(result.aux.weights.values)
  correlation = corpus @ (query - weights @ corpus)
  support = weights > 0
  assert 2 < support.sum() < 30
  np.testing.assert_allclose(
    correlation[support], l1 + l2 * weights[support], atol=1e-10
  )
  assert (correlation[~support] <= l1).all()
  assert float(result.aux.kkt_violation) < 1e-10
  assert float(result.aux.duality_gap) < 1e-12
  assert int(result.aux.support_size) == support.sum()


# Scores beyond the support.


def numpy_extended(weights, query, corpus, l1, l2):
  correlation = corpus @ (query - weights @ corpus)
  return np.where(weights > 0, weights, (correlation - l1) / (1 + l2))


@pytest.mark.parametrize("penalties", [(0.1, 0.05), (0.05, 1.0), (0.2, 0.0)])
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_extended_scores_at_convergence(x64, penalties, scale):
  query, corpus = problem(6)
  corpus = corpus * np.linspace(1.0, scale, 30)[:, None]
  result = decode(penalties, query, corpus, k=30)
  weights = np.asarray(result.aux.weights.values)
  scores = np.empty(30)
  scores[np.asarray(result.indices)] = result.scores
  expected = numpy_extended(weights, query, corpus, *penalties)
  np.testing.assert_allclose(scores, expected, atol=1e-9)
  np.testing.assert_allclose(np.maximum(scores, 0), weights, atol=1e-12)
  assert sorted(result.indices.tolist()) == list(range(30))
  assert (np.diff(result.scores) <= 0).all()


@pytest.mark.parametrize("num_steps", [1, 5, 50])
@pytest.mark.parametrize("penalties", [(0.0, 0.0), (0.01, 0.0), (0.3, 0.5)])
def test_a_positive_score_is_a_weight_also_before_convergence(
  num_steps, penalties
):
  for seed in range(5):
    query, corpus = problem(seed, num_docs=60, dim=8)
    result = decode(penalties, query, corpus, k=60, num_steps=num_steps)
    weights = np.asarray(result.aux.weights.values)[np.asarray(result.indices)]
    scores = np.asarray(result.scores)
    np.testing.assert_array_equal(scores > 0, weights > 0)
    np.testing.assert_array_equal(scores[scores > 0], weights[weights > 0])
    assert (np.diff(scores) <= 0).all()
    assert sorted(result.indices.tolist()) == list(range(60))


def test_scores_beyond_the_support_carry_gradient(x64):
  query, corpus = problem(6)
  l1, l2 = 0.1, 0.05
  result = decode((l1, l2), query, corpus, k=30, num_steps=2_000)
  document = int(result.indices[-1])  # Far from the support.

  def score(corpus):
    result = decode((l1, l2), query, corpus, k=30, num_steps=2_000)
    return jnp.sum(jnp.where(result.indices == document, result.scores, 0.0))

  assert float(score(corpus)) < 0
  grad = np.asarray(jax.grad(score)(corpus))
  residual = query - np.asarray(result.aux.weights.values) @ corpus
  expected = residual / (1 + l2)  # d/du (u.r - l1) / (1 + l2).
  np.testing.assert_allclose(grad[document], expected, atol=1e-7)


# Independent solvers.


@pytest.mark.parametrize("seed", range(6))
def test_agrees_with_scikit_learn_and_cvxpy(x64, seed):
  num_docs, dim = [(30, 20), (12, 40), (60, 10)][seed % 3]
  query, corpus = problem(seed, num_docs, dim)
  l1, l2 = [(0.1, 0.05), (0.03, 0.3), (0.2, 0.01)][(seed // 2) % 3]
  weights = weights_of((l1, l2), query, corpus)
  peer = linear_model.ElasticNet(
    alpha=(l1 + l2) / dim,
    l1_ratio=l1 / (l1 + l2),
    positive=True,
    fit_intercept=False,
    tol=1e-14,
    max_iter=1_000_000,
  ).fit(corpus.T, query)
  assert (peer.coef_ > 0).sum() > 1
  np.testing.assert_allclose(weights, peer.coef_, atol=1e-5)
  np.testing.assert_allclose(
    weights, cvxpy_weights(query, corpus, l1, l2), atol=1e-5
  )


def test_agrees_with_non_negative_least_squares(x64):
  from scipy import optimize

  query, corpus = problem(7, num_docs=8, dim=20)
  weights = weights_of((0.0, 0.0), query, corpus)
  np.testing.assert_allclose(
    weights, optimize.nnls(corpus.T, query)[0], atol=1e-5
  )


# Certificates.


@pytest.mark.parametrize(
  ("l1", "l2"), [(0.1, 0.05), (0.1, 0.0), (0.0, 0.05), (0.0, 0.0), (0.9, 1e-6)]
)
def test_gap_and_violation_certify_arbitrary_weights(x64, l1, l2):
  query, corpus = problem(8, num_docs=16, dim=10)
  best = cvxpy_weights(query, corpus, l1, l2)
  lowest = objective(best, query, corpus, l1, l2)
  rng = np.random.default_rng(0)
  candidates = np.concatenate(
    [
      np.zeros((1, 16)),
      best[None],
      np.maximum(rng.normal(size=(100, 16)), 0.0) * 0.3,
      np.maximum(best + 1e-2 * rng.normal(size=(50, 16)), 0.0),
      best * (1 + 1e-4 * rng.normal(size=(50, 16))),
    ]
  )
  instance = elastic_net.Problem(
    jnp.asarray(query),
    corpora.searchable(corpus),
    jnp.float64(l1),
    jnp.float64(l2),
  )

  @jax.jit
  @jax.vmap
  def certify(weights):
    solution = elastic_net.solution_of(instance, weights)
    return (
      elastic_net.objective(instance, solution),
      solution.correlation,
      elastic_net.optimality(instance, solution),
    )

  values, correlation, optimality = certify(candidates)
  exact = [objective(w, query, corpus, l1, l2) for w in candidates]
  np.testing.assert_allclose(values, exact, rtol=1e-12)
  suboptimality = np.asarray(exact) - lowest
  gap = np.asarray(optimality.duality_gap)
  assert np.isfinite(gap).all()
  assert (gap >= suboptimality - 1e-12).all()
  if l1 or l2:  # Else only the dual point 0 is feasible: valid, not tight.
    assert gap[1] < 1e-6  # At cvxpy's optimum.

  residual = query - candidates @ corpus
  s = residual @ corpus.T
  np.testing.assert_allclose(correlation, s, atol=1e-12)
  violation = np.where(
    candidates > 0, np.abs(s - l1 - l2 * candidates), np.maximum(s - l1, 0.0)
  ).max(axis=1)
  np.testing.assert_allclose(optimality.kkt_violation, violation, atol=1e-12)


def test_gap_equals_the_textbook_dual(x64):
  """P(w) - D(residual) as written in the specification."""
  query, corpus = problem(9, num_docs=16, dim=10)
  l1, l2 = 0.02, 3.0  # The residual is the better dual point here.
  weights = np.maximum(np.random.default_rng(0).normal(size=16), 0.0) * 0.01
  instance = elastic_net.Problem(
    *(jnp.asarray(x, jnp.float64) for x in (query, corpus, l1, l2))
  )
  instance = instance._replace(corpus=corpora.searchable(instance.corpus))
  theta = query - weights @ corpus
  excess = np.maximum(corpus @ theta - l1, 0.0)
  dual = (
    0.5 * query @ query
    - 0.5 * np.sum((query - theta) ** 2)
    - np.sum(excess**2) / (2 * l2)
  )
  expected = objective(weights, query, corpus, l1, l2) - dual
  solution = elastic_net.solution_of(instance, jnp.asarray(weights))
  gap = elastic_net.optimality(instance, solution).duality_gap
  assert float(gap) == pytest.approx(expected, rel=1e-9)


def test_certificates_leave_out_masked_documents(x64):
  query, corpus = problem(10)
  where = np.arange(30) % 3 != 0
  masked = decode((0.1, 0.05), query, corpus, where=where)
  removed = decode((0.1, 0.05), query, corpus[where])
  assert (np.asarray(masked.aux.weights.values)[~where] == 0).all()
  for name in ("kkt_violation", "duality_gap", "support_size"):
    np.testing.assert_allclose(
      getattr(masked.aux, name), getattr(removed.aux, name), atol=1e-10
    )
  nothing = decode((0.1, 0.05), query, corpus, where=np.zeros(30, bool))
  assert float(nothing.aux.kkt_violation) == 0.0
  assert float(nothing.aux.duality_gap) == 0.0
  assert bool(nothing.aux.exact)


def test_exact_is_honest():
  query, corpus = problem(11, num_docs=100, dim=10, lean=1.0)
  flags = []
  for num_steps in (1, 500, 20_000):  # At 500 the gap is small already.
    result = decode((0.01, 0.01), query, corpus, num_steps=num_steps)
    violation = float(result.aux.kkt_violation)
    weights = np.float64(result.aux.weights.values)
    s = corpus @ (query - weights @ corpus)
    true = np.where(
      weights > 0, np.abs(s - 0.01 - 0.01 * weights), np.maximum(s - 0.01, 0)
    ).max()
    assert violation == pytest.approx(true, abs=1e-6)
    assert bool(result.aux.exact) == (violation <= 1e-5)
    flags.append(bool(result.aux.exact))
    if num_steps == 500:
      assert float(result.aux.duality_gap) < 1e-5 < violation
  assert flags[0] is False
  assert flags[-1] is True


def test_tol_is_the_threshold_of_exact():
  query, corpus = problem(12)
  args = nnn.NnnParams(0.05, 0.05), query, corpus
  for tol, expected in ((1e6, True), (0.0, False)):
    result = nnn.decode(*args, k=1, config=config(3, tol=tol))
    assert bool(result.aux.exact) is expected


# Properties.

SEEDS = st.integers(0, 10_000)
PENALTY = st.floats(0.0, 0.5, width=32)


@hypothesis.given(seed=SEEDS, l1=PENALTY, l2=PENALTY)
def test_rows_ten_times_as_long(seed, l1, l2):
  """w(10 U, v, 10 l1, 100 l2) = w(U, v, l1, l2) / 10: L must follow."""
  with jax.enable_x64(True):
    query, corpus = problem(seed)
    base = weights_of((l1, l2), query, corpus, num_steps=50)
    scaled = weights_of((10 * l1, 100 * l2), query, 10 * corpus, num_steps=50)
    np.testing.assert_allclose(10 * np.asarray(scaled), base, atol=1e-8)


@hypothesis.given(seed=SEEDS, l1=st.floats(0.0, 5.0), l2=PENALTY)
def test_unnormalised_rows_reach_the_optimum(seed, l1, l2):
  query, corpus = problem(seed)
  corpus = corpus * np.random.default_rng(seed).uniform(0.1, 10.0, (30, 1))
  with jax.enable_x64(True):
    result = decode((l1, 1.0 + l2), query, corpus, num_steps=5_000)
    assert float(result.aux.duality_gap) < 1e-9
    assert bool(result.aux.finite)


@hypothesis.given(seed=SEEDS, l1=PENALTY, l2=st.floats(0.05, 1.0))
def test_where_equals_removing(seed, l1, l2):
  """Twenty of thirty documents; the others hold large decoys."""
  query, corpus = problem(seed)
  where = np.zeros(30, bool)
  where[np.random.default_rng(seed).permutation(30)[:20]] = True
  decoys = np.where(where[:, None], corpus, query)
  kept = np.flatnonzero(where)
  with jax.enable_x64(True):
    masked = decode((l1, l2), query, decoys, where=where, k=25, num_steps=2_000)
    removed = decode((l1, l2), query, corpus[kept], k=20, num_steps=2_000)
    np.testing.assert_allclose(
      np.asarray(masked.aux.weights.values)[kept],
      removed.aux.weights.values,
      atol=1e-6,
    )
    np.testing.assert_allclose(masked.scores[:20], removed.scores, atol=1e-6)
    assert (np.asarray(masked.indices[20:]) == -1).all()
    assert (np.asarray(masked.scores[20:]) == -np.inf).all()


@hypothesis.given(seed=SEEDS)
def test_the_order_of_documents_does_not_matter(seed):
  query, corpus = problem(seed)
  order = np.random.default_rng(seed).permutation(30)
  with jax.enable_x64(True):
    base = weights_of((0.1, 0.1), query, corpus, num_steps=50)
    moved = weights_of((0.1, 0.1), query, corpus[order], num_steps=50)
    np.testing.assert_allclose(moved, np.asarray(base)[order], atol=1e-9)


# Beyond the support.


def test_extended_weights_go_on_below_zero(x64):
  rng = np.random.default_rng(0)
  corpus, query = rng.normal(size=(20, 6)), rng.normal(size=6)
  params = nnn.NnnParams(0.5, 0.3)
  config = nnn.NnnConfig(solver=working_set.WorkingSet(capacity=8))
  aux = nnn.decode(params, query, corpus, k=1, config=config).aux
  weights = np.asarray(aux.weights.dense(20))
  rows = np.asarray([*range(19, -1, -1), -1, -1])
  extended = nnn.extended_weights(params, corpus, rows, aux)
  assert (np.asarray(extended[20:]) == -np.inf).all()
  extended = np.asarray(extended[:20])[::-1]
  assert 0 < np.sum(weights > 0) < 8 < np.sum(extended < 0)
  np.testing.assert_allclose(np.maximum(extended, 0), weights, atol=1e-12)
  for row in range(20):  # The minimum in one coordinate, without its bound.
    rest = query - np.delete(weights, row) @ np.delete(corpus, row, axis=0)
    best = (corpus[row] @ rest - 0.5) / (corpus[row] @ corpus[row] + 0.3)
    assert extended[row] == pytest.approx(best, abs=1e-12)
  with pytest.raises(ValueError, match="rows must be integer corpus rows"):
    nnn.extended_weights(params, corpus, np.zeros(3), aux)


# Choices.


def test_unsupported_choices_are_named():
  with pytest.raises(
    ValueError, match=r"solver must be Fista or W.*, got 'fista'"
  ):
    nnn.NnnConfig(solver="fista")
  with pytest.raises(
    ValueError, match="gradient must be Unroll or Implicit, got"
  ):
    nnn.NnnConfig(solver=fista.Fista(), gradient="implicit")
  with pytest.raises(ValueError, match="gradient must be Implicit, got Unroll"):
    nnn.NnnConfig(solver=working_set.WorkingSet(), gradient=Unroll())
  with pytest.raises(
    ValueError, match=r"solver must be Fista or W.*, got <class"
  ):
    nnn.NnnConfig(solver=fista.Fista)


def test_defaults():
  assert nnn.NnnConfig() == nnn.NnnConfig(solver=working_set.WorkingSet())
  published = nnn.NnnConfig(solver=fista.Fista())
  assert published == config(50)
  assert published.gradient == Unroll(remat_every=None)
  query, corpus = problem(0)
  result = nnn.decode(nnn.NnnParams(), query, corpus, k=2)
  assert bool(result.aux.exact)
  np.testing.assert_allclose(
    result.aux.weights.dense(len(corpus)),
    weights_of((0.1, 0.1), query, corpus),
    atol=1e-5,
  )
