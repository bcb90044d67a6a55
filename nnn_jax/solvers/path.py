"""The regularisation path of the non-negative elastic net: every l1 at once.

  w(l1) = argmin_{w >= 0}  1/2 ||corpus^T w - query||^2 + l1 sum(w)
                           + l2/2 ||w||^2

It is zero for l1 >= max(corpus query) and piecewise linear below. On a piece
the support A does not change; with M = G_AA + l2 I it has

  w_A(l1) = p - l1 e,   M p = corpus_A query,   M e = 1,
  s(l1)   = corpus (query - corpus_A^T p) + l1 corpus corpus_A^T e,

so that, as l1 falls, a document outside A has s_j = l1 at
(corpus_j (query - corpus_A^T p)) / (1 - corpus_j corpus_A^T e) and joins, and a
weight is zero at p_i / e_i and leaves: the larger of these ends the piece. A
piece costs one product of the corpus with two vectors, whatever the number of
l1 that are then looked at; a solver pays its passes for each.

References: Osborne, Presnell and Turlach (2000), A new approach to variable
selection in least squares problems; Efron, Hastie, Johnstone and Tibshirani
(2004), Least angle regression, section 3.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from nnn_jax import types
from nnn_jax.core import checks, linalg, topk
from nnn_jax.solvers import elastic_net


@dataclasses.dataclass(frozen=True, kw_only=True)
class PathConfig:
  """Static choices: where a path ends before l1 = 0.

  Attributes:
    capacity: Documents that a support holds (at most num_docs are used).
    num_pieces: Linear pieces that are followed, the empty support's included.
      A path has more than its support has documents: some leave again.
  """

  capacity: int = 32
  num_pieces: int = 64

  def __post_init__(self):
    for name in ("capacity", "num_pieces"):
      if getattr(self, name) < 1:
        raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}.")


class Path(NamedTuple):
  """The optimum for every l1 >= lower[-1].

  On piece t, for lower[t] <= l1 <= lower[t - 1], document indices[t, i] has
  weight intercept[t, i] - l1 slope[t, i]. Pieces after the last repeat it.

  Attributes:
    lower: `[num_pieces]` decreasing; lower[0] is max(corpus query).
    indices: `[num_pieces, capacity]` int32 rows of the corpus, -1 where free.
    intercept: `[num_pieces, capacity]`, 0 where free.
    slope: `[num_pieces, capacity]`, 0 where free.
    support_size: `[num_pieces]` int32.
  """

  lower: jax.Array
  indices: jax.Array
  intercept: jax.Array
  slope: jax.Array
  support_size: jax.Array


class Point(NamedTuple):
  """The optimum for one l1.

  Attributes:
    indices: `[capacity]` int32 rows of the corpus, -1 where free.
    weights: `[capacity]` >= 0.
    support_size: int32.
    exact: bool, False for an l1 that the path does not reach.
  """

  indices: jax.Array
  weights: jax.Array
  support_size: jax.Array
  exact: jax.Array


def solve(
  query: types.Array,
  corpus: types.Array,
  l2: types.Scalar,
  *,
  config: PathConfig = PathConfig(),
  where: types.Array | None = None,
) -> Path:
  """Follows the path down from the largest l1 with a non-zero optimum.

  Not differentiable: decode at the l1 that was chosen instead.

  Args:
    query: `[dim]`.
    corpus: `[num_docs, dim]`.
    l2: Traced, >= 0. With 0, of duplicate documents only the first joins.
    config: Static choices.
    where: `[num_docs]` bool; False leaves a document out.

  Raises:
    ValueError: While tracing, for shapes that do not fit.

  >>> corpus = jnp.asarray([[1.0, 0, 0], [0.5**0.5, 0.5**0.5, 0], [0, 0, 1.0]])
  >>> query = jnp.asarray([2 / 3, 2 / 3, 1 / 3])
  >>> path = solve(query, corpus, 0.03, config=PathConfig(num_pieces=4))
  >>> [round(float(l1), 4) for l1 in path.lower]
  [0.9428, 0.3333, 0.0619, 0.0]
  >>> path.support_size.tolist()
  [0, 1, 2, 3]
  >>> [round(float(w), 4) for w in at(path, 0.1).weights]
  [0.8183, 0.2265, 0.0]
  """
  query, corpus, where = checks.check_inputs(query, corpus, where, k=1)
  return _solve(query, corpus, jnp.asarray(l2, query.dtype), where, config)


@partial(jax.jit, static_argnames="config")
def _solve(query, corpus, l2, where, config):
  num_docs = corpus.shape[0]
  capacity = min(config.capacity, num_docs)
  document = jnp.arange(num_docs)
  # Of a document with less slack than rounding l1 is never met.
  min_slack = 100 * jnp.finfo(query.dtype).eps

  def piece(state, _):
    l1, rows, left, ended = state
    active = rows >= 0
    members = jnp.where(active[:, None], linalg.rows(corpus, rows), 0.0)
    factor = elastic_net.free_factor(
      linalg.matmul(members, members.T), l2, active
    )
    target = jnp.stack(
      [linalg.matmul(members, query), active.astype(query.dtype)], axis=1
    )
    p, e = jax.scipy.linalg.cho_solve((factor, True), target).T

    rest = jnp.stack(
      [query - linalg.matmul(p, members), linalg.matmul(e, members)]
    )
    alpha, beta = linalg.matmul(rest, corpus.T)
    slack = 1.0 - beta
    outside = (slack > min_slack) & (document != left)
    # -1 would count from the end.
    taken = jnp.where(active, rows, num_docs)
    outside = outside.at[taken].set(False, mode="drop")
    if where is not None:
      outside &= where
    joins_at = jnp.where(
      outside, alpha / jnp.where(outside, slack, 1.0), -jnp.inf
    )
    (join_l1,), (joining,) = topk.top_k(joins_at, 1)
    falling = active & (e < 0)
    leaves_at = jnp.where(falling, p / jnp.where(falling, e, 1.0), -jnp.inf)
    leaving = jnp.argmax(leaves_at)
    leave_l1 = leaves_at[leaving]

    joins = join_l1 >= leave_l1
    # Rounding must not turn the path back.
    lower = jnp.clip(jnp.maximum(join_l1, leave_l1), 0.0, l1)
    lower = jnp.where(ended, l1, lower)
    full = jnp.all(active)
    ended |= (lower <= 0) | (joins & full)
    slot = jnp.where(joins, jnp.argmin(active), leaving)
    changed = rows.at[slot].set(jnp.where(joins, joining, -1))
    new_rows = jnp.where(ended, rows, changed)
    left = jnp.where(joins, -1, rows[leaving])
    out = Path(lower, rows, p, e, jnp.sum(active, dtype=jnp.int32))
    return (lower, new_rows, left, ended), out

  start = (
    jnp.asarray(jnp.inf, query.dtype),
    jnp.full((capacity,), -1, jnp.int32),
    jnp.asarray(-1, jnp.int32),
    jnp.asarray(False),
  )
  return jax.lax.scan(piece, start, None, length=config.num_pieces)[1]


def at(path: Path, l1: types.Scalar) -> Point:
  """Reads the optimum for one l1 off a path."""
  num_pieces = path.lower.shape[0]
  piece = jnp.minimum(jnp.sum(path.lower > l1), num_pieces - 1)
  weights = jnp.maximum(path.intercept[piece] - l1 * path.slope[piece], 0.0)
  return Point(
    path.indices[piece],
    weights,
    path.support_size[piece],
    jnp.asarray(l1 >= path.lower[-1]),
  )
