"""The stage "mol" by the commands: trained, and a row of the comparison."""

import json

import pytest


@pytest.mark.slow
def test_the_stage_trains_and_is_compared(commands, beir, tmp_path):
  workdir = tmp_path / "run"
  changes = {
    "mol.num_epochs": 3,
    "mol.learning_rate": 5e-3,
    "mol.num_query_components": 2,
    "dense.num_epochs": 1,
  }
  arguments = commands.train_arguments(workdir, beir, **changes)
  commands.run("train", *arguments, "--stages=dense,mol")
  description = json.loads(
    (workdir / "mol" / "retriever" / "text_mol.json").read_text()
  )
  assert description["config"]["num_query_components"] == 2
  facts = description["metadata"]
  assert facts["stage"] == "mol"
  assert facts["best_value"] > facts["history"][0]["comp@5"]

  _, err = commands.run("train", *arguments, "--stages=mol")
  assert "Stage mol is done" in err

  commands.run("evaluate", f"--workdir={workdir}", "--decoders=dense,mol")
  results = json.loads((workdir / "evaluation" / "results.json").read_text())
  (split,) = results["data_sets"].values()
  assert [row["decoder"] for row in split["rows"]] == ["dense", "MoL"]
  assert split["rows"][1]["R@5"] > 0
  assert results["chosen"]["mol"]["temperature"] == pytest.approx(0.05)
  assert [row["encoder"] for row in split["cosines"]] == ["dense", "mol"]
