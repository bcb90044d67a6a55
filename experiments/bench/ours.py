"""Our decoders, as contestants."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench import contestants, scoring, timing
from nnn_jax.decoders import dense, nnn
from nnn_jax.solvers import elastic_net, fista, working_set

# FISTA to convergence raises its steps from the published 50 by this factor.
_MORE_STEPS = 4


def load_dense(corpus: np.ndarray, *, dtype: str) -> contestants.Prepare:
  """Dense top-k, batched by vmap."""
  placed = jax.device_put(jnp.asarray(corpus, dtype))

  def prepare(task: contestants.Task) -> contestants.Prepared:
    call, compile_s = _compiled(partial(dense.decode, ()), task, placed)
    return contestants.Prepared(
      call=call,
      indices=lambda result: np.asarray(result.indices),
      compile_s=compile_s,
    )

  return prepare


def load_nnn(
  corpus: np.ndarray, *, dtype: str, solver: elastic_net.Solver
) -> contestants.Prepare:
  """NNN with a solver as it is."""
  placed = jax.device_put(jnp.asarray(corpus, dtype))
  return partial(_prepare_nnn, placed, solver)


def load_working_set(corpus: np.ndarray, *, dtype: str) -> contestants.Prepare:
  """NNN with the exact working set."""
  return load_nnn(corpus, dtype=dtype, solver=working_set.WorkingSet())


def load_fista(corpus: np.ndarray, *, dtype: str) -> contestants.Prepare:
  """NNN with the published solver, 50 steps."""
  return load_nnn(corpus, dtype=dtype, solver=fista.Fista())


def load_converged_fista(
  corpus: np.ndarray, *, dtype: str
) -> contestants.Prepare:
  """NNN with as many FISTA steps as the optimum takes, or the time allows."""
  placed = jax.device_put(jnp.asarray(corpus, dtype))

  def prepare(task: contestants.Task) -> contestants.Prepared:
    num_steps = fista.Fista().num_steps
    while True:
      solver = fista.Fista(num_steps=num_steps)
      prepared = _prepare_nnn(placed, solver, task)
      seconds, result = timing.timed(prepared.call)
      violation = float(jnp.max(result.aux.kkt_violation))
      note = f"T={num_steps}"
      if violation <= contestants.KKT_TOL:
        break
      if seconds * _MORE_STEPS > task.limit_s:
        more = num_steps * _MORE_STEPS
        note += (
          f", not converged: T={more} would take about "
          f"{seconds * _MORE_STEPS:.0f} s"
        )
        break
      num_steps *= _MORE_STEPS
    return contestants.Prepared(
      call=prepared.call,
      weights=prepared.weights,
      compile_s=prepared.compile_s,
      note=note,
    )

  return prepare


def _prepare_nnn(
  corpus: jax.Array, solver: elastic_net.Solver, task: contestants.Task
) -> contestants.Prepared:
  decode = partial(
    nnn.decode,
    nnn.NnnParams(task.l1, task.l2),
    config=nnn.NnnConfig(solver=solver),
  )
  call, compile_s = _compiled(decode, task, corpus)
  return contestants.Prepared(call=call, weights=_weights, compile_s=compile_s)


def _weights(result: Any) -> list[scoring.Sparse]:
  """The one place that knows how `aux` holds weights."""
  indices, values = (np.asarray(part) for part in result.aux.weights)
  return [
    scoring.Sparse(rows[kept], some[kept].astype(np.float64))
    for rows, some, kept in zip(indices, values, values > 0, strict=True)
  ]


def _compiled(
  decode: Callable[..., Any], task: contestants.Task, corpus: jax.Array
) -> tuple[Callable[[], Any], float]:
  """Returns the batched decoder on the task, and its compile time."""
  queries = jnp.asarray(task.queries)
  batched = jax.vmap(partial(decode, k=contestants.K), in_axes=(0, None))
  start = time.perf_counter()
  compiled = jax.jit(batched).lower(queries, corpus).compile()
  compile_s = time.perf_counter() - start
  return lambda: jax.block_until_ready(compiled(queries, corpus)), compile_s
