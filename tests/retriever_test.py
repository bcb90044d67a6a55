"""Tests of nnn_jax.retriever."""

from functools import partial

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest

from nnn_jax import losses, retriever
from nnn_jax.decoders import dense, mmr, nnn
from nnn_jax.solvers import fista

DECODERS = {
  "dense": (dense.decode, (), dense.DenseConfig()),
  "mmr": (mmr.decode, mmr.MmrParams(0.6), mmr.MmrConfig()),
  "nnn": (
    nnn.decode,
    nnn.NnnParams(0.05, 0.1),
    nnn.NnnConfig(solver=fista.Fista(num_steps=30)),
  ),
}


def unit_rows(seed, *shape):
  x = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
  return x / np.linalg.norm(x, axis=-1, keepdims=True)


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize(
  ("num_queries", "batch_size"), [(1, 256), (7, 3), (6, 3), (5, 1)]
)
def test_chunks_change_nothing(name, num_queries, batch_size):
  decode, params, config = DECODERS[name]
  queries, corpus = unit_rows(0, num_queries, 8), unit_rows(1, 20, 8)
  where = jnp.arange(20) % 3 != 0
  decode = partial(decode, k=4, config=config)
  expected = jax.vmap(partial(decode, where=where), in_axes=(None, 0, None))(
    params, queries, corpus
  )
  got = retriever.retrieve(
    DECODERS[name][0],
    params,
    queries,
    corpus,
    k=4,
    config=config,
    where=where,
    batch_size=batch_size,
  )
  assert got.indices.shape == (num_queries, 4)
  assert not np.any(np.asarray(got.indices) % 3 == 0)
  np.testing.assert_array_equal(got.indices, expected.indices)
  jax.tree.map(
    partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), got, expected
  )


def test_rank_is_retrieve_without_the_rest():
  decode, params, config = DECODERS["nnn"]
  queries, corpus = unit_rows(0, 5, 8), unit_rows(1, 20, 8)
  arguments = (decode, params, queries, corpus)
  np.testing.assert_array_equal(
    retriever.rank(*arguments, k=3, config=config),
    retriever.retrieve(*arguments, k=3, config=config).indices,
  )


def test_errors_of_the_decoder_pass_through():
  with pytest.raises(ValueError, match="k"):
    retriever.retrieve(
      dense.decode, (), unit_rows(0, 2, 8), unit_rows(1, 3, 8),
      k=4, config=dense.DenseConfig(),
    )  # fmt: skip


def hand_ranking_loss(weights, labels, gamma=1.5, tau=0.1):
  """The formula of arXiv 2606.17910, section 3.2, written out."""
  inside = np.log(np.sum(np.exp(-weights[labels] / tau)))
  outside = np.log(np.sum(np.exp(weights[~labels] / tau)))
  return max(0.0, gamma * tau * outside + tau * inside)


def test_weights_loss_by_hand():
  # With orthonormal documents the weights are (q - l1)_+ / (1 + l2).
  corpus = jnp.eye(4)
  queries = np.array([[0.9, 0.4, 0.15, 0.0], [0.3, 0.05, 0.5, 0.8]], np.float32)
  labels = np.array([[1, 0, 1, 0], [1, 0, 0, 1]], bool)
  weights = np.maximum(queries - 0.1, 0.0) / 1.25
  expected = [
    hand_ranking_loss(w, row) for w, row in zip(weights, labels, strict=True)
  ]
  assert min(expected) > 0
  got = retriever.weights_loss(
    nnn.decode,
    nnn.NnnParams(0.1, 0.25),
    queries,
    corpus,
    labels,
    config=nnn.NnnConfig(),
  )
  assert float(got) == pytest.approx(np.mean(expected), abs=1e-5)


def test_weights_loss_takes_another_loss():
  corpus, queries = jnp.eye(3), np.float32([[0.6, 0.8, 0.0]])
  got = retriever.weights_loss(
    nnn.decode,
    nnn.NnnParams(0.0, 1.0),
    queries,
    corpus,
    np.array([[True, False, False]]),
    config=nnn.NnnConfig(),
    loss=partial(losses.info_nce, temperature=1.0),
  )
  logits = np.array([0.3, 0.4, 0.0])
  expected = np.log(np.exp(logits).sum()) - 0.3
  assert float(got) == pytest.approx(expected, abs=1e-5)


def test_gradients_reach_queries_corpus_and_penalties():
  # Converged: the step size is not differentiated.
  config = nnn.NnnConfig(solver=fista.Fista(num_steps=1000))
  with jax.enable_x64(True):
    queries = jnp.asarray(unit_rows(0, 2, 5), jnp.float64)
    corpus = jnp.asarray(unit_rows(1, 6, 5), jnp.float64)
    labels = jnp.asarray([[1, 0, 0, 1, 0, 0], [0, 1, 1, 0, 0, 0]], bool)

    @jax.jit
    def loss(params, queries, corpus):
      return retriever.weights_loss(
        nnn.decode, params, queries, corpus, labels, config=config
      )

    arguments = (nnn.NnnParams(jnp.asarray(0.05), jnp.asarray(0.1)), queries)
    arguments += (corpus,)
    gradients = jax.grad(loss, argnums=(0, 1, 2))(*arguments)
    # Every query, and every penalty; documents in no support have none.
    assert all(np.abs(g).max() > 1e-4 for g in jax.tree.leaves(gradients))
    assert np.all(np.abs(gradients[1]).max(axis=1) > 1e-4)
    jax.test_util.check_grads(
      loss, arguments, order=1, modes=["rev"], atol=1e-5, rtol=1e-5
    )


def in_batch(scores, columns, tau):
  """Softmax cross-entropy of column i in row i, over the given columns."""
  total = 0.0
  for row, allowed in enumerate(columns):
    logits = scores[row] / tau
    total += np.log(np.sum(np.exp(logits[allowed]))) - logits[row]
  return total / len(scores)


@pytest.mark.parametrize(
  ("mask", "columns"),
  [
    (False, [[0, 1, 2]] * 3),
    # Queries 1 and 2 drew one document, which is relevant to query 0 too.
    (True, [[0], [0, 1], [0, 2]]),
  ],
)
def test_in_batch_loss_by_hand(mask, columns):
  queries, documents = unit_rows(0, 3, 4), unit_rows(1, 3, 4)
  positive = np.array([5, 2, 2], np.int32)
  relevant = np.zeros((3, 6), bool)
  relevant[0, [2, 5]] = relevant[1, 2] = relevant[2, 2] = True
  got = retriever.in_batch_loss(
    queries,
    documents,
    positive,
    relevant,
    temperature=0.2,
    mask_false_negatives=mask,
  )
  expected = in_batch(queries @ documents.T, columns, 0.2)
  assert float(got) == pytest.approx(expected, abs=1e-5)


def test_support_only_leaves_out_what_was_not_retrieved():
  corpus = jnp.asarray([[1, 0, 0], [0.5**0.5, 0.5**0.5, 0], [0, 0, 1]])
  queries = jnp.asarray([[2 / 3, 2 / 3, 1 / 3]])
  rank = partial(
    retriever.rank,
    nnn.decode,
    nnn.NnnParams(0.1, 0.03),
    queries,
    corpus,
    k=3,
    config=nnn.NnnConfig(),
  )
  assert rank().tolist() == [[1, 2, 0]]
  assert rank(support_only=True).tolist() == [[1, 2, -1]]
