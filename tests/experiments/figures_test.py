"""Tests of experiments.figures: files are made, bad input is named."""

from __future__ import annotations

import struct
import subprocess
import sys

import matplotlib
import numpy as np
import pytest

from experiments import figures, training_curves

PENALTIES = [0.01, 0.03, 0.06, 0.1, 0.3, 0.6, 1.0]


def _size(path):
  data = path.read_bytes()
  assert data[:8] == b"\x89PNG\r\n\x1a\n"
  return struct.unpack(">II", data[16:24])


def _draw_all(folder):
  grid = np.random.default_rng(0).random((7, 7))
  grid[-1], grid[0, 0] = 0.0, np.nan
  figures.heat_map(
    {"NNN-Fix": grid, "NNN-Tr": grid + 0.1}, PENALTIES, PENALTIES,
    folder / "heat.png",
  )  # fmt: skip
  figures.steps_curve(
    {"NNN-Fix": ([1, 10, 50], [0.1, 0.4, 0.5]), "one": ([5], [0.3])},
    folder / "steps.png", dense=0.3,
  )  # fmt: skip
  rows = {2: (0.5, 0.4, 0.6, 1200), 3: (0.3, 0.1, 0.4, 7)}
  figures.by_num_relevant(
    {"dense": rows, "NNN-Fix": {2: (0.6, 0.5, 0.7, 1200)}}, folder / "num.png"
  )
  records = [{"step": i, "loss": 1 / (1 + i)} for i in range(100)]
  records += [{"step": 50, "comp@5": 0.3}, {"step": 99, "comp@5": 0.4}]
  training_curves.draw(records, folder / "train.png")
  curve = [(0.5, 0.4, 0.2), (0.4, 0.6, 0.3)]
  figures.pareto({"MMR": curve, "diversity": curve}, folder / "pareto.png")


def test_draws_png_files_and_no_global_state(tmp_path):
  before = dict(matplotlib.rcParams)
  _draw_all(tmp_path / "new")
  sizes = {p.name: _size(p) for p in (tmp_path / "new").glob("*.png")}
  assert set(sizes) == {
    "heat.png",
    "steps.png",
    "num.png",
    "train.png",
    "pareto.png",
  }
  assert all(width >= 600 and height >= 300 for width, height in sizes.values())
  assert dict(matplotlib.rcParams) == before
  for name in sizes:
    assert (tmp_path / "new" / name).with_suffix(".csv").exists()


def test_the_data_stand_beside_the_figure(tmp_path):
  _draw_all(tmp_path)
  lines = (tmp_path / "steps.csv").read_text().splitlines()
  assert lines == [
    "decoder,steps,Comp@5",
    "NNN-Fix,1,10.0",
    "NNN-Fix,10,40.0",
    "NNN-Fix,50,50.0",
    "one,5,30.0",
    "dense,0,30.0",
  ]
  first = (tmp_path / "num.csv").read_text().splitlines()[:2]
  assert first == [
    "decoder,relevant,queries,Comp@5,low,high",
    "dense,2,1200,50.0,40.0,60.0",
  ]
  # One of the 2 x 49 cells was not measured.
  assert len((tmp_path / "heat.csv").read_text().splitlines()) == 1 + 2 * 48


def test_does_not_import_pyplot():
  code = (
    "import sys, experiments.figures; "
    "sys.exit('matplotlib.pyplot' in sys.modules)"
  )
  subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_flat_heat_map(tmp_path, value):
  path = tmp_path / "heat.png"
  figures.heat_map({"a": np.full((1, 2), value)}, [0.1], [0.1, 1], path)
  assert path.exists()


def test_training_curves_with_one_series(tmp_path):
  training_curves.draw([{"step": 1, "loss": 2.0}], tmp_path / "a.png")
  training_curves.draw(
    [{"step": 1, "valid": 0.5}, {"step": 2, "note": "x"}],
    tmp_path / "b.png", validation="valid",
  )  # fmt: skip
  assert {p.name for p in tmp_path.glob("*.png")} == {"a.png", "b.png"}


def test_errors(tmp_path):
  path = tmp_path / "no.png"
  with pytest.raises(ValueError, match="curves is empty or holds an empty one"):
    figures.pareto({"MMR": []}, path)
  with pytest.raises(ValueError, match=r"grids\['a'\] has shape \(2, 2\) but"):
    figures.heat_map({"a": np.ones((2, 2))}, [1, 2], [1, 2, 3], path)
  with pytest.raises(ValueError, match=r"grids\['a'\] has no finite value"):
    figures.heat_map({"a": np.full((1, 1), np.nan)}, [1], [1], path)
  with pytest.raises(ValueError, match="grids is empty"):
    figures.heat_map({}, [1], [1], path)
  with pytest.raises(ValueError, match=r"curves\['a'\] has 2 steps and 1 val"):
    figures.steps_curve({"a": ([1, 2], [0.5])}, path)
  with pytest.raises(ValueError, match="steps at least 1"):
    figures.steps_curve({"a": ([0, 2], [0.5, 0.5])}, path)
  with pytest.raises(ValueError, match="curves is empty"):
    figures.steps_curve({}, path)
  with pytest.raises(ValueError, match="outside its interval"):
    figures.by_num_relevant({"a": {2: (0.5, 0.6, 0.7, 1)}}, path)
  with pytest.raises(ValueError, match="measure all on the same queries"):
    figures.by_num_relevant(
      {"a": {2: (0.5, 0.4, 0.7, 1)}, "b": {2: (0.5, 0.4, 0.7, 2)}}, path
    )
  with pytest.raises(ValueError, match="table is empty"):
    figures.by_num_relevant({"a": {}}, path)
  with pytest.raises(ValueError, match="no record has"):
    training_curves.draw([{"step": 1}], path)
  assert not path.exists()
