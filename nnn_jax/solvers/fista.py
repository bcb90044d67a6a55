"""FISTA for the non-negative elastic net, with a fixed number of steps.

  L   = ||corpus||_2^2 + l2
  w'  = [z - (l1 + l2 z - corpus (query - corpus^T z)) / L]_+
  t'  = (1 + sqrt(1 + 4 t^2)) / 2
  z'  = w' + (t - 1) / t' (w' - w)

from w = z = 0 and t = 1. The objective falls as O(L / num_steps^2).

References: Beck and Teboulle (2009), FISTA; arXiv 2606.17910, Algorithm 1.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from nnn_jax.core import checks, gradients, linalg
from nnn_jax.solvers import elastic_net


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fista:
  """Static choices.

  Attributes:
    num_steps: Two corpus products each (one Gram product where num_docs <
      2 dim). 50 is the published value; it is far from the optimum on large
      or anisotropic corpora, where L is large.
  """

  num_steps: int = 50
  differentiable_by: ClassVar[tuple[type, ...]] = (
    gradients.Unroll,
    gradients.Implicit,
  )

  def __post_init__(self):
    if self.num_steps < 1:
      raise ValueError(f"num_steps must be >= 1, got {self.num_steps}.")

  def solve(
    self,
    problem: elastic_net.Problem,
    *,
    gradient: gradients.Gradient,
    num_candidates: int = 1,
  ) -> elastic_net.Solution:
    """Returns the solution after num_steps steps; all documents' weights.

    The step size 1 / L is a constant to differentiation: at convergence the
    weights do not depend on it.
    """
    del num_candidates
    checks.check_choice("gradient", gradient, self.differentiable_by)
    instance = problem
    if isinstance(gradient, gradients.Implicit):
      instance = jax.lax.stop_gradient(problem)
    solution = self._iterate(instance, gradient)
    return elastic_net.attach(problem, solution, gradient=gradient)

  def _iterate(self, problem, gradient):
    query, documents, l1, l2, where = problem
    corpus = documents.embeddings
    lipschitz = jax.lax.stop_gradient(linalg.gram_norm(corpus) + l2)
    # A corpus of zero rows has L = l2, possibly 0; its weights stay 0.
    step_size = 1.0 / jnp.maximum(lipschitz, jnp.finfo(lipschitz.dtype).tiny)
    correlation = linalg.correlation_fn(query, corpus)

    def prox_step(z):
      w = jnp.maximum(z + step_size * (correlation(z) - l2 * z - l1), 0.0)
      return w if where is None else jnp.where(where, w, 0.0)

    def fista_step(state):
      w_prev, z, t_prev = state
      t = 0.5 * (1.0 + jnp.sqrt(1.0 + 4.0 * t_prev**2))
      w = prox_step(z)
      return w, w + (t_prev - 1.0) / t * (w - w_prev), t

    # Zeros made from the corpus inherit its sharding.
    w = jnp.zeros_like(corpus[:, 0], dtype=query.dtype)
    w, _, _ = gradients.iterate(
      fista_step,
      (w, w, jnp.ones((), w.dtype)),
      num_steps=self.num_steps,
      gradient=gradient,
    )
    residual = query - linalg.matmul(w, corpus)
    num_passes = 2 * self.num_steps + 2
    return elastic_net.Solution(
      indices=jnp.arange(corpus.shape[0], dtype=jnp.int32),
      weights=w,
      residual=residual,
      correlation=jax.lax.stop_gradient(linalg.matmul(residual, corpus.T)),
      rest=jnp.asarray(-jnp.inf, w.dtype),
      num_passes=jnp.asarray(num_passes, jnp.int32),
      num_scored=jnp.asarray(num_passes * corpus.shape[0], jnp.int32),
    )
