"""The stage "hypencoder": its start, its targets, and its row is measured."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from configs import hypencoder as config_lib
from experiments import comparison, cosines, teacher
from experiments import embeddings as embeddings_lib
from nnn_jax.data import pipeline
from nnn_jax.models import text_hypencoder
from nnn_jax.training import (
  hypencoder_stage,
  loop,
  mol_stage,
  stages,
  teachers,
)

STAGE = hypencoder_stage.HypencoderStage(
  widths=(8,), num_negatives=3, distillation=0.1
)


@pytest.fixture(scope="module")
def initial(encoder):
  return STAGE.make_retriever(encoder, seed=0)


@pytest.fixture(scope="module")
def candidates(dataset):
  """Every document for every query; the relevant score higher."""
  train = dataset.splits["train"]
  num_docs = len(dataset.doc_ids)
  rows = np.tile(np.arange(num_docs, dtype=np.int32), (len(train), 1))
  scores = 4.0 * train.labels(num_docs).astype(np.float32)
  return teachers.Candidates(rows, scores)


@pytest.fixture(scope="module")
def task(initial, dataset, candidates):
  return hypencoder_stage.hypencoder_task(
    initial, dataset, STAGE, batch_size=16, seed=0, candidates=candidates
  )


def fit(task, folder, num_epochs):
  return loop.fit(
    task,
    optax.adamw(5e-3),
    folder=folder,
    num_epochs=num_epochs,
    patience=100,
    checkpoint_every=2,
  )


def test_it_starts_as_the_bi_encoder(task, encoder, dataset):
  """An untrained network that hid the inner product could not learn soon."""
  one = dataclasses.replace(encoder, document_encoder=encoder.query_encoder)
  start = stages.dense_task(
    one, dataset, stages.DenseStage(), batch_size=16, seed=0
  )
  ours, theirs = task.eval_fn(task.params), start.eval_fn(start.params)
  for name, value in theirs.items():
    assert ours[name] == pytest.approx(value, abs=0.05), name


def test_batches(task, dataset, candidates):
  batch = task.batch_fn(3)
  assert batch["negatives"].shape == (16, 3)
  assert batch["document_ids"].shape[0] == 16 * 4
  for query, negatives in zip(batch["query"], batch["negatives"], strict=True):
    assert len(set(negatives)) == 3
    assert not set(negatives) & set(dataset.splits["train"].relevant[query])
  np.testing.assert_array_equal(batch["teacher"][:, 0], 4.0)
  np.testing.assert_array_equal(batch["teacher"][:, 1:], 0.0)
  again = task.batch_fn(3)
  jax.tree.map(np.testing.assert_array_equal, batch, again)
  other = task.batch_fn(4)
  assert (other["negatives"] != batch["negatives"]).any()


def test_the_warm_up():
  stage = dataclasses.replace(STAGE, warmup_steps=4, weight_decay=0.0)
  optimizer = stage.optimizer()
  params = np.ones(2, np.float32)
  state, sizes = optimizer.init(params), []
  for _ in range(6):
    updates, state = optimizer.update(params, state, params)
    sizes.append(float(-updates[0]) / stage.learning_rate)
  np.testing.assert_allclose(sizes, [0, 0.25, 0.5, 0.75, 1, 1], atol=1e-4)


@pytest.mark.slow
def test_resumes_bitwise(task, tmp_path):
  whole, progress = fit(task, tmp_path / "whole", 4)
  fit(task, tmp_path / "parts", 2)
  resumed, again = fit(task, tmp_path / "parts", 4)
  assert again.history == progress.history
  jax.tree.map(np.testing.assert_array_equal, whole, resumed)


def test_learns_and_is_measured(task, initial, dataset, tmp_path):
  best, progress = fit(task, tmp_path / "run", 2)
  recall = [record["recall@5"] for record in progress.history]
  assert max(recall) > recall[0] + 0.1

  # As evaluation sees it: saved, loaded, encoded, cached, measured.
  model = nnx.merge(nnx.split(initial.model)[0], best)
  folder = tmp_path / "retriever"
  dataclasses.replace(initial, model=model).save(folder, {})
  retriever = embeddings_lib.load_retriever(folder)
  assert isinstance(retriever, text_hypencoder.TextHypencoderRetriever)
  encoded = embeddings_lib.Encoded(retriever, "hypencoder", tmp_path / "cache")
  method = comparison.METHODS["hypencoder"]
  chosen = comparison.choose(method, encoded, dataset)
  rows = []
  for _ in range(2):  # The second reads the cache.
    embeddings = encoded.split(dataset, "validation")
    row, _, _ = comparison.measure(chosen, embeddings)
    rows.append(row)
  assert rows[0] == rows[1]
  assert rows[0]["decoder"] == "Hypencoder"
  best_epoch = next(
    r for r in progress.history if r["comp@5"] == progress.best_value
  )
  np.testing.assert_allclose(rows[0]["R@5"], 100 * best_epoch["recall@5"])
  assert np.isfinite(list(cosines.geometry(embeddings).values())).all()


def test_validation_can_rank_fewer_documents(dataset):
  queries = dataset.splits["validation"]
  relevant = queries.relevant[:2]
  few = pipeline.Queries(queries.ids[:2], queries.texts[:2], relevant)
  dataset = dataclasses.replace(dataset, splits={"validation": few})
  some, rows = hypencoder_stage._validation_corpus(dataset, 12, 0)
  assert len(set(rows)) == len(some.doc_ids) == 12 < len(dataset.doc_ids)
  assert some.doc_ids == [dataset.doc_ids[row] for row in rows]
  for fewer, whole in zip(
    some.splits["validation"].relevant, relevant, strict=True
  ):
    np.testing.assert_array_equal(rows[fewer], whole)


def test_the_published_config(encoder):
  settings = config_lib.get_config().hypencoder.to_dict()
  del settings["teacher"], settings["num_candidates"]
  stage = hypencoder_stage.HypencoderStage(**settings)
  assert len(stage.widths) == 6
  small = dataclasses.replace(stage, widths=(4,))
  model = small.make_retriever(encoder, seed=0).model
  assert model.shares_encoder
  assert model.document.config.pooling == "cls"
  assert not model.document.config.normalize
  assert encoder.query_encoder.config.normalize  # That one is as it was.


def test_bad_settings(initial, dataset):
  with pytest.raises(ValueError, match="num_negatives must not be negative"):
    hypencoder_stage.HypencoderStage(num_negatives=-1)
  with pytest.raises(ValueError, match="with pooling cls set it to False"):
    hypencoder_stage.HypencoderStage(pooling="cls")
  with pytest.raises(ValueError, match="distillation needs"):
    hypencoder_stage.HypencoderStage(distillation=1.0)
  with pytest.raises(ValueError, match="name a teacher"):
    hypencoder_stage.hypencoder_task(
      initial, dataset, STAGE, batch_size=16, seed=0
    )


@pytest.mark.slow
def test_a_mixture_of_logits_can_teach(encoder, dataset, tmp_path):
  mixture = mol_stage.MolStage(num_query_components=2, num_item_components=2)
  retriever = mixture.make_retriever(encoder, seed=0)
  retriever.save(tmp_path / "mol" / "retriever", {})
  found = teacher.candidates("mol", dataset, tmp_path, num=5, temperature=0.05)
  queries = retriever.encode_queries(dataset.splits["train"].texts[:3])
  items = retriever.encode_documents(dataset.doc_texts)
  scores, _ = retriever.model(
    jax.tree.map(lambda x: jnp.asarray(x)[:, None], queries),
    jax.tree.map(jnp.asarray, items),
  )
  order = np.argsort(-np.asarray(scores), axis=1)[:, :5]
  np.testing.assert_array_equal(found.rows[:3], order)
  np.testing.assert_allclose(
    found.scores[:3], np.take_along_axis(np.asarray(scores), order, 1), 1e-4
  )
  assert (
    teacher.candidates(None, dataset, tmp_path, num=5, temperature=1.0) is None
  )
