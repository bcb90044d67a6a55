"""Tests of nnn_jax.retriever."""

import functools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.optimize

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
    config=nnn.NnnConfig(solver=fista.Fista()),
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
    config=nnn.NnnConfig(solver=fista.Fista()),
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


@functools.cache
def value_and_grad(config):
  """Compiled once a config."""

  def loss(params, queries, corpus):
    return retriever.weights_loss(
      nnn.decode, params, queries, corpus, RELEVANT, config=config
    )

  return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))


def oracle(params, query, corpus):
  """(weights, extended weights) by the active set of Lawson and Hanson."""
  l1, l2 = params
  factor = np.linalg.cholesky(corpus @ corpus.T + l2 * np.eye(len(corpus)))
  target = np.linalg.solve(factor, corpus @ query - l1)
  weights, _ = scipy.optimize.nnls(factor.T, target)
  square = np.sum(corpus**2, axis=1)
  slope = corpus @ (query - weights @ corpus) - l1
  return weights, (slope + square * weights) / (square + l2)


def test_weights_loss_unrolled_is_the_published_formula(x64):
  def published(params, queries, corpus):
    decode = partial(nnn.decode, k=1, config=UNROLLED)
    aux = jax.vmap(decode, in_axes=(None, 0, None))(params, queries, corpus).aux
    weights = aux.weights.dense(len(corpus))
    return jnp.mean(losses.nnn_ranking_loss(weights, LABELS))

  expected = jax.jit(jax.value_and_grad(published, argnums=(0, 1, 2)))
  jax.tree.map(
    partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-14),
    value_and_grad(UNROLLED)(*arguments64()),
    expected(*arguments64()),
  )


@pytest.mark.parametrize("config", IMPLICIT.values(), ids=IMPLICIT)
def test_weights_loss_implicit_by_an_oracle_and_finite_differences(x64, config):
  arguments = arguments64()
  value, gradient = value_and_grad(config)(*arguments)
  expected = []
  for query, labels in zip(arguments[1], LABELS, strict=True):
    weights, extended = oracle(PENALTIES, query, arguments[2])
    assert np.any(extended[labels] < 0), "some relevant document is off"
    scores = np.where(labels, extended, weights)
    expected.append(hand_ranking_loss(scores, labels))
  assert float(value) == pytest.approx(np.mean(expected), abs=1e-9)
  # Every query, every penalty, and every document of a support or relevant.
  assert all(np.abs(g).max() > 1e-4 for g in jax.tree.leaves(gradient))
  for rows in gradient[1:]:
    assert np.all(np.abs(rows).max(axis=1) > 1e-4)

  def moved(direction, step):
    args = jax.tree.map(lambda x, d: x + step * d, arguments, direction)
    return float(value_and_grad(config)(*args)[0])

  rng = np.random.default_rng(0)
  for _ in range(5):
    direction = jax.tree.map(lambda x: rng.normal(size=x.shape), arguments)
    difference = (moved(direction, 1e-5) - moved(direction, -1e-5)) / 2e-5
    products = jax.tree.map(lambda g, d: g * d, gradient, direction)
    slope = sum(float(jnp.sum(x)) for x in jax.tree.leaves(products))
    assert slope == pytest.approx(difference, rel=1e-6)


def test_a_relevant_document_off_the_support_is_drawn_in(x64):
  params, queries, corpus = arguments64()
  _, gradient = value_and_grad(IMPLICIT["working_set"])(params, queries, corpus)
  moved = corpus - 1e-3 * gradient[2]
  for query, labels, step in zip(queries, LABELS, gradient[1], strict=True):
    before = oracle(PENALTIES, query, corpus)[1]
    after = oracle(PENALTIES, query - 1e-3 * step, moved)[1]
    # The loss is a soft minimum: it is the lowest that must rise.
    lowest = np.argmin(np.where(labels, before, np.inf))
    assert before[lowest] < 0
    assert after[lowest] > before[lowest] + 1e-4


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

  def share_on_support(embeddings):
    queries, corpus = (np.float64(linalg.normalize(x)) for x in embeddings)
    weights = [oracle(penalties, query, corpus)[0] for query in queries]
    return np.mean(np.take_along_axis(np.stack(weights), relevant, axis=1) > 0)

  shapes = ((batch, dim), (num_docs, dim))
  embeddings = tuple(jnp.asarray(unit_rows(2, *shape)) for shape in shapes)
  before = share_on_support(embeddings)
  state, values = optimizer.init(embeddings), []
  for _ in range(200):
    embeddings, state, value = step(embeddings, state)
    values.append(float(value))
  assert before < 0.3
  assert share_on_support(embeddings) > 0.9
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


def test_relevant_scores_are_named(x64):
  with pytest.raises(
    ValueError, match="relevant_scores must be None or one of"
  ):
    retriever.weights_loss(
      nnn.decode, PENALTIES, *arguments64()[1:], RELEVANT,
      config=UNROLLED, relevant_scores="extra",
    )  # fmt: skip


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
