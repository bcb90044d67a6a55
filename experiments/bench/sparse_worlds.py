"""Sparse documents and queries that resemble those of SPLADE encoders.

Coordinates are as popular as Zipf and Mandelbrot say. Documents belong to
topics, which share words with their super-topic; a topic's weights are
log-normal. A tenth of the documents are perturbed copies. A query is made of
the largest entries of a target document, and some others. As in SPLADE's, the
10 largest entries of a query hold .75 of its sum, the 50 largest of a document
.76 (Bruch et al., 2024).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nnn_jax.indexes import sparse

VOCAB = 30_522
_QUERY_WORDS, _TOPIC_WORDS, _DOCS_A_TOPIC = 42, 160, 40


class World(NamedTuple):
  """Attributes: rows; queries, `[num_queries, 42]` coordinates and values."""

  rows: sparse.SparseRows
  coords: np.ndarray
  weights: np.ndarray


def make(num_docs: int, num_queries: int, *, seed: int = 0) -> World:
  """Makes a world.

  >>> world = make(100, 3)
  >>> world.rows.num_docs, world.coords.shape
  (100, (3, 42))
  """
  rng = np.random.default_rng(seed)
  popular = 1 / (np.arange(VOCAB) + 50.0) ** 1.0
  popular = np.cumsum(rng.permutation(popular / popular.sum()))

  def words(num):
    drawn = np.searchsorted(popular, rng.random(num) * popular[-1])
    return np.minimum(drawn, VOCAB - 1)

  num_topics = max(1, num_docs // _DOCS_A_TOPIC)
  num_supers = max(1, num_topics // 20)
  supers = words((num_supers, _TOPIC_WORDS))
  topics = words((num_topics, _TOPIC_WORDS))
  shared = rng.random(topics.shape) < 0.4
  parents = rng.integers(num_supers, size=num_topics)
  topics = np.where(shared, supers[parents], topics)
  topic_weights = rng.lognormal(-0.75, 1.18, topics.shape)
  indices: list[np.ndarray] = []
  values: list[np.ndarray] = []
  for doc in range(num_docs):
    if doc and rng.random() < 0.1:
      source = rng.integers(doc)
      at, value = indices[source], values[source]
      value = value * rng.lognormal(0, 0.1, len(at)).astype(np.float32)
    else:
      topic = rng.integers(num_topics)
      kept = rng.random(_TOPIC_WORDS) < 0.47
      own = words(max(5, int(rng.normal(45, 12))))
      at = np.concatenate([topics[topic][kept], own])
      value = np.concatenate(
        [
          topic_weights[topic][kept] * rng.lognormal(0, 0.4, kept.sum()),
          rng.lognormal(-1.2, 0.9, len(own)),
        ]
      )
      at, first = np.unique(at, return_index=True)
      value = np.log1p(value[first]).astype(np.float32)
    indices.append(at)
    values.append(value)
  coords, weights = [], []
  for target in rng.integers(num_docs, size=num_queries):
    order = np.argsort(-values[target])[: _QUERY_WORDS // 2]
    at = np.concatenate([indices[target][order], words(4 * _QUERY_WORDS)])
    _, first = np.unique(at, return_index=True)
    at = at[np.sort(first)][:_QUERY_WORDS]
    rank = np.arange(1, _QUERY_WORDS + 1)
    weight = 3 / rank**1.16 * rng.lognormal(0, 0.3, _QUERY_WORDS)
    order = np.argsort(at)  # The peer wants them ascending.
    coords.append(at[order])
    weights.append(weight[order])
  return World(
    sparse.from_lists(indices, values, VOCAB),
    np.stack(coords).astype(np.int32),
    np.stack(weights).astype(np.float32),
  )
