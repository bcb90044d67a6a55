"""Figures of the comparisons, as PNG files with their data as CSV beside them.

Metrics are passed as fractions, as `nnn_jax.metrics` returns them, and drawn
and written in per cent. The figures are those of arXiv 2606.17910 (its Figures
2 to 4) and diversity against relevance; `training_curves` has the one of
training, `drawing` their looks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
import matplotlib.patches
import matplotlib.ticker
import numpy as np
import numpy.typing as npt

from experiments import drawing
from nnn_jax import files


def heat_map(
  grids: Mapping[str, npt.ArrayLike],
  l1_values: Sequence[float],
  l2_values: Sequence[float],
  path: files.PathLike,
  *,
  metric: str = "Comp@5",
) -> None:
  """Draws a metric over (l1, l2), one panel a decoder, on one colour scale.

  The best cell of each panel is framed (the first, if several are equal).

  Args:
    grids: decoder name -> `[num_l1, num_l2]` fractions; NaN is a pair that was
      not measured, and is left grey.
    l1_values: `[num_l1]`, the rows, drawn from bottom to top.
    l2_values: `[num_l2]`, the columns.
    path: the PNG to write.
    metric: its name, for the colour bar.

  Raises:
    ValueError: if there is no grid, a grid has another shape, or none of its
      values is finite.
  """
  shape = (len(l1_values), len(l2_values))
  panels = {name: np.asarray(grid, float) for name, grid in grids.items()}
  if not panels:
    raise ValueError("grids is empty: nothing to draw")
  for name, grid in panels.items():
    if grid.shape != shape:
      raise ValueError(
        f"grids[{name!r}] has shape {grid.shape} but l1_values and l2_values "
        f"ask for {shape}"
      )
    if not np.isfinite(grid).any():
      raise ValueError(f"grids[{name!r}] has no finite value")
  values = 100 * np.concatenate([grid.ravel() for grid in panels.values()])
  values = values[np.isfinite(values)]
  # Too large an l1 retrieves nothing. Those zeros would take up half of the
  # scale, so it begins at the least positive value and they lie below it.
  low = float(values[values > 0].min(initial=values.max()))
  high = max(float(values.max()), low + 1e-6)  # Even a flat grid needs a scale.

  with matplotlib.rc_context(drawing.STYLE):
    width = 1.6 + len(panels) * (0.9 + 0.52 * shape[1])
    figure = drawing.figure(max(width, 4.0), 1.3 + 0.46 * shape[0])
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for ax, (name, grid) in zip(axes, panels.items(), strict=True):
      ax.grid(False)
      ax.set_facecolor("#cccccc")
      image = ax.imshow(
        100 * grid, cmap="cividis", vmin=low, vmax=high, origin="lower",
        aspect="auto",
      )  # fmt: skip
      best = np.unravel_index(np.nanargmax(grid), shape)
      for (i, j), value in np.ndenumerate(100 * grid):
        if np.isfinite(value):
          dark = value < low + 0.5 * (high - low)
          ax.text(
            j, i, f"{value:.1f}", ha="center", va="center", fontsize=8.5,
            color="white" if dark else "black",
            fontweight="bold" if (i, j) == best else "normal",
          )  # fmt: skip
      frame = matplotlib.patches.Rectangle(
        (best[1] - 0.47, best[0] - 0.47), 0.94, 0.94,
        fill=False, edgecolor="#D55E00", linewidth=2.5,
      )  # fmt: skip
      ax.add_patch(frame)
      ax.set_title(f"{name} (best {100 * grid[best]:.1f} %)")
      ax.set_xticks(range(shape[1]), [f"{v:g}" for v in l2_values])
      ax.set_yticks(range(shape[0]), [f"{v:g}" for v in l1_values])
      ax.tick_params(length=0)
      ax.spines[:].set_visible(False)
      ax.set_xlabel("ridge penalty l2")
    axes[0].set_ylabel("sparsity penalty l1")
    figure.colorbar(
      image, ax=list(axes), label=f"{metric} (%)", pad=0.02,
      extend="min" if values.min() < low else "neither",
    )  # fmt: skip
    rows = [
      {"decoder": name, "l1": l1_values[i], "l2": l2_values[j], metric: value}
      for name, grid in panels.items()
      for (i, j), value in np.ndenumerate(100 * grid)
      if np.isfinite(value)
    ]
    drawing.save(figure, path, rows)


def steps_curve(
  curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
  path: files.PathLike,
  *,
  dense: float | None = None,
  metric: str = "Comp@5",
) -> None:
  """Draws a metric against the number of solver steps, on a log axis.

  Args:
    curves: decoder name -> (steps, fractions), of one length.
    path: the PNG to write.
    dense: the fraction dense retrieval has, as a horizontal line.
    metric: its name.

  Raises:
    ValueError: if there is no curve, lengths differ or a step is below 1.
  """
  if not curves:
    raise ValueError("curves is empty: nothing to draw")
  with matplotlib.rc_context(drawing.STYLE):
    figure = drawing.figure(6.0, 3.8)
    ax = figure.subplots()
    ticks: set[float] = set()
    for n, (name, (steps, values)) in enumerate(curves.items()):
      if len(steps) != len(values) or not len(steps) or min(steps) < 1:
        raise ValueError(
          f"curves[{name!r}] has {len(steps)} steps and {len(values)} values; "
          "they must be as many, at least one, and steps at least 1"
        )
      ticks.update(steps)
      ax.plot(steps, 100 * np.asarray(values), label=name, **drawing.look(n))
    if dense is not None:
      ax.axhline(
        100 * dense, color="black", linestyle=(0, (2, 2)), linewidth=1.2,
        label="dense (no solver)",
      )  # fmt: skip
    ax.set_xscale("log")
    drawing.log_ticks(ax, sorted(ticks))
    ax.set_xlabel("solver steps (log scale)")
    ax.set_ylabel(f"{metric} (%)")
    drawing.legend(figure, ax)
    rows = [
      {"decoder": name, "steps": step, metric: 100 * value}
      for name, (steps, values) in curves.items()
      for step, value in zip(steps, values, strict=True)
    ]
    if dense is not None:
      rows.append({"decoder": "dense", "steps": 0, metric: 100 * dense})
    drawing.save(figure, path, rows)


def by_num_relevant(
  table: Mapping[str, Mapping[int, tuple[float, float, float, int]]],
  path: files.PathLike,
  *,
  metric: str = "Comp@5",
) -> None:
  """Draws a metric against the number of relevant documents of a query.

  Args:
    table: decoder name -> number of relevant documents -> (mean, low, high,
      count): fractions, the ends of an interval, and how many queries.
    path: the PNG to write.
    metric: its name.

  Raises:
    ValueError: if the table is empty, an interval does not hold its mean, or
      decoders were measured on different numbers of queries.
  """
  counts: dict[int, int] = {}
  for name, rows in table.items():
    for num_relevant, (mean, low, high, count) in rows.items():
      if not low <= mean <= high:
        raise ValueError(
          f"table[{name!r}][{num_relevant}] has mean {mean} outside its "
          f"interval [{low}, {high}]"
        )
      if counts.setdefault(num_relevant, count) != count:
        raise ValueError(
          f"table[{name!r}][{num_relevant}] counts {count} queries, another "
          f"decoder {counts[num_relevant]}; measure all on the same queries"
        )
  if not counts:
    raise ValueError("table is empty: nothing to draw")
  places = {number: i for i, number in enumerate(sorted(counts))}
  spread = 0.16 if len(table) < 5 else 0.7 / len(table)

  with matplotlib.rc_context(drawing.STYLE):
    figure = drawing.figure(max(5.0, 1.6 + 1.15 * len(places)), 3.9)
    ax = figure.subplots()
    ax.grid(False, axis="x")
    for n, (name, rows) in enumerate(table.items()):
      shift = (n - 0.5 * (len(table) - 1)) * spread
      keys = sorted(rows)
      parts = 100 * np.asarray([rows[key][:3] for key in keys], float)
      centre, lower, upper = parts.reshape(-1, 3).T
      ax.errorbar(
        [places[key] + shift for key in keys], centre,
        yerr=[centre - lower, upper - centre], label=name, capsize=2.5,
        elinewidth=1.2, **drawing.look(n) | {"linestyle": "none"},
      )  # fmt: skip
    ax.set_xticks(
      list(places.values()), [f"{key}\n(n={counts[key]:,})" for key in places]
    )
    ax.set_xlim(-0.5, len(places) - 0.5)
    ax.set_ylim(bottom=min(0.0, ax.get_ylim()[0]))
    ax.set_xlabel("relevant documents per query (number of queries)")
    ax.set_ylabel(f"{metric} (%), with interval")
    drawing.legend(figure, ax)
    data = [
      {"decoder": name, "relevant": key, "queries": counts[key]}
      | dict(zip((metric, "low", "high"), 100 * np.array(ends), strict=True))
      for name, rows in table.items()
      for key, (*ends, _) in sorted(rows.items())
    ]
    drawing.save(figure, path, data)


def pareto(
  curves: Mapping[str, Sequence[tuple[float, float, float]]],
  path: files.PathLike,
) -> None:
  """Draws diversity, and aspect recall, against relevance.

  Args:
    curves: decoder name -> (mean relevance, ILAD, aspect recall) at each
      trade-off.
    path: the PNG to write.

  Raises:
    ValueError: if there is no curve or an empty one.
  """
  if not curves or not all(curves.values()):
    raise ValueError("curves is empty or holds an empty one: nothing to draw")
  with matplotlib.rc_context(drawing.STYLE):
    figure = drawing.figure(9.0, 4.0)
    left, right = figure.subplots(1, 2)
    for n, (name, points) in enumerate(curves.items()):
      relevance, ilad, recall = np.asarray(points, float).T
      left.plot(relevance, ilad, label=name, **drawing.look(n))
      right.plot(relevance, 100 * recall, **drawing.look(n))
    left.set_ylabel("ILAD: mean pairwise 1 - cosine")
    right.set_ylabel("aspect recall (%)")
    for ax in (left, right):
      ax.set_xlabel("mean relevance")
    drawing.legend(figure, left)
    columns = "relevance", "ILAD", "aspect recall"
    rows = [
      {"decoder": name} | dict(zip(columns, point, strict=True))
      for name, points in curves.items()
      for point in points
    ]
    drawing.save(figure, path, rows)
