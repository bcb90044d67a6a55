"""The figure of a training: its loss and what validation measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import matplotlib
import matplotlib.ticker
import numpy as np

from experiments import drawing
from nnn_jax import files


def draw(
  records: Iterable[Mapping[str, Any]],
  path: files.PathLike,
  *,
  loss: str = "loss",
  validation: str = "comp@5",
  metric: str = "validation Comp@5",
) -> None:
  """Draws the training loss and a validation metric against the step.

  Args:
    records: mappings with "step" and either or both of the keys below, such as
      the lines of a metrics JSONL file; others are passed over.
    path: the PNG to write.
    loss: the key of the training loss.
    validation: the key of the validation metric, a fraction.
    metric: what to call it.

  Raises:
    ValueError: if no record has a step and one of the keys.
  """
  records = list(records)

  def series(key: str) -> tuple[np.ndarray, np.ndarray]:
    points = [(r["step"], r[key]) for r in records if "step" in r and key in r]
    steps, values = np.asarray(points, float).reshape(-1, 2).T
    order = np.argsort(steps, kind="stable")
    return steps[order], values[order]

  losses, scores = series(loss), series(validation)
  if not losses[0].size and not scores[0].size:
    raise ValueError(
      f'no record has "step" and {loss!r} or {validation!r}: nothing to draw'
    )
  with matplotlib.rc_context(drawing.STYLE):
    figure = drawing.figure(6.0, 4.6)
    top, bottom = figure.subplots(2, 1, sharex=True)
    many = losses[0].size > 60  # One noisy line: a mean over it reads better.
    top.plot(
      *losses, color=drawing.COLORS[0], linewidth=0.8 if many else 1.8,
      alpha=0.45 if many else 1.0, label="each record",
    )  # fmt: skip
    if many:
      window = losses[0].size // 20
      mean = np.convolve(losses[1], np.ones(window) / window, mode="valid")
      centres = losses[0][window // 2 :][: mean.size]
      top.plot(
        centres, mean, color=drawing.COLORS[0], label=f"mean of {window}"
      )
      top.legend(loc="upper right")
    top.set_ylabel("training loss")
    bottom.plot(scores[0], 100 * scores[1], **drawing.look(1))
    if np.isfinite(scores[1]).any():
      best = int(np.nanargmax(scores[1]))
      at, value = scores[0][best], 100 * scores[1][best]
      bottom.plot(
        at, value, linestyle="none", marker="*", color="black", markersize=11,
        label=f"best: {value:.1f} % (step {at:,.0f})",
      )  # fmt: skip
      bottom.legend(loc="lower right")
    bottom.set_ylabel(f"{metric} (%)")
    bottom.set_xlabel("step (optimiser updates)")
    bottom.xaxis.set_major_formatter(
      matplotlib.ticker.StrMethodFormatter("{x:,.0f}")
    )
    for ax, (steps, _) in ((top, losses), (bottom, scores)):
      if not steps.size:
        ax.set_yticks([])
        ax.text(0.5, 0.5, "no records", ha="center", transform=ax.transAxes)
    figure.align_ylabels()
    rows = [
      {"step": int(step), "what": what, "value": value}
      for what, points in ((loss, losses), (metric, scores))
      for step, value in zip(*points, strict=True)
    ]
    drawing.save(figure, path, rows)
