"""Placing a corpus over several devices.

Decoders are plain jnp: a corpus sharded by rows is decoded by the same code.
Only `core.topk` reads the mesh, since XLA would gather a sharded axis to sort
it.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
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


def pad_and_shard(
  corpus: types.Array, mesh: jax.sharding.Mesh
) -> tuple[jax.Array, jax.Array]:
  """Pads the corpus to a multiple of the mesh and places its rows over it.

  Args:
    corpus: `[num_docs, dim]`.
    mesh: From `make_mesh`.

  Returns:
    (corpus `[padded, dim]`, where `[padded]` bool: False on padding), both
    sharded by rows. Pass `where` to the decoder.
  """
  num_docs = corpus.shape[0]
  padding = -num_docs % mesh.shape[DOCS_AXIS]
  padded = np.pad(np.asarray(corpus), ((0, padding), (0, 0)))
  where = np.arange(num_docs + padding) < num_docs
  sharding = jax.sharding.NamedSharding(
    mesh, jax.sharding.PartitionSpec(DOCS_AXIS)
  )
  return (
    jax.device_put(jnp.asarray(padded), sharding),
    jax.device_put(jnp.asarray(where), sharding),
  )
