"""Small instances of the cardinality-constrained quadratic, and their optima.

Everything here is numpy: an oracle that shares no code with the solvers.
"""

import itertools

import numpy as np
from scipy import optimize


def unit_rows(rng, num_docs, dim, clusters=None, lean=1.0):
  """Unit rows around a shared mean, in clusters of near-duplicates."""
  rows = rng.normal(size=(num_docs, dim))
  if clusters is not None:
    centres = rng.normal(size=(clusters, dim))
    rows = centres[rng.integers(clusters, size=num_docs)] + 0.15 * rows
  rows = rows + lean * rng.normal(size=dim)
  return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def query_of(rng, rows):
  """A unit query that mixes two rows."""
  query = rows[rng.integers(len(rows), size=2)].sum(axis=0)
  query = query + 0.2 * rng.normal(size=query.shape)
  return query / np.linalg.norm(query)


def subsets(num_docs, k):
  """`[num_sets, num_docs]` indicators of every set of k."""
  sets = np.asarray(list(itertools.combinations(range(num_docs), k)))
  indicators = np.zeros((len(sets), num_docs))
  np.put_along_axis(indicators, sets, 1.0, axis=1)
  return indicators


def choice_values(gain, penalty, gram, indicators):
  """F of each indicator: gains less the similarity of distinct pairs."""
  pairs = gram - np.diag(np.diag(gram))
  together = np.einsum("si,si->s", indicators @ pairs, indicators)
  return indicators @ gain - penalty * together


def objectives(trade_off, relevance, gram, indicators):
  """J of each indicator, from its definition."""
  k = int(indicators[0].sum())
  mean = choice_values(relevance, 0.0, gram, indicators) / k
  pairs = gram - np.diag(np.diag(gram))
  together = np.einsum("si,si->s", indicators @ pairs, indicators)
  diversity = 1.0 - together / max(k * (k - 1), 1)
  return trade_off * mean + (1.0 - trade_off) * diversity


def milp_optimum(gain, penalty, gram, k):
  """(F, indicator) by mixed-integer programming, products linearised."""
  n = len(gain)
  pairs = list(itertools.combinations(range(n), 2))
  cost = np.concatenate([-gain, [2 * penalty * gram[i, j] for i, j in pairs]])
  size = n + len(pairs)
  rows, low, high = [], [], []

  def add(entries, at_least, at_most):
    row = np.zeros(size)
    for place, value in entries:
      row[place] = value
    rows.append(row)
    low.append(at_least)
    high.append(at_most)

  add([(i, 1.0) for i in range(n)], k, k)
  for place, (i, j) in enumerate(pairs, start=n):
    add([(place, 1.0), (i, -1.0), (j, -1.0)], -1.0, np.inf)
    add([(place, 1.0), (i, -1.0)], -np.inf, 0.0)
    add([(place, 1.0), (j, -1.0)], -np.inf, 0.0)
  result = optimize.milp(
    cost,
    constraints=optimize.LinearConstraint(np.asarray(rows), low, high),
    bounds=optimize.Bounds(0, 1),
    integrality=np.concatenate([np.ones(n), np.zeros(len(pairs))]),
  )
  assert result.success
  return -result.fun, np.round(result.x[:n])


def swap_gains(gain, penalty, gram, indicator):
  """`[k, n - k]` changes of F, each by evaluating both sets."""
  inside, outside = np.flatnonzero(indicator), np.flatnonzero(1 - indicator)
  (before,) = choice_values(gain, penalty, gram, indicator[None])
  table = np.empty((len(inside), len(outside)))
  for a, i in enumerate(inside):
    for b, j in enumerate(outside):
      other = indicator.copy()
      other[i], other[j] = 0.0, 1.0
      table[a, b] = choice_values(gain, penalty, gram, other[None])[0] - before
  return table
