"""Exact NNN decoding over a grid of penalties, and rules that read it.

With rho = l1 / max(corpus query), the units in which penalties do not depend
on the query's length: w(c query, c l1, l2) = c w(query, l1, l2).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tqdm
from absl import logging

from experiments import embeddings as embeddings_lib
from nnn_jax import metrics
from nnn_jax.core import linalg, topk
from nnn_jax.solvers import path

K = 5
L1 = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
RHO = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
L2 = (0.01, 0.1, 0.3, 1.0, 3.0)
SUPPORT_SIZES = (1, 2, 3, 4, 5, 6, 8, 10)
PRICES = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2)
PATH = path.PathConfig(capacity=64, num_pieces=96)


class Sweep(NamedTuple):
  """What every pair of a grid does to every query.

  Attributes:
    values: `[num_queries, num_l1, num_l2, 2]`, Comp@5 and Recall@5.
    support_size: `[num_queries, num_l1, num_l2]`.
    residual: `[num_queries, num_l1, num_l2]`, ||query - corpus^T w||^2.
  """

  values: np.ndarray
  support_size: np.ndarray
  residual: np.ndarray


@jax.jit
def _solve(l1, l2, queries, corpus):
  """One path a query, read at its own `[num_queries, num_l1]`."""

  def one(item):
    query = item[1]
    followed = path.solve(query, corpus, l2, config=PATH)

    def read(l1):
      point = path.at(followed, l1)
      residual = query - point.weights @ corpus[point.indices]
      # As the decoder ranks: the support by weight, then by correlation.
      scores = jnp.minimum(linalg.matmul(corpus, residual) - l1, 0.0)
      rows = jnp.where(point.weights > 0, point.indices, len(corpus))
      scores = scores.at[rows].set(point.weights, mode="drop")
      indices = topk.top_k(scores, K)[1]
      return indices, point.support_size, jnp.sum(residual**2), point.exact

    return jax.vmap(read)(item[0])

  return jax.lax.map(one, (l1, queries), batch_size=32)


def values_of(indices: Any, labels: np.ndarray) -> np.ndarray:
  """Comp@5 and Recall@5, `[num_queries, 2]`."""
  found = metrics.per_query(indices, labels, ks=(K,))
  return np.stack([found[f"comp@{K}"], found[f"recall@{K}"]], axis=-1)


def sweep(
  embeddings: embeddings_lib.Embeddings, *, description: str | None = None
) -> tuple[Sweep, Sweep]:
  """Solves for L1 x L2, and for RHO x L2 with l1 = rho max(corpus query).

  A pair whose support is beyond the path's capacity counts as a failure.
  """
  queries, corpus = jnp.asarray(embeddings.queries), embeddings.corpus
  top = linalg.matmul(queries, corpus.T).max(axis=1)
  l1 = jnp.concatenate(
    [
      jnp.tile(jnp.asarray(L1), (len(queries), 1)),
      jnp.outer(top, jnp.asarray(RHO)),
    ],
    axis=1,
  )
  results = []
  for l2 in tqdm.tqdm(
    L2, desc=description, disable=description is None, mininterval=5.0
  ):
    indices, *rest = _solve(l1, jnp.float32(l2), queries, corpus)
    labels = np.repeat(embeddings.labels[:, None], l1.shape[1], axis=1)
    results.append((values_of(indices, labels), *rest))
  values, size, residual, exact = (
    np.stack(r, axis=2) for r in zip(*results, strict=True)
  )
  logging.info("Paths reach %.2f %% of the grid.", 100 * exact.mean())
  values = np.where(exact[..., None], values, 0.0)
  split = len(L1)
  return (
    Sweep(values[:, :split], size[:, :split], residual[:, :split]),
    Sweep(values[:, split:], size[:, split:], residual[:, split:]),
  )


def by_support_size(swept: Sweep, size: int) -> np.ndarray:
  """The largest rho with `size` documents, `[num_queries, num_l2]` columns.

  Where none has as many it is the smallest rho.
  """
  enough = swept.support_size >= size
  enough[:, -1] = True
  return enough.argmax(axis=1)


def by_criterion(swept: Sweep, price: float) -> np.ndarray:
  """The rho with the least log residual + price * support size.

  The support size is the lasso's degrees of freedom (Zou, Hastie and Tibshirani
  2007, "On the degrees of freedom of the lasso"), so that a price of ln(n) / n
  would be BIC's for n independent dimensions; embeddings are not, so the price
  is chosen.
  """
  tiny = np.finfo(swept.residual.dtype).tiny
  fit = np.log(np.maximum(swept.residual, tiny))
  return (fit + price * swept.support_size).argmin(axis=1)


def read(swept: Sweep, places: np.ndarray) -> np.ndarray:
  """Values at one l1 a query and l2: `[num_queries, num_l2, 2]`."""
  return np.take_along_axis(swept.values, places[:, None, :, None], 1)[:, 0]


def pick(values: np.ndarray) -> tuple[int, ...]:
  """Where `[num_queries, ..., 2]` has the best mean Comp, ties by Recall."""
  comp, recall = np.moveaxis(values.mean(axis=0), -1, 0)
  # Comp is a multiple of 1 / num_queries, so that this only breaks ties.
  total = comp + 0.5 * recall / len(values)
  return tuple(int(i) for i in np.unravel_index(total.argmax(), total.shape))
