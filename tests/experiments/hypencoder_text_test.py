"""The stage "hypencoder" by the commands: taught, trained, and compared."""

import json

import pytest


@pytest.mark.slow
def test_the_stage_trains_and_is_compared(commands, beir, tmp_path):
  workdir = tmp_path / "run"
  changes = {
    "hypencoder.num_epochs": 3,
    "hypencoder.learning_rate": 5e-3,
    "hypencoder.widths": "(8,)",
    "hypencoder.num_negatives": 2,
    "hypencoder.distillation": 0.01,
    "hypencoder.teacher": "dense",
    "hypencoder.num_candidates": 12,
    "dense.num_epochs": 1,
  }
  arguments = commands.train_arguments(workdir, beir, **changes)
  (error,) = commands.fail("train", [*arguments, "--stages=hypencoder"])
  assert "the teacher dense is not trained in" in error
  # Whatever the order of the names, the teacher is first.
  commands.run("train", *arguments, "--stages=hypencoder,dense")
  description = json.loads(
    (workdir / "hypencoder" / "retriever" / "text_hypencoder.json").read_text()
  )
  assert description["config"]["widths"] == [8]
  facts = description["metadata"]
  assert facts["stage"] == "hypencoder"
  assert facts["best_value"] > facts["history"][0]["comp@5"]

  _, err = commands.run("train", *arguments, "--stages=hypencoder")
  assert "Stage hypencoder is done" in err

  commands.run(
    "evaluate", f"--workdir={workdir}", "--decoders=dense,hypencoder"
  )
  results = json.loads((workdir / "evaluation" / "results.json").read_text())
  (split,) = results["data_sets"].values()
  assert [row["decoder"] for row in split["rows"]] == ["dense", "Hypencoder"]
  assert split["rows"][1]["R@5"] > 0
  assert [row["encoder"] for row in split["cosines"]] == ["dense", "hypencoder"]
