"""Metrics of a list by itself, or against another list."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from nnn_jax.core import linalg
from nnn_jax.metrics import common

Array = common.Array


def ilad(indices: Array, corpus: Array, *, k: int) -> jax.Array:
  """Intra-list average distance: mean pairwise 1 - cosine of the first k.

    2 / (n (n - 1)) sum_{i < j} (1 - cos(u_i, u_j))

  over the n places of the top k that are not missing; 0 for n < 2. A zero row
  has cosine 0 with every other.

  Source: Zhang and Hurley (2008), Avoiding monotony.

  Args:
    indices: `[..., num_retrieved]` corpus rows, -1 missing.
    corpus: `[num_docs, dim]`, of any length of row.
    k: how many places to read.

  Returns:
    `[...]`.

  Raises:
    ValueError: if `corpus` is not a matrix or `k` is out of range.

  >>> from nnn_jax import metrics
  >>> print(metrics.ilad(jnp.array([0, 1]), jnp.eye(2), k=2))
  1.0
  """
  indices, corpus = jnp.asarray(indices), jnp.asarray(corpus)
  if corpus.ndim != 2:
    raise ValueError(
      f"corpus must be [num_docs, dim], got shape {corpus.shape}."
    )
  indices = common.top(indices, k, "indices")
  if corpus.shape[0] == 0:  # Nothing to gather from: every place is a miss.
    return jnp.zeros(indices.shape[:-1], linalg.compute_dtype(corpus))
  found = (indices >= 0) & (indices < corpus.shape[0])
  rows = linalg.normalize(corpus[jnp.where(found, indices, 0)])
  cosine = linalg.matmul(rows, jnp.swapaxes(rows, -1, -2))  # [..., k, k]
  pairs = found[..., :, None] & found[..., None, :]
  pairs &= jnp.broadcast_to(~jnp.eye(k, dtype=bool), pairs.shape)
  total = jnp.where(pairs, 1.0 - cosine, 0.0).sum(axis=(-2, -1))
  return common.ratio(total, pairs.sum(axis=(-2, -1)).astype(total.dtype))


def overlap(indices: Array, other: Array, *, k: int) -> jax.Array:
  """|top k of one ranking, in the top k of the other| / k.

  Missing places are common to nobody.

  Args:
    indices: `[..., num_retrieved]` corpus rows, -1 missing.
    other: the same, of another decoder; only the last axis may differ.
    k: how many places to read.

  Returns:
    `[...]`.

  Raises:
    ValueError: if the leading axes differ or `k` is out of range.

  >>> from nnn_jax import metrics
  >>> print(metrics.overlap(jnp.array([4, 2, 7]), jnp.array([2, 5, 4]), k=2))
  0.5
  """
  indices, other = jnp.asarray(indices), jnp.asarray(other)
  common.check_leading("other", other, "indices", indices)
  indices, other = (
    common.top(indices, k, "indices"),
    common.top(other, k, "other"),
  )
  counts = (indices >= 0) & ~common.repeated(indices)
  shared = (indices[..., :, None] == other[..., None, :]).any(axis=-1)
  return (counts & shared).sum(axis=-1).astype(jnp.float32) / k


def p_mrr(indices: Array, changed_indices: Array, changed: Array) -> jax.Array:
  """How far the documents that an instruction turned irrelevant fall.

  With r and r' the ranks of such a document without and with the change, from
  1, one more than num_retrieved where it is not in the list,

    p-MRR = mean over changed documents of
              1 - r / r'  where r' > r,  else  r' / r - 1

  from -1 (to the top) to 1; 0 where the order is the same.

  Source: Weller et al. (2024), FollowIR, arXiv 2403.15246.

  Args:
    indices: `[..., num_retrieved]`, for the original instruction; -1 is none.
    changed_indices: Likewise for the changed one.
    changed: `[..., num_docs]` bool, the documents whose relevance changed.

  Returns:
    `[...]`; 0 for a query without such a document.

  >>> before, after = jnp.asarray([0, 1]), jnp.asarray([1, 0])
  >>> print(p_mrr(before, after, jnp.asarray([True, False])))
  0.5
  """
  changed = jnp.asarray(changed)
  ranks = []
  for name, given in {
    "indices": indices,
    "changed_indices": changed_indices,
  }.items():
    rows = jnp.asarray(given)
    common.check_leading("changed", changed, name, rows)
    num = rows.shape[-1]
    places = jnp.arange(1, num + 1, dtype=jnp.float32)
    # By scatter: no array of places times documents.
    flat = jnp.where(rows < 0, changed.shape[-1], rows).reshape(-1, num)
    absent = jnp.full((flat.shape[0], changed.shape[-1]), num + 1.0)
    rank = jax.vmap(lambda r, f, p=places: r.at[f].min(p, mode="drop"))(
      absent, flat
    )
    ranks.append(rank.reshape(changed.shape))
  before, after = ranks
  change = jnp.where(after > before, 1 - before / after, after / before - 1)
  total = jnp.where(changed, change, 0.0).sum(axis=-1)
  return common.ratio(total, changed.sum(axis=-1).astype(total.dtype))
