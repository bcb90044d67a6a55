"""The precision policy and the bound on the Gram matrix's norm."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnn_jax.core import linalg


def anisotropic(seed, num_docs, dim, lean):
  rng = np.random.default_rng(seed)
  rows = rng.normal(size=(num_docs, dim)) + lean
  return rows / np.linalg.norm(rows, axis=1, keepdims=True)


SHAPES = [(1, 1), (1, 8), (8, 1), (5, 64), (64, 5), (40, 40), (300, 16)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("lean", [0.0, 2.0])
def test_gram_norm_bounds_the_eigenvalue(shape, lean):
  corpus = anisotropic(0, *shape, lean)
  exact = np.linalg.eigvalsh(corpus.T @ corpus).max()
  with jax.enable_x64(True):
    double = float(linalg.gram_norm(corpus))
  assert exact * (1 - 1e-12) <= double
  assert double <= 1.014 * exact
  single = float(linalg.gram_norm(np.float32(corpus)))
  assert single == pytest.approx(double, rel=1e-5)


@pytest.mark.parametrize("dim", [128, 1024])
def test_gram_norm_bound_at_its_loosest(dim):
  """Orthonormal rows: every eigenvalue is the largest."""
  norm = float(linalg.gram_norm(np.eye(dim, dtype=np.float32)))
  assert norm == pytest.approx(dim ** (1 / 512), rel=1e-5)
  assert 1.0 <= norm <= 1.014


def test_gram_norm_with_two_equal_large_eigenvalues():
  corpus = np.diag([2.0, 2.0, 1.0, 0.0])
  assert 4.0 * (1 - 1e-6) <= float(linalg.gram_norm(corpus)) <= 4.0 * 1.014


@pytest.mark.parametrize("scale", [1e-4, 1e-2, 1e2, 1e4])
@pytest.mark.parametrize("shape", [(5, 64), (64, 5)])
def test_gram_norm_scales_with_the_square(shape, scale):
  corpus = np.float32(anisotropic(1, *shape, 0.5))
  expected = float(linalg.gram_norm(corpus)) * scale**2
  assert float(linalg.gram_norm(scale * corpus)) == pytest.approx(
    expected, rel=1e-4
  )


@pytest.mark.parametrize("x64", [False, True])
def test_gram_norm_of_zero_is_zero(x64):
  with jax.enable_x64(x64):
    assert float(linalg.gram_norm(np.zeros((6, 3)))) == 0.0


def test_gram_norm_of_narrow_storage_is_computed_in_float32():
  corpus = jnp.asarray(anisotropic(2, 30, 8, 0.5), jnp.bfloat16)
  norm = linalg.gram_norm(corpus)
  assert norm.dtype == jnp.float32
  exact = np.linalg.norm(np.float64(corpus), 2) ** 2
  assert exact * (1 - 1e-6) <= float(norm) <= 1.014 * exact


def test_gram_norm_passes_nan_on():
  corpus = np.ones((4, 3))
  corpus[1, 1] = np.nan
  assert np.isnan(linalg.gram_norm(corpus))


@pytest.mark.parametrize(
  ("dtypes", "expected"),
  [
    ((jnp.float16, jnp.float16), jnp.float32),
    ((jnp.bfloat16, jnp.float16), jnp.float32),
    ((jnp.int32, jnp.bfloat16), jnp.float32),
    ((jnp.int32, jnp.int32), jnp.float32),
    ((jnp.bool_, jnp.bool_), jnp.float32),
    ((jnp.float32, jnp.float16), jnp.float32),
  ],
)
def test_compute_dtype(dtypes, expected):
  arrays = [jnp.zeros(2, d) for d in dtypes]
  assert linalg.compute_dtype(*arrays) == expected
  assert linalg.matmul(*arrays).dtype == expected


def test_compute_dtype_keeps_float64():
  with jax.enable_x64(True):
    assert linalg.compute_dtype(np.zeros(2), np.float32(1)) == jnp.float64
  assert linalg.compute_dtype(np.zeros(2)) == jnp.float32


def test_matmul_sums_narrow_storage_in_float32():
  ones = jnp.ones(4_096, jnp.float16)
  assert float(linalg.matmul(ones, ones)) == 4_096.0  # 2,048 in float16.
  tiny = jnp.full(10, 2.0**-12, jnp.bfloat16)
  assert float(linalg.matmul(jnp.ones(10, jnp.bfloat16) + 0, tiny)) == (
    10 * 2.0**-12
  )


def test_precision_is_highest_in_the_program():
  corpus, query = jnp.ones((6, 4)), jnp.ones(4)
  for fn in (
    lambda: linalg.matmul(corpus, query),
    lambda: linalg.gram_norm(corpus),
    lambda: linalg.correlation_fn(query, corpus)(jnp.ones(6)),
  ):
    program = str(jax.make_jaxpr(fn)())
    highest = "precision=(Precision.HIGHEST, Precision.HIGHEST)"
    assert program.count("dot_general[") == program.count(highest) > 0


@pytest.mark.parametrize("num_docs", [3, 9, 10, 30])  # 2 dim = 10.
def test_correlation_is_the_same_either_way(num_docs):
  rng = np.random.default_rng(0)
  corpus, query = rng.normal(size=(num_docs, 5)), rng.normal(size=5)
  weights = rng.random(num_docs)
  np.testing.assert_allclose(
    linalg.correlation_fn(jnp.float32(query), jnp.float32(corpus))(
      jnp.float32(weights)
    ),
    corpus @ (query - corpus.T @ weights),
    atol=1e-4,
  )


def test_normalize():
  x = np.random.default_rng(0).normal(size=(2, 3, 4))
  x[0, 1] = 0.0
  unit = linalg.normalize(x)
  norms = np.linalg.norm(unit, axis=-1)
  np.testing.assert_allclose(np.delete(norms.ravel(), 1), 1.0, atol=1e-6)
  assert (np.asarray(unit[0, 1]) == 0).all()
  np.testing.assert_allclose(
    unit[1], x[1] / np.linalg.norm(x[1], axis=-1, keepdims=True), atol=1e-6
  )
  assert linalg.normalize(jnp.ones((2, 2), jnp.bfloat16)).dtype == jnp.float32


def test_normalize_has_a_finite_gradient_at_zero():
  x = np.float32([[0, 0, 0], [3, 0, 4]])
  grad = jax.grad(lambda x: jnp.sum(linalg.normalize(x)))(x)
  assert np.isfinite(grad).all()
  unit = x[1] / 5
  expected = (np.eye(3) - np.outer(unit, unit)).sum(axis=0) / 5
  np.testing.assert_allclose(grad[1], expected, atol=1e-6)


@pytest.mark.parametrize(
  ("a_shape", "b_shape"), [((5, 7), (7,)), ((7,), (7, 9)), ((5, 7), (7, 9))]
)
@pytest.mark.parametrize("stored", ["a", "b", "both"])
def test_bfloat16_products_do_not_round_the_other_operand(
  a_shape, b_shape, stored
):
  rng = np.random.default_rng(0)
  a = jnp.asarray(rng.normal(size=a_shape), jnp.float32)
  b = jnp.asarray(rng.normal(size=b_shape), jnp.float32)
  a = a.astype(jnp.bfloat16) if stored != "b" else a
  b = b.astype(jnp.bfloat16) if stored != "a" else b
  exact = np.float64(a) @ np.float64(b)
  product = jax.jit(linalg.matmul)(a, b)
  assert product.dtype == jnp.float32
  np.testing.assert_allclose(product, exact, atol=2e-6)
  cotangent = rng.normal(size=exact.shape).astype(np.float32)
  pullback = jax.vjp(linalg.matmul, a, b)[1](jnp.asarray(cotangent))
  wide = (np.float32(a), np.float32(b))
  expected = jax.vjp(jnp.matmul, *wide)[1](jnp.asarray(cotangent))
  for got, want, x in zip(pullback, expected, (a, b), strict=True):
    assert got.dtype == x.dtype
    rtol = 1e-5 if x.dtype == jnp.float32 else 2**-8  # Rounded once.
    np.testing.assert_allclose(np.float32(got), want, rtol=rtol, atol=1e-5)
  tangent = jax.jvp(linalg.matmul, (a, b), (a, b))[1]
  np.testing.assert_allclose(tangent, 2 * exact, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_bfloat16_parts_sum_to_the_float32(scale):
  x = np.float32(np.random.default_rng(0).normal(size=1_000) * scale)
  one = jnp.ones((1, 1), jnp.bfloat16)
  product = jax.jit(jax.vmap(linalg.matmul, in_axes=(None, 0)))(one, x[:, None])
  np.testing.assert_array_equal(product[:, 0], x)


def test_float16_and_ints_beside_bfloat16_are_computed_in_float32():
  ones = jnp.ones((2, 3), jnp.bfloat16)
  for other in (jnp.ones(3, jnp.float16), jnp.ones(3, jnp.int32), ones.T):
    product = linalg.matmul(ones, other)
    assert product.dtype == jnp.float32
    assert (np.asarray(product) == 3.0).all()


@pytest.mark.parametrize("batch", [1, 16])
def test_a_bfloat16_corpus_is_multiplied_without_a_copy(batch):
  num_docs, dim = 20_000, 64
  corpus = jax.ShapeDtypeStruct((num_docs, dim), jnp.bfloat16)
  for fn, size in (
    (lambda c, q: linalg.matmul(c, q), dim),
    (lambda c, w: linalg.matmul(w, c), num_docs),
  ):
    x = jax.ShapeDtypeStruct((batch, size), jnp.float32)
    program = jax.jit(jax.vmap(fn, in_axes=(None, 0))).lower(corpus, x)
    temporary = program.compile().memory_analysis().temp_size_in_bytes
    # Three parts, of the weights or of the scores; not num_docs * dim.
    assert temporary <= 3 * 4 * batch * num_docs * 1.1
    assert f"f32[{num_docs},{dim}]" not in program.compile().as_text()


def test_rows_of_a_bfloat16_corpus():
  corpus = np.random.default_rng(0).normal(size=(9, 4))
  corpus = jnp.asarray(corpus, jnp.bfloat16).at[2, 1].set(jnp.nan)
  indices = jnp.asarray([2, 7, 7])
  wide = np.float32(corpus)[indices]
  np.testing.assert_array_equal(linalg.rows(corpus, indices), wide)
  _, pullback = jax.vjp(lambda c: linalg.rows(c, indices), corpus)
  (grad,) = pullback(jnp.ones((3, 4)))
  assert grad.dtype == jnp.bfloat16
  np.testing.assert_array_equal(
    np.float32(grad), np.bincount(indices, minlength=9)[:, None] * np.ones(4)
  )
