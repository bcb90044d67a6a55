"""Q-nets: small networks that score documents, whose weights are a query.

With L hidden layers, the first on the document x,

  y_l = LN(relu(x_{l-1} W_l + b_l)),   LN over the width, no affine part
  x_l = x_{l-1} + y_l   where l < L and the widths agree, else y_l
  score = x_L . output (+ x . skip)

L = 0 is the inner product of a bi-encoder. `skip`, which is not published, adds
one to the network: what the layers learn is then what an inner product lacks.
Without LN the score is piecewise
linear in the document, so that `core.qnet_bounds` can bound it.

Reference: Killingback, Zeng and Zamani (2025), Hypencoder: Hypernetworks for
Information Retrieval, arXiv 2502.05364.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nnn_jax import types
from nnn_jax.core import checks, linalg

_EPS = 1e-5


class QNet(NamedTuple):
  """The weights of one query's network; batch with a leading axis.

  Attributes:
    matrices: L of them, `[in, out]`; the first `in` is the documents' dim.
    biases: L of them, `[out]`.
    output: `[width]`, of the last layer, or `[dim]` where L = 0.
    skip: `[dim]`, from the document to the score, or None.
  """

  matrices: tuple[types.Array, ...]
  biases: tuple[types.Array, ...]
  output: types.Array
  skip: types.Array | None = None

  @property
  def widths(self) -> tuple[int, ...]:
    """The documents' dim, then the width of each hidden layer."""
    return (
      *(jnp.shape(m)[-2] for m in self.matrices),
      jnp.shape(self.output)[-1],
    )


def check(qnet: Any) -> QNet:
  """Casts the weights of one query to their compute dtype.

  Raises:
    ValueError: While tracing, if it is no QNet of one query, or if the layers
      do not fit.

  >>> check(QNet((), (), [1, 2])).output.dtype
  dtype('float32')
  """
  if not (isinstance(qnet, tuple) and len(qnet) in (3, 4)):
    raise ValueError(f"query must be a QNet of weights, got {qnet!r}.")
  matrices, biases, output, skip = QNet(*qnet)
  if len(matrices) != len(biases):
    raise ValueError(
      f"query has {len(matrices)} matrices and {len(biases)} biases: one of "
      "each a hidden layer."
    )
  named: dict[str, tuple[Any, str]] = {}
  for i, (matrix, bias) in enumerate(zip(matrices, biases, strict=True)):
    named[f"query.matrices[{i}]"] = matrix, f"width_{i} width_{i + 1}"
    named[f"query.biases[{i}]"] = bias, f"width_{i + 1}"
  named["query.output"] = output, f"width_{len(matrices)}"
  named["query.skip"] = skip, "width_0"
  checks.check_shapes(**named)
  qnet = QNet(
    tuple(jnp.asarray(matrix) for matrix in matrices),
    tuple(jnp.asarray(bias) for bias in biases),
    jnp.asarray(output),
    None if skip is None else jnp.asarray(skip),
  )
  dtype = linalg.compute_dtype(*(leaf.dtype for leaf in jax.tree.leaves(qnet)))
  return jax.tree.map(lambda leaf: leaf.astype(dtype), qnet)


def layers(qnet: QNet) -> Iterator[tuple[jax.Array, jax.Array, bool]]:
  """(matrix, bias, whether its input is added to its output), in order."""
  last = len(qnet.matrices) - 1
  for i, (w, b) in enumerate(zip(qnet.matrices, qnet.biases, strict=True)):
    yield jnp.asarray(w), jnp.asarray(b), i < last and w.shape[0] == w.shape[1]


def scores(
  qnet: QNet, documents: types.Array, *, layer_norm: bool = True
) -> jax.Array:
  """Scores documents with one query's network: matrix products throughout.

  Under `jax.vmap` over queries the first layer is one product for all of them.

  Args:
    qnet: One query's weights.
    documents: `[num_docs, dim]`, in any float dtype.
    layer_norm: Static; False leaves LN out.

  Returns:
    `[num_docs]` in the compute dtype.

  >>> exclusive_or = QNet(
  ...   matrices=(jnp.asarray([[1.0, -1.0], [-1.0, 1.0]]),),
  ...   biases=(jnp.zeros(2),),
  ...   output=jnp.ones(2),
  ... )
  >>> documents = jnp.asarray([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
  >>> scores(exclusive_or, documents, layer_norm=False).tolist()
  [0.0, 1.0, 1.0, 0.0]
  """
  x = jnp.asarray(documents)
  for matrix, bias, residual in layers(qnet):
    y = jax.nn.relu(linalg.matmul(x, matrix) + bias[None, :])
    if layer_norm:
      y = normalize(y)
    x = x + y if residual else y
  total = linalg.products(x, qnet.output)
  if qnet.skip is None:
    return total
  return total + linalg.products(jnp.asarray(documents), qnet.skip)


def normalize(x: types.Array) -> jax.Array:
  """Layer normalisation over the last axis, without an affine part.

  >>> normalize(jnp.asarray([[1.0, 3.0], [2.0, 2.0]])).round(3).tolist()
  [[-1.0, 1.0], [0.0, 0.0]]
  """
  # Two passes: E[x^2] - E[x]^2 cancels.
  x = jnp.asarray(x)
  centred = x - jnp.mean(x, axis=-1, keepdims=True)
  variance = jnp.mean(centred**2, axis=-1, keepdims=True)
  return centred * jax.lax.rsqrt(variance + _EPS)


def upper_bounds(
  qnet: QNet, centres: types.Array, radii: types.Array
) -> jax.Array:
  """Bounds on the scores, without layer normalisation, over balls.

  The first layer is bounded exactly over a ball, w . x = w . c +- r ||w||, what
  follows by interval arithmetic. What rounding can do is added.

  Args:
    qnet: One query's weights.
    centres: `[num, dim]`.
    radii: `[num]`.

  Returns:
    `[num]`: no x within a ball scores above.

  >>> net = QNet((jnp.eye(2),), (jnp.zeros(2),), jnp.asarray([1.0, -1.0]))
  >>> centres = jnp.asarray([[1.0, 1.0]])
  >>> upper_bounds(net, centres, jnp.ones(1)).round(3).tolist()
  [2.0]
  """
  centres, radii = jnp.asarray(centres), jnp.asarray(radii)[:, None]
  # Of the input the ball, of every further layer a box: (middle, half width).
  middle, half = centres, jnp.broadcast_to(radii, centres.shape)
  is_ball, size = True, jnp.linalg.norm(centres, axis=1, keepdims=True) + radii
  for matrix, bias, residual in layers(qnet):
    mean = linalg.matmul(middle, matrix) + bias[None, :]
    norm = jnp.linalg.norm(matrix, axis=0, keepdims=True)
    spread = radii * norm if is_ball else linalg.matmul(half, jnp.abs(matrix))
    spread += _rounding(matrix) * (size * norm + jnp.abs(bias)[None, :])
    low = jax.nn.relu(mean - spread)
    high = jax.nn.relu(mean + spread)
    if residual:
      low, high = middle - half + low, middle + half + high
    middle, half, is_ball = (low + high) / 2, (high - low) / 2, False
    size = jnp.linalg.norm(jnp.abs(middle) + half, axis=1, keepdims=True)
  output = qnet.output
  norm = jnp.linalg.norm(output)
  spread = radii[:, 0] * norm if is_ball else half @ jnp.abs(output)
  slack = _rounding(output) * size[:, 0] * norm
  bound = linalg.matmul(middle, output) + spread + slack
  if qnet.skip is None:
    return bound
  # Each at its largest, though one document need not have both.
  norm, radii = jnp.linalg.norm(qnet.skip), radii[:, 0]
  size = jnp.linalg.norm(centres, axis=1) + radii
  slack = _rounding(qnet.skip) * (size * norm + jnp.abs(bound))
  return bound + linalg.matmul(centres, qnet.skip) + radii * norm + slack


def _rounding(weights: types.Array) -> float:
  """Of a product with so many terms, twice: in the bound and in the score."""
  return 4.0 * (weights.shape[0] + 2) * float(jnp.finfo(weights.dtype).eps)
