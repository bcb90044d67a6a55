"""How documents lie to each other, which says what a decoder can gain."""

from __future__ import annotations

import numpy as np

from experiments import embeddings as embeddings_lib

GEOMETRY = ("within relevant", "to nearest irrelevant", "query to relevant")


def geometry(embeddings: embeddings_lib.Embeddings) -> dict[str, float]:
  """How alike a query's relevant documents are, and how they stand apart.

  NNN and MMR treat documents that are alike as redundant, so they can gain over
  dense retrieval where relevant documents are less alike than they are to
  irrelevant ones.

  Returns:
    Means over queries with two or more relevant documents of: the cosine
    between two relevant documents, the cosine of a relevant document with its
    nearest irrelevant one, and the cosine of the query with a relevant one.
  """
  values = []
  queries, corpus = embeddings_lib.both_vectors(embeddings)
  for query, labels in zip(queries, embeddings.labels, strict=True):
    rows = np.flatnonzero(labels)
    if len(rows) < 2:
      continue
    relevant = corpus[rows]
    cosine = relevant @ corpus.T
    within = cosine[:, rows][~np.eye(len(rows), dtype=bool)]
    nearest = np.where(labels, -np.inf, cosine).max(axis=1)
    values.append((within.mean(), nearest.mean(), (relevant @ query).mean()))
  return dict(zip(GEOMETRY, np.mean(values, axis=0).tolist(), strict=True))


REDUNDANCY = ("intruder to found", "missed to found")


def redundancy(
  embeddings: embeddings_lib.Embeddings, k: int = 5
) -> dict[str, float]:
  """What dense retrieval gets wrong: copies of what it has, or not.

  Of queries, all relevant documents of which fit into the top k, and some of
  which are found there and some missed: an intruder, an irrelevant document of
  the top k, is redundant as far as it is like a relevant one that is found. NNN
  and MMR put a missed document in its place where that one is less so.

  Returns:
    Means of the cosine with the nearest relevant document in the top k: of the
    intruders, and of the missed. NaN where no query is of that kind.
  """
  values = []
  queries, corpus = embeddings_lib.both_vectors(embeddings)
  for query, labels in zip(queries, embeddings.labels, strict=True):
    labels = np.asarray(labels, bool)
    top = np.zeros_like(labels)
    top[np.argsort(-(corpus @ query), kind="stable")[:k]] = True
    found = corpus[top & labels]
    intruders, missed = corpus[top & ~labels], corpus[labels & ~top]
    if labels.sum() <= k and len(found) and len(missed):
      values.append(
        [(rows @ found.T).max(axis=1).mean() for rows in (intruders, missed)]
      )
  means = np.mean(values, axis=0) if values else np.full(2, np.nan)
  return dict(zip(REDUNDANCY, means.tolist(), strict=True))
