"""Errors that name the argument and the fix.

Shapes and static choices are checked while tracing (`check_shapes`,
`check_k`); values can only be checked on the host (`check_embeddings`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from nnn_jax import types
from nnn_jax.core import corpora, linalg

T = TypeVar("T", bound=tuple)


def check_shapes(**named: tuple[Any, str]) -> dict[str, int]:
  """Checks named arrays against symbolic shapes, such as "num_docs dim".

  Args:
    **named: argument name -> (array or index, space-separated axis names). An
      axis name used twice must have one size. None is skipped.

  Returns:
    The size of every axis name.

  Raises:
    ValueError: Naming the argument, both shapes and the fix.

  >>> check_shapes(corpus=(np.ones((5, 3)), "num_docs dim"))
  {'num_docs': 5, 'dim': 3}
  """
  sizes: dict[str, int] = {}
  owner: dict[str, str] = {}
  for name, (array, axes_text) in named.items():
    if array is None:
      continue
    axes = axes_text.split()
    shape = np.shape(array)
    if len(shape) != len(axes):
      fix = ""
      if len(shape) == len(axes) + 1:
        fix = f"; for a batch of `{name}`, use jax.vmap over its first axis"
      raise ValueError(
        f"{name} must have shape [{', '.join(axes)}], got {shape}{fix}."
      )
    for axis, size in zip(axes, shape, strict=True):
      if sizes.setdefault(axis, size) != size:
        raise ValueError(
          f"{name} must have shape [{', '.join(axes)}], got {shape}: {axis} "
          f"is {sizes[axis]} in `{owner[axis]}` and {size} here."
        )
      owner.setdefault(axis, name)
  return sizes


def check_k(k: int, num_docs: int) -> None:
  """Checks 1 <= k <= num_docs, both static.

  Raises:
    ValueError: If k is out of range or the corpus is empty.
  """
  if num_docs == 0:
    raise ValueError("corpus is empty (num_docs = 0): nothing to retrieve.")
  if not isinstance(k, (int, np.integer)) or isinstance(k, bool):
    raise ValueError(f"k must be a Python int (it is static), got {k!r}.")
  if not 1 <= k <= num_docs:
    raise ValueError(
      f"k must be between 1 and num_docs = {num_docs}, got k = {k}; "
      "use min(k, num_docs)."
    )


def check_where(where: types.Array | None) -> jax.Array | None:
  """A mask as a JAX array; its shape is `check_shapes`'s to check.

  Raises:
    ValueError: If it is not bool.
  """
  if where is None:
    return None
  where = jnp.asarray(where)
  if where.dtype != jnp.bool_:
    raise ValueError(f"where must be bool, got {where.dtype}.")
  return where


def check_inputs(
  query: types.Array,
  corpus: types.Array | corpora.Searchable,
  where: types.Array | None,
  *,
  k: int,
  index_fix: str = "this decoder needs an array [num_docs, dim]",
) -> tuple[jax.Array, Any, jax.Array | None]:
  """Checks a decoder's dense inputs and casts the query once, at entry.

  Args:
    query: `[dim]`.
    corpus: `[num_docs, dim]`.
    where: `[num_docs]` or None.
    k: Static.
    index_fix: What to say if the corpus is an index; "" where one is taken.

  Returns:
    (query `[dim]` in the compute dtype, corpus `[num_docs, dim]` as stored,
    where `[num_docs]` or None), as JAX arrays; an index as it is.

  Raises:
    ValueError: For shapes or dtypes that do not fit, or k out of range.
  """
  is_index = isinstance(corpus, corpora.Searchable)
  if is_index and index_fix:
    raise ValueError(
      f"corpus is an index, {type(corpus).__name__}: {index_fix}."
    )
  sizes = check_shapes(
    query=(query, "dim"),
    corpus=(corpus, "num_docs dim"),
    where=(where, "num_docs"),
  )
  check_k(k, sizes["num_docs"])
  if sizes["dim"] == 0:
    raise ValueError("query and corpus have dim = 0: there is nothing to rank.")
  where = check_where(where)
  query = jnp.asarray(query)
  if not is_index:
    corpus = jnp.asarray(corpus)
  dtype = linalg.compute_dtype(query.dtype, corpus.dtype)
  return query.astype(dtype), corpus, where


def check_choice(name: str, value: object, allowed: Sequence[type]) -> None:
  """Checks that a static choice has one of the allowed types.

  Raises:
    ValueError: Naming the argument and what it may be.
  """
  if not isinstance(value, tuple(allowed)):
    names = " or ".join(kind.__name__ for kind in allowed)
    raise ValueError(f"{name} must be {names}, got {value!r}.")


def check_embeddings(
  name: str, embeddings: types.Array, ids: Sequence[str] | None = None
) -> None:
  """Host boundary: rejects embeddings that no decoder can rank.

  Call it where embeddings enter the program (a file, an encoder); inside jit
  read `aux.finite` instead.

  Args:
    name: The argument's name, for the message.
    embeddings: `[rows, dim]`.
    ids: `[rows]` external ids, for the message; must be distinct.

  Raises:
    ValueError: If there are no rows, a row has NaN or infinity, or an id is
      repeated. The row is named.

  >>> check_embeddings("corpus", np.asarray([[1.0, 0.0], [np.nan, 1.0]]))
  Traceback (most recent call last):
  ...
  ValueError: corpus row 1 holds NaN or infinity (1 such row of 2): ...
  """
  values = np.asarray(embeddings)
  if values.ndim != 2:
    raise ValueError(f"{name} must have shape [rows, dim], got {values.shape}.")
  if values.shape[0] == 0:
    raise ValueError(f"{name} is empty: it has no rows.")
  if ids is not None:
    if len(ids) != values.shape[0]:
      raise ValueError(f"{name} has {values.shape[0]} rows but {len(ids)} ids.")
    first: dict[str, int] = {}
    for row, doc_id in enumerate(ids):
      if first.setdefault(doc_id, row) != row:
        raise ValueError(
          f"{name} id {doc_id!r} is on rows {first[doc_id]} and {row}: ids "
          "must be distinct; drop one of the rows."
        )
  bad = np.flatnonzero(~np.isfinite(values.astype(np.float32)).all(axis=1))
  if bad.size:
    label = f" (id {ids[bad[0]]!r})" if ids is not None else ""
    raise ValueError(
      f"{name} row {bad[0]}{label} holds NaN or infinity ({bad.size} such "
      f"row{'s' if bad.size > 1 else ''} of {values.shape[0]}): encode it "
      "again or drop it."
    )


def check_params(
  name: str, params: Any, kind: Callable[..., T], dtype: jnp.dtype
) -> T:
  """Casts a NamedTuple of scalars once, at entry.

  A Python float and a float32 scalar would compile separately (weak types).

  Raises:
    ValueError: If there are not as many scalars as `kind` has fields.
  """
  fields = kind._fields  # type: ignore[attr-defined]
  values = tuple(params) if isinstance(params, (tuple, list)) else (params,)
  if len(values) != len(fields) or not all(
    isinstance(v, (int, float, np.number, np.ndarray, jax.Array))
    and np.shape(v) == ()
    for v in values
  ):
    raise ValueError(
      f"{name} must be {kind.__name__}({', '.join(fields)}) with scalars, got "
      f"{params!r}; to sweep several values, use jax.vmap over params."
    )
  return kind(*(jnp.asarray(v, dtype) for v in values))


def all_finite(*arrays: types.Array) -> jax.Array:
  """A traced bool: no array holds NaN or infinity."""
  return jnp.all(jnp.stack([jnp.isfinite(a).all() for a in arrays]))
