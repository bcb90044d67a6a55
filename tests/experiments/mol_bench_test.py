"""The benchmark of the searches of a mixture of logits: the command, tiny."""

import json
import subprocess
import sys

import numpy as np

from experiments.bench import mol_worlds


def test_command_measures_prints_and_resumes(tmp_path):
  path = tmp_path / "bench.json"
  world = mol_worlds.random_world(
    mol_worlds.Shape(2, 2, 8), 300, 8, noise=0.3, follow=1.0, dtype="bfloat16"
  )
  mol_worlds.save(tmp_path / "world", world)
  loaded = mol_worlds.load(tmp_path / "world")
  np.testing.assert_array_equal(loaded.targets, world.targets)
  np.testing.assert_array_equal(loaded.items.gate, world.items.gate)

  command = [
    sys.executable, "-m", "experiments.bench.mol_bench", "--shape=2x2x8",
    f"--worlds=random,{tmp_path / 'world'}", "--num_docs=300", "--batch=4",
    "--queries=8", "--repeats=1", "--nopeers", "--searches=average 100",
    f"--json={path}",
  ]  # fmt: skip
  first = subprocess.run(command, capture_output=True, text=True, check=False)
  assert first.returncode == 0, first.stderr
  rows = json.loads(path.read_text())["rows"]
  assert len(rows) == 2
  for searches in rows.values():
    assert set(searches) == {"brute force", "average 100"}
    exact = np.asarray(searches["brute force"]["indices"])
    found = np.asarray(searches["average 100"]["indices"])
    assert exact.shape == found.shape == (8, 10)
    shared = (exact[:, :, None] == found[:, None]).any(axis=2).mean()
    assert shared > 0.9
    assert searches["average 100"]["ms"] > 0
    assert searches["average 100"]["num_scored"] == 100
  assert "relative hit rate" in first.stdout
  assert path.with_suffix(".png").read_bytes()[:4] == b"\x89PNG"

  again = subprocess.run(command, capture_output=True, text=True, check=False)
  assert again.returncode == 0, again.stderr
  assert json.loads(path.read_text())["rows"] == rows  # Nothing is new.
