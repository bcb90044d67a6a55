"""Mixture-of-logits similarity: one function for models and decoders.

With query components f_n, item components g_m and a temperature tau, the pairs
p = n P_X + m have logits s_p = <f_n, g_m> / tau, and

  phi(q, x) = sum_p pi_p(q, x) s_p(q, x),  pi = softmax(SiLU(a(q) b(x) + c(s)))

where a and b are vectors of the query and of the item that their encoders
compute, and c is a small network on the logits. Since pi is on the simplex,

  min_p s_p <= phi <= max_p s_p,

which exact search rests on.

Reference: "Retrieval with Learned Similarities" (2025), arXiv 2407.15462.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from nnn_jax import types
from nnn_jax.core import linalg


class MixtureParams(NamedTuple):
  """What is neither of the query nor of the item; all traced.

  Attributes:
    hidden_kernel: `[P, hidden]` of c(s) = W_2 SiLU(W_1 s + b_1) + b_2.
    hidden_bias: `[hidden]`.
    output_kernel: `[hidden, P]`.
    output_bias: `[P]`.
    temperature: tau > 0, a scalar.
  """

  hidden_kernel: types.Array
  hidden_bias: types.Array
  output_kernel: types.Array
  output_bias: types.Array
  temperature: types.Scalar = 0.05


class QuerySide(NamedTuple):
  """What similarity needs of a query.

  Attributes:
    components: `[..., P_Q, dim]`.
    gate: `[..., P]`, a(q), with P = P_Q P_X.
  """

  components: types.Array
  gate: types.Array


class ItemSide(NamedTuple):
  """What similarity needs of an item; to be cached.

  Attributes:
    components: `[..., P_X, dim]`.
    gate: `[..., P]`, b(x).
  """

  components: types.Array
  gate: types.Array


class CachedItems(NamedTuple):
  """The items of an index, in any float dtype; `indexes.mixture` builds it.

  Attributes:
    components: `[num_docs, P_X, dim]`.
    gate: `[num_docs, P]`, b(x).
    mean: `[num_docs, dim]`, of an item's components.
    longest: The largest norm of a component, a scalar.
    coarse: `[num_docs, P_X, dim]` bfloat16, the components for a first pass; or
      None, for the components themselves.
  """

  components: types.Array
  gate: types.Array
  mean: types.Array
  longest: types.Array
  coarse: types.Array | None = None


def cache(items: ItemSide) -> CachedItems:
  """Adds what the searches need, in the compute dtype.

  >>> components = jnp.asarray([[[0.0, 1.0], [1.0, 0.0]]])
  >>> cached = cache(ItemSide(components, jnp.ones((1, 2))))
  >>> cached.mean.tolist(), float(cached.longest)
  ([[0.5, 0.5]], 1.0)
  """
  components = jnp.asarray(items.components, linalg.compute_dtype(*items))
  square = jnp.max(jnp.sum(components**2, axis=-1))
  return CachedItems(
    components,
    jnp.asarray(items.gate),
    jnp.mean(components, axis=-2),
    jnp.sqrt(square),
  )


def check_sides(
  params: MixtureParams, queries: QuerySide, items: ItemSide
) -> None:
  """Checks that the last axes fit each other.

  Raises:
    ValueError: While tracing, naming the argument.
  """
  shapes = {
    "queries.components": jnp.shape(queries.components),
    "items.components": jnp.shape(items.components),
  }
  for name, shape in shapes.items():
    if len(shape) < 2:
      raise ValueError(
        f"{name} must be [..., num_components, dim], got {shape}."
      )
  (num_query, dim), (num_item, item_dim) = (s[-2:] for s in shapes.values())
  if dim != item_dim:
    raise ValueError(
      f"queries.components has dim {dim} and items.components {item_dim}: they "
      "must be equal, both sides of one model."
    )
  pairs = num_query * num_item
  for name, gate in {
    "queries.gate": queries.gate,
    "items.gate": items.gate,
    "params.output_bias": params.output_bias,
  }.items():
    if jnp.shape(gate)[-1:] != (pairs,):
      raise ValueError(
        f"{name} must be [..., {pairs}], for {num_query} query components "
        f"times {num_item} item components, got {jnp.shape(gate)}."
      )
  hidden = jnp.shape(params.hidden_kernel)
  if len(hidden) != 2 or hidden[0] != pairs:
    raise ValueError(
      f"params.hidden_kernel must be [{pairs}, hidden], got {hidden}."
    )


def pair_logits(
  queries: types.Array, items: types.Array, temperature: types.Scalar
) -> jax.Array:
  """s, `[..., P]`: every query component with every item component.

  Leading axes broadcast. An axis that only one side has is one of a matrix
  product, not of a batch of small ones.

  Args:
    queries: `[..., P_Q, dim]`.
    items: `[..., P_X, dim]`.
    temperature: tau.

  >>> pair_logits(jnp.eye(2), jnp.asarray([[1.0, 2.0]]), 0.5).tolist()
  [2.0, 4.0]
  """
  dtype = linalg.compute_dtype(queries, items)
  queries, items = jnp.asarray(queries, dtype), jnp.asarray(items, dtype)
  batch = jnp.broadcast_shapes(queries.shape[:-2], items.shape[:-2])
  letters = "abcdefghijklmnopqrstuvw"[: len(batch)]

  def own_axes(x):
    """Drops the axes of size 1, and names the others."""
    sizes = (1,) * (len(batch) + 2 - x.ndim) + x.shape[:-2]
    kept = [i for i, size in enumerate(sizes) if size != 1]
    shape = [sizes[i] for i in kept]
    return x.reshape(*shape, *x.shape[-2:]), "".join(letters[i] for i in kept)

  queries, q_axes = own_axes(queries)
  items, x_axes = own_axes(items)
  out_axes = "".join(a for a in letters if a in q_axes + x_axes)
  products = jnp.einsum(
    f"{q_axes}yd,{x_axes}zd->{out_axes}yz", queries, items, precision="highest"
  )
  return products.reshape(*batch, -1) / jnp.asarray(temperature, dtype)


def gates(
  params: MixtureParams,
  logits: types.Array,
  query_gate: types.Array,
  item_gate: types.Array,
) -> jax.Array:
  """The gates pi `[..., P]`, on the simplex.

  Args:
    params: Of c.
    logits: s, `[..., P]`.
    query_gate: a(q), `[..., P]`; leading axes broadcast.
    item_gate: b(x), `[..., P]`.
  """
  dtype = linalg.compute_dtype(logits, query_gate, item_gate)
  weights = [jnp.asarray(p, dtype) for p in params[:4]]
  hidden_kernel, hidden_bias, output_kernel, output_bias = weights
  logits = jnp.asarray(logits, dtype)
  # As rows of one matrix: XLA multiplies them at once.
  rows = logits.reshape(-1, logits.shape[-1])
  hidden = jax.nn.silu(linalg.matmul(rows, hidden_kernel) + hidden_bias[None])
  pair_gate = linalg.matmul(hidden, output_kernel) + output_bias[None]
  product = _lift(query_gate, logits) * _lift(item_gate, logits)
  mixed = product + pair_gate.reshape(logits.shape)
  return jax.nn.softmax(jax.nn.silu(mixed), axis=-1)


def similarity(
  params: MixtureParams, queries: QuerySide, items: ItemSide
) -> tuple[jax.Array, jax.Array]:
  """The similarity phi of queries and items whose leading axes broadcast.

  Queries `[batch, 1, ...]` and items `[num_items, ...]` give all pairs.

  Args:
    params: Of the gate.
    queries: As the model's query side returns.
    items: As the model's item side returns.

  Returns:
    (phi `[...]`, pi `[..., P]`), in the compute dtype.

  Raises:
    ValueError: While tracing, for last axes that do not fit.

  One pair, and a gate that does nothing: phi is the dot product over tau.

  >>> import numpy as np
  >>> zeros = np.zeros((1, 1), np.float32)
  >>> params = MixtureParams(zeros, zeros[0], zeros, zeros[0], 0.5)
  >>> side = np.float32([[1.0, 2.0]]), np.float32([0.0])
  >>> phi, pi = similarity(params, QuerySide(*side), ItemSide(*side))
  >>> float(phi), pi.tolist()
  (10.0, [1.0])
  """
  check_sides(params, queries, items)
  logits = pair_logits(queries.components, items.components, params.temperature)
  pi = gates(params, logits, queries.gate, items.gate)
  return jnp.sum(pi * logits, axis=-1), pi


def _lift(x: types.Array, like: jax.Array) -> jax.Array:
  """Adds the axes that x lacks: ranks are not promoted silently."""
  x = jnp.asarray(x, like.dtype)
  return x.reshape((1,) * (like.ndim - x.ndim) + x.shape)
