"""Tests of experiments.train: the command, its errors, kill -9 and resume."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from nnn_jax.models import bi_encoder
from nnn_jax.training import checkpoint, writers

STAGES = ("dense", "nnn_tr")


def metadata(workdir, stage):
  path = workdir / stage / "retriever" / "bi_encoder.json"
  return json.loads(path.read_text())["metadata"]


def test_both_stages_leave_a_retriever(trained, beir):
  for stage in STAGES:
    encoder, facts = bi_encoder.BiEncoder.load(trained / stage / "retriever")
    assert (encoder.adapter is None) == (stage == "dense")
    assert facts["stage"] == stage
    assert facts["dataset"] == f"beir:{beir}"
    assert encoder.encode_queries(["bababa"]).shape == (1, 16)
    assert facts["best_value"] == max(h["comp@5"] for h in facts["history"])
    best = next(
      h for h in facts["history"] if h["comp@5"] == facts["best_value"]
    )
    assert facts["best_step"] == best["step"]
    # One record an epoch, the start included, and one a step.
    records = writers.read_metrics(trained / stage)
    steps = [r["step"] for r in records if "train/loss" in r]
    assert steps == list(range(1, facts["num_steps"] + 1))
    validation = [r for r in records if "validation/comp@5" in r]
    assert [r["step"] for r in validation] == [
      h["step"] for h in facts["history"]
    ]
    assert list((trained / stage / "tensorboard").iterdir())


def test_training_learns(trained):
  for stage in STAGES:
    losses = [
      r["train/loss"]
      for r in writers.read_metrics(trained / stage)
      if "train/loss" in r
    ]
    assert np.mean(losses[-6:]) < np.mean(losses[:6])
  history = metadata(trained, "dense")["history"]
  assert history[0]["comp@5"] < metadata(trained, "dense")["best_value"]


def test_nnn_tr_starts_from_dense_and_leaves_its_documents(trained):
  def weights(stage, side):
    path = trained / stage / "retriever" / side / "model.safetensors"
    return path.read_bytes()

  assert weights("dense", "document") == weights("nnn_tr", "document")
  assert metadata(trained, "nnn_tr")["best_step"] > 0, "nothing was trained"
  assert weights("dense", "query") != weights("nnn_tr", "query")


def test_a_second_run_reuses_and_says_so(commands, trained, beir):
  before = {p: p.stat().st_mtime_ns for p in trained.rglob("*")}
  start = time.time()
  out, err = commands.run("train", *commands.train_arguments(trained, beir))
  for stage in STAGES:
    assert f"Stage {stage} is done (comp@5 " in err
    assert f"reusing {trained / stage / 'retriever'}" in err
  assert "| 24 | train | 160 |" in out
  assert {p: p.stat().st_mtime_ns for p in trained.rglob("*")} == before
  assert time.time() - start < 60


def test_errors(commands, trained, beir, tmp_path):
  arguments = commands.train_arguments
  new = tmp_path / "new"
  changed = {"dense.num_epochs": 9, "seed": 1}
  errors = commands.fail(
    "train",
    arguments(trained, beir, **changed),
    [*arguments(new, beir), "--config.dense.num_epoch=3"],
    [*arguments(new, beir), "--stages=dense,nnn"],
    arguments(new, tmp_path / "missing"),
    arguments(new / "batch", beir, batch_size=161),
  )
  assert (
    f"{trained} holds a run with other settings of dense, seed: use another "
    "--workdir" in errors[0]
  )
  assert "num_epoch" in errors[1]
  assert "stages must be of dense, mol" in errors[2]
  assert "missing has no corpus.jsonl" in errors[3]
  assert "batch_size is 161: expected 1 to 160" in errors[4]


def test_one_stage_alone(commands, beir, tmp_path):
  changes = {"dense.num_epochs": 1}
  arguments = commands.train_arguments(tmp_path / "run", beir, **changes)
  _, err = commands.run("train", *arguments, "--stages=dense")
  assert "Stage dense: best validation comp@5" in err
  assert not (tmp_path / "run" / "nnn_tr").exists()


def test_without_the_weights_it_trains_from_scratch_and_says_so(
  commands, shared_folder, beir, tmp_path, monkeypatch
):
  monkeypatch.setenv("PIP_NO_INDEX", "1")
  monkeypatch.setenv("NNN_JAX_CACHE", str(tmp_path / "empty"))
  offline = type(commands)(shared_folder / "compiled")
  changes = {"encoder": "auto", "dense.num_epochs": 1}
  arguments = offline.train_arguments(tmp_path / "run", beir, **changes)
  _, err = offline.run("train", *arguments, "--stages=dense")
  assert "Training a small encoder from scratch, since the MiniLM" in err
  assert (tmp_path / "run" / "dense" / "retriever").exists()


def steps_on_record(folder):
  records = writers.read_metrics(folder)
  return records[-1]["step"] if records else -1


def run_and_kill(commands, arguments, folder, step):
  """Kills the run with signal 9 once it has passed a step."""
  process = commands.start("train", *arguments)
  try:
    while steps_on_record(folder) < step:
      assert process.poll() is None, process.communicate()[1]
      time.sleep(0.002)
  finally:
    process.send_signal(signal.SIGKILL)
    _, err = process.communicate()
  assert process.returncode == -signal.SIGKILL
  assert not (folder / "retriever").exists(), "killed too late"
  return err


def results(workdir):
  """All that a run leaves which does not depend on the clock."""
  files = {}
  for stage in STAGES:
    files[stage, "metrics"] = (workdir / stage / "metrics.jsonl").read_text()
    folder = workdir / stage / "retriever"
    for path in folder.rglob("*"):
      if path.is_file() and path.name != "bi_encoder.json":
        files[stage, path.relative_to(folder)] = path.read_bytes()
    facts = metadata(workdir, stage)
    del facts["seconds_of_last_start"]
    files[stage, "facts"] = facts
  return files


@pytest.mark.slow
def test_kill_9_changes_nothing(commands_that_compile, beir, tmp_path):
  commands = commands_that_compile
  changes = {
    "dense.num_epochs": 5,
    "dense.patience": 9,
    "nnn_tr.num_epochs": 4,
    "nnn_tr.patience": 9,
  }
  whole, killed = tmp_path / "whole", tmp_path / "killed"
  commands.run("train", *commands.train_arguments(whole, beir, **changes))
  arguments = commands.train_arguments(killed, beir, **changes)
  kills = [
    ("dense", 0), ("dense", 3), ("dense", 14), ("dense", 30), ("nnn_tr", 0),
    ("nnn_tr", 7), ("nnn_tr", 20),
  ]  # fmt: skip
  for stage, step in kills:
    err = run_and_kill(commands, arguments, killed / stage, step)
    assert step < 14 or f"Resuming {killed / stage} at step" in err
  _, err = commands.run("train", *arguments)
  assert "Stage dense is done" in err
  assert f"Resuming {killed / 'nnn_tr'} at step" in err
  expected, got = results(whole), results(killed)
  assert got.keys() == expected.keys()
  assert ("dense", "metrics") in got
  different = [name for name in expected if got[name] != expected[name]]
  assert different == []
  steps = {stage: metadata(whole, stage)["num_steps"] for stage in STAGES}
  assert steps == {"dense": 50, "nnn_tr": 40}
  for stage in STAGES:
    latest = checkpoint.Checkpoints(killed / stage / "latest")
    assert latest.latest_step == steps[stage]
    latest.close()


def test_settings_of_a_newer_version_are_added(tmp_path):
  # In a process of its own: the flags of several experiments have one name.
  code = """if True:
    import pathlib, sys, ml_collections
    from experiments import train

    folder = pathlib.Path(sys.argv[1])
    train.check_settings(ml_collections.ConfigDict({"seed": 0}), folder)
    new = ml_collections.ConfigDict({"seed": 0, "colt": {"num_layers": 1}})
    train.check_settings(new, folder)
    new.colt.num_layers = 2
    train.check_settings(new, folder)
  """
  done = subprocess.run(
    [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True
  )
  assert done.returncode == 1
  assert "holds a run with other settings of colt: use" in done.stderr
  assert json.loads((tmp_path / "config.json").read_text())["colt"] == {
    "num_layers": 1
  }
