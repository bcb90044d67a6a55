"""The working set solver against independent optima, and its gradients."""

from functools import partial

import cvxpy
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from nnn_jax.core import corpora
from nnn_jax.core.gradients import Implicit, Unroll
from nnn_jax.decoders import nnn
from nnn_jax.solvers import elastic_net, fista, working_set
from nnn_jax.solvers.working_set import WorkingSet


@pytest.fixture
def x64():
  with jax.enable_x64(True):
    yield


@partial(jax.jit, static_argnames=("solver", "gradient"))
def solve(instance, solver=WorkingSet(), gradient=Implicit()):
  instance = instance._replace(corpus=corpora.searchable(instance.corpus))
  return solver.solve(instance, gradient=gradient)


def weights_of(instance, *args):
  """Weights of all documents, `[num_docs]`."""
  return dense_weights(solve(instance, *args), instance)


def dense_weights(solution, instance):
  weights = nnn.Weights(solution.indices, solution.weights)
  return weights.dense(instance.corpus.shape[0])


def certificate(instance, solution):
  instance = instance._replace(corpus=corpora.searchable(instance.corpus))
  return elastic_net.optimality(instance, solution)


def problem(seed, num_docs, dim, l1=0.05, l2=0.02, lean=0.3):
  rng = np.random.default_rng(seed)
  rows = rng.normal(size=(num_docs + 1, dim)) + lean
  rows /= np.linalg.norm(rows, axis=1, keepdims=True)
  return elastic_net.Problem(
    jnp.asarray(rows[0]),
    jnp.asarray(rows[1:]),
    jnp.asarray(l1),
    jnp.asarray(l2),
  )


def cvxpy_optimum(instance):
  query, corpus, l1, l2 = (np.asarray(x) for x in instance[:4])
  w = cvxpy.Variable(len(corpus), nonneg=True)
  loss = 0.5 * cvxpy.sum_squares(corpus.T @ w - query) + l1 * cvxpy.sum(w)
  loss += 0.5 * l2 * cvxpy.sum_squares(w)
  cvxpy.Problem(cvxpy.Minimize(loss)).solve(
    cvxpy.CLARABEL,
    tol_gap_abs=1e-10,
    tol_gap_rel=1e-10,
    tol_feas=1e-10,
  )
  return w.value, loss.value


def test_agrees_with_cvxpy_on_200_problems(x64):
  """Duplicates, zero rows and l2 = 0 among them; one compilation."""
  penalties = [0.0, 0.01, 0.1, 0.3]
  num_exact = 0
  for seed in range(200):
    rng = np.random.default_rng(seed)
    instance = problem(
      seed, 30, 8, l1=rng.choice(penalties), l2=rng.choice(penalties)
    )
    corpus = np.array(instance.corpus)
    if seed % 2:
      corpus[20:25] = corpus[:5]
    if seed % 3 == 0:
      corpus[25:27] = 0.0
    instance = instance._replace(corpus=jnp.asarray(corpus))
    solution = solve(instance)
    weights = dense_weights(solution, instance)
    expected, optimum = cvxpy_optimum(instance)
    ours = float(elastic_net.objective(instance, solution))
    assert ours <= optimum + 1e-8, seed
    # By rounds, where the support fits.
    rounds = solve(instance, WorkingSet(capacity=14))
    if float(certificate(instance, rounds).kkt_violation) < 1e-6:
      num_exact += 1
      assert float(elastic_net.objective(instance, rounds)) <= optimum + 1e-8
    # Without l2 only the fit is unique.
    np.testing.assert_allclose(
      corpus.T @ weights, corpus.T @ expected, atol=1e-5, err_msg=str(seed)
    )
    if instance.l2 > 0:
      # An objective within 1e-10 of the minimum leaves weights so far from it.
      oracle_error = (2e-10 / float(instance.l2)) ** 0.5
      np.testing.assert_allclose(
        weights, expected, atol=oracle_error, err_msg=str(seed)
      )
  assert num_exact > 150


def test_candidates_certify_what_a_pass_would(x64):
  """Few candidates of many documents: rounds without a corpus pass."""
  solver = WorkingSet(capacity=24, tol=1e-9)
  passes = []
  for seed in range(20):
    instance = problem(seed, 1_600, 24, l1=0.3, l2=0.05)
    solution = solve(instance, solver)
    weights = dense_weights(solution, instance)
    correlation = instance.corpus @ (instance.query - weights @ instance.corpus)
    violation = np.where(
      weights > 0,
      np.abs(correlation - instance.l1 - instance.l2 * weights),
      np.maximum(correlation - instance.l1, 0.0),
    ).max()
    claimed = float(certificate(instance, solution).kkt_violation)
    assert violation <= claimed + 1e-12
    assert claimed < 1e-8
    # No product of another document exceeds what is claimed of the rest.
    others = np.setdiff1d(np.arange(1_600), solution.indices)
    assert correlation[others].max() <= float(solution.rest)
    passes.append(int(solution.num_passes))
  assert max(passes) <= 4


@pytest.mark.parametrize("scale", [1e-3, 1.0, 10.0])
def test_optimal_to_float32_over_the_published_grid(scale):
  grid = jnp.asarray([0.01, 0.03, 0.06, 0.1, 0.3, 0.6, 1.0])
  l1, l2 = (x.ravel() for x in jnp.meshgrid(grid, grid, indexing="ij"))
  # A large l2 with a small l1 keeps most documents: the set must hold them.
  instance = jax.tree.map(jnp.float32, problem(0, 120, 16))
  instance = instance._replace(
    query=scale * instance.query, corpus=instance.corpus
  )

  def certify(solver, gradient, l1, l2):
    one = instance._replace(l1=scale * l1, l2=l2)
    solution = solve(one, solver, gradient)
    gap = certificate(one, solution)
    value = elastic_net.objective(one, solution)
    return gap.kkt_violation, value, solution.num_passes

  exact = WorkingSet(capacity=120)
  ours = jax.jit(jax.vmap(partial(certify, exact, Implicit())))(l1, l2)
  assert float(ours[0].max()) <= 1e-5 * max(scale, 1e-2)
  assert int(ours[2].max()) <= 10
  theirs = jax.jit(jax.vmap(partial(certify, fista.Fista(), Unroll())))(l1, l2)
  assert (ours[1] <= theirs[1] + 1e-6 * scale**2).all()


def test_capacity_overflow_is_reported():
  instance = jax.tree.map(jnp.float32, problem(1, 400, 64, l1=0.01))
  full = solve(instance)
  support = int((full.weights > 0).sum())
  assert support > 12
  small = solve(instance, WorkingSet(capacity=8))
  assert int((small.weights > 0).sum()) <= 8
  gap = certificate(instance, small)
  assert float(gap.kkt_violation) > 1e-3
  exact_fit = solve(instance, WorkingSet(capacity=support + 1))
  np.testing.assert_allclose(
    dense_weights(exact_fit, instance), dense_weights(full, instance), atol=1e-5
  )


def test_correlation_is_of_the_weights():
  instance = jax.tree.map(jnp.float32, problem(2, 300, 16))
  solution = solve(instance)
  residual = (
    instance.query - dense_weights(solution, instance) @ instance.corpus
  )
  np.testing.assert_allclose(solution.residual, residual, atol=1e-6)
  np.testing.assert_allclose(
    solution.correlation,
    (instance.corpus @ residual)[solution.indices],
    atol=1e-6,
  )


@pytest.mark.parametrize("l1", [1.0, 5.0])
def test_nothing_to_retrieve_is_one_pass(l1):
  instance = jax.tree.map(jnp.float32, problem(3, 100, 8, l1=l1))
  solution = solve(instance, WorkingSet(capacity=8))
  assert (solution.weights == 0).all()
  assert int(solution.num_passes) == 1


def test_more_documents_than_dimensions_without_penalties(x64):
  """The restricted system is singular: non-negative least squares."""
  instance = problem(4, 200, 5, l1=0.0, l2=0.0)
  solution = solve(instance)
  residual = instance.query - weights_of(instance) @ instance.corpus
  assert float(jnp.linalg.norm(residual)) < 1e-6
  assert float(jnp.linalg.norm(solution.residual)) < 1e-6


def test_a_batch_equals_the_loop():
  instance = jax.tree.map(jnp.float32, problem(5, 200, 16))
  queries = instance.corpus[:7] + instance.corpus[7:14]
  one = lambda query: weights_of(instance._replace(query=query))  # noqa: E731
  np.testing.assert_allclose(
    jax.vmap(one)(queries), jnp.stack([one(q) for q in queries]), atol=1e-5
  )


# Gradients.


@pytest.mark.parametrize(
  "solver", [WorkingSet(), fista.Fista(num_steps=20_000)], ids=["ws", "fista"]
)
@pytest.mark.parametrize("what", ["weights", "residual"])
def test_implicit_gradients_match_finite_differences(x64, solver, what):
  instance = problem(6, 16, 6)
  flat, unravel = ravel_pytree(instance[:4])
  target = np.random.default_rng(0).normal(size=16 if what == "weights" else 6)
  target = jnp.asarray(target)

  def output(flat):
    one = elastic_net.Problem(*unravel(flat))
    if what == "weights":
      return weights_of(one, solver)
    return solve(one, solver).residual

  eps = 1e-6
  steps = eps * jnp.eye(flat.size)
  points = jnp.concatenate([flat[None] + steps, flat[None] - steps])
  plus, minus = np.split(
    np.asarray(jax.jit(jax.vmap(output))(points)) @ np.asarray(target), 2
  )
  numeric = unravel(jnp.asarray((plus - minus) / (2 * eps)))
  grad = unravel(
    jax.jit(jax.grad(lambda flat: jnp.vdot(target, output(flat))))(flat)
  )
  for name, ours, theirs in zip(
    ("query", "corpus", "l1", "l2"), grad, numeric, strict=True
  ):
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6, err_msg=name)


def test_implicit_equals_unrolled_at_convergence(x64):
  instance = problem(7, 40, 12)

  def loss(instance, gradient):
    solution = solve(instance, fista.Fista(num_steps=5_000), gradient)
    return jnp.sum(jnp.sin(3.0 * solution.weights))

  implicit, unrolled = (
    jax.grad(loss)(instance, gradient) for gradient in (Implicit(), Unroll())
  )
  jax.tree.map(
    partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-8),
    implicit,
    unrolled,
  )


def test_memory_does_not_depend_on_the_steps():
  instance = jax.tree.map(jnp.float32, problem(8, 1_000, 8))

  def temp_bytes(num_steps, gradient):
    def fn(query):
      one = instance._replace(query=query)
      solver = fista.Fista(num_steps=num_steps)
      return jnp.sum(solve(one, solver, gradient).weights)

    compiled = jax.jit(jax.grad(fn)).lower(instance.query).compile()
    return compiled.memory_analysis().temp_size_in_bytes

  implicit = Implicit(capacity=64)
  assert temp_bytes(400, implicit) == temp_bytes(50, implicit)
  assert temp_bytes(400, implicit) < temp_bytes(400, Unroll()) / 4


def test_a_batch_scatters_into_one_corpus_cotangent():
  """No [batch, num_docs, dim] array appears in the backward pass."""
  instance = jax.tree.map(jnp.float32, problem(9, 2_000, 16))
  queries = instance.corpus[:32]

  def loss(corpus, gradient):
    def one(query):
      problem = instance._replace(query=query, corpus=corpus)
      return jnp.sum(solve(problem, WorkingSet(capacity=16), gradient).weights)

    return jnp.sum(jax.vmap(one)(queries))

  compiled = (
    jax.jit(partial(jax.grad(loss), gradient=Implicit(capacity=16)))
    .lower(instance.corpus)
    .compile()
  )
  temporary = compiled.memory_analysis().temp_size_in_bytes
  assert temporary < 32 * 2_000 * 16 * 4


def test_choices_are_checked():
  with pytest.raises(ValueError, match="capacity must be >= 1, got 0"):
    WorkingSet(capacity=0)
  with pytest.raises(ValueError, match="max_rounds must be >= 1, got 0"):
    WorkingSet(max_rounds=0)
  with pytest.raises(ValueError, match="tol must be > 0, got 0"):
    WorkingSet(tol=0)
  with pytest.raises(ValueError, match="capacity must be >= 1, got 0"):
    Implicit(capacity=0)
  with pytest.raises(ValueError, match="gradient must be Implicit, got Unroll"):
    solve(problem(0, 10, 4), working_set.WorkingSet(), Unroll())
