"""FISTA against the published iteration, and its gradients."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from nnn_jax.core import corpora, linalg
from nnn_jax.core.gradients import Unroll
from nnn_jax.solvers import elastic_net, fista


@pytest.fixture
def x64():
  with jax.enable_x64(True):
    yield


def problem(seed, num_docs, dim, lean=0.3, where=None):
  rng = np.random.default_rng(seed)
  rows = rng.normal(size=(num_docs + 1, dim)) + lean
  rows /= np.linalg.norm(rows, axis=1, keepdims=True)
  return elastic_net.Problem(
    jnp.asarray(rows[0]),
    jnp.asarray(rows[1:]),
    jnp.asarray(0.05),
    jnp.asarray(0.02),
    where,
  )


@partial(jax.jit, static_argnames=("num_steps", "gradient"))
def solve(instance, num_steps=50, gradient=Unroll()):
  solver = fista.Fista(num_steps=num_steps)
  return solver.solve(searchable(instance), gradient=gradient).weights


def searchable(instance):
  return instance._replace(corpus=corpora.searchable(instance.corpus))


def objective(instance, weights):
  instance = searchable(instance)
  solution = elastic_net.solution_of(instance, weights)
  return elastic_net.objective(instance, solution)


def published(query, corpus, l1, l2, num_steps, lipschitz):
  """Section 1 of the specification, symbol by symbol, from zeros."""
  w = z = np.zeros(len(corpus))
  t = 1.0
  for _ in range(num_steps):
    w_next = np.maximum(
      (1 - l2 / lipschitz) * z
      + corpus @ (query - corpus.T @ z) / lipschitz
      - l1 / lipschitz,
      0.0,
    )
    t_next = (1 + np.sqrt(1 + 4 * t**2)) / 2
    z = w_next + (t - 1) / t_next * (w_next - w)
    w, t = w_next, t_next
  return w


# (12, 10) takes the Gram form, (40, 10) the corpus form.
@pytest.mark.parametrize("num_docs", [12, 40])
@pytest.mark.parametrize("num_steps", [1, 2, 50])
def test_equals_the_published_iteration(x64, num_docs, num_steps):
  instance = problem(0, num_docs, 10)
  query, corpus, l1, l2 = (np.asarray(x) for x in instance[:4])
  norm = float(linalg.gram_norm(corpus))
  # Ours is an upper bound on the published L, within 1.4 %.
  exact = np.linalg.norm(corpus, 2) ** 2
  assert exact <= norm * (1 + 1e-12)
  assert norm <= 1.014 * exact
  weights = solve(instance, num_steps)
  expected = published(query, corpus, l1, l2, num_steps, norm + l2)
  assert (expected > 0).any()
  np.testing.assert_allclose(weights, expected, atol=1e-12)


@pytest.mark.parametrize("num_docs", [19, 20])  # 2 dim = 20.
def test_both_sides_of_the_gram_switch_agree_in_float32(num_docs):
  with jax.enable_x64(True):
    instance = problem(1, num_docs, 10)
    query, corpus, l1, l2 = (np.asarray(x) for x in instance[:4])
    norm = float(linalg.gram_norm(corpus))
  single = jax.tree.map(jnp.float32, instance)
  np.testing.assert_allclose(
    solve(single), published(query, corpus, l1, l2, 50, norm + l2), atol=1e-5
  )


def test_the_switch_does_not_change_the_answer():
  """Zero rows take the same problem over the switch."""
  single = jax.tree.map(jnp.float32, problem(1, 15, 10))
  padded = single._replace(corpus=jnp.pad(single.corpus, ((0, 10), (0, 0))))
  programs = [str(jax.make_jaxpr(solve)(p)) for p in (single, padded)]
  assert "15,15" in programs[0]
  assert "25,25" not in programs[1]
  np.testing.assert_allclose(solve(padded)[:15], solve(single), atol=1e-5)
  assert (np.asarray(solve(padded)[15:]) == 0).all()


def test_a_batch_computes_the_gram_matrix_once():
  instance = jax.tree.map(jnp.float32, problem(1, 15, 10))
  queries = jnp.stack([instance.query] * 7)
  program = str(
    jax.make_jaxpr(
      jax.vmap(lambda query: solve(instance._replace(query=query)))
    )(queries)
  )
  assert "f32[15,15]" in program
  assert "f32[7,15,15]" not in program
  assert "f32[7,15,10]" not in program


def test_where_holds_weights_at_zero(x64):
  where = np.arange(12) % 2 == 0
  masked = solve(problem(2, 12, 10, where=jnp.asarray(where)), 3_000)
  full = problem(2, 12, 10)
  removed = solve(full._replace(corpus=full.corpus[where]), 3_000)
  assert (np.asarray(masked)[~where] == 0).all()
  np.testing.assert_allclose(np.asarray(masked)[where], removed, atol=1e-10)


@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_a_zero_corpus_has_zero_weights(l2):
  instance = elastic_net.Problem(
    jnp.ones(4), jnp.zeros((6, 4)), jnp.float32(0.0), jnp.float32(l2)
  )
  value, grads = jax.value_and_grad(
    lambda q, c: jnp.sum(solve(instance._replace(query=q, corpus=c))), (0, 1)
  )(instance.query, instance.corpus)
  assert float(value) == 0.0
  assert all(np.isfinite(g).all() for g in grads)


def test_the_objective_falls_as_promised(x64):
  """P(w_T) - P* <= 2 L ||w*||^2 / (T + 1)^2 (Beck and Teboulle)."""
  instance = problem(3, 60, 10, lean=1.0)
  best = solve(instance, 50_000)
  lowest = objective(instance, best)
  bound = linalg.gram_norm(instance.corpus) + instance.l2
  for num_steps in (1, 5, 50):
    gap = objective(instance, solve(instance, num_steps)) - lowest
    limit = 2 * bound * jnp.sum(best**2) / (num_steps + 1) ** 2
    assert 0 <= float(gap) <= float(limit)


# Gradients.


def gradient_case(num_docs, dim, num_steps, gradient):
  """A smooth function of (query, corpus, l1, l2) as one flat vector."""
  instance = problem(5, num_docs, dim)
  flat, unravel = ravel_pytree(instance[:4])
  target = jnp.asarray(np.random.default_rng(0).normal(size=num_docs))

  def weights(flat):
    return solve(elastic_net.Problem(*unravel(flat)), num_steps, gradient)

  def fn(flat):
    return jnp.vdot(target, weights(flat))

  return flat, unravel, target, weights, fn


# Either side of 2 dim = 12.
@pytest.mark.parametrize(("num_docs", "remat_every"), [(10, None), (16, 64)])
def test_gradients_match_finite_differences(x64, num_docs, remat_every):
  gradient = Unroll(remat_every=remat_every)
  flat, unravel, target, weights, fn = gradient_case(
    num_docs, 6, 3_000, gradient
  )
  eps = 1e-6
  steps = eps * jnp.eye(flat.size)
  points = jnp.concatenate([flat[None] + steps, flat[None] - steps])
  perturbed = np.asarray(jax.jit(jax.vmap(weights))(points))
  plus, minus = np.split(perturbed @ np.asarray(target), 2)
  numeric = unravel(jnp.asarray((plus - minus) / (2 * eps)))
  grad = unravel(jax.jit(jax.grad(fn))(flat))

  # Away from support changes: the same support at every perturbed point.
  support = perturbed[0] > 0
  assert 2 < support.sum() < num_docs
  assert ((perturbed > 0) == support).all()

  names = ("query", "corpus", "l1", "l2")
  for name, ours, theirs in zip(names, grad, numeric, strict=True):
    assert np.abs(theirs).max() > 1e-2, name
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
  ("num_steps", "remat_every"), [(50, (7, 10, 1)), (3, (5,))]
)
def test_remat_changes_neither_value_nor_gradient(x64, num_steps, remat_every):
  results = []
  for every in (None, *remat_every):
    gradient = Unroll(remat_every=every)
    flat, *_, fn = gradient_case(12, 6, num_steps, gradient)
    results.append(jax.jit(jax.value_and_grad(fn))(flat))
  for value, grad in results[1:]:
    np.testing.assert_allclose(value, results[0][0], rtol=1e-12)
    np.testing.assert_allclose(grad, results[0][1], atol=1e-12)


def test_remat_needs_less_memory():
  instance = jax.tree.map(jnp.float32, problem(6, 1_000, 8))

  def temp_bytes(gradient):
    def fn(query):
      return jnp.sum(solve(instance._replace(query=query), 400, gradient))

    compiled = jax.jit(jax.grad(fn)).lower(instance.query).compile()
    return compiled.memory_analysis().temp_size_in_bytes

  full, remat = temp_bytes(Unroll()), temp_bytes(Unroll(remat_every=20))
  assert remat < full / 4


def test_gradient_through_a_batch_sums_over_queries(x64):
  instance = problem(7, 12, 10)
  queries = jnp.stack([problem(s, 12, 10).query for s in (8, 9)])

  def total(corpus, queries):
    return jnp.sum(
      jax.vmap(lambda q: solve(instance._replace(query=q, corpus=corpus)))(
        queries
      )
    )

  batched = jax.grad(total)(instance.corpus, queries)
  single = [jax.grad(total)(instance.corpus, q[None]) for q in queries]
  np.testing.assert_allclose(batched, single[0] + single[1], atol=1e-12)


# Choices.


@pytest.mark.parametrize("num_steps", [0, -1])
def test_num_steps_is_positive(num_steps):
  with pytest.raises(
    ValueError, match=f"num_steps must be >= 1, got {num_steps}"
  ):
    fista.Fista(num_steps=num_steps)


def test_solver_is_hashable_and_frozen():
  assert fista.Fista() == fista.Fista(num_steps=50)
  assert hash(fista.Fista()) == hash(fista.Fista(num_steps=50))
  with pytest.raises(AttributeError):
    fista.Fista().num_steps = 3
  with pytest.raises(TypeError):
    fista.Fista(50)
