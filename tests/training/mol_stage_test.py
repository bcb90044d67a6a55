"""The stage "mol": it learns, resumes bitwise, and its row is measured."""

import dataclasses

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from experiments import comparison, cosines
from experiments import embeddings as embeddings_lib
from nnn_jax.models import text_mol
from nnn_jax.training import loop, mol_stage

STAGE = mol_stage.MolStage(num_query_components=2, num_item_components=2)


@pytest.fixture(scope="module")
def initial(encoder):
  return STAGE.make_retriever(encoder, seed=0)


@pytest.fixture(scope="module")
def task(initial, dataset):
  return mol_stage.mol_task(initial, dataset, STAGE, batch_size=16, seed=0)


def fit(task, folder, num_epochs):
  return loop.fit(
    task,
    optax.adamw(5e-3),
    folder=folder,
    num_epochs=num_epochs,
    patience=100,
    checkpoint_every=2,
  )


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
  assert isinstance(retriever, text_mol.TextMolRetriever)
  encoded = embeddings_lib.Encoded(retriever, "mol", tmp_path / "cache")
  chosen = comparison.choose(comparison.METHODS["mol"], encoded, dataset)
  rows = []
  for _ in range(2):  # The second reads the cache.
    embeddings = encoded.split(dataset, "validation")
    row, _, _ = comparison.measure(chosen, embeddings)
    rows.append(row)
  assert rows[0] == rows[1]
  assert rows[0]["decoder"] == "MoL"
  assert rows[0]["parameters"] == "temperature=0.05"
  best_epoch = next(
    r for r in progress.history if r["comp@5"] == progress.best_value
  )
  np.testing.assert_allclose(rows[0]["R@5"], 100 * best_epoch["recall@5"])
  assert np.isfinite(list(cosines.geometry(embeddings).values())).all()
