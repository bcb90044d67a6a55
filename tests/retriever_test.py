"""Tests of nnn_jax.retriever."""

from functools import partial

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import optax
import pytest

from nnn_jax import losses, retriever
from nnn_jax.core import gradients, linalg
from nnn_jax.decoders import dense, mmr, nnn
from nnn_jax.solvers import fista, working_set

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
  relevant = np.array([[0, 2], [3, 0]])
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
    relevant,
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
    np.array([[0, -1]]),
    config=nnn.NnnConfig(),
    loss=partial(losses.info_nce, temperature=1.0),
  )
  logits = np.array([0.3, 0.4, 0.0])
  expected = np.log(np.exp(logits).sum()) - 0.3
  assert float(got) == pytest.approx(expected, abs=1e-5)


UNROLLED = nnn.NnnConfig(solver=fista.Fista(num_steps=50))
IMPLICIT = {
  "fista": nnn.NnnConfig(
    solver=fista.Fista(num_steps=1000), gradient=gradients.Implicit(capacity=8)
  ),
  "working_set": nnn.NnnConfig(solver=working_set.WorkingSet(capacity=8)),
}
RELEVANT = np.array([[0, 3, 5], [1, 2, -1]], np.int32)
LABELS = np.array([[1, 0, 0, 1, 0, 1], [0, 1, 1, 0, 0, 0]], bool)
PENALTIES = nnn.NnnParams(0.05, 0.1)


@pytest.fixture
def x64():
  with jax.enable_x64(True):
    yield


def arguments64():
  """(params, queries, corpus) in float64; document 5 has no weight."""
  params = nnn.NnnParams(*map(jnp.asarray, PENALTIES))
  queries, corpus = unit_rows(0, 2, 5), unit_rows(1, 6, 5)
  return params, *(jnp.asarray(x, jnp.float64) for x in (queries, corpus))


def loss_fn(config, **kwargs):
  def loss(params, queries, corpus):
    return retriever.weights_loss(
      nnn.decode, params, queries, corpus, RELEVANT, config=config, **kwargs
    )

  return jax.jit(loss)


def test_weights_loss_unrolled_is_the_published_formula(x64):
  def published(params, queries, corpus):
    decode = partial(nnn.decode, k=1, config=UNROLLED)
    aux = jax.vmap(decode, in_axes=(None, 0, None))(params, queries, corpus).aux
    weights = aux.weights.dense(len(corpus))
    return jnp.mean(losses.nnn_ranking_loss(weights, LABELS))

  got, expected = (
    jax.value_and_grad(fn, argnums=(0, 1, 2))(*arguments64())
    for fn in (loss_fn(UNROLLED), jax.jit(published))
  )
  jax.tree.map(
    partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-14), got, expected
  )


@pytest.mark.parametrize("config", IMPLICIT.values(), ids=IMPLICIT)
def test_weights_loss_implicit_against_finite_differences(x64, config):
  arguments, loss = arguments64(), loss_fn(config)
  gradient = jax.grad(loss, argnums=(0, 1, 2))(*arguments)
  # Every query, every penalty, every document: those of a query's support, and
  # the relevant ones.
  assert all(np.abs(g).max() > 1e-4 for g in jax.tree.leaves(gradient))
  for rows in gradient[1:]:
    assert np.all(np.abs(rows).max(axis=1) > 1e-4)
  jax.test_util.check_grads(
    loss, arguments, order=1, modes=["rev"], atol=1e-6, rtol=1e-6
  )


def test_solvers_agree_on_the_loss_and_its_gradient(x64):
  one, two = (
    jax.value_and_grad(loss_fn(config), argnums=(0, 1, 2))(*arguments64())
    for config in IMPLICIT.values()
  )
  jax.tree.map(partial(np.testing.assert_allclose, atol=1e-9), one, two)


def test_a_relevant_document_off_the_support_is_drawn_in(x64):
  params, queries, corpus = arguments64()
  config = IMPLICIT["working_set"]

  def extended(queries, corpus):
    aux = nnn.decode(params, queries[0], corpus, k=1, config=config).aux
    return nnn.extended_weights(params, corpus, RELEVANT[0], aux)

  before = extended(queries, corpus)
  assert before[2] < 0
  gradient = {}
  for scores in ("weights", "extended"):
    loss = loss_fn(config, relevant_scores=scores)
    gradient[scores] = jax.grad(loss, argnums=(1, 2))(params, queries, corpus)
  assert np.all(gradient["weights"][1][5] == 0)
  assert np.abs(gradient["extended"][1][5]).max() > 1e-2
  d_queries, d_corpus = gradient["extended"]
  after = extended(queries - 1e-3 * d_queries, corpus - 1e-3 * d_corpus)
  assert after[2] > before[2] + 1e-4


def test_training_does_not_empty_the_support():
  # Starts with most relevant documents off the support. With extended weights
  # for the irrelevant documents too, such a run ends with nothing in it.
  num_docs, batch, dim = 24, 8, 6
  relevant = np.stack(
    [np.random.default_rng(i).permutation(num_docs)[:3] for i in range(batch)]
  ).astype(np.int32)
  config = nnn.NnnConfig(solver=working_set.WorkingSet(capacity=num_docs))
  penalties, optimizer = nnn.NnnParams(0.3, 0.1), optax.adam(2e-2)

  def loss(embeddings):
    queries, corpus = jax.tree.map(linalg.normalize, embeddings)
    return retriever.weights_loss(
      nnn.decode, penalties, queries, corpus, relevant, config=config
    )

  @jax.jit
  def step(embeddings, state):
    value, gradient = jax.value_and_grad(loss)(embeddings)
    updates, state = optimizer.update(gradient, state)
    return optax.apply_updates(embeddings, updates), state, value

  @jax.jit
  def relevant_weights(embeddings):
    queries, corpus = jax.tree.map(linalg.normalize, embeddings)
    decode = partial(nnn.decode, penalties, corpus=corpus, k=1, config=config)
    weights = jax.vmap(lambda query: decode(query).aux.weights)(queries)
    return jnp.take_along_axis(weights.dense(num_docs), relevant, axis=1)

  embeddings = (
    jnp.asarray(unit_rows(2, batch, dim)), jnp.asarray(unit_rows(3, num_docs, dim))
  )  # fmt: skip
  before = np.mean(relevant_weights(embeddings) > 0)
  state, values = optimizer.init(embeddings), []
  for _ in range(200):
    embeddings, state, value = step(embeddings, state)
    values.append(float(value))
  assert before < 0.3
  assert np.mean(relevant_weights(embeddings) > 0) > 0.9
  assert values[-1] < 0.5 * values[0]


def test_training_memory_depends_on_neither_steps_nor_batch_times_dim():
  num_docs, batch, dim = 20_000, 16, 64
  config = nnn.NnnConfig(solver=working_set.WorkingSet(capacity=32))

  def loss(queries, corpus):
    relevant = jnp.zeros((batch, 3), jnp.int32)
    return retriever.weights_loss(
      nnn.decode, PENALTIES, queries, corpus, relevant, config=config
    )

  shapes = (
    jax.ShapeDtypeStruct((n, dim), jnp.float32) for n in (batch, num_docs)
  )
  compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(*shapes).compile()
  temp = compiled.memory_analysis().temp_size_in_bytes
  # Ten floats a document and query beside two copies of the corpus; the tape
  # of 50 steps and [batch, num_docs, dim] take 50 and 64.
  assert temp < 4 * num_docs * (10 * batch + 2 * dim)


def test_relevant_scores_are_named():
  with pytest.raises(
    ValueError, match="relevant_scores must be None or one of"
  ):
    loss_fn(UNROLLED, relevant_scores="extra")(*PENALTIES, None)


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
  relevant = np.array([[2, 5], [2, -1], [2, -1]])
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
