"""Checkpoints: the only module that touches Orbax."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import orbax.checkpoint as ocp
from absl import logging


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Holds back Orbax's ten lines of progress a save."""
  verbosity = logging.get_verbosity()
  logging.set_verbosity(logging.WARNING)
  try:
    yield
  finally:
    logging.set_verbosity(verbosity)


class Checkpoints:
  """The newest checkpoint of a folder: a pytree of arrays and a JSON dict.

  A save is written beside the old checkpoint and renamed into place, and the
  old one goes last, so a killed or failed save loses nothing.
  """

  def __init__(self, folder: pathlib.Path):
    with _quiet():
      self._manager = ocp.CheckpointManager(
        folder.absolute(),
        options=ocp.CheckpointManagerOptions(
          preservation_policy=ocp.checkpoint_managers.LatestN(1)
        ),
      )

  @property
  def latest_step(self) -> int | None:
    """The step of the newest complete checkpoint, or None."""
    return self._manager.latest_step()

  def save(self, step: int, state: Any, meta: dict[str, Any]) -> None:
    """Writes a checkpoint and waits until it is on disk.

    A run that was killed after this save and resumed from an earlier one
    arrives here again with the same values: the checkpoint is kept.
    """
    if step == self.latest_step:
      return
    with _quiet():
      self._manager.save(
        step,
        args=ocp.args.Composite(
          state=ocp.args.StandardSave(state), meta=ocp.args.JsonSave(meta)
        ),
      )
      self._manager.wait_until_finished()

  def restore(self, like: Any) -> tuple[Any, dict[str, Any]]:
    """Reads the newest checkpoint into the structure of `like`.

    Args:
      like: A pytree with the shapes and dtypes that were saved; without it
        named tuples come back as dicts and lists.
    """
    abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
    with _quiet():
      restored = self._manager.restore(
        self.latest_step,
        args=ocp.args.Composite(
          state=ocp.args.StandardRestore(abstract),
          meta=ocp.args.JsonRestore(),
        ),
      )
    return restored.state, restored.meta

  def close(self) -> None:
    """Waits for what is pending and frees the manager's threads."""
    with _quiet():
      self._manager.close()
