"""Choosing k of n at the best sum of gains less pairwise similarity.

  F(x) = gain . x - penalty sum_{i != j} K_ij x_i x_j,
  x in {0, 1}^n,  sum(x) = total

and its continuous extensions to {0 <= x <= 1, sum(x) = total},

  f_rho(x) = gain . x
    + penalty [ D . x - x^T K x - rho sum_i D_i x_i (1 - x_i) ]

with D the diagonal of K. Each equals F where x is integral, whatever the
loading rho and the lengths of the rows. f_0 is concave; f_1 is multilinear; for
unit rows (D = 1) f_rho is, up to a constant, the objective that the paper
relaxes with lambda = rho.

Moving mass from j to i is convex in f_rho if and only if

  (rho - 1) (D_i + D_j) / 2 + K_ij >= 0.

Where that holds for all pairs, an optimum of the relaxation is integral; rho =
1 is enough where no similarity is negative.

Reference: "Principled and Scalable Diversity-Aware Retrieval via
Cardinality-Constrained Binary Quadratic Programming", arXiv 2604.02554.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from nnn_jax.core import topk
from nnn_jax.solvers import kernels


class Problem(NamedTuple):
  """One instance, in the compute dtype.

  Attributes:
    gain: `[n]`, finite.
    penalty: Scalar >= 0.
    similarity: K, positive semidefinite.
    allowed: `[n]` bool: False holds x_i at zero.
    total: Scalar, how many to choose: at most as many as are allowed.
  """

  gain: jax.Array
  penalty: jax.Array
  similarity: kernels.Similarity
  allowed: jax.Array
  total: jax.Array


def value(
  problem: Problem, x: jax.Array, product: jax.Array, loading: float
) -> jax.Array:
  """f_loading(x), with product = K x at hand."""
  diagonal = problem.similarity.diagonal
  spread = diagonal * x * (1.0 - loading * (1.0 - x)) - x * product
  return jnp.sum(problem.gain * x + problem.penalty * spread)


def slope(
  problem: Problem, x: jax.Array, product: jax.Array, loading: float
) -> jax.Array:
  """The gradient of f_loading at x, `[n]`, with product = K x at hand.

  At a vertex and loading 1 it is the change of F when i joins, or what F
  loses when i leaves.
  """
  diagonal = problem.similarity.diagonal
  spread = diagonal * (1.0 - loading * (1.0 - 2.0 * x)) - 2.0 * product
  return problem.gain + problem.penalty * spread


def best_vertex(
  problem: Problem, slope: jax.Array, k: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """The vertex of the k largest slopes.

  Returns:
    (indices `[k]`, weights `[k]` of 0 or 1, the vertex `[n]`). Where fewer than
    k are allowed the last weights are 0; their indices are valid rows all the
    same.
  """
  values, indices = topk.top_k(slope, k, where=problem.allowed)
  # Of equal slopes the first are taken, and the last of them comes last. (A
  # scatter would take a loop on CPU.)
  least, last = values[k - 1], indices[k - 1]
  places = jnp.arange(slope.shape[0])
  vertex = (slope > least) | ((slope == least) & (places <= last))
  vertex = (vertex & problem.allowed).astype(slope.dtype)
  return jnp.maximum(indices, 0), (indices >= 0).astype(slope.dtype), vertex


def scatter(indices: jax.Array, weights: jax.Array, size: int) -> jax.Array:
  """`[size]` zeros with `weights` added at `indices`."""
  return jnp.zeros(size, weights.dtype).at[indices].add(weights)
