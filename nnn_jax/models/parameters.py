"""A module's parameters in a safetensors file, by name."""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from flax import nnx

from nnn_jax import files


def write(
  path: pathlib.Path, module: nnx.Module, *, leave_out: str | None = None
) -> None:
  """Writes them, without those of submodules of the name `leave_out`."""
  leaves = jax.tree.leaves_with_path(nnx.split(module)[1])
  tensors = {
    name: np.asarray(value)
    for name, value in ((_name(place), value) for place, value in leaves)
    if leave_out not in name.split(".")
  }
  files.write(path, safetensors.numpy.save(tensors))


def read(
  path: pathlib.Path, module: nnx.Module, *, leave_out: str | None = None
) -> None:
  """Sets them, in place.

  Raises:
    ValueError: If the file lacks one.
  """
  stored = safetensors.numpy.load_file(path)

  def value(place, old):
    name = _name(place)
    if leave_out in name.split("."):
      return old
    if name not in stored:
      raise ValueError(f"{path} lacks the parameter {name}: it is another's.")
    return jnp.asarray(stored[name])

  state = nnx.split(module)[1]
  nnx.update(module, jax.tree.map_with_path(value, state))


def _name(place: Any) -> str:
  """Such as "mlp_in.kernel"."""
  return jax.tree_util.keystr(place, simple=True, separator=".")
