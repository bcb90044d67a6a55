"""What is printed and drawn of a benchmark's rows."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib

from experiments import drawing, report
from experiments.bench import registry
from nnn_jax import files

Row = Mapping[str, Any]

_COLUMNS = ["num_docs", "batch", "l1", "l2", "decoder", "compile s", "ms"]
_COLUMNS += ["x dense", "FISTA 50 x", "KKT", "above best", "support", "MiB"]
_COLUMNS += ["note"]


def text(results: Mapping[str, Any]) -> str:
  """The whole report: settings, kernels, the table and the ratios asked for."""
  rows = results["rows"]
  parts = [f"{name}: {value}" for name, value in results["settings"].items()]
  parts += [
    f"{decoder} runs {', '.join(kernels)}"
    for decoder, kernels in results["kernels"].items()
  ]
  parts += ["", report.markdown_table(table(rows), _COLUMNS, digits=2)]
  return "\n".join([*parts, *ratios(rows), "", *exponents(rows)])


def table(rows: Sequence[Row]) -> list[dict[str, Any]]:
  """The rows in the order of a reader, with ratios to those beside them."""
  order = list(registry.CONTESTANTS)
  best = _best_objectives(rows)

  def place(row: Row) -> tuple[Any, ...]:
    pair = (-row["l1"], -row["l2"]) if _has_penalties(row) else ()
    return row["num_docs"], row["batch"], pair, order.index(row["decoder"])

  return [_entry(row, rows, best) for row in sorted(rows, key=place)]


def ratios(rows: Sequence[Row]) -> list[str]:
  """One line a batch size: our decoders against what they are held to."""
  lines = []
  for num_docs, batch in sorted({(r["num_docs"], r["batch"]) for r in rows}):
    at = f"N={num_docs:,}, batch {batch}"
    dense = _find(rows, num_docs, batch, registry.DENSE)
    peer = _find(rows, num_docs, batch, registry.FAISS)
    if dense and peer:
      ratio = dense["ms"] / peer["ms"]
      lines.append(f"{at}: dense takes {ratio:.2f} x faiss flat")
    for ours in rows:
      if ours["decoder"] != registry.WORKING_SET or "ms" not in ours:
        continue
      if (ours["num_docs"], ours["batch"]) != (num_docs, batch):
        continue
      pair = ours["l1"], ours["l2"]
      fista = _find(rows, num_docs, batch, registry.FISTA_50, pair)
      said = []
      if fista:
        said.append(f"{fista['ms'] / ours['ms']:.1f} x faster than FISTA 50")
      if dense:
        said.append(f"takes {ours['ms'] / dense['ms']:.1f} x dense")
      where = f"{at}, l1={pair[0]:g} l2={pair[1]:g}"
      lines.append(f"{where}: the working set is {', '.join(said)}")
  return lines


def exponents(rows: Sequence[Row]) -> list[str]:
  """One line a decoder: e of time ~ num_docs^e, over the largest decade."""
  lines = []
  for (decoder, batch), curve in _curves(rows).items():
    if len(curve) > 1:
      (few, before), (many, after) = sorted(curve.items())[-2:]
      e = math.log(after / before) / math.log(many / few)
      lines.append(
        f"{decoder}, batch {batch}: time ~ N^{e:.2f} from {few:,} to {many:,}"
      )
  return lines


def cost_plot(rows: Sequence[Row], path: files.PathLike) -> None:
  """Draws time a query against the number of documents, a panel a batch size.

  Hollow markers are times scaled from fewer queries. Penalties are the first.

  Args:
    rows: What was measured.
    path: The PNG to write.
  """
  curves = _curves(rows)
  scaled = {
    (row["decoder"], row["batch"], row["num_docs"])
    for row in rows
    if "scaled" in row.get("note", "")
  }
  batches = sorted({batch for _, batch in curves})
  decoders = [
    name
    for name in registry.CONTESTANTS
    if any(name == decoder for decoder, _ in curves)
  ]
  with matplotlib.rc_context(drawing.STYLE):
    figure = drawing.figure(1.2 + 3.6 * len(batches), 4.6)
    axes = figure.subplots(1, len(batches), sharey=True, squeeze=False)[0]
    for ax, batch in zip(axes, batches, strict=True):
      sizes: set[float] = set()
      for n, decoder in enumerate(decoders):
        curve = sorted(curves.get((decoder, batch), {}).items())
        look = drawing.look(n)
        ax.plot(
          [size for size, _ in curve],
          [ms / batch for _, ms in curve],
          label=decoder,
          **look,
        )
        for size, ms in curve:
          sizes.add(size)
          if (decoder, batch, size) in scaled:
            marker = look | {"markerfacecolor": "white"}
            ax.plot([size], [ms / batch], **marker)
      ax.set_xscale("log")
      ax.set_yscale("log")
      drawing.log_ticks(ax, sorted(sizes))
      ax.set_xlabel("documents")
      ax.set_title(f"batch {batch}")
    axes[0].set_ylabel("ms a query")
    drawing.legend(figure, axes[0])
    drawing.save(figure, path)


def _entry(
  row: Row, rows: Sequence[Row], best: Mapping[Any, float]
) -> dict[str, Any]:
  """One line of the table."""
  num_docs, batch = row["num_docs"], row["batch"]
  entry: dict[str, Any] = {
    key: row[key] for key in ("num_docs", "batch", "decoder")
  }
  if _has_penalties(row):
    entry |= {"l1": row["l1"], "l2": row["l2"]}
  if "ms" not in row:
    return entry | {"note": f"skipped: {row['skipped']}"}
  entry |= {"compile s": row["compile_s"], "ms": row["ms"]}
  entry |= {"MiB": row["peak_mib"], "note": row["note"]}
  dense = _find(rows, num_docs, batch, registry.DENSE)
  if dense:
    entry["x dense"] = row["ms"] / dense["ms"]
  if not _has_penalties(row):
    share = f"{100 * row['agreement']:.1f} % of the exact top k"
    return entry | {"note": "; ".join(filter(None, [share, row["note"]]))}
  pair = row["l1"], row["l2"]
  fista = _find(rows, num_docs, batch, registry.FISTA_50, pair)
  if fista:
    entry["FISTA 50 x"] = fista["ms"] / row["ms"]
  above = max(
    value - best[num_docs, *pair, i] for i, value in enumerate(row["objective"])
  )
  return entry | {
    "KKT": f"{row['kkt_violation']:.1e}",
    "above best": f"{above:.1e}",
    "support": row["support_size"],
  }


def _best_objectives(rows: Sequence[Row]) -> dict[Any, float]:
  """The least objective of a world's query, by num_docs, l1, l2 and place."""
  best: dict[Any, float] = defaultdict(lambda: math.inf)
  for row in rows:
    for i, value in enumerate(row.get("objective", [])):
      key = row["num_docs"], row["l1"], row["l2"], i
      best[key] = min(best[key], value)
  return best


def _has_penalties(row: Row) -> bool:
  return registry.CONTESTANTS[row["decoder"]].has_penalties


def _find(
  rows: Sequence[Row],
  num_docs: int,
  batch: int,
  decoder: str,
  pair: tuple[float, float] | None = None,
) -> Row | None:
  """The row with a time, if there is one; at any penalties without `pair`."""
  for row in rows:
    same = (row["num_docs"], row["batch"]) == (num_docs, batch)
    at_pair = pair in (None, (row["l1"], row["l2"]))
    if same and at_pair and row["decoder"] == decoder and "ms" in row:
      return row
  return None


def _curves(
  rows: Sequence[Row],
) -> dict[tuple[str, int], dict[int, float]]:
  """(decoder, batch) -> num_docs -> ms, at the first penalties measured."""
  curves: dict[tuple[str, int], dict[int, float]] = defaultdict(dict)
  for row in rows:
    if "ms" in row:
      curve = curves[row["decoder"], row["batch"]]
      curve.setdefault(row["num_docs"], row["ms"])
  return curves
