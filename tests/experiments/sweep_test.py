"""Tests of experiments.sweep: two seeds on a tiny data set, and again."""

import csv
import json
import shutil

import numpy as np
import pytest
import tiny_beir

from experiments import published, sweep
from nnn_jax.training import writers

SHORT = {"dense.num_epochs": 2, "nnn_tr.num_epochs": 1}


@pytest.fixture(scope="module")
def arguments(commands, shared_folder):
  # A data set with one split: the others are drawn.
  folder = tiny_beir.write(shared_folder / "one split", splits=("test",))
  workdir = shared_folder / "sweep"
  changes = SHORT | {"own_splits": True, "batch_size": 8}
  return workdir, [
    *commands.train_arguments(workdir, folder, **changes),
    "--seeds=0,1",
    "--stages=dense,l1_tr,nnn_exact",
  ]


@pytest.fixture(scope="module")
def swept(commands, arguments):
  workdir, rest = arguments
  out, _ = commands.run("sweep", *rest)
  return workdir, out


def rows_of(workdir):
  with (workdir / "results.csv").open() as file:
    return list(csv.DictReader(file))


def test_a_line_a_seed_and_decoder(swept):
  workdir, out = swept
  rows = rows_of(workdir)
  names = [row["decoder"] for row in rows if row["seed"] == "0"]
  assert names == [row["decoder"] for row in rows if row["seed"] == "1"]
  assert {"dense", "MMR", "NNN-Fix", "L1-Tr", "NNN-Tr, exact"} <= set(names)
  assert (workdir / "results.md").read_text() in out
  assert "The splits are our own" in out
  assert "2 seeds" in out
  mine = [float(row["Comp@5"]) for row in rows if row["decoder"] == "L1-Tr"]
  line = next(x for x in out.splitlines() if x.startswith("| L1-Tr "))
  expected = f"{np.mean(mine):.1f} +- {np.std(mine, ddof=1):.1f}"
  assert expected in line
  assert (workdir / "results.png").read_bytes().startswith(b"\x89PNG")
  spent = json.loads((workdir / "results.json").read_text())["training"]
  assert [row["stage"] for row in spent[:3]] == ["dense", "l1_tr", "nnn_exact"]
  assert spent[0]["epochs"] == 2


def test_l1_tr_is_nnn_tr_without_l2(commands, arguments, swept, tmp_path):
  workdir, rest = arguments
  shutil.copytree(workdir / "seed-0" / "dense", tmp_path / "dense")
  settings = [one for one in rest if one.startswith("--config")]
  commands.run(
    "train",
    *settings,
    f"--workdir={tmp_path}",
    "--config.nnn_tr.l2=0.0",
    "--stages=nnn_tr",
  )

  def losses(folder):
    records = writers.read_metrics(folder)
    return [r["train/loss"] for r in records if "train/loss" in r]

  expected = losses(tmp_path / "nnn_tr")
  assert losses(workdir / "seed-0" / "l1_tr") == expected
  assert losses(workdir / "seed-0" / "nnn_exact") != expected


def test_what_is_done_is_reused(commands, arguments, swept):
  workdir, rest = arguments
  before = {
    path: path.stat().st_mtime_ns
    for path in (workdir / "seed-0").rglob("*")
    if path.is_file()
  }
  out, err = commands.run("sweep", *rest)
  assert out.endswith(swept[1][swept[1].index("### ") :])
  assert "Stage nnn_exact is done" in err
  assert before == {path: path.stat().st_mtime_ns for path in before}


def test_without_splits_of_our_own_it_says_what_to_do(commands, shared_folder):
  folder = shared_folder / "one split"
  arguments = commands.train_arguments(shared_folder / "refused", folder)
  (error,) = commands.fail("train", arguments)
  assert "has no train and no validation split to train with" in error
  assert "--config.own_splits=True draws 80/10/10 %" in error


def test_published_figures_stand_beside_ours():
  row = {"decoder": "NNN-Tr"} | dict.fromkeys(sweep.METRICS, 50.0)
  text = sweep.table([row, row], "toollens")
  assert "96.1 / 98.4 / 91.8 / 97.0" in text
  assert "50.0 +- 0.0" in text
  assert "published" not in sweep.table([row], "limit")
  for table in published.NNN.values():
    for values in table.values():
      assert list(values[:2]) == sorted(values[:2])
      assert len(values) == len(published.METRICS)
