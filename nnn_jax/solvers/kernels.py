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


class Factored(NamedTuple):
  """K = rows rows^T. Attributes: rows `[num_docs, dim]`."""

  rows: jax.Array

  def diagonal(self) -> jax.Array:
    """K_ii, `[num_docs]`."""
    return jnp.sum(self.rows**2, axis=-1)

  def product(self, x: jax.Array) -> jax.Array:
    """K x, `[num_docs]`."""
    return linalg.matmul(self.rows, linalg.matmul(x, self.rows))

  def columns(self, indices: jax.Array, weights: jax.Array) -> jax.Array:
    """K x for the sparse x with `weights` at `indices`, `[num_docs]`."""
    total = linalg.matmul(weights, self.rows[indices])
    return linalg.matmul(self.rows, total)

  def block(self, left: jax.Array, right: jax.Array) -> jax.Array:
    """K_ij for i in `left` and j in `right`."""
    return linalg.matmul(self.rows[left], self.rows[right].T)

  def centred_norm(self) -> jax.Array:
    """An upper bound on d^T K d / ||d||^2 over d that sum to zero."""
    # Such a d does not see a shift of all rows.
    rows = self.rows - jnp.mean(self.rows, axis=0, keepdims=True)
    return jnp.linalg.norm(linalg.matmul(rows.T, rows))


class Formed(NamedTuple):
  """A kernel as a matrix. Attributes: matrix `[num_docs, num_docs]`."""

  matrix: jax.Array

  def diagonal(self) -> jax.Array:
    """K_ii, `[num_docs]`."""
    return jnp.diagonal(self.matrix)

  def product(self, x: jax.Array) -> jax.Array:
    """K x, `[num_docs]`."""
    return linalg.matmul(self.matrix, x)

  def columns(self, indices: jax.Array, weights: jax.Array) -> jax.Array:
    """K x for the sparse x with `weights` at `indices`, `[num_docs]`."""
    return linalg.matmul(weights, self.matrix[indices])

  def block(self, left: jax.Array, right: jax.Array) -> jax.Array:
    """K_ij for i in `left` and j in `right`."""
    return self.matrix[left][:, right]

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
    return Factored(rows)


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
    return Formed(linalg.matmul(rows, rows.T) ** self.power)


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
    gram, square = linalg.matmul(rows, rows.T), jnp.sum(rows**2, axis=-1)
    distance = square[:, None] + square[None, :] - 2.0 * gram
    return Formed(jnp.exp(-0.5 * jnp.maximum(distance, 0) / self.bandwidth**2))


Kernel = Linear | Power | Rbf
