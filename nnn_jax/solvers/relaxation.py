"""Smooth relaxations of choosing k of n, and their derivatives.

  x* = argmax f_rho(x) + R(x)  over  0 <= x <= 1, sum(x) = total

with the quadratic f_rho of `solvers.quadratic` and a strongly concave R, so
that x* is unique and moves continuously with the problem:

  Concave   R = strength sum_i x_i (1 - x_i), rho = 0: entries reach 0 and 1.
  Entropic  R = temperature sum_i entropy(x_i), so that
            x = sigmoid((g - nu) / temperature) with g the slope at x. Concave
            while temperature >= penalty rho / 2, for unit rows.

The steps of Frank-Wolfe have derivative zero almost everywhere. These optima
are differentiated implicitly: for a change w of the slope,

  (m I + 2 penalty S (K - rho diag D) S) v = S (w - nu)
  dx = S v,  sum(dx) = 0

with S^2 the indicator of 0 < x < 1 and m = 2 strength (Concave), or S^2 =
x (1 - x) and m = temperature (Entropic), solved by conjugate gradients.

References: arXiv 2604.02554 for f_rho; Amos, Koltun and Kolter (2019), The
limited multi-label projection layer; Beck and Teboulle (2009).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from nnn_jax.solvers import frank_wolfe, quadratic


@dataclasses.dataclass(frozen=True, kw_only=True)
class Concave:
  """Static choices.

  Attributes:
    strength: > 0. For penalty b it is f_{-mu} of the paper's form with
      mu = strength / b. Smaller is closer to a choice, and harder to solve.
    num_steps: Accelerated projected gradient steps, at most.
  """

  strength: float = 1.0
  num_steps: int = 2_000

  def __post_init__(self):
    if not self.strength > 0:
      raise ValueError(f"strength must be > 0, got {self.strength}.")

  def solve(self, problem: quadratic.Problem) -> jax.Array:
    """x* `[n]`; not differentiable by itself, see `differentiable`."""
    lipschitz = (
      2.0 * problem.penalty * problem.similarity.centred_norm()
      + 2.0 * self.strength
    )

    def step(state):
      x, z, t, _, count = state
      g = quadratic.slope(problem, z, problem.similarity.product(z), 0.0)
      g = g + self.strength * (1.0 - 2.0 * z)
      x_next = _project(z + g / lipschitz, problem.total, problem.allowed)
      # Momentum that points downhill is dropped (O'Donoghue and Candes 2015).
      downhill = jnp.sum((z - x_next) * (x_next - x)) > 0
      t = jnp.where(downhill, 1.0, t)
      t_next = 0.5 * (1.0 + jnp.sqrt(1.0 + 4.0 * t**2))
      z_next = x_next + (t - 1.0) / t_next * (x_next - x)
      change = jnp.max(jnp.abs(x_next - z))
      return x_next, z_next, t_next, change, count + 1

    return _iterate(step, frank_wolfe.centre(problem), self.num_steps)

  def metric(self, x: jax.Array) -> tuple[jax.Array, float, float]:
    """(S `[n]`, m, rho) at the optimum x."""
    return ((x > 0) & (x < 1)).astype(x.dtype), 2.0 * self.strength, 0.0

  def regularizer(self, x: jax.Array) -> jax.Array:
    """R(x)."""
    return self.strength * jnp.sum(x * (1.0 - x))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entropic:
  """Static choices.

  Attributes:
    temperature: > 0. Smaller is closer to a choice, and harder to solve.
    loading: rho, at most 2 temperature, so that the optimum is unique for unit
      rows at every penalty <= 1. Larger is closer to a choice.
    num_steps: Mirror steps, at most.
  """

  temperature: float = 1.0
  loading: float = 0.0
  num_steps: int = 5_000

  def __post_init__(self):
    if not self.temperature > 0:
      raise ValueError(f"temperature must be > 0, got {self.temperature}.")
    if not 0 <= self.loading <= 2.0 * self.temperature:
      raise ValueError(
        f"loading must be in 0 to 2 temperature = {2.0 * self.temperature}, "
        f"got {self.loading}: beyond it the optimum is not unique."
      )

  def solve(self, problem: quadratic.Problem) -> jax.Array:
    """x* `[n]`; not differentiable by itself, see `differentiable`.

    Mirror ascent in the binary entropy, whose curvature is at least 4.
    """
    inertia = 0.5 * problem.penalty * problem.similarity.centred_norm()

    def step(state):
      x, logits, t, _, count = state
      g = quadratic.slope(
        problem, x, problem.similarity.product(x), self.loading
      )
      logits = (inertia * logits + g) / (inertia + self.temperature)
      logits, x_next = _normalize(logits, problem.total, problem.allowed)
      return x_next, logits, t, jnp.max(jnp.abs(x_next - x)), count + 1

    centre = frank_wolfe.centre(problem)
    return _iterate(step, centre, self.num_steps, jnp.zeros_like(centre))

  def metric(self, x: jax.Array) -> tuple[jax.Array, float, float]:
    """(S `[n]`, m, rho) at the optimum x."""
    return jnp.sqrt(x * (1.0 - x)), self.temperature, self.loading


Relaxation = Concave | Entropic


def differentiable(
  problem: quadratic.Problem, relaxation: Relaxation
) -> jax.Array:
  """x* `[n]`, differentiable in gain, penalty and similarity.

  Nothing of the iterations is kept: memory does not depend on their number.
  """
  held = jax.lax.stop_gradient(problem)
  x = relaxation.solve(held)
  scale, diagonal_part, loading = relaxation.metric(x)
  diagonal = held.similarity.diagonal
  scale = jnp.where(held.allowed, scale, 0.0)
  square = jnp.sum(scale**2)

  def balance(v):  # Onto sum(S v) = 0.
    mean = jnp.sum(scale * v) / jnp.where(square > 0, square, 1.0)
    return v - scale * mean

  def operator(v):
    u = scale * balance(v)
    bend = held.similarity.product(u) - loading * diagonal * u
    return balance(diagonal_part * v + 2.0 * held.penalty * scale * bend) + (
      v - balance(v)
    )

  product = problem.similarity.product(x)
  w = quadratic.slope(problem, x, product, loading)
  w = balance(scale * (w - jax.lax.stop_gradient(w)))  # Zero, with a tangent.
  tol = 1e-5 if x.dtype == jnp.float32 else 1e-12
  v, _ = jax.scipy.sparse.linalg.cg(operator, w, tol=tol, maxiter=1_000)
  return x + scale * balance(v)


def _iterate(step, x, num_steps, dual=None):
  """Repeats (x, dual, momentum, change, count) -> the same until at rest."""
  tol = 16.0 * jnp.finfo(x.dtype).eps
  start = (
    x,
    x if dual is None else dual,
    jnp.ones((), x.dtype),
    jnp.asarray(jnp.inf, x.dtype),
    jnp.zeros((), jnp.int32),
  )
  return jax.lax.while_loop(
    lambda state: (state[3] > tol) & (state[4] < num_steps), step, start
  )[0]


def _project(y, total, allowed):
  """The nearest point of 0 <= x <= 1, sum(x) = total."""
  nu = _threshold(
    lambda z: jnp.clip(z, 0.0, 1.0), y, total, allowed, margin=1.0
  )
  x = jnp.where(allowed, jnp.clip(y - nu, 0.0, 1.0), 0.0)
  inside = allowed & (x > 0) & (x < 1)
  # The bisection's set of fractional entries determines nu exactly.
  miss = (jnp.sum(x) - total) / jnp.maximum(jnp.sum(inside), 1)
  return jnp.where(inside, jnp.clip(x - miss, 0.0, 1.0), x)


def _normalize(logits, total, allowed):
  """(logits - nu, sigmoid of it), the latter summing to total."""
  nu = _threshold(jax.nn.sigmoid, logits, total, allowed, margin=50.0)
  logits = logits - nu
  x = jnp.where(allowed, jax.nn.sigmoid(logits), 0.0)
  slope = jnp.maximum(jnp.sum(x * (1.0 - x)), jnp.finfo(x.dtype).tiny)
  # One Newton step beyond the bisection, unless it is at rounding already.
  miss = jnp.clip((jnp.sum(x) - total) / slope, -1e-3, 1e-3)
  logits = logits - miss
  return logits, jnp.where(allowed, jax.nn.sigmoid(logits), 0.0)


def _threshold(
  squash: Callable[[jax.Array], jax.Array], y, total, allowed, *, margin: float
):
  """Nu with sum(squash(y - nu)) = total, by bisection."""
  low = jnp.min(jnp.where(allowed, y, jnp.inf)) - margin
  high = jnp.max(jnp.where(allowed, y, -jnp.inf)) + margin

  def halve(_, ends):
    low, high = ends
    middle = 0.5 * (low + high)
    mass = jnp.sum(jnp.where(allowed, squash(y - middle), 0.0))
    above = mass >= total
    return jnp.where(above, middle, low), jnp.where(above, high, middle)

  num_halvings = jnp.finfo(y.dtype).nmant + 6
  low, high = jax.lax.fori_loop(0, num_halvings, halve, (low, high))
  return 0.5 * (low + high)
