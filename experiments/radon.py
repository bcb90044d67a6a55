"""Documents that no inner product can rank, and a network that does.

Among any h + 2 points in h dimensions one split has no separating hyperplane
(Radon 1921): with lambda the null vector of [X | 1]^T, the points of positive
and of negative lambda. If one side is what a query asks for, no query vector
ranks it first. The network |u . x + c| = relu(z) + relu(-z) does: [X | 1][u; c]
= v has a solution for every v with lambda . v = 0, such as one that is 0 on one
side and balanced on the other.

It is one split of 2^(h+1) - 1, so it says nothing of how often real queries ask
for such a set.

Reference: arXiv 2502.05364, section 2.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from nnn_jax.core import qnet


def partition(points: np.ndarray) -> np.ndarray:
  """Which of h + 2 points `[h + 2, h]` are on the positive side, bool.

  >>> square = np.asarray([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
  >>> sides = partition(square)  # The diagonals.
  >>> bool(sides[0] == sides[1] != sides[2] == sides[3])
  True
  """
  return _null_vector(points) > 0


def _null_vector(points: np.ndarray) -> np.ndarray:
  num, dim = points.shape
  if num != dim + 2:
    raise ValueError(
      f"points must be h + 2 in h dimensions, got {num} in {dim}."
    )
  extended = np.column_stack([points, np.ones(num)])
  return np.linalg.svd(extended.T)[2][-1]


def network(points: np.ndarray) -> qnet.QNet:
  """A q-net that scores every point of the positive side above the others.

  For `qnet.scores(..., layer_norm=False)`.
  """
  weights = _null_vector(points)
  positive = weights > 0
  # Two or more points can be balanced; one of the sides has them.
  side = positive if positive.sum() >= 2 else ~positive
  values = np.where(side, 1.0 / np.abs(weights), 0.0)
  members = np.flatnonzero(side)
  half = len(members) // 2
  values[members[:half]] *= -(len(members) - half) / half
  extended = np.column_stack([points, np.ones(len(points))])
  solution = np.linalg.lstsq(extended, values, rcond=None)[0]
  u, c = jnp.asarray(solution[:-1]), jnp.asarray(solution[-1])
  sign = 1.0 if positive[members[0]] else -1.0
  return qnet.QNet(
    (jnp.stack([u, -u], axis=1),),
    (jnp.stack([c, -c]),),
    jnp.full(2, sign, u.dtype),
  )
