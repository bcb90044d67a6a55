"""The command of the sparse benchmark, tiny."""

import json
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_command_measures_draws_and_resumes(tmp_path):
  command = [
    sys.executable, "-m", "experiments.bench.seismic_bench",
    "--num_docs=300", "--queries=16", "--repeats=1", "--nopeer",
    f"--json={tmp_path / 'bench.json'}", f"--figure={tmp_path / 'bench.png'}",
  ]  # fmt: skip
  outputs = [
    subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for _ in range(2)
  ]
  assert outputs[0] == outputs[1]  # The second measured nothing.
  (rows,) = json.loads((tmp_path / "bench.json").read_text()).values()
  by_name = {row["search"]: row for row in rows}
  assert by_name["exact, 16 at once"]["recall"] == 1.0
  assert by_name["native 8, 0.8"]["recall"] > 0.9
  assert (tmp_path / "bench.png").stat().st_size > 0
