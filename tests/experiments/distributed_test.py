"""Two real processes that hold half of the corpus each."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from experiments import distributed
from nnn_jax.decoders import dense, nnn
from nnn_jax.solvers import working_set

K, BATCH = 5, 3


def expected(decode, queries, corpus):
  """Unsharded, in this process."""

  def total(queries, corpus):
    result = jax.vmap(lambda query: decode(query, corpus, k=K))(queries)
    return result.scores.sum(), result

  grad = jax.jit(jax.grad(total, argnums=(0, 1), has_aux=True))
  (d_queries, d_corpus), result = grad(queries, corpus)
  return {
    "indices": result.indices,
    "scores": result.scores,
    "d_queries": d_queries,
    "d_corpus_norm": jnp.linalg.norm(d_corpus),
  }


def test_two_processes_agree_with_one(commands, tmp_path):
  corpus = distributed.random_rows(slice(0, 301), 16, seed=0)
  queries = distributed.random_rows(slice(0, BATCH), 16, seed=1)
  np.save(tmp_path / "corpus.npy", corpus)
  out, _ = commands.run(
    "distributed",
    "--num_processes=2",
    f"--corpus={tmp_path / 'corpus.npy'}",
    f"--batch={BATCH}",
    f"--json={tmp_path / 'answers.json'}",
  )
  assert "2 processes, 2 devices; corpus (302, 16) float32, 50%" in out
  answers = json.loads((tmp_path / "answers.json").read_text())
  config = nnn.NnnConfig(solver=working_set.WorkingSet(capacity=128))
  for name, decode in {
    "dense": partial(dense.decode, ()),
    "nnn": partial(nnn.decode, nnn.NnnParams(0.1, 0.1), config=config),
  }.items():
    want, got = expected(decode, queries, corpus), answers[name]
    np.testing.assert_array_equal(got.pop("indices"), want.pop("indices"))
    assert got.keys() == want.keys()
    for key, value in got.items():
      np.testing.assert_allclose(value, want[key], rtol=1e-5, atol=1e-5)


def test_processes_draw_rows_of_one_corpus():
  corpus = distributed.random_rows(slice(0, 10), 4, seed=0)
  half = distributed.random_rows(slice(5, 10), 4, seed=0)
  np.testing.assert_array_equal(corpus[5:], half)
  np.testing.assert_allclose(np.linalg.norm(corpus, axis=1), 1.0, atol=1e-6)


def test_a_process_that_fails_ends_the_others(commands, tmp_path):
  np.save(tmp_path / "corpus.npy", np.ones(3, np.float32))
  error, alone = commands.fail(
    "distributed",
    ["--num_processes=2", f"--corpus={tmp_path / 'corpus.npy'}"],
    ["--num_processes=2", "--process_id=0"],
  )
  assert "corpus must have shape [num_docs, dim], got (3,)" in error
  assert "--process_id and --coordinator go together" in alone
