"""Similarity matrices that a quadratic program multiplies by.

A linear kernel stays factored, K = rows rows^T, so a product costs
num_docs x dim and K is never formed. Other kernels need K itself.
Each is positive semidefinite, which the concave bound of
`frank_wolfe.upper_bound` relies on.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from nnn_jax.core import linalg


def _or_zero(rows: jax.Array, finite: jax.Array) -> jax.Array:
  return jnp.where(finite[:, None], rows, 0.0)


class Factored(NamedTuple):
  """K = rows rows^T, with rows that are not finite taken for zero.

  They are never overwritten: that would copy the rows, which costs more than a
  product with them.

  Attributes:
    rows: `[num_docs, dim]`.
    diagonal: `[num_docs]`, K_ii.
    finite: `[num_docs]` bool.
  """

  rows: jax.Array
  diagonal: jax.Array
  finite: jax.Array

  def product(self, x: jax.Array) -> jax.Array:
    """K x, `[num_docs]`."""
    total = jax.lax.cond(
      jnp.all(self.finite),
      lambda: linalg.matmul(x, self.rows),
      lambda: linalg.matmul(x, _or_zero(self.rows, self.finite)),
    )
    return jnp.where(self.finite, linalg.matmul(self.rows, total), 0.0)

  def columns(self, indices: jax.Array, weights: jax.Array) -> jax.Array:
    """K x for the sparse x with `weights` at `indices`, `[num_docs]`."""
    total = linalg.matmul(weights, self._some(indices))
    return jnp.where(self.finite, linalg.matmul(self.rows, total), 0.0)

  def block(self, left: jax.Array, right: jax.Array) -> jax.Array:
    """K_ij for i in `left` and j in `right`."""
    return linalg.matmul(self._some(left), self._some(right).T)

  def energy(self, indices: jax.Array, weights: jax.Array) -> jax.Array:
    """x^T K x for the sparse x with `weights` at `indices`."""
    return jnp.sum(linalg.matmul(weights, self._some(indices)) ** 2)

  def centred_norm(self) -> jax.Array:
    """An upper bound on d^T K d / ||d||^2 over d that sum to zero."""
    # Such a d does not see a shift of all rows.
    rows = _or_zero(self.rows, self.finite)
    rows = rows - jnp.mean(rows, axis=0, keepdims=True)
    return jnp.linalg.norm(linalg.matmul(rows.T, rows))

  def _some(self, indices):
    return _or_zero(self.rows[indices], self.finite[indices])


class Formed(NamedTuple):
  """K as a matrix.

  Attributes:
    matrix: `[num_docs, num_docs]`.
    diagonal: `[num_docs]`, K_ii.
  """

  matrix: jax.Array
  diagonal: jax.Array

  def product(self, x: jax.Array) -> jax.Array:
    """K x, `[num_docs]`."""
    return linalg.matmul(self.matrix, x)

  def columns(self, indices: jax.Array, weights: jax.Array) -> jax.Array:
    """K x for the sparse x with `weights` at `indices`, `[num_docs]`."""
    return linalg.matmul(weights, self.matrix[indices])

  def block(self, left: jax.Array, right: jax.Array) -> jax.Array:
    """K_ij for i in `left` and j in `right`."""
    return self.matrix[left][:, right]

  def energy(self, indices: jax.Array, weights: jax.Array) -> jax.Array:
    """x^T K x for the sparse x with `weights` at `indices`."""
    gram = self.block(indices, indices)
    return jnp.sum(weights * linalg.matmul(gram, weights))

  def centred_norm(self) -> jax.Array:
    """An upper bound on d^T K d / ||d||^2 over d that sum to zero."""
    # Such a d does not see what is constant along a row or a column.
    means = jnp.mean(self.matrix, axis=0)
    shift = means - 0.5 * jnp.mean(means)
    return jnp.linalg.norm(self.matrix - shift[:, None] - shift[None, :])


Similarity = Factored | Formed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Linear:
  """K_ij = u_i . u_j."""

  def similarity(self, rows: jax.Array) -> Similarity:
    """The kernel of `[num_docs, dim]` rows, in the compute dtype."""
    square = jnp.sum(rows**2, axis=-1)
    finite = jnp.isfinite(square)
    return Factored(rows, jnp.where(finite, square, 0.0), finite)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Power:
  """K_ij = (u_i . u_j)^power: punishes near-duplicates out of proportion.

  A mean of cosines tolerates a pair of cosine 1 when the rest is far apart; a
  mean of fourth powers does not. Needs num_docs^2 memory.

  Attributes:
    power: An integer >= 1. An even one takes opposite rows for similar.
  """

  power: int = 4

  def __post_init__(self):
    if not isinstance(self.power, int) or self.power < 1:
      raise ValueError(f"power must be an int >= 1, got {self.power!r}.")

  def similarity(self, rows: jax.Array) -> Similarity:
    """The kernel of `[num_docs, dim]` rows, in the compute dtype."""
    rows = _or_zero(rows, jnp.isfinite(rows).all(axis=-1))
    matrix = linalg.matmul(rows, rows.T) ** self.power
    return Formed(matrix, jnp.diagonal(matrix))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rbf:
  """K_ij = exp(-||u_i - u_j||^2 / (2 bandwidth^2)).

  Attributes:
    bandwidth: > 0. Rows much farther apart than it count as unlike.
  """

  bandwidth: float = 0.5

  def __post_init__(self):
    if not self.bandwidth > 0:
      raise ValueError(f"bandwidth must be > 0, got {self.bandwidth}.")

  def similarity(self, rows: jax.Array) -> Similarity:
    """The kernel of `[num_docs, dim]` rows, in the compute dtype."""
    rows = _or_zero(rows, jnp.isfinite(rows).all(axis=-1))
    gram, square = linalg.matmul(rows, rows.T), jnp.sum(rows**2, axis=-1)
    distance = square[:, None] + square[None, :] - 2.0 * gram
    matrix = jnp.exp(-0.5 * jnp.maximum(distance, 0) / self.bandwidth**2)
    return Formed(matrix, jnp.diagonal(matrix))


Kernel = Linear | Power | Rbf
