"""Placing a corpus over several devices.

Decoders are plain jnp: a corpus sharded by rows is decoded by the same code.
Only `core.topk` reads the mesh, since XLA would gather a sharded axis to sort
it.

Over several processes, after `jax.distributed.initialize()`, the same calls
make one corpus of which each process holds its rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial

import jax
import numpy as np

from nnn_jax import types

DOCS_AXIS = "docs"


def make_mesh(devices: Sequence[jax.Device] | None = None) -> jax.sharding.Mesh:
  """A one-axis mesh over `devices` (default: all), for corpus rows.

  Use it as `with jax.set_mesh(make_mesh()): ...`. The axis is Auto: the
  default of `jax.make_mesh`, Explicit, raises ShardingTypeError on the same
  decoder code.
  """
  devices = jax.devices() if devices is None else devices
  return jax.make_mesh(
    (len(devices),),
    (DOCS_AXIS,),
    axis_types=(jax.sharding.AxisType.Auto,),
    devices=devices,
  )


def local_rows(num_docs: int, mesh: jax.sharding.Mesh) -> slice:
  """The documents that this process holds, for it to load or to encode.

  With one process that is all of them. Rows are padded to a multiple of the
  mesh, so the last processes may hold fewer documents than the first.

  Args:
    num_docs: Documents in all.
    mesh: From `make_mesh`.

  Raises:
    ValueError: If the mesh gives this process no consecutive rows.

  >>> local_rows(13, make_mesh())
  slice(0, 13, None)
  """
  num_rows = num_docs + -num_docs % mesh.size
  held = _by_rows(mesh).addressable_devices_indices_map((num_rows,))
  spans = sorted(rows[0].indices(num_rows)[:2] for rows in held.values())
  if not spans or any(a[1] != b[0] for a, b in itertools.pairwise(spans)):
    raise ValueError(
      f"mesh must hold this process's devices, next to each other: got "
      f"{mesh.devices.tolist()}."
    )
  return slice(min(spans[0][0], num_docs), min(spans[-1][1], num_docs))


def shard_local(
  rows: types.Array, num_docs: int, mesh: jax.sharding.Mesh
) -> tuple[jax.Array, jax.Array]:
  """Joins every process's rows to one sharded corpus.

  No process needs more of the corpus than its own rows.

  Args:
    rows: `[local, dim]`, the documents `local_rows(num_docs, mesh)`.
    num_docs: Documents in all, the same in every process.
    mesh: From `make_mesh`.

  Returns:
    As `pad_and_shard`.

  Raises:
    ValueError: If these are not as many rows as the process holds.
  """
  held = local_rows(num_docs, mesh)
  count = held.stop - held.start
  if np.ndim(rows) != 2 or rows.shape[0] != count:
    raise ValueError(
      f"rows must have shape [{count}, dim], got {np.shape(rows)}: process "
      f"{jax.process_index()} of {jax.process_count()} holds documents "
      f"{held.start} to {held.stop} of {num_docs}; pass "
      "corpus[local_rows(num_docs, mesh)]."
    )
  num_rows = num_docs + -num_docs % mesh.size
  num_local = num_rows // mesh.size * len(mesh.local_devices)
  rows = np.asarray(rows)
  if count < num_local:
    rows = np.pad(rows, ((0, num_local - count), (0, 0)))
  place = partial(jax.make_array_from_process_local_data, _by_rows(mesh))
  return (
    place(rows, (num_rows, rows.shape[1])),
    place(np.arange(num_local) < count, (num_rows,)),
  )


def keep_rows_placed(corpus: jax.Array) -> jax.Array:
  """The corpus, and its cotangent, by rows over the current mesh, if there is.

  Without it XLA replicates the cotangent of a few gathered rows. A mesh that
  does not divide the corpus is ignored.
  """
  mesh = jax.sharding.get_abstract_mesh()
  shards = mesh.shape.get(DOCS_AXIS, 1)
  if shards == 1 or corpus.shape[0] % shards:
    return corpus
  return jax.lax.with_sharding_constraint(
    corpus, jax.sharding.PartitionSpec(DOCS_AXIS)
  )


def pad_and_shard(
  corpus: types.Array, mesh: jax.sharding.Mesh
) -> tuple[jax.Array, jax.Array]:
  """Pads the corpus to a multiple of the mesh and places its rows over it.

  Each process reads the rows that its devices hold, and no others: a corpus
  that does not fit one host is passed as `np.load(path, mmap_mode="r")`.

  Args:
    corpus: `[num_docs, dim]`, the same in every process.
    mesh: From `make_mesh`.

  Returns:
    (corpus `[padded, dim]`, where `[padded]` bool: False on padding), both
    sharded by rows. Pass `where` to the decoder.
  """
  num_docs = corpus.shape[0]
  return shard_local(corpus[local_rows(num_docs, mesh)], num_docs, mesh)


def _by_rows(mesh):
  spec = jax.sharding.PartitionSpec(DOCS_AXIS)
  return jax.sharding.NamedSharding(mesh, spec)
