"""How figures look: colours, style, axes and the file.

Colours are those of Okabe and Ito (2008), told apart by readers with any colour
vision; markers and dashes repeat the distinction, for print. Nothing here
touches matplotlib's global state.
"""

from __future__ import annotations

import io
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import matplotlib.figure
import matplotlib.ticker
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends import backend_agg

from experiments import report
from nnn_jax import files

# Black stays free for reference lines; yellow is left out, too pale on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
_MARKERS = ("o", "s", "^", "D", "v", "P")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))

STYLE: Any = {
  "axes.axisbelow": True,
  "axes.grid": True,
  "axes.spines.right": False,
  "axes.spines.top": False,
  "axes.titlesize": 11,
  "figure.constrained_layout.use": True,
  "font.size": 10,
  "grid.color": "#dddddd",
  "grid.linewidth": 0.6,
  "legend.frameon": False,
  "lines.linewidth": 1.8,
  "lines.markersize": 5,
}


def figure(width: float, height: float) -> matplotlib.figure.Figure:
  """An empty figure, in inches; make and save it in `rc_context(STYLE)`."""
  empty = matplotlib.figure.Figure(figsize=(width, height))
  backend_agg.FigureCanvasAgg(empty)  # No pyplot, so no global state.
  return empty


def look(n: int) -> dict[str, Any]:
  """Colour, marker and dashes of series n; 36 differ."""
  return {
    "color": COLORS[n % len(COLORS)],
    "marker": _MARKERS[(n + 3 * (n // len(COLORS))) % len(_MARKERS)],
    "linestyle": _DASHES[(n + n // len(COLORS)) % len(_DASHES)],
  }


def legend(figure: matplotlib.figure.Figure, ax: Axes) -> None:
  """Above the axes, where it covers no data."""
  handles, names = ax.get_legend_handles_labels()
  # About 12 characters an inch, and 8 for a key: as many columns as fit.
  fitting = int(12 * figure.get_figwidth() / (8 + max(map(len, names))))
  figure.legend(
    handles, names, loc="outside upper center",
    ncols=max(1, min(fitting, len(names))),
  )  # fmt: skip


def log_ticks(ax: Axes, steps: Sequence[float]) -> None:
  """Labels the steps measured, as far as they leave room for each other."""
  kept: list[float] = []
  span = max(np.log(steps[-1] / steps[0]), 1e-9)
  for step in steps:
    if not kept or np.log(step / kept[-1]) > span / 14:
      kept.append(step)
  ax.set_xticks(kept, [f"{step:g}" for step in kept])
  ax.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())


def save(
  figure: matplotlib.figure.Figure,
  path: files.PathLike,
  rows: Sequence[Mapping[str, Any]] = (),
) -> None:
  """Writes a PNG, atomically, and what it shows as CSV beside it.

  Args:
    figure: The figure.
    path: The PNG to write.
    rows: Its data, one mapping a point; empty where a table of the experiment
      holds them already, and no CSV is written.
  """
  buffer = io.BytesIO()
  figure.savefig(buffer, format="png", dpi=150)
  files.write(path, buffer.getvalue())
  if rows:
    report.write_csv(pathlib.Path(path).with_suffix(".csv"), rows)
