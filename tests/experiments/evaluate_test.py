"""Tests of experiments.evaluate, on a tiny trained work directory."""

import json
import shutil

import ir_measures
import numpy as np
import pytest
import tiny_beir
from ir_measures import R, nDCG

from nnn_jax.training import selection

LABELS = {
  "dense": "dense",
  "mmr": "MMR",
  "l1_fix": "L1-Fix",
  "l2_fix": "L2-Fix",
  "nnn_fix": "NNN-Fix",
  "dense_tr": "dense, NNN-Tr encoder",
  "nnn_tr": "NNN-Tr",
}


@pytest.fixture(scope="module")
def results(evaluated):
  return json.loads((evaluated[0] / "evaluation/results.json").read_text())


@pytest.fixture(scope="module")
def titles(evaluated, beir):
  return [f"beir:{beir}, test", f"beir:{evaluated[0] / 'held out'}, test"]


def slug(title):
  return title.replace(", ", "-").replace("/", "-").replace(":", "-")


def test_a_row_a_decoder(evaluated, results, titles):
  assert list(results["data_sets"]) == titles
  for table in results["data_sets"].values():
    assert [row["decoder"] for row in table["rows"]] == list(LABELS.values())
  text = (evaluated[0] / "evaluation/results.md").read_text()
  assert text.strip() in evaluated[1]
  for title in titles:
    assert f"### {title}: 20 queries, 24 documents" in text
  for label in LABELS.values():
    # The interval tells the row from the table of cosines.
    rows = [row for row in text.splitlines() if row.startswith(f"| {label} ")]
    assert sum(" to " in row for row in rows) == 2


def test_the_parameters_come_from_the_grids(results):
  chosen = results["chosen"]
  assert set(chosen) == set(LABELS) - {"dense", "dense_tr"}
  assert chosen["mmr"]["trade_off"] in selection.TRADE_OFFS
  for name, l1, l2 in (
    ("l1_fix", selection.PENALTIES, (0.0,)),
    ("l2_fix", (0.0,), selection.PENALTIES),
    ("nnn_fix", selection.PENALTIES, selection.PENALTIES),
    ("nnn_tr", selection.PENALTIES, selection.PENALTIES),
  ):
    assert chosen[name]["l1"] in l1
    assert chosen[name]["l2"] in l2
  penalties = chosen["nnn_fix"]
  described = f"l1={penalties['l1']:g} l2={penalties['l2']:g}"
  for table in results["data_sets"].values():
    assert table["rows"][4]["parameters"] == described


def test_without_validation_the_first_data_sets_is_used(results, titles, beir):
  tables = [results["data_sets"][title] for title in titles]
  for table in tables:
    assert table["parameters_chosen_on"] == f"beir:{beir}, validation"
  assert [row["parameters"] for row in tables[0]["rows"]] == [
    row["parameters"] for row in tables[1]["rows"]
  ]


@pytest.mark.parametrize("which", [0, 1])
def test_other_tools_measure_the_same(evaluated, results, titles, which):
  runs = evaluated[0] / "evaluation" / "runs"
  title = titles[which]
  qrels = list(ir_measures.read_trec_qrels(str(runs / f"{slug(title)}.qrels")))
  assert len({label.query_id for label in qrels}) == 20
  rows = results["data_sets"][title]["rows"]
  for name, row in zip(LABELS, rows, strict=True):
    path = runs / f"{slug(title)}-{name}.trec"
    run = list(ir_measures.read_trec_run(str(path)))
    assert len(run) == 20 * 10
    values = ir_measures.calc_aggregate([R @ 5, nDCG @ 5], qrels, run)
    assert row["R@5"] == pytest.approx(100 * values[R @ 5], abs=1e-3)
    assert row["nDCG@5"] == pytest.approx(100 * values[nDCG @ 5], abs=1e-3)


def test_rows_are_plausible(results):
  for table in results["data_sets"].values():
    for row in table["rows"]:
      assert 0 <= row["R@3"] <= row["R@5"] <= 100
      assert 0 <= row["Comp@3"] <= row["Comp@5"] <= row["R@5"]
      low, high = map(float, row["Comp@5 95 %"].split(" to "))
      assert low <= row["Comp@5"] <= high
      assert 0 <= row["ILAD@5"] <= 2
  # It was trained on the first data set: better than a random order.
  first = next(iter(results["data_sets"].values()))
  assert np.max([row["R@5"] for row in first["rows"]]) > 100 * 5 / 24


def test_figures_are_png(evaluated, titles, beir):
  folder = evaluated[0] / "evaluation" / "figures"
  first = slug(f"beir:{beir}")
  assert sorted(path.name for path in folder.glob("*.png")) == sorted(
    [
      *(f"{slug(title)}-by_num_relevant.png" for title in titles),
      f"{first}-penalties.png",
      f"{first}-steps.png",
      "dense-training.png",
      "nnn_tr-training.png",
    ]
  )
  for path in folder.glob("*.png"):
    assert path.with_suffix(".csv").exists()
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_a_second_run_reuses_embeddings(
  commands, evaluated, results, titles, tmp_path
):
  workdir = tmp_path / "run"
  shutil.copytree(evaluated[0], workdir)
  cache = workdir / "evaluation" / "embeddings"
  before = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
  out, err = commands.run(
    "evaluate", f"--workdir={workdir}", "--decoders=dense,nnn_tr"
  )
  for count, what in (
    (32, "validation queries"), (20, "test queries"), (24, "documents")
  ):  # fmt: skip
    assert f"Reusing embeddings of {count} {what}" in err
  assert {p: p.stat().st_mtime_ns for p in cache.iterdir()} == before
  # Without --datasets: the one it was trained on, and the same numbers.
  again = json.loads((workdir / "evaluation/results.json").read_text())
  assert list(again["data_sets"]) == titles[:1]
  rows = results["data_sets"][titles[0]]["rows"]
  assert again["data_sets"][titles[0]]["rows"] == [rows[0], rows[-1]]
  assert "NNN-Tr" in out


def test_errors(commands, evaluated, tmp_path):
  workdir, other = evaluated[0], evaluated[0] / "held out"
  partial = tmp_path / "partial"
  shutil.copytree(workdir / "dense", partial / "dense")
  shutil.copy(workdir / "config.json", partial)
  errors = commands.fail(
    "evaluate",
    [f"--workdir={tmp_path / 'none'}"],
    [f"--workdir={workdir}", "--decoders=dense,splade"],
    [f"--workdir={workdir}", f"--datasets=beir:{other}"],
    [f"--workdir={partial}"],
    [f"--workdir={workdir}", "--splits=see_also", "--decoders=dense"],
  )
  assert (
    f"workdir {tmp_path / 'none'} holds no run (config.json is missing): "
    "train one with `python -m experiments.train`" in errors[0]
  )
  assert "decoders ['splade'] are unknown: choose from dense, mmr" in errors[1]
  assert (
    f"beir:{other} has no validation split to choose parameters on: name a "
    "data set that has one first" in errors[2]
  )
  assert f"{partial / 'nnn_tr' / 'retriever'} holds no trained" in errors[3]
  assert "splits ['see_also'] are held-out splits of none" in errors[4]
  assert "has train, validation, test." in errors[4]


def test_a_frozen_encoder(commands, evaluated, beir, tmp_path):
  encoder = evaluated[0] / "dense" / "retriever" / "query"
  missing = tmp_path / "missing"
  _, err = commands.run(
    "evaluate",
    f"--workdir={tmp_path}",
    f"--encoder={encoder}",
    "--query_length=16",
    "--document_length=16",
    f"--datasets=beir:{beir},beir:{missing}",
    "--decoders=dense,nnn_tr",
  )
  # A further data set that cannot be read is left out, and named.
  text = (tmp_path / "evaluation" / "results.md").read_text()
  assert f"Left out, files not to be had: beir:{missing}." in text
  assert f"Leaving beir:{missing} out" in err
  # There is no trained NNN-Tr to decode.
  assert "| dense " in text
  assert "NNN-Tr" not in text


def test_the_tiny_data_set_is_what_the_tests_assume(beir):
  lines = (beir / "corpus.jsonl").read_text().splitlines()
  assert len(lines) == tiny_beir.NUM_DOCS == 24
