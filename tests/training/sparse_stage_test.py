"""The stage "sparse": it learns, resumes bitwise, and its row is measured."""

import dataclasses
import json

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from experiments import comparison, cosines
from experiments import embeddings as embeddings_lib
from nnn_jax.models import sparse_head, tokenization
from nnn_jax.training import loop, sparse_stage

STAGE = sparse_stage.SparseStage(terms="corpus")


@pytest.fixture(scope="module")
def initial(encoder, dataset):
  return STAGE.make_retriever(encoder, dataset)


@pytest.fixture(scope="module")
def task(initial, dataset):
  return sparse_stage.sparse_task(
    initial, dataset, STAGE, batch_size=16, seed=0
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


def test_document_frequencies():
  tokens = tokenization.Tokens(
    np.asarray([[1, 2, 2], [1, 3, 0]]), np.asarray([[1, 1, 1], [1, 1, 0]])
  )
  counts = sparse_stage.document_frequencies(tokens, 5)
  assert counts.tolist() == [0, 2, 1, 1, 0]


def test_rare_terms_start_heavier(initial, dataset, encoder):
  tokens = encoder.tokenizer(dataset.doc_texts, max_length=12)
  model = initial.model
  counts = sparse_stage.document_frequencies(
    tokens, model.encoder.config.vocab_size
  )[list(model.terms)]
  # Marks of every text are no terms; every other token of a document is.
  assert counts.min() >= 1
  assert counts.max() < len(dataset.doc_ids)
  own = np.log1p(np.asarray(model.bias[...]) + model.config.sharpness)
  assert own.max() == pytest.approx(1.4, abs=1e-5)
  order = np.argsort(counts)
  assert (np.diff(own[order]) <= 1e-6).all()
  whole = dataclasses.replace(STAGE, terms="all")
  assert len(whole.make_retriever(encoder, dataset).model.terms) > len(
    model.terms
  )


def test_the_regulariser_sets_in(task):
  strengths = [task.batch_fn(step)["strength"] for step in range(200)]
  assert strengths[0] < 0.1
  assert strengths[-1] == 1.0
  assert (np.diff(strengths) >= 0).all()


@pytest.mark.slow
def test_resumes_bitwise(task, tmp_path):
  whole, progress = fit(task, tmp_path / "whole", 4)
  fit(task, tmp_path / "parts", 2)
  resumed, again = fit(task, tmp_path / "parts", 4)
  assert again.history == progress.history
  jax.tree.map(np.testing.assert_array_equal, whole, resumed)


def test_learns_and_is_measured(task, initial, dataset, tmp_path):
  best, progress = fit(task, tmp_path / "run", 2)
  # The lexical start finds most of these documents; the loss still falls.
  lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
  losses = [
    r["train/loss"] for r in map(json.loads, lines) if "train/loss" in r
  ]
  assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5])

  # As evaluation sees it: saved, loaded, encoded, cached, measured.
  model = nnx.merge(nnx.split(initial.model)[0], best)
  folder = tmp_path / "retriever"
  dataclasses.replace(initial, model=model).save(folder, {})
  retriever = embeddings_lib.load_retriever(folder)
  assert isinstance(retriever, sparse_head.SparseRetriever)
  encoded = embeddings_lib.Encoded(retriever, "sparse", tmp_path / "cache")
  chosen = comparison.choose(comparison.METHODS["sparse"], encoded, dataset)
  rows = []
  for _ in range(2):  # The second reads the cache.
    embeddings = encoded.split(dataset, "validation")
    row, _, _ = comparison.measure(chosen, embeddings)
    rows.append(row)
  assert rows[0] == rows[1]
  assert rows[0]["decoder"] == "sparse"
  best_epoch = next(
    r for r in progress.history if r["comp@5"] == progress.best_value
  )
  np.testing.assert_allclose(rows[0]["R@5"], 100 * best_epoch["recall@5"])
  assert np.isfinite(list(cosines.geometry(embeddings).values())).all()


def test_bad_settings():
  with pytest.raises(ValueError, match="terms"):
    sparse_stage.SparseStage(terms="some")
