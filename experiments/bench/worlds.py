"""Synthetic embeddings that the benchmarks share."""

from __future__ import annotations

from typing import NamedTuple

import jax

from nnn_jax.core import linalg


class World(NamedTuple):
  """Attributes: queries, corpus, and the rows that each query mixes."""

  queries: jax.Array
  corpus: jax.Array
  relevant: jax.Array


def mixtures(num_docs: int, dim: int, batch: int) -> World:
  """Unit rows around a shared mean, and queries that mix three documents."""
  keys = jax.random.split(jax.random.key(0), 4)
  mean = jax.random.normal(keys[0], (dim,))
  corpus = linalg.normalize(
    jax.random.normal(keys[1], (num_docs, dim)) + 0.5 * mean
  )
  relevant = jax.random.randint(keys[2], (batch, 3), 0, num_docs)
  noise = jax.random.normal(keys[3], (batch, dim)) / dim**0.5
  queries = linalg.normalize(corpus[relevant].sum(axis=1) + 0.5 * noise)
  return World(queries, corpus, relevant)
