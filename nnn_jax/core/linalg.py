"""The precision policy, and the linear algebra that several rooms share.

Embeddings may be stored in any float dtype; sums are carried in at least
float32, and products run at the "highest" precision: the TPU and GPU defaults
round float32 inputs to bfloat16 or TF32, which moves solver supports.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from nnn_jax import types

# ||G^(2^p)||_F^(1/2^p) exceeds the largest eigenvalue of a rank-r G by at most
# r^(1/2^(p+1)): a factor of 1.014 at r = 1,024 and p = 8.
_NUM_SQUARINGS = 8


def compute_dtype(*arrays: types.Array | jnp.dtype) -> jnp.dtype:
  """The dtype to compute in: the inputs' promotion, at least float32."""
  return jnp.promote_types(jnp.result_type(*arrays), jnp.float32)


def matmul(a: types.Array, b: types.Array) -> jax.Array:
  """`a @ b` at the highest precision, in the compute dtype of both."""
  dtype = compute_dtype(a, b)
  return jnp.matmul(
    jnp.asarray(a, dtype), jnp.asarray(b, dtype), precision="highest"
  )


def rows(corpus: types.Array, indices: types.Array) -> jax.Array:
  """The rows `[num_indices, dim]` of a corpus, in the compute dtype."""
  return jnp.asarray(corpus[indices], compute_dtype(corpus))


def max_row_norm(corpus: types.Array) -> jax.Array:
  """The largest L2 norm of a row, a scalar.

  >>> float(max_row_norm([[3.0, 4.0], [0.0, 1.0]]))
  5.0
  """
  corpus = jnp.asarray(corpus)
  square = jnp.sum(jnp.asarray(corpus, compute_dtype(corpus)) ** 2, axis=1)
  return jnp.sqrt(jnp.max(square))


def normalize(x: types.Array, *, eps: float = 1e-12) -> jax.Array:
  """Rows of unit L2 norm; a zero row stays zero, with a finite gradient.

  Args:
    x: `[..., dim]`.
    eps: Norms below it are treated as eps.
  """
  x = jnp.asarray(x, compute_dtype(x))
  # x / max(||x||, eps) has a NaN gradient at x = 0; this form does not.
  square = jnp.sum(x * x, axis=-1, keepdims=True)
  return x * jax.lax.rsqrt(jnp.maximum(square, eps**2))


def _small_gram(corpus: jax.Array) -> jax.Array:
  """The smaller of `corpus corpus^T` and `corpus^T corpus`."""
  num_docs, dim = corpus.shape
  if num_docs < dim:
    return matmul(corpus, corpus.T)
  return matmul(corpus.T, corpus)


def gram_norm(corpus: types.Array) -> jax.Array:
  """An upper bound on ||corpus||_2^2, the Gram matrix's largest eigenvalue.

  Repeated squaring of the smaller Gram matrix: only matrix products, so faster
  than an eigendecomposition, and unlike power iteration never below the
  eigenvalue, so a step of its inverse is safe.

  Args:
    corpus: `[num_docs, dim]`.

  Returns:
    A scalar between the eigenvalue and 1.014 times it (dim <= 1,024), up to
    rounding.

  >>> import numpy as np
  >>> np.testing.assert_allclose(gram_norm(np.diag([3.0, 2.0])), 9.0, rtol=1e-5)
  """
  corpus = jnp.asarray(corpus, compute_dtype(corpus))
  tiny = jnp.finfo(corpus.dtype).tiny

  def square(carry, _):
    power, log_scale = carry
    norm = jnp.maximum(jnp.linalg.norm(power), tiny)
    power = power / norm
    return (matmul(power, power), 2.0 * (log_scale + jnp.log(norm))), None

  start = (_small_gram(corpus), jnp.zeros((), corpus.dtype))
  (power, log_scale), _ = jax.lax.scan(
    square, start, None, length=_NUM_SQUARINGS
  )
  log_norm = jnp.log(jnp.maximum(jnp.linalg.norm(power), tiny)) + log_scale
  return jnp.exp(log_norm / 2**_NUM_SQUARINGS)


def correlation_fn(
  query: types.Array, corpus: types.Array
) -> Callable[[jax.Array], jax.Array]:
  """Returns weights -> corpus (query - corpus^T weights), `[num_docs]`.

  For num_docs below 2 dim one product with the Gram matrix is cheaper than the
  two with the corpus. The Gram matrix does not depend on the query, so under
  `jax.vmap` over queries it is computed once for the batch.

  Args:
    query: `[dim]`.
    corpus: `[num_docs, dim]`.
  """
  num_docs, dim = corpus.shape
  if num_docs < 2 * dim:
    gram, target = matmul(corpus, corpus.T), matmul(corpus, query)
    return lambda weights: target - matmul(gram, weights)
  return lambda weights: matmul(corpus, query - matmul(weights, corpus))
