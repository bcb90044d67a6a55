"""Pipage rounding: from a fractional x to a choice without losing value.

Between two fractional entries i and j mass t moves from j to i. f_1 along it,

  (g_i - g_j) t + 2 penalty K_ij t^2,

is convex where K_ij >= 0, so one of the two ends, where an entry becomes 0 or
1, is at least as good; the better end is taken. Each move settles an entry.

Reference: Ageev and Sviridenko (2004).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from nnn_jax.solvers import quadratic

# Entries closer than this to 0 or 1 are settled: float32 sums of k entries are
# no more exact.
_SETTLED = 1e-5


class _State(NamedTuple):
  x: jax.Array
  product: jax.Array
  num_fractional: jax.Array


def _fractional(x):
  return (x > _SETTLED) & (x < 1.0 - _SETTLED)


def round_up(
  problem: quadratic.Problem, x: jax.Array, product: jax.Array
) -> jax.Array:
  """Returns x with at most one fractional entry, f_1 no lower.

  Args:
    problem: The instance; no similarity between allowed rows negative, or
      the value may fall.
    x: `[n]`, feasible.
    product: `[n]`, K x.
  """

  def move(state: _State) -> _State:
    x, product, _ = state
    g = quadratic.slope(problem, x, product, loading=1.0)
    loose = _fractional(x)
    # Slopes equal up to rounding are ties: mass gathers at the lowest index.
    equal = 16.0 * jnp.finfo(g.dtype).eps * jnp.max(jnp.abs(g))
    highest = jnp.max(jnp.where(loose, g, -jnp.inf))
    i = jnp.argmax(loose & (g >= highest - equal))
    others = loose & (jnp.arange(x.shape[0]) != i)
    lowest = jnp.min(jnp.where(others, g, jnp.inf))
    last = jnp.argmax((others & (g <= lowest + equal))[::-1])
    j = x.shape[0] - 1 - last
    pair = jnp.stack([i, j])
    bend = 2.0 * problem.penalty * problem.similarity.block(i[None], j[None])
    up = jnp.minimum(1.0 - x[i], x[j])
    down = -jnp.minimum(x[i], 1.0 - x[j])

    def gained(t):
      return (g[i] - g[j]) * t + bend[0, 0] * t**2

    t = jnp.where(gained(up) >= gained(down) - equal, up, down)
    after = jnp.clip(x[pair] + jnp.stack([t, -t]), 0.0, 1.0)
    settled = jnp.where(_fractional(after), after, jnp.round(after))
    product = product + problem.similarity.columns(pair, settled - x[pair])
    x = x.at[pair].set(settled)
    return _State(x, product, jnp.sum(_fractional(x)))

  start = _State(x, product, jnp.sum(_fractional(x)))
  return jax.lax.while_loop(lambda s: s.num_fractional >= 2, move, start).x
