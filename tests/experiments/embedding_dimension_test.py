"""Decoders against the dimension, where all pairs are asked for."""

import itertools

import numpy as np
import pytest

from experiments import embedding_dimension
from nnn_jax.data import pipeline

NAMES = [f"person{i}" for i in range(16)]


@pytest.fixture(scope="module")
def dataset():
  """LIMIT in small: a word for each pair of documents, in just these two.

  Names are repeated, the i-th i times: were the documents all alike, so would
  be the singular values, and the vectors a matter of rounding.
  """
  pairs = list(itertools.combinations(range(len(NAMES)), 2))
  texts = [
    " ".join(
      [name] * (i + 1) + [f"w{j}" for j, pair in enumerate(pairs) if i in pair]
    )
    for i, name in enumerate(NAMES)
  ]

  def queries(rows):
    return pipeline.Queries(
      [str(j) for j in rows],
      [f"who likes w{j}" for j in rows],
      [np.asarray(pairs[j], np.int32) for j in rows],
    )

  order = np.random.default_rng(0).permutation(len(pairs))
  parts = zip(
    ("train", "validation", "test"), np.split(order, [10, 60]), strict=True
  )
  return pipeline.RetrievalDataset(
    "pairs", NAMES, texts, {name: queries(rows) for name, rows in parts}, {}
  )


def test_all_dimensions_suffice_and_few_do_not(dataset, tmp_path):
  rows = embedding_dimension.rows_of(dataset, [8, 64])
  # No more dimensions than documents less one.
  assert [row["dim"] for row in rows] == [8] * 3 + [15] * 3
  comp = {(row["dim"], row["decoder"]): row["Comp@3"] for row in rows}
  assert comp[15, "dense"] == 100.0
  assert comp[8, "dense"] < 70.0
  # A pair's query is a sum of two documents, which NNN takes apart.
  assert comp[8, "NNN, exact"] > comp[8, "dense"]
  embedding_dimension.draw(rows, "pairs", tmp_path / "figure.png")
  assert (tmp_path / "figure.png").stat().st_size > 1000


def test_the_vectors_are_those_of_the_singular_value_decomposition():
  rng = np.random.default_rng(1)
  texts = [
    " ".join(f"w{j}" for j in rng.integers(40, size=rng.integers(5, 20)))
    for _ in range(12)
  ]
  split = pipeline.Queries(["q"], ["w1 w2"], [np.asarray([0], np.int32)])
  world = pipeline.RetrievalDataset("world", texts, texts, {"test": split}, {})
  encoded = embedding_dimension.Lsa(texts, 5)
  corpus = encoded.split(world, "test").corpus
  np.testing.assert_allclose(np.linalg.norm(corpus, axis=1), 1.0, rtol=1e-6)
  counts = encoded._words.transform(texts).toarray()
  u, s, _ = np.linalg.svd(counts)
  expected = u[:, :5] * s[:5]
  expected /= np.linalg.norm(expected, axis=1, keepdims=True)
  # Products do not depend on the signs of singular vectors.
  np.testing.assert_allclose(
    corpus @ corpus.T, expected @ expected.T, atol=1e-5
  )
