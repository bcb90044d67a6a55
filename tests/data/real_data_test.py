"""The original files, where this machine has them: sizes as published."""

import numpy as np
import pytest

from nnn_jax.data import pipeline, sequences

# (name, folder, documents, queries by split, mean relevant over all queries).
EXPECTED = [
  (
    "toollens",
    "toollens",
    464,
    {"train": 13515, "validation": 3378, "test": 1877},
    2.66,
  ),
  ("toolbank/numpy", "toolbank", 511, {"validation": 1998}, 2.89),
  ("toolbank/pandas", "toolbank", 1651, {}, None),
  ("toolbank/aws", "toolbank", 1002, {}, None),
  (
    "multihop_rag",
    "multihop_rag_500",
    326,
    {"train": 345, "validation": 42, "test": 42},
    2.60,
  ),
  (
    "limit",
    "limit_small",
    46,
    {"train": 700, "validation": 100, "test": 200},
    2.0,
  ),
  ("cranfield", "cranfield", 1398, {"test": 225}, 7.16),
]


@pytest.mark.parametrize(
  ("name", "folder", "num_docs", "sizes", "mean"),
  EXPECTED,
  ids=[row[0] for row in EXPECTED],
)
def test_sizes(name, folder, num_docs, sizes, mean, shared, data_dir):
  dataset = pipeline.load(name, data_dir=data_dir, manual_dir=shared / folder)
  assert len(dataset.doc_ids) == num_docs
  assert {s: len(q) for s, q in dataset.splits.items()} == sizes
  if mean is not None:
    counts = [len(r) for q in dataset.splits.values() for r in q.relevant]
    assert np.mean(counts) == pytest.approx(mean, abs=5e-3)


def test_known_faults_are_counted(shared, data_dir):
  def metadata(name, folder):
    return pipeline.load(
      name, data_dir=data_dir, manual_dir=shared / folder
    ).metadata

  assert metadata("toollens", "toollens")["duplicate_pairs_removed"] == 193
  assert metadata("toolbank/numpy", "toolbank")["joined_descriptions"] == 12
  sample = metadata("multihop_rag", "multihop_rag_500")
  assert sample["sample"]
  assert sample["null_queries_dropped"] == 71
  assert sample["duplicate_pairs_removed"] == 36


def test_a_beir_folder_gives_the_same_as_its_builder(shared, data_dir):
  folder = shared / "toollens"
  built = pipeline.load("toollens", data_dir=data_dir, manual_dir=folder)
  read = pipeline.load(f"beir:{folder}")
  assert read.doc_texts == built.doc_texts
  for split, queries in built.splits.items():
    assert read.splits[split].ids == queries.ids
    for ours, theirs in zip(
      read.splits[split].relevant, queries.relevant, strict=True
    ):
      np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
  ("name", "folder", "users", "items", "interactions", "timed"),
  [
    ("movielens/latest_small", "ml-latest-small", 610, 9_724, 100_836, True),
    ("movielens/1m", "ml-1m-seq", 6_040, 3_416, 999_611, False),
    ("amazon/beauty", "amazon-5core-seq", 22_363, 12_101, 198_502, False),
  ],
)
def test_sequence_sizes(
  name, folder, users, items, interactions, timed, shared, data_dir
):
  if not (shared / folder).is_dir():
    pytest.skip(f"no original data in {shared / folder}")
  dataset = sequences.load(name, data_dir=data_dir, manual_dir=shared / folder)
  assert (len(dataset.user_ids), dataset.num_items) == (users, items)
  assert sum(map(len, dataset.items)) == interactions
  assert (dataset.timestamps is not None) == timed
  test = sequences.leave_one_out(dataset, "test")
  assert len(test) == users
  held = [t in row for t, row in zip(test.targets, test.items, strict=True)]
  assert not any(held)  # Nobody's target was seen before.
