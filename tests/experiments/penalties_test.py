"""The splits, and the comparison on a toy world."""

import numpy as np
import pytest

from experiments import embeddings as embeddings_lib
from experiments import penalties
from nnn_jax.data import pipeline


def dataset(**sizes):
  splits = {}
  for split, size in sizes.items():
    names = [f"{split}-{i}" for i in range(size)]
    relevant = [np.asarray([i % 3], np.int32) for i in range(size)]
    splits[split] = pipeline.Queries(names, names, relevant)
  docs = ["a", "b", "c"]
  return pipeline.RetrievalDataset("toy", docs, docs, splits, {})


def test_splits_fill_validation_up_with_training_queries():
  given = dataset(train=50, validation=4, test=30)
  result, halved = penalties.splits(given, 10)
  assert not halved
  chosen, test = (result.splits[s].ids for s in ("validation", "test"))
  assert len(chosen) == len(test) == 10
  assert {name for name in chosen if "train" not in name} == {
    f"validation-{i}" for i in range(4)
  }
  assert all(name.startswith("test") for name in test)
  for name, relevant in zip(
    chosen, result.splits["validation"].relevant, strict=True
  ):
    assert relevant.tolist() == [int(name.split("-")[1]) % 3]


def test_without_a_test_split_validation_is_halved():
  result, halved = penalties.splits(dataset(validation=20), 100)
  assert halved
  chosen, test = (set(result.splits[s].ids) for s in ("validation", "test"))
  assert len(chosen) == len(test) == 10
  assert not chosen & test


def test_queries_without_relevant_documents_are_left_out():
  given = dataset(validation=4, test=4)
  given.splits["test"].relevant[1] = np.zeros(0, np.int32)
  result, _ = penalties.splits(given, 100)
  assert sorted(result.splits["test"].ids) == ["test-0", "test-2", "test-3"]


def toy(num_queries, seed, scale=1.0):
  rng = np.random.default_rng(0)
  corpus = rng.normal(size=(20, 8)) + 0.3
  corpus /= np.linalg.norm(corpus, axis=1, keepdims=True)
  rng = np.random.default_rng(seed)
  labels = np.zeros((num_queries, 20), bool)
  for row in labels:
    row[rng.choice(20, 2, replace=False)] = True
  queries = labels @ corpus + 0.1 * rng.normal(size=(num_queries, 8))
  queries /= np.linalg.norm(queries, axis=1, keepdims=True)
  return embeddings_lib.Embeddings(
    np.float32(scale * queries), np.float32(corpus), labels
  )


def test_the_comparison_on_a_toy_world():
  rows = penalties.table(penalties.methods(toy(18, 1), toy(6, 2), num_steps=2))
  by_name = {row["penalties"]: row for row in rows}
  assert list(by_name) == [
    "dense",
    "one pair",
    "one relative pair",
    "rule: support size",
    "rule: information criterion",
    "head",
    "oracle, sees test labels",
  ]
  oracle = by_name["oracle, sees test labels"]["Comp@5"]
  for name in ("one relative pair", "rule: support size"):
    assert by_name[name]["Comp@5"] <= oracle
  embeddings = toy(6, 2)
  scores = embeddings.queries @ embeddings.corpus.T
  found = np.argsort(-scores, axis=1)[:, :5]
  hits = np.take_along_axis(embeddings.labels, found, axis=1).sum(axis=1)
  assert by_name["dense"]["R@5"] == pytest.approx(100 * np.mean(hits / 2))
  assert by_name["dense"]["Comp@5"] == pytest.approx(100 * np.mean(hits == 2))
  assert by_name["one pair"]["less one pair"] == "+0.00"


@pytest.mark.slow
def test_the_command(commands, trained, beir, tmp_path):
  encoder = trained / "dense" / "retriever" / "query"
  out, _ = commands.run(
    "penalties",
    f"--workdir={tmp_path}",
    f"--encoder={encoder}",
    f"--datasets=beir:{beir}",
    "--max_queries=12",
    "--num_steps=2",
  )
  assert "test: 12 queries, chosen on 12, 24 documents" in out
  assert "| oracle, sees test labels" in out
  assert (tmp_path / "penalties.json").exists()
