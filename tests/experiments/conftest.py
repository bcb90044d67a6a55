"""The commands as a user runs them, and one tiny trained work directory."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import tiny_beir

REPOSITORY = pathlib.Path(__file__).parents[2]

# One layer of 16 dimensions: compilation takes most of the time.
SETTINGS = {
  "encoder": "scratch",
  "batch_size": 8,
  "checkpoint_every": 4,
  "query_length": 16,
  "document_length": 16,
  "scratch.vocab_size": 256,
  "scratch.dim": 16,
  "scratch.num_layers": 1,
  "scratch.num_heads": 2,
  "scratch.mlp_dim": 32,
  "scratch.max_length": 16,
  "dense.num_epochs": 8,
  "dense.learning_rate": 5e-3,
  "dense.patience": 8,
  "nnn_tr.num_epochs": 2,
  "nnn_tr.learning_rate": 1e-3,
  "nnn_tr.adapter_hidden": 8,
}


class Commands:
  """Starts the experiments in processes of their own."""

  def start(self, module, *arguments, **options):
    environment = dict(os.environ, JAX_PLATFORMS="cpu")
    environment.pop("XLA_FLAGS", None)  # A user has no virtual devices.
    return subprocess.Popen(
      [sys.executable, "-m", f"experiments.{module}", *map(str, arguments)],
      cwd=REPOSITORY,
      env=environment,
      text=True,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      **options,
    )

  def run(self, module, *arguments, text=""):
    """Returns (standard output, standard error) of a run that succeeds."""
    process = self.start(module, *arguments)
    out, err = process.communicate(text)
    assert process.returncode == 0, err
    return out, err

  def fail(self, module, *cases):
    """Runs cases side by side; returns the standard error of each."""
    processes = [self.start(module, *case) for case in cases]
    errors = [process.communicate()[1] for process in processes]
    for process, error in zip(processes, errors, strict=True):
      assert process.returncode == 1, error
    return errors

  def train_arguments(self, workdir, beir, **changes):
    """Of experiments.train, on the tiny data set."""
    settings = {"dataset": f"beir:{beir}", **SETTINGS, **changes}
    return [
      "--config=configs/api_docs.py",
      f"--workdir={workdir}",
      *(f"--config.{name}={value}" for name, value in settings.items()),
    ]


@pytest.fixture(scope="session")
def commands():
  return Commands()


@pytest.fixture(scope="session")
def beir(tmp_path_factory):
  return tiny_beir.write(tmp_path_factory.mktemp("beir") / "tiny")


@pytest.fixture(scope="session")
def trained(commands, beir, tmp_path_factory):
  """A work directory with both stages; do not write to it."""
  workdir = tmp_path_factory.mktemp("trained") / "run"
  commands.run("train", *commands.train_arguments(workdir, beir))
  return workdir


@pytest.fixture(scope="session")
def evaluated(commands, beir, trained, tmp_path_factory):
  """(work directory, standard output, standard error) of an evaluation."""
  workdir = tmp_path_factory.mktemp("evaluated") / "run"
  shutil.copytree(trained, workdir)
  # One more data set, without a validation split.
  other = tiny_beir.write(workdir / "held out", splits=("test",), seed=1)
  out, err = commands.run(
    "evaluate",
    f"--workdir={workdir}",
    f"--datasets=beir:{beir},beir:{other}",
    "--decoders=dense,mmr,l1_fix,l2_fix,nnn_fix,nnn_tr",
  )
  return workdir, out, err
