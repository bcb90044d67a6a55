"""What a search owes its caller: the kept first, each document once."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from nnn_jax.core import corpora, linalg, topk


def is_kept(keep: jax.Array, rows: jax.Array) -> jax.Array:
  """Which rows are in `keep`, an ascending list that num_docs fills up.

  >>> is_kept(jnp.asarray([2, 5, 9]), jnp.asarray([[5, 3], [0, 2]])).tolist()
  [[True, False], [False, True]]
  """
  at = jnp.searchsorted(keep, rows)
  return keep[jnp.minimum(at, keep.shape[0] - 1)] == rows


def found(
  documents: corpora.Searchable,
  residual: jax.Array,
  *,
  keep: jax.Array,
  rows: jax.Array,
  products: jax.Array,
  rest: jax.Array,
  num_scored: jax.Array,
  where: jax.Array | None,
) -> corpora.Found:
  """The kept documents, then the best of some others.

  Args:
    documents: The corpus.
    residual: `[dim]`.
    keep: `[num]`, as `Searchable.search` takes it.
    rows: `[num]` the best documents beside the kept, best first.
    products: `[num]` theirs with the residual; -inf where there are fewer.
    rest: Bound on the products of all documents in neither list.
    num_scored: Products computed so far.
    where: `[num_docs]` bool or None.
  """
  num_docs, num = documents.shape[0], keep.shape[0]
  kept = keep < num_docs
  if where is not None:
    kept &= where[keep]
  rows = jnp.concatenate([keep, rows])
  products = jnp.concatenate(
    [linalg.matmul(documents.rows(keep), residual), products]
  )
  order = products.at[:num].set(jnp.where(kept, jnp.inf, -jnp.inf))
  best, at = topk.top_k(order, num + 1)
  missing = at[:num] < 0
  return corpora.Found(
    jnp.where(missing, -1, rows[at[:num]]),
    jnp.where(missing, -jnp.inf, products[at[:num]]),
    jnp.maximum(rest, best[num]),
    num_scored + jnp.sum(kept, dtype=jnp.int32),
  )
