"""experiments.candidate_oracle: codes, and what rounds of asking find."""

from functools import partial

import jax.numpy as jnp
import numpy as np

from experiments import candidate_oracle
from experiments.bench import worlds
from nnn_jax.core import topk


def unit(rows):
  return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_codes_are_sparse_and_point_at_what_they_code():
  rng = np.random.default_rng(0)
  atoms = unit(rng.normal(size=(64, 16))).astype(np.float32)
  rows = unit(atoms[:5] + 0.7 * atoms[5:10])
  codes = candidate_oracle.encode(jnp.asarray(atoms), jnp.asarray(rows), 8)
  indices, values = np.asarray(codes.indices), np.asarray(codes.values)
  assert ((values > 0) == (indices >= 0)).all()
  for row in range(5):
    assert {row, row + 5} <= set(indices[row][values[row] > 0].tolist())
    made = values[row] @ atoms[np.maximum(indices[row], 0)]
    assert made @ rows[row] / np.linalg.norm(made) > 0.95


def test_asking_again_finds_what_the_query_alone_does_not():
  world = worlds.World(kind="clustered", dim=16)
  corpus = worlds.corpus(world, 500)
  queries = jnp.asarray(worlds.queries(world, corpus, 6))
  corpus = jnp.asarray(corpus)

  def search(num, residual):
    return topk.top_k(corpus @ residual, num)[1]

  few = candidate_oracle.kept_by_round(partial(search, 5), queries, corpus)
  assert (np.diff(few) >= 0).all()
  assert few[0] < few[-1] <= 1.0 + 1e-6
  every = candidate_oracle.kept_by_round(partial(search, 500), queries, corpus)
  np.testing.assert_allclose(every, 1.0, atol=1e-6)
