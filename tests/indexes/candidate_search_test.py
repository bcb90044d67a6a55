"""A caller's own search: the same answers where it finds all, uncertified."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnn_jax.decoders import nnn
from nnn_jax.indexes import candidates
from nnn_jax.solvers import working_set

NUM_DOCS, DIM, K = 400, 6, 3
CONFIG = nnn.NnnConfig(solver=working_set.WorkingSet(capacity=6))
PARAMS = nnn.NnnParams(0.5, 0.1)
rng = np.random.default_rng(0)
CORPUS = rng.normal(size=(NUM_DOCS, DIM))
CORPUS = (CORPUS / np.linalg.norm(CORPUS, axis=1, keepdims=True)).astype("f")
QUERIES = CORPUS[[[1, 2, 3], [4, 5, 6], [7, 8, 9]]].sum(axis=1)
QUERIES /= np.linalg.norm(QUERIES, axis=1, keepdims=True)


ALL = np.ones(NUM_DOCS, bool)


@jax.jit
def decode(query, corpus, where=ALL):
  return nnn.decode(PARAMS, query, corpus, k=K, config=CONFIG, where=where)


def brute_force(residual):
  return jax.lax.top_k(CORPUS @ residual, 20)[1]


def messy(residual):
  """The same rows, repeated, among rows that do not exist."""
  rows = brute_force(residual)
  wrong = jnp.asarray([-1, -7, NUM_DOCS, 10**9], jnp.int32)
  return jnp.concatenate([wrong, rows, wrong, rows])


def numpy_search(residual):
  """Stands for another library's index."""
  return np.argsort(-(CORPUS @ np.asarray(residual)))[:20].astype(np.int32)


def called(residual):
  return jax.pure_callback(
    numpy_search,
    jax.ShapeDtypeStruct((20,), jnp.int32),
    residual,
    vmap_method="sequential",
  )


def nothing(residual):
  del residual
  return jnp.full(20, -1, jnp.int32)


@pytest.mark.parametrize("candidate_fn", [messy, called])
def test_equals_the_whole_corpus_without_a_certificate(candidate_fn):
  index = candidates.Candidates(CORPUS, candidate_fn)
  for query in QUERIES:
    plain, result = decode(query, CORPUS), decode(query, index)
    assert bool(plain.aux.exact)
    np.testing.assert_allclose(
      result.aux.weights.dense(NUM_DOCS),
      plain.aux.weights.dense(NUM_DOCS),
      atol=1e-5,
    )
    assert not bool(result.aux.exact)
    assert float(result.aux.kkt_violation) == np.inf
    assert np.isfinite(result.aux.duality_gap)
    assert bool(result.aux.finite)
    assert int(result.aux.num_scored) <= 26 * int(result.aux.num_passes)
    assert len(set(result.indices.tolist())) == K


def test_a_mask_holds():
  query = QUERIES[0]
  where = ALL.copy()
  where[decode(query, CORPUS).indices] = False
  plain = decode(query, CORPUS, where)
  result = decode(query, candidates.Candidates(CORPUS, messy), where)
  np.testing.assert_allclose(
    result.aux.weights.dense(NUM_DOCS),
    plain.aux.weights.dense(NUM_DOCS),
    atol=1e-5,
  )


@pytest.mark.parametrize("num_docs", [5, NUM_DOCS])
def test_no_candidates_end_the_search(num_docs):
  index = candidates.Candidates(CORPUS[:num_docs], nothing)
  result = decode(QUERIES[0], index, ALL[:num_docs])
  assert result.indices.tolist() == [-1] * K
  assert not result.aux.weights.values.any()
  assert int(result.aux.num_scored) == 0
  assert not bool(result.aux.exact)
  assert bool(result.aux.finite)
  assert np.isfinite(result.aux.duality_gap)


def test_batches_and_gradients():
  def total(query, embeddings, index):
    documents = embeddings
    if index:
      documents = candidates.Candidates(embeddings, called)
    return jnp.sum(decode(query, documents).aux.weights.dense(NUM_DOCS) ** 2)

  grad = jax.grad(total, argnums=(0, 1))
  batched = jax.vmap(partial(grad, index=True), in_axes=(0, None))
  result = batched(QUERIES, CORPUS)
  for i, query in enumerate(QUERIES):
    jax.tree.map(
      lambda one, all_, i=i: np.testing.assert_allclose(
        one, all_[i], atol=1e-5
      ),
      grad(query, CORPUS, index=False),
      result,
    )


def test_a_wrong_function_is_named():
  for wrong, message in [
    (lambda r: jnp.zeros(3), "must return integer rows, got float32"),
    (lambda r: jnp.zeros((1, 3), int), r"candidate_fn\(residual\) must have"),
  ]:
    with pytest.raises(ValueError, match=message):
      decode(QUERIES[0], candidates.Candidates(CORPUS, wrong))
