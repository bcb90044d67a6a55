"""The precision policy, and the linear algebra that several rooms share.

Embeddings may be stored in any float dtype; sums are carried in at least
float32, and products run at the "highest" precision: the TPU and GPU defaults
round float32 inputs to bfloat16 or TF32, which moves solver supports.

A bfloat16 corpus is multiplied as it is stored: a float32 copy would take twice
its memory. Instead the float32 operand is split into three bfloat16 parts that
sum to it exactly (3 x 8 bits), and products of bfloat16 are exact in float32,
where they are summed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

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
  """`a @ b` at the highest precision, in the compute dtype of both.

  Of a bfloat16 vector or matrix no float32 copy is made here, except for a
  derivative.
  """
  a, b = jnp.asarray(a), jnp.asarray(b)
  stored = jnp.bfloat16 in (a.dtype, b.dtype) and max(a.ndim, b.ndim) <= 2
  if stored and compute_dtype(a, b) == jnp.float32:
    return _stored_matmul(_bfloat16_or_float32(a), _bfloat16_or_float32(b))
  return _converted_matmul(a, b)


def products(corpus: types.Array, query: types.Array) -> jax.Array:
  """`corpus @ query`, `[num_docs]`, for one query to be batched by `jax.vmap`.

  >>> products(jnp.eye(2), jnp.asarray([1.0, 2.0])).tolist()
  [1.0, 2.0]
  """
  corpus = jnp.asarray(corpus)
  if corpus.dtype == jnp.bfloat16:
    return matmul(corpus, query)  # Its transpose would be a copy.
  # Under vmap this is [batch, num_docs] at once; corpus @ query is transposed.
  return matmul(query, corpus.T)


def _bfloat16_or_float32(x):
  return x if x.dtype == jnp.bfloat16 else x.astype(jnp.float32)


def _converted_matmul(a, b):
  dtype = compute_dtype(a, b)
  return jnp.matmul(a.astype(dtype), b.astype(dtype), precision="highest")


@jax.custom_jvp
def _stored_matmul(a, b):
  """`a @ b` of bfloat16 with bfloat16 or float32."""
  last = a.ndim - 1
  if a.dtype == jnp.float32:
    return jnp.sum(_contract(_bfloat16_parts(a), last + 1, b, 0), axis=0)
  if b.dtype == jnp.float32:
    return jnp.sum(_contract(a, last, _bfloat16_parts(b), 1), axis=last)
  return _contract(a, last, b, 0)


def _contract(a, a_axis, b, b_axis):
  return jax.lax.dot_general(
    a,
    b,
    (((a_axis,), (b_axis,)), ((), ())),
    precision="highest",
    preferred_element_type=jnp.float32,
  )


@partial(_stored_matmul.defjvp, symbolic_zeros=True)
def _stored_matmul_jvp(primals, tangents):
  # The transpose of a product in bfloat16 would round cotangents to bfloat16.
  (a, b), (da, db) = primals, tangents
  zero = jax.custom_derivatives.SymbolicZero
  out = _stored_matmul(a, b)
  tangent = jnp.zeros_like(out)
  if not isinstance(da, zero):
    tangent += _converted_matmul(da, b)
  if not isinstance(db, zero):
    tangent += _converted_matmul(a, db)
  return out, tangent


def _bfloat16_parts(x):
  """Splits a float32 array into `[3, *x.shape]` bfloat16 that sum to it."""
  parts = []
  for _ in range(3):
    # XLA may drop a conversion to bfloat16 and back, but not this.
    part = jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
    parts.append(part.astype(jnp.bfloat16))
    x = x - part
  return jnp.stack(parts)


def rows(corpus: types.Array, indices: types.Array) -> jax.Array:
  """The rows `[num_indices, dim]` of a corpus, in the compute dtype."""
  corpus = jnp.asarray(corpus)
  if corpus.dtype == jnp.bfloat16:
    return _stored_rows(corpus, indices)
  return jnp.asarray(corpus[indices], compute_dtype(corpus))


def max_row_norm(corpus: types.Array) -> jax.Array:
  """The largest L2 norm of a row, a scalar.

  >>> float(max_row_norm([[3.0, 4.0], [0.0, 1.0]]))
  5.0
  """
  corpus = jnp.asarray(corpus)
  square = jnp.sum(jnp.asarray(corpus, compute_dtype(corpus)) ** 2, axis=1)
  return jnp.sqrt(jnp.max(square))


@jax.custom_jvp
def _stored_rows(corpus, indices):
  # Of bits: XLA on CPU gathers bfloat16 from a float32 copy of the corpus.
  bits = jax.lax.bitcast_convert_type(corpus, jnp.uint16)[indices]
  return jax.lax.bitcast_convert_type(bits, jnp.bfloat16).astype(jnp.float32)


@partial(_stored_rows.defjvp, symbolic_zeros=True)
def _stored_rows_jvp(primals, tangents):
  out, tangent = _stored_rows(*primals), tangents[0]
  if isinstance(tangent, jax.custom_derivatives.SymbolicZero):
    return out, jnp.zeros_like(out)
  return out, tangent[primals[1]].astype(out.dtype)


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
  gram = _small_gram(jnp.asarray(corpus))
  tiny = jnp.finfo(gram.dtype).tiny

  def square(carry, _):
    power, log_scale = carry
    norm = jnp.maximum(jnp.linalg.norm(power), tiny)
    power = power / norm
    return (matmul(power, power), 2.0 * (log_scale + jnp.log(norm))), None

  start = (gram, jnp.zeros((), gram.dtype))
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
