"""Metrics to a JSONL file and to TensorBoard."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping

import tensorboardX

from nnn_jax import files


class MetricsWriter:
  """Appends scalars; on resume drops what the lost steps had written."""

  def __init__(self, folder: pathlib.Path, *, resume_step: int = 0):
    """Opens `metrics.jsonl` and event files in `folder`.

    Args:
      folder: Made if it is not there.
      resume_step: Records of later steps were written by a run that died
        after its last checkpoint; they are removed, since they come again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    self._path = folder / "metrics.jsonl"
    kept = [r for r in read_metrics(folder) if r["step"] <= resume_step]
    files.write(self._path, "".join(json.dumps(r) + "\n" for r in kept))
    self._file = self._path.open("a")
    self._board = tensorboardX.SummaryWriter(
      str(folder / "tensorboard"), purge_step=resume_step + 1
    )

  def write(self, step: int, metrics: Mapping[str, float]) -> None:
    """Appends one record."""
    record = {"step": step, **{k: float(v) for k, v in metrics.items()}}
    self._file.write(json.dumps(record) + "\n")
    self._file.flush()
    for name, value in metrics.items():
      # TensorBoard's tags have no "@".
      self._board.add_scalar(name.replace("@", "_"), float(value), step)

  def close(self) -> None:
    """Closes both files."""
    self._file.close()
    self._board.close()


def read_metrics(folder: pathlib.Path) -> list[dict[str, float]]:
  """Reads the records of `metrics.jsonl`; a torn last line is left out."""
  path = folder / "metrics.jsonl"
  records = []
  if path.exists():
    for line in path.read_text().splitlines():
      try:
        records.append(json.loads(line))
      except json.JSONDecodeError:  # Killed in the middle of a write.
        break
  return records
