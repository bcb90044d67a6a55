"""Tests of nnn_jax.training.stages, with an encoder of 16 dimensions."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny_beir
from flax import nnx

from nnn_jax import metrics, retriever
from nnn_jax.decoders import dense, nnn
from nnn_jax.training import stages

BATCH = 16
DENSE = stages.DenseStage(learning_rate=5e-3)
NNN = stages.NnnStage(learning_rate=5e-3, adapter_hidden=8, num_steps=10)
PENALTIES = nnn.NnnParams(0.01, 0.1)


@pytest.fixture(scope="module")
def dense_task(encoder, dataset):
  return stages.dense_task(encoder, dataset, DENSE, batch_size=BATCH, seed=0)


@pytest.fixture(scope="module")
def trained(encoder, dense_run):
  """What the dense stage leaves; untrained encoders have empty supports."""
  return with_parameters(encoder, dense_run[2])


@pytest.fixture(scope="module")
def nnn_task(trained, dataset):
  return stages.nnn_task(
    trained, dataset, NNN, PENALTIES, batch_size=BATCH, seed=0
  )


def with_parameters(encoder, params):
  """The bi-encoder with what a stage trained."""
  graphdef, _ = nnx.split(encoder.query_encoder)
  changes = {
    f"{name}_encoder": nnx.merge(graphdef, params[name])
    for name in ("query", "document")
    if name in params
  }
  if "adapter" in params:
    adapter, _ = nnx.split(NNN.make_adapter(16, seed=0))
    changes["adapter"] = nnx.merge(adapter, params["adapter"])
  return dataclasses.replace(encoder, **changes)


def train(task, num_steps, rate):
  """Returns (losses, gradients of the first step, the last parameters)."""
  optimizer = optax.adam(rate)
  params = jax.tree.map(jnp.array, task.params)
  state = optimizer.init(params)

  @jax.jit
  def step(params, state, batch):
    loss, gradients = jax.value_and_grad(task.loss_fn)(
      params, task.frozen, batch
    )
    updates, state = optimizer.update(gradients, state)
    return optax.apply_updates(params, updates), state, loss, gradients

  values, first = [], None
  for i in range(num_steps):
    params, state, loss, gradients = step(params, state, task.batch_fn(i))
    first = gradients if first is None else first
    values.append(float(loss))
  return values, first, params


@pytest.fixture(scope="module")
def dense_run(dense_task):
  return train(dense_task, 60, 3e-3)


@pytest.fixture(scope="module")
def nnn_run(nnn_task):
  return train(nnn_task, 30, 1e-2)


def check_batches(task, dataset, encoder):
  """What both stages' batches hold; returns the last one."""
  train = dataset.splits["train"]
  seen = []
  for step in range(task.steps_per_epoch):
    batch = task.batch_fn(step)
    rows = batch["query"]
    seen += rows.tolist()
    tokens = encoder.tokenizer(
      [train.texts[row] for row in rows], max_length=encoder.query_length
    )
    np.testing.assert_array_equal(batch["query_ids"], tokens.ids)
    np.testing.assert_array_equal(batch["query_mask"], tokens.mask)
    np.testing.assert_array_equal(batch["relevant"], train.rows()[rows])
    positive = batch["positive"][:, None]
    assert (batch["relevant"] == positive).any(axis=1).all()
    again = task.batch_fn(step)
    jax.tree.map(np.testing.assert_array_equal, batch, again)
  # One pass over the split, each query once.
  assert sorted(seen) == list(range(len(train)))
  assert task.batch_fn(task.steps_per_epoch)["query"].tolist() != seen[:BATCH]
  return batch


def test_dense_batches(dense_task, dataset, encoder):
  batch = check_batches(dense_task, dataset, encoder)
  tokens = encoder.tokenizer(
    [dataset.doc_texts[row] for row in batch["positive"]],
    max_length=encoder.document_length,
  )
  np.testing.assert_array_equal(batch["document_ids"], tokens.ids)
  np.testing.assert_array_equal(batch["document_mask"], tokens.mask)
  assert set(batch) == {
    "query", "positive", "relevant",
    "query_ids", "query_mask", "document_ids", "document_mask",
  }  # fmt: skip


def test_nnn_batches(nnn_task, dataset, encoder):
  batch = check_batches(nnn_task, dataset, encoder)
  assert not any(name.startswith("document") for name in batch)


def test_the_seed_changes_the_batches(encoder, dataset, dense_task):
  other = stages.dense_task(encoder, dataset, DENSE, batch_size=BATCH, seed=1)
  assert other.batch_fn(0)["query"].tolist() != (
    dense_task.batch_fn(0)["query"].tolist()
  )


def test_the_dense_loss_decreases(dense_run):
  values = dense_run[0]
  assert values[0] > np.log(BATCH) / 2
  assert np.mean(values[-5:]) < 0.7 * np.mean(values[:5])


def test_the_nnn_loss_decreases(nnn_run):
  values = nnn_run[0]
  assert np.mean(values[-5:]) < 0.95 * np.mean(values[:5])


def share_with_gradient(tree):
  leaves = jax.tree.leaves(tree)
  assert all(np.isfinite(leaf).all() for leaf in leaves)
  return np.mean([np.any(np.asarray(leaf) != 0) for leaf in leaves])


def test_the_dense_gradient_reaches_both_encoders(dense_run):
  gradients = dense_run[1]
  assert set(gradients) == {"query", "document"}
  for name in gradients:
    # Nothing but the bias of the keys, which softmax cancels, may have none.
    assert share_with_gradient(gradients[name]) > 0.9


def test_the_nnn_gradient_reaches_query_encoder_and_adapter(nnn_run):
  gradients = nnn_run[1]
  assert set(gradients) == {"query", "adapter"}
  assert share_with_gradient(gradients["query"]) > 0.9
  assert share_with_gradient(gradients["adapter"]) == 1.0


def test_nnn_trains_on_frozen_documents(nnn_task, nnn_run, trained, dataset):
  assert nnn_run[0]  # After training.
  np.testing.assert_array_equal(
    nnn_task.frozen, trained.encode_documents(dataset.doc_texts)
  )


def test_training_leaves_the_given_encoder_alone(
  encoder, trained, dense_task, dense_run, nnn_run
):
  assert nnn_run[0]
  for one, params in ((encoder, dense_task.params), (trained, dense_run[2])):
    for name in ("query", "document"):
      _, state = nnx.split(getattr(one, f"{name}_encoder"))
      jax.tree.map(np.testing.assert_array_equal, state, params[name])


def evaluate(decode, params, encoder, dataset, config):
  validation = dataset.splits["validation"]
  indices = retriever.rank(
    decode,
    params,
    encoder.encode_queries(validation.texts),
    encoder.encode_documents(dataset.doc_texts),
    k=5,
    config=config,
  )
  return metrics.evaluate(
    indices, validation.labels(len(dataset.doc_ids)), ks=(3, 5)
  )


def assert_metrics(got, expected):
  for k in (3, 5):
    for name in (f"recall@{k}", f"comp@{k}"):
      assert got[name] == pytest.approx(float(expected[name])), name


def test_dense_validation_is_that_of_the_bi_encoder(
  dense_task, dense_run, trained, dataset
):
  expected = evaluate(dense.decode, (), trained, dataset, dense.DenseConfig())
  got = dense_task.eval_fn(dense_run[2])
  assert_metrics(got, expected)
  assert got[stages.MONITOR] > 0


def test_nnn_validation_is_that_of_the_bi_encoder(
  nnn_task, nnn_run, trained, dataset
):
  after = with_parameters(trained, nnn_run[2])
  config = NNN.decoder_config(tiny_beir.NUM_DOCS)
  expected = evaluate(nnn.decode, PENALTIES, after, dataset, config)
  got = nnn_task.eval_fn(nnn_run[2])
  assert_metrics(got, expected)
  assert 1 <= got["support_size"] <= tiny_beir.NUM_DOCS
  assert nnn_task.stop_fn(got) is None


def test_solvers_of_the_nnn_stage():
  fista = NNN.decoder_config(1000)
  assert fista.solver.num_steps == 10
  assert fista.gradient.remat_every is None
  stage = dataclasses.replace(NNN, solver="working_set", capacity=200)
  # A small corpus is taken whole: no support is cut off.
  for num_docs, capacity in ((24, 24), (400, 400), (401, 200)):
    config = stage.decoder_config(num_docs)
    assert config.solver.capacity == config.gradient.capacity == capacity
  with pytest.raises(ValueError, match="solver must be fista or working_set"):
    stages.NnnStage(solver="lars")


def test_training_through_the_exact_solver(trained, dataset):
  stage = dataclasses.replace(NNN, solver="working_set")
  task = stages.nnn_task(
    trained, dataset, stage, PENALTIES, batch_size=BATCH, seed=0
  )
  values, gradients, params = train(task, 30, 1e-2)
  assert np.mean(values[-5:]) < 0.95 * np.mean(values[:5])
  assert share_with_gradient(gradients["query"]) > 0.9
  assert share_with_gradient(gradients["adapter"]) == 1.0
  validation = task.eval_fn(params)
  assert validation["inexact"] == 0
  assert validation["mean_kkt_violation"] <= validation["kkt_violation"] < 1e-5
  assert validation["support_size"] >= 1


def test_penalties_that_empty_every_support_stop_the_run(encoder, dataset):
  task = stages.nnn_task(
    encoder, dataset, NNN, nnn.NnnParams(2.0, 0.1), batch_size=BATCH, seed=0
  )
  values = task.eval_fn(task.params)
  assert values["support_size"] == 0
  assert task.stop_fn(values) == "every weight is zero"


def test_masking_false_negatives_lowers_the_loss(dense_task, encoder, dataset):
  masked = stages.dense_task(
    encoder,
    dataset,
    dataclasses.replace(DENSE, mask_false_negatives=True),
    batch_size=BATCH,
    seed=0,
  )
  batch = masked.batch_fn(0)
  # In this batch some query's document is relevant to another query.
  same = batch["relevant"][:, None, :] == batch["positive"][None, :, None]
  assert (same.any(axis=2).sum(axis=1) > 1).any()
  values = [
    float(jax.jit(task.loss_fn)(task.params, (), batch))
    for task in (masked, dense_task)
  ]
  assert values[0] < values[1]


def test_a_batch_larger_than_the_split(encoder, dataset):
  size = tiny_beir.SIZES["train"] + 1
  with pytest.raises(ValueError, match=f"batch_size is {size}: expected 1 to"):
    stages.dense_task(encoder, dataset, DENSE, batch_size=size, seed=0)
