"""A caller's own search, such as an approximate index of another library.

  def candidate_fn(residual):  # [dim] -> [num_found] int32 corpus rows
    found = jax.ShapeDtypeStruct((64,), jnp.int32)
    return jax.pure_callback(
      lambda r: ann.search(np.asarray(r)[None], 64)[1][0].astype(np.int32),
      found, residual, vmap_method="sequential",
    )

`ann` stands for an index of faiss, or of any library that takes a vector and
returns rows; `vmap_method="expand_dims"` gives it the whole batch at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from nnn_jax.core import checks, corpora, linalg, topk
from nnn_jax.indexes import kept


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Candidates(corpora.Stored):
  """A `corpora.Searchable` that asks a function where to look.

  Weights are optimal over what the function has returned so far. Nothing is
  known of the other documents, so there is no certificate: `exact` is False
  and `kkt_violation` infinite.

  Attributes:
    embeddings: `[num_docs, dim]`, in any float dtype.
    candidate_fn: Static; residual `[dim]` -> `[num_found]` int32 corpus rows
      whose products with the residual are large, traceable by JAX. Rows out of
      range (-1 for none) and repeated ones are left out. Define it once: each
      new function compiles anew.

  >>> import numpy as np
  >>> corpus = np.float32([[1, 0], [0, 1], [0.6, 0.8]])
  >>> index = Candidates(corpus, lambda r: jax.lax.top_k(corpus @ r, 2)[1])
  >>> found = index.search(
  ...   jnp.asarray([0.0, 1.0]),
  ...   num=2,
  ...   keep=jnp.full(2, 3),
  ...   threshold=jnp.asarray(0.0),
  ...   where=None,
  ... )
  >>> found.indices.tolist(), float(found.rest)
  ([1, 2], inf)
  """

  embeddings: jax.Array
  candidate_fn: Callable[[jax.Array], jax.Array] = dataclasses.field(
    metadata={"static": True}
  )

  def max_norm(self) -> jax.Array:
    """Infinite: of no use without a bound on what was not found."""
    return jnp.asarray(jnp.inf, linalg.compute_dtype(self.embeddings))

  def search(
    self,
    residual: jax.Array,
    *,
    num: int,
    keep: jax.Array,
    threshold: jax.Array,
    where: jax.Array | None,
  ) -> corpora.Found:
    """Scores what candidate_fn returns; see `Searchable`.

    Raises:
      ValueError: While tracing, if it returns anything but integers `[n]`.
    """
    del threshold
    num_docs = self.shape[0]
    rows = jnp.asarray(self.candidate_fn(residual))
    checks.check_shapes(**{"candidate_fn(residual)": (rows, "num_found")})
    if not jnp.issubdtype(rows.dtype, jnp.integer):
      raise ValueError(
        f"candidate_fn must return integer rows, got {rows.dtype}."
      )
    rows = jnp.sort(jnp.where(rows < 0, num_docs, rows).astype(jnp.int32))
    again = jnp.concatenate([jnp.zeros(1, bool), rows[1:] == rows[:-1]])
    new = (rows < num_docs) & ~again[: rows.shape[0]]
    new &= ~kept.is_kept(keep, rows)
    allowed = new if where is None else new & where[rows]
    products = linalg.matmul(self.rows(rows), residual)
    # Padded, for there may be fewer than num.
    products = jnp.pad(
      jnp.where(allowed, products, -jnp.inf), (0, num), constant_values=-jnp.inf
    )
    best, at = topk.top_k(products, num)
    return kept.found(
      self,
      residual,
      keep=keep,
      rows=jnp.pad(rows, (0, num))[at],
      products=best,
      rest=jnp.asarray(jnp.inf, residual.dtype),
      num_scored=jnp.sum(new, dtype=jnp.int32),
      where=where,
    )
