"""Loss or decoder, on a world of planted embeddings."""

import json
import types

import numpy as np
import pytest

from experiments import (
  adapted,
  embeddings,
  loss_or_decoder,
  splits,
)
from nnn_jax.data import pipeline
from nnn_jax.training import writers

DIM, NUM_DOCS = 8, 24
CONFIG = types.SimpleNamespace(
  trainings="losses",
  seeds=(0,),
  batch_size=16,
  num_epochs=10,
  patience=10,
  learning_rate=5e-2,
  adapter_hidden=16,
  temperature=0.05,
  l1=0.1,
  l2=(1.0,),
  capacity=16,
)
TRAININGS = ["InfoNCE", "ranking loss", "NNN, l2 = 1"]


def make_queries(num, seed):
  rng = np.random.default_rng(seed)
  relevant = [
    np.sort(rng.choice(NUM_DOCS, size=2, replace=False)).astype(np.int32)
    for _ in range(num)
  ]
  ids = [f"{seed}-{i}" for i in range(num)]
  return pipeline.Queries(ids, [""] * num, relevant)


@pytest.fixture
def dataset():
  parts = {
    name: make_queries(num, seed)
    for seed, (name, num) in enumerate(
      {"train": 64, "validation": 24, "test": 24}.items()
    )
  }
  docs = [str(i) for i in range(NUM_DOCS)]
  return pipeline.RetrievalDataset("toy", docs, docs, parts, {})


class Encoded:
  """Queries between their documents, turned: an adapter can turn them back."""

  def __init__(self):
    rng = np.random.default_rng(9)
    rows = rng.normal(size=(NUM_DOCS, DIM))
    self.corpus = _unit(rows)
    self._turn = _unit(rng.normal(size=(DIM, DIM)) + 1.5 * np.eye(DIM))

  def split(self, dataset, name):
    labels = dataset.splits[name].labels(NUM_DOCS)
    queries = _unit((labels @ self.corpus) @ self._turn)
    return embeddings.Embeddings(queries, self.corpus, labels)


def _unit(rows):
  norm = np.linalg.norm(rows, axis=1, keepdims=True)
  return (rows / norm).astype(np.float32)


def test_every_training_with_every_decoder_and_nothing_twice(dataset, tmp_path):
  def run(done):
    return [
      row
      for rows in loss_or_decoder.rows_of(
        "toy", Encoded(), dataset, CONFIG, tmp_path, done
      )
      for row in rows
    ]

  rows = run([])
  assert [(row["training"], row["decoder"]) for row in rows] == [
    (training, decoder)
    for training in ["none, frozen", *TRAININGS]
    for decoder in ("dense", "MMR", "NNN, exact")
  ]
  by = {(row["training"], row["decoder"]): row["R@5"] for row in rows}
  assert all(
    by[name, "dense"] > by["none, frozen", "dense"] for name in TRAININGS
  )
  assert run(rows) == []
  # From the checkpoints of the trainings that are finished.
  assert run(rows[:-3]) == rows[-3:]

  text = loss_or_decoder.write(tmp_path, rows, {"toy": ", a toy"})
  assert "### toy, a toy: Comp@3 / Comp@5" in text
  assert json.loads((tmp_path / "results.json").read_text()) == rows
  lines = (tmp_path / "results.csv").read_text().splitlines()
  assert len(lines) == 1 + len(rows)


def test_the_table_by_hand():
  rows = [
    {"training": "a", "decoder": "dense", "Comp@3": x, "Comp@5": y}
    | dict.fromkeys(loss_or_decoder.COSINES, y / 100)
    for x, y in ((10.0, 30.0), (20.0, 30.0))
  ]
  line = loss_or_decoder.table(rows).splitlines()[-1]
  cells = [cell.strip() for cell in line.strip("|").split("|")]
  means = "15.0 +- 7.1 / 30.0 +- 0.0"
  assert cells == ["a", means, *["0.30"] * 5, "2"]


def test_gains_by_hand():
  about = {"data set": "a", "training": "b", "seed": 0}
  cosines = {"intruder to found": 0.75, "missed to found": 0.25}
  rows = [
    about | cosines | {"decoder": decoder, "Comp@5": comp}
    for decoder, comp in (("dense", 40.0), ("MMR", 1.0), ("NNN, exact", 43.0))
  ]
  assert loss_or_decoder.gains(rows) == [about | {"margin": 0.5, "gain": 3.0}]


def test_dense_trainings_differ_in_mask_temperature_and_rate(dataset, tmp_path):
  config = types.SimpleNamespace(**vars(CONFIG))
  config.trainings = "dense"
  config.temperatures, config.learning_rates = (0.05,), (1e-2, 2e-2)
  found = loss_or_decoder.rows_of(
    "toy", Encoded(), dataset, config, tmp_path, []
  )
  rows = [row for rows in found for row in rows if row["decoder"] == "dense"]
  assert [row["training"] for row in rows] == [
    "none, frozen",
    "not masked, tau 0.05, 0.01",
    "not masked, tau 0.05, 0.02",
    "masked, tau 0.05, 0.01",
    "masked, tau 0.05, 0.02",
  ]
  last = [
    writers.read_metrics(folder / "seed-0")[-2]["train/loss"]
    for folder in (tmp_path / "toy").iterdir()
  ]
  assert len(set(last)) == 4


def test_splits_of_our_own(dataset):
  same, ours = splits.with_splits(dataset)
  assert not ours
  assert len(same.splits["train"]) == 64
  only = types.SimpleNamespace(
    ids=list("abcdefghijk"),
    texts=[""] * 11,
    relevant=[np.asarray([0])] * 10 + [np.asarray([], int)],
  )
  alone = pipeline.RetrievalDataset(
    "alone", ["d"], [""], {"validation": only}, {}
  )
  split, ours = splits.with_splits(alone)
  assert ours
  ids = [set(split.splits[n].ids) for n in ("train", "validation", "test")]
  assert set.union(*ids) == set("abcdefghij")  # The last has no document.
  assert sum(map(len, ids)) == 10
  again, _ = splits.with_splits(alone)
  assert again.splits["test"].ids == split.splits["test"].ids


def test_adapters_begin_close_to_the_identity(dataset):
  plain = Encoded().split(dataset, "test")
  _, params = adapted.make_adapters(CONFIG, DIM, seed=0)
  ours = adapted.Adapted(Encoded(), params, CONFIG).split(dataset, "test")
  assert np.abs(ours.queries - plain.queries).max() < 0.05
  assert np.abs(ours.corpus - plain.corpus).max() < 0.05
