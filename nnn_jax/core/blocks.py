"""A function of rows, a block of them at a time: memory stays bounded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from nnn_jax.core import sharding


def map_rows(
  fn: Callable[[Any, Any], jax.Array],
  shared: Any,
  rows: Any,
  *,
  block_size: int,
) -> jax.Array:
  """`fn(shared, rows)`, where a row of the result is one of that row alone.

  Rows that are sharded over the mesh stay where they are: each device goes
  through its own. Not differentiable in reverse mode.

  Args:
    fn: (shared, a block of rows) -> `[block_size, ...]`. It must not close over
      traced arrays: those are `shared`.
    shared: A pytree that every block sees whole.
    rows: A pytree of `[num_rows, ...]`.
    block_size: Static.

  >>> map_rows(jnp.multiply, 2.0, jnp.arange(5.0), block_size=2).tolist()
  [0.0, 2.0, 4.0, 6.0, 8.0]
  """
  local = partial(_map_local, fn, block_size=block_size)
  mesh = jax.sharding.get_abstract_mesh()
  shards = mesh.shape.get(sharding.DOCS_AXIS, 1)
  num_rows = jax.tree.leaves(rows)[0].shape[0]
  if shards == 1 or num_rows % shards:
    return local(shared, rows)
  spec = jax.sharding.PartitionSpec
  by_rows = spec(sharding.DOCS_AXIS)
  return jax.shard_map(
    local,
    mesh=mesh,
    in_specs=(spec(), by_rows),
    out_specs=by_rows,
    check_vma=False,
  )(shared, rows)


def _map_local(fn, shared, rows, *, block_size):
  num_rows = jax.tree.leaves(rows)[0].shape[0]
  if num_rows <= block_size:
    return fn(shared, rows)

  def block_at(start):
    return jax.tree.map(
      lambda x: jax.lax.dynamic_slice_in_dim(x, start, block_size), rows
    )

  def step(i, out):
    # The last block begins early enough to be whole: no copy is padded, and
    # what it shares with the block before is computed twice.
    start = jnp.minimum(i * block_size, num_rows - block_size)
    values = fn(shared, block_at(start))
    return jax.lax.dynamic_update_slice_in_dim(out, values, start, axis=0)

  block = jax.eval_shape(lambda: fn(shared, block_at(0)))
  out = jnp.zeros((num_rows, *block.shape[1:]), block.dtype)
  return jax.lax.fori_loop(0, -(-num_rows // block_size), step, out)
