"""The stage "colt": it learns, resumes bitwise, and its row is measured."""

import dataclasses

import jax
import numpy as np
import optax
import pytest

from experiments import comparison
from experiments import embeddings as embeddings_lib
from nnn_jax.models import (
  colt_retriever,
)
from nnn_jax.training import colt_stage, loop, writers

STAGE = colt_stage.ColtStage(batch_size=16, list_size=5)


@pytest.fixture(scope="module")
def task(encoder, dataset):
  return colt_stage.colt_task(encoder, dataset, STAGE, seed=0)


def fit(task, folder, num_epochs):
  return loop.fit(
    task,
    optax.adamw(1e-2),
    folder=folder,
    num_epochs=num_epochs,
    patience=100,
    checkpoint_every=2,
  )


def test_lists_hold_the_relevant_and_then_others():
  relevant = [np.array([3, 1]), np.array([0])]
  candidates, labels = colt_stage._lists(relevant, 9, 5, (0, 7))
  assert candidates.shape == labels.shape == (2, 5)
  for row, documents in enumerate(relevant):
    assert set(candidates[row][labels[row]]) == set(documents)
    assert len(set(candidates[row])) == 5
  again, _ = colt_stage._lists(relevant, 9, 5, (0, 7))
  np.testing.assert_array_equal(candidates, again)
  other, _ = colt_stage._lists(relevant, 9, 5, (0, 8))
  assert (candidates != other).any()


def test_it_learns_resumes_bitwise_and_is_measured(
  task, encoder, dataset, tmp_path
):
  params, progress = fit(task, tmp_path / "whole", 2)
  fit(task, tmp_path / "parts", 1)
  resumed, _ = fit(task, tmp_path / "parts", 2)
  jax.tree.map(np.testing.assert_array_equal, params, resumed)
  loss = [
    record["train/loss"]
    for record in writers.read_metrics(tmp_path / "whole")
    if "train/loss" in record
  ]
  assert loss[-1] < 0.9 * loss[0]

  result = colt_stage.make_retriever(encoder, dataset, STAGE, params)
  result.save(tmp_path / "retriever", {"stage": "colt"})
  loaded = embeddings_lib.load_retriever(tmp_path / "retriever")
  assert isinstance(loaded, colt_retriever.ColtRetriever)
  encoded = embeddings_lib.Encoded(loaded, "colt", tmp_path / "cache")
  assert encoded.serves(dataset)
  method = comparison.METHODS["colt"]
  chosen = comparison.choose(method, encoded, dataset)
  row, _, _ = comparison.measure(chosen, encoded.split(dataset, "validation"))
  best = max(record["comp@5"] for record in progress.history)
  assert row["Comp@5"] == pytest.approx(100 * best, abs=1e-3)

  other = dataclasses.replace(dataset, doc_texts=["something else"])
  assert not encoded.serves(other)
  with pytest.raises(ValueError, match="was not trained: COLT has vectors"):
    loaded.encode_documents(["something else"])
  with pytest.raises(ValueError, match="holds no COLT"):
    colt_retriever.ColtRetriever.load(tmp_path)
