"""Gradients through a corpus that is sharded over eight virtual devices."""

import re

import jax
import numpy as np
import pytest

from nnn_jax.core import gradients, sharding
from nnn_jax.decoders import dense, mmr, nnn
from nnn_jax.solvers import fista, working_set

DIM, K = 16, 5
PENALTIES = nnn.NnnParams(0.1, 0.1)
FISTA = fista.Fista(num_steps=60)

CASES = {
  "dense": (dense, (), dense.DenseConfig()),
  "mmr": (mmr, mmr.MmrParams(0.6), mmr.MmrConfig()),
  "fista_unroll": (nnn, PENALTIES, nnn.NnnConfig(solver=FISTA)),
  "fista_implicit": (
    nnn,
    PENALTIES,
    nnn.NnnConfig(solver=FISTA, gradient=gradients.Implicit(capacity=32)),
  ),
  "working_set": (
    nnn,
    PENALTIES,
    nnn.NnnConfig(
      solver=working_set.WorkingSet(capacity=32),
      gradient=gradients.Implicit(capacity=32),
    ),
  ),
}

per_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def make_inputs(num_docs, batch):
  rng = np.random.default_rng(0)
  rows = rng.normal(size=(num_docs + batch, DIM)) + 0.3
  rows /= np.linalg.norm(rows, axis=1, keepdims=True)
  return np.split(np.float32(rows), [batch])


def loss_fn(case):
  """A batch's scores, each place with a weight of its own."""
  module, params, config = case

  def loss(queries, corpus, where):
    def one(query):
      return module.decode(
        params, query, corpus, k=K, config=config, where=where
      ).scores

    return (jax.vmap(one)(queries) @ np.arange(1.0, K + 1)).sum()

  return jax.value_and_grad(loss, argnums=(0, 1))


@per_case
def test_gradient_equals_the_unsharded_one(case):
  num_docs = 45  # Padded to 48.
  queries, corpus = make_inputs(num_docs, batch=3)
  fn = jax.jit(loss_fn(case))
  value, (d_queries, d_corpus) = fn(queries, corpus, np.ones(num_docs, bool))
  mesh = sharding.make_mesh()
  with jax.set_mesh(mesh):
    rows, where = sharding.pad_and_shard(corpus, mesh)
    sharded, (d_queries_s, d_rows) = fn(queries, rows, where)
  np.testing.assert_allclose(sharded, value, rtol=1e-5)
  np.testing.assert_allclose(d_queries_s, d_queries, atol=1e-5)
  np.testing.assert_allclose(d_rows[:num_docs], d_corpus, atol=1e-5)
  np.testing.assert_allclose(d_rows[num_docs:], 0.0, atol=1e-6)
  assert np.abs(d_queries).max() > 0.1
  assert np.abs(d_corpus).max() > 0.1


COLLECTIVE = re.compile(
  r"= (\(?.*?\)?) (all-gather|all-reduce|all-to-all|collective-permute"
  r"|reduce-scatter)(?:-start)?\("
)


def collective_sizes(hlo):
  """The elements of the largest array of each collective in a program."""
  found = []
  for shapes, name in COLLECTIVE.findall(hlo):
    for dims in re.findall(r"\w+\[([\d,]*)\]", shapes):
      found.append((np.prod([int(n) for n in dims.split(",") if n]), name))
  return found


@per_case
def test_the_gradient_gathers_no_corpus(case):
  """Devices exchange candidates and sums, and the gradient stays in place."""
  num_docs = 8_192
  queries, corpus = make_inputs(num_docs, batch=2)
  mesh = sharding.make_mesh()
  with jax.set_mesh(mesh):
    rows, where = sharding.pad_and_shard(corpus, mesh)
    program = jax.jit(loss_fn(case)).lower(queries, rows, where).compile()
    _, (_, d_rows) = program(queries, rows, where)
  sizes = collective_sizes(program.as_text())
  assert sizes  # The regular expression still finds them.
  assert max(sizes)[0] < num_docs, max(sizes)
  assert d_rows.sharding.is_equivalent_to(rows.sharding, 2)
