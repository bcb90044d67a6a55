import hashlib
import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
import scipy

from nnn_jax.data import pipeline
from nnn_jax.data.api_docs import compose, docstrings, requests


@pytest.fixture(scope="module")
def dataset(data_dir):
  return pipeline.load("api_docs", data_dir=data_dir)


def _sets(dataset, split):
  return [frozenset(rows.tolist()) for rows in dataset.splits[split].relevant]


def test_sizes(dataset):
  # Bounds, not numbers: they follow the installed versions.
  sizes = {split: len(queries) for split, queries in dataset.splits.items()}
  assert 2000 < len(dataset.doc_ids) < 4000
  assert 4000 < sizes["train"] <= compose.TRAIN_SIZE
  assert (sizes["validation"], sizes["test"]) == (600, 800)
  assert sizes["see_also"] > 500
  for split in ("train", "validation", "test"):
    counts = {len(relevant) for relevant in _sets(dataset, split)}
    assert counts == {2, 3, 4}


def test_no_held_out_set_is_within_a_training_set(dataset):
  within_train = {
    frozenset(subset)
    for relevant in _sets(dataset, "train")
    for size in range(2, len(relevant) + 1)
    for subset in itertools.combinations(relevant, size)
  }
  for split in ("validation", "test", "see_also"):
    assert within_train.isdisjoint(_sets(dataset, split)), split


def test_validation_and_test_sets_differ(dataset):
  test, validation = _sets(dataset, "test"), _sets(dataset, "validation")
  assert len(set(test)) == len(test)
  assert set(test).isdisjoint(validation)


def test_overlap_is_reported(dataset):
  train = set().union(*_sets(dataset, "train"))
  test = set().union(*_sets(dataset, "test"))
  assert dataset.metadata["test_docs"] == len(test)
  assert dataset.metadata["test_docs_also_in_train"] == len(test & train)
  assert dataset.metadata["numpy_version"] == np.__version__
  assert dataset.metadata["scipy_version"] == scipy.__version__


def test_helpers_are_never_relevant(dataset):
  relevant = {
    dataset.doc_ids[row]
    for split in dataset.splits
    for rows in _sets(dataset, split)
    for row in rows
  }
  assert relevant.isdisjoint(compose.HELPERS)


def test_see_also_query_counts_its_own_function(dataset):
  queries = dataset.splits["see_also"]
  for query_id, rows in zip(queries.ids, queries.relevant, strict=True):
    assert query_id in {dataset.doc_ids[row] for row in rows}


def test_documents_lack_their_summary(dataset):
  functions = docstrings.read_functions()
  norm = dataset.doc_texts[dataset.doc_ids.index("numpy.linalg.norm")]
  assert norm.startswith("numpy.linalg.norm(x, ord=None, axis=None")
  assert functions["numpy.linalg.norm"].summary == "Matrix or vector norm"
  assert "Matrix or vector norm." not in norm


def test_aliases_are_one_document(dataset):
  assert "numpy.absolute" in dataset.doc_ids
  assert "numpy.abs" not in dataset.doc_ids  # The same object.
  assert "numpy.amax" not in dataset.doc_ids  # "An alias of max".
  assert len(set(dataset.doc_ids)) == len(dataset.doc_ids)


DIGEST = """
import hashlib
from nnn_jax.data.api_docs import compose
source = compose.build(seed=0)
print(hashlib.sha256(repr((source.corpus, source.splits)).encode()).hexdigest())
"""


def test_same_in_every_process():
  def digest(hash_seed):
    return subprocess.run(
      [sys.executable, "-c", DIGEST],
      env=os.environ | {"PYTHONHASHSEED": hash_seed},
      capture_output=True,
      text=True,
      check=True,
    ).stdout

  source = compose.build(seed=0)
  here = hashlib.sha256(repr((source.corpus, source.splits)).encode())
  assert digest("1") == digest("2") == here.hexdigest() + "\n"


def test_the_name_of_the_data_set_holds_the_versions(dataset, data_dir):
  name = f"numpy-{np.__version__}-scipy-{scipy.__version__}"
  assert (data_dir / "api_docs" / name / "1.0.0").is_dir()


def _function(summary, name="numpy.f"):
  return docstrings.Function(name, "", summary, "", "", (), ())


@pytest.mark.parametrize(
  ("summary", "clause"),
  [
    ("Compute the mean", "compute the mean"),
    ("Returns the mean", "get the mean"),
    ("Applies a filter", "apply a filter"),
    ("Return True if x is odd", "check whether x is odd"),
    ("Inverse sine, element-wise", "compute the inverse sine, element-wise"),
    ("Bessel function of order 0", "compute the Bessel function of order 0"),
    (
      "Multidimensional Gaussian filter",
      "apply the multidimensional Gaussian filter",
    ),
    (
      "A normal continuous random variable",
      "use a normal continuous random variable",
    ),
    ("Sum of array elements", "compute the sum of array elements"),
    ("Compressed Sparse Row array", "compute the compressed Sparse Row array"),
    ("Abstract base class of all types", None),
    ("gamma", None),
  ],
)
def test_clauses(summary, clause):
  proper = frozenset({"Bessel", "Gaussian"})
  assert requests.to_clause(_function(summary), proper) == clause


def test_split_sections_and_links():
  sections = docstrings.split_sections(
    "Sum.\n\nMore.\n\nSee Also\n--------\nmean, std : Others.\n    Of x:\n"
    ":func:`var`\n\nExamples\n--------\n>>> 1\n1"
  )
  assert list(sections) == ["", "See Also", "Examples"]
  assert list(docstrings.see_also_names(sections["See Also"])) == [
    "mean",
    "std",
    "var",
  ]
  assert docstrings.split_summary("f(x)\n\nSum. Of all.\n\nMore.", "f") == (
    "Sum",
    "Of all. More.",
  )
