"""Splits of data sets that come with fewer than three."""

from __future__ import annotations

import dataclasses

import numpy as np

from nnn_jax.data import pipeline

NOTE = "The splits are our own, 80/10/10 % of the queries."
_SPLITS = ("train", "validation", "test")


def with_splits(
  dataset: pipeline.RetrievalDataset,
) -> tuple[pipeline.RetrievalDataset, bool]:
  """The data set with all three splits, and whether they are ours.

  Where one is missing, all queries are drawn into 80, 10 and 10 %. Queries
  without a relevant document are left out.
  """

  def take(queries, rows):
    kept = [i for i in rows if len(queries.relevant[i])]
    fields = queries.ids, queries.texts, queries.relevant
    return pipeline.Queries(*([field[i] for i in kept] for field in fields))

  ours = not set(_SPLITS) <= set(dataset.splits)
  if ours:
    parts = dataset.splits.values()
    everything = pipeline.Queries(
      [x for part in parts for x in part.ids],
      [x for part in parts for x in part.texts],
      [x for part in parts for x in part.relevant],
    )
    order = np.random.default_rng(0).permutation(len(everything))
    cuts = [len(order) * 8 // 10, len(order) * 9 // 10]
    rows = dict(zip(_SPLITS, np.split(order, cuts), strict=True))
    splits = {name: take(everything, rows[name]) for name in _SPLITS}
  else:
    splits = {
      name: take(queries, range(len(queries)))
      for name, queries in dataset.splits.items()
    }
  return dataclasses.replace(dataset, splits=splits), ours
