"""The commands as a user runs them, and one tiny trained work directory."""

import contextlib
import fcntl
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
  "batch_size": 16,
  "checkpoint_every": 4,
  "query_length": 16,
  "document_length": 16,
  "scratch.vocab_size": 256,
  "scratch.dim": 16,
  "scratch.num_layers": 1,
  "scratch.num_heads": 2,
  "scratch.mlp_dim": 32,
  "scratch.max_length": 16,
  "dense.num_epochs": 5,
  "dense.learning_rate": 5e-3,
  "dense.patience": 8,
  "nnn_tr.num_epochs": 3,
  "nnn_tr.learning_rate": 3e-3,
  "nnn_tr.adapter_hidden": 8,
}


class Commands:
  """Starts the experiments in processes of their own.

  They share JAX's compilation cache, if `cache` is a folder: most tests are
  not about compiling, which takes most of a tiny run's time.
  """

  def __init__(self, cache=None):
    self._environment = dict(os.environ, JAX_PLATFORMS="cpu")
    # A user has no virtual devices. How to compile, the tier says.
    self._environment["XLA_FLAGS"] = " ".join(
      flag
      for flag in os.environ.get("XLA_FLAGS", "").split()
      if "device_count" not in flag
    )
    self._environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    if cache is not None:
      self._environment |= {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
      }

  def start(self, module, *arguments):
    return subprocess.Popen(
      [sys.executable, "-m", f"experiments.{module}", *map(str, arguments)],
      cwd=REPOSITORY,
      env=self._environment,
      text=True,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
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


@contextlib.contextmanager
def locked(folder):
  """Enters the block in one pytest-xdist worker at a time."""
  with (folder / "lock").open("w") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    yield


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory):
  """A temporary folder that all workers of this test run share."""
  base = tmp_path_factory.getbasetemp()
  base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
  folder = base / "experiments"
  folder.mkdir(exist_ok=True)
  return folder


@pytest.fixture(scope="session")
def commands(shared_folder):
  return Commands(shared_folder / "compiled")


@pytest.fixture(scope="session")
def commands_that_compile():
  return Commands()


@pytest.fixture(scope="session")
def beir(shared_folder):
  with locked(shared_folder):
    folder = shared_folder / "tiny"
    return folder if folder.exists() else tiny_beir.write(folder)


@pytest.fixture(scope="session")
def trained(commands, beir, shared_folder):
  """A work directory with both stages; do not write to it."""
  workdir = shared_folder / "trained"
  with locked(shared_folder):
    if not workdir.exists():
      commands.run("train", *commands.train_arguments(workdir, beir))
  return workdir


@pytest.fixture(scope="session")
def evaluated(commands, beir, trained, shared_folder):
  """(work directory, standard output) of an evaluation; do not write to it."""
  workdir, printed = shared_folder / "evaluated", shared_folder / "printed.txt"
  with locked(shared_folder):
    if not printed.exists():
      shutil.copytree(trained, workdir, dirs_exist_ok=True)
      # One more data set, without a validation split.
      other = tiny_beir.write(workdir / "held out", splits=("test",), seed=1)
      out, _ = commands.run(
        "evaluate",
        f"--workdir={workdir}",
        f"--datasets=beir:{beir},beir:{other}",
        "--decoders=dense,mmr,l1_fix,l2_fix,nnn_fix,dense_tr,nnn_tr",
      )
      printed.write_text(out)
  return workdir, printed.read_text()
