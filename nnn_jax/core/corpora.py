"""A corpus as a solver sees it: rows to fetch, and a search for the best.

An array of embeddings is searched exhaustively. An index of `nnn_jax.indexes`
is a pytree with the same methods that looks at fewer documents.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from nnn_jax import types
from nnn_jax.core import linalg, sharding, topk


class Found(NamedTuple):
  """What a search returns.

  Attributes:
    indices: `[num]` int32 rows; -1 where there are fewer.
    correlation: `[num]`, their products with the residual; -inf where missing.
    rest: An upper bound on the products of all other documents; -inf where
      there are none, inf where nothing is known of them, NaN where a product
      is not finite.
    num_scored: int32, documents whose product was computed.
  """

  indices: jax.Array
  correlation: jax.Array
  rest: jax.Array
  num_scored: jax.Array


@runtime_checkable
class Searchable(Protocol):
  """A pytree of documents."""

  @property
  def shape(self) -> tuple[int, ...]:
    """(num_docs, dim)."""
    ...

  @property
  def dtype(self) -> jnp.dtype:
    """Of the embeddings as stored."""
    ...

  def rows(self, indices: types.Array) -> jax.Array:
    """The embeddings `[num_indices, dim]`, in the compute dtype."""
    ...

  def max_norm(self) -> jax.Array:
    """An upper bound on the norm of a row."""
    ...

  def search(
    self,
    residual: jax.Array,
    *,
    num: int,
    keep: jax.Array,
    threshold: jax.Array,
    where: jax.Array | None,
  ) -> Found:
    """Looks for the largest products with the residual.

    Args:
      residual: `[dim]`.
      num: Static; how many documents to return, at most num_docs.
      keep: `[num]` rows to return first, in ascending order, filled with
        num_docs; fewer than num of them.
      threshold: Only products above it matter. A search that finds none beside
        the kept must look on until `rest` is at most the threshold, if it can;
        one that finds some may stop: the caller comes again.
      where: `[num_docs]` bool or None; False leaves a document out.
    """
    ...


@runtime_checkable
class Grouped(Protocol):
  """A pytree of documents in groups, each within a ball.

  Attributes:
    centres: `[num_groups, dim]`.
    radii: `[num_groups]`.
  """

  centres: jax.Array
  radii: jax.Array

  @property
  def shape(self) -> tuple[int, ...]:
    """(num_docs, dim)."""
    ...

  def rows(self, indices: types.Array) -> jax.Array:
    """The embeddings `[num_indices, dim]`, in the compute dtype."""
    ...

  def members(
    self, clusters: jax.Array
  ) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Embeddings, rows, and which are documents, of some groups (-1: none)."""
    ...


@runtime_checkable
class Neighboured(Protocol):
  """A pytree of documents with a graph; `indexes.neighbours` builds it.

  Attributes:
    neighbours: `[num_docs, degree]` int32, -1 where fewer.
    entries: `[num_entries]` int32, where a walk begins.
  """

  neighbours: jax.Array
  entries: jax.Array

  @property
  def shape(self) -> tuple[int, ...]:
    """(num_docs, dim)."""
    ...

  def rows(self, indices: types.Array) -> jax.Array:
    """The embeddings `[num_indices, dim]`, in the compute dtype."""
    ...


class Stored:
  """What an index has that keeps the embeddings in corpus order.

  Attributes:
    embeddings: `[num_docs, dim]`, in any float dtype.
  """

  embeddings: jax.Array

  @property
  def shape(self) -> tuple[int, ...]:
    """(num_docs, dim)."""
    return self.embeddings.shape

  @property
  def dtype(self) -> jnp.dtype:
    """Of the embeddings as stored."""
    return self.embeddings.dtype

  def rows(self, indices: types.Array) -> jax.Array:
    """The embeddings of some documents; differentiable."""
    return linalg.rows(self.embeddings, indices)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AllDocuments(Stored):
  """An array of embeddings, searched exhaustively.

  Attributes:
    embeddings: `[num_docs, dim]`, in any float dtype.
  """

  embeddings: jax.Array

  def max_norm(self) -> jax.Array:
    """The largest norm of a row."""
    return linalg.max_row_norm(self.embeddings)

  def search(
    self,
    residual: jax.Array,
    *,
    num: int,
    keep: jax.Array,
    threshold: jax.Array,
    where: jax.Array | None,
  ) -> Found:
    """One product with the corpus; see `Searchable`."""
    del threshold
    num_docs = self.shape[0]
    correlation = linalg.products(self.embeddings, residual)
    # Equals rank by row, so the kept come first and in order.
    order = correlation.at[keep].set(jnp.inf, mode="drop")
    best, indices = topk.top_k(order, num, where=where)
    rest = best[-1] if num < num_docs else jnp.full_like(best[-1], -jnp.inf)
    finite = jnp.isfinite(correlation)
    if where is not None:
      finite |= ~where
    rest = jnp.where(finite.all(), rest, jnp.nan)
    return Found(
      indices,
      jnp.where(indices >= 0, correlation[indices], -jnp.inf),
      rest,
      jnp.asarray(num_docs, jnp.int32),
    )


def searchable(corpus: types.Array | Searchable) -> Searchable:
  """An index as it is, an array as `AllDocuments`."""
  if isinstance(corpus, Searchable):
    return corpus
  return AllDocuments(sharding.keep_rows_placed(jnp.asarray(corpus)))
