"""Tests of experiments.bench: the command itself, tiny, and its parts."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import cvxpy
import numpy as np
import pytest

from experiments.bench import memory, scoring, summary, worlds

PEERS = {"scikit-learn": "sklearn", "faiss flat": "faiss"}


def _command(path, *more):
  present = [
    n for n, package in PEERS.items() if importlib.util.find_spec(package)
  ]
  decoders = ["dense", "working set", "FISTA 50", *present]
  return subprocess.run(
    [
      sys.executable, "-m", "experiments.bench.nnn_bench",
      "--num_docs=40,80", "--batch=2", "--dim=16", "--penalties=0.1:0.1",
      f"--decoders={','.join(decoders)}", "--repeats=2", "--cell_s=2",
      "--threads=1", f"--json={path}", *more,
    ],
    capture_output=True, text=True, check=False,
  )  # fmt: skip


def test_command_measures_prints_and_resumes(tmp_path):
  path = tmp_path / "bench.json"
  first = _command(path)
  assert first.returncode == 0, first.stderr
  results = json.loads(path.read_text())
  rows = {(row["decoder"], row["num_docs"]): row for row in results["rows"]}
  for num_docs in (40, 80):
    for row in (rows[name, num_docs] for name in ("dense", "working set")):
      assert row["ms"] > 0
      assert row["calls"] >= 2
    assert rows["dense", num_docs]["agreement"] == 1.0
    exact = rows["working set", num_docs]
    assert exact["kkt_violation"] < 1e-5
    assert len(exact["objective"]) == 2
    if ("scikit-learn", num_docs) in rows:  # An optimum is one, whose ever.
      peer = rows["scikit-learn", num_docs]["objective"]
      np.testing.assert_allclose(peer, exact["objective"], atol=1e-6)
    if ("faiss flat", num_docs) in rows:
      assert rows["faiss flat", num_docs]["agreement"] == 1.0
  assert "x faster than FISTA 50, takes" in first.stdout
  assert "working set, batch 2: time ~ N^" in first.stdout
  assert path.with_suffix(".png").read_bytes()[:4] == b"\x89PNG"

  # One row is lost, as of a run that was killed: only that one is measured.
  lost = results["rows"].pop(0)
  path.write_text(json.dumps(results))
  second = _command(path)
  assert second.returncode == 0, second.stderr
  again = json.loads(path.read_text())["rows"]
  assert again[:-1] == results["rows"]
  assert again[-1]["decoder"] == lost["decoder"]

  other = _command(path, "--world=clustered")
  assert other.returncode != 0
  assert "other settings of world" in other.stderr


@pytest.mark.parametrize("kind", worlds.KINDS)
def test_worlds_are_reproducible_unit_rows(kind):
  world = worlds.World(kind=kind, dim=24, cluster_size=5)
  rows = worlds.corpus(world, 50)
  np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, rtol=1e-5)
  np.testing.assert_array_equal(rows, worlds.corpus(world, 50))
  queries = worlds.queries(world, rows, 4)
  np.testing.assert_allclose(np.linalg.norm(queries, axis=1), 1.0, rtol=1e-5)
  np.testing.assert_array_equal(queries[:2], worlds.queries(world, rows, 2))


def test_clusters_have_the_radius_asked():
  world = worlds.World(
    kind="clustered", dim=512, radius=0.6, cluster_size=1_000
  )
  rows = worlds.corpus(world, 1_000)  # One cluster.
  centre = rows.mean(axis=0)
  # Unit centre, orthogonal noise: every cosine is 1 / sqrt(1 + radius^2).
  cosines = rows @ centre / np.linalg.norm(centre)
  np.testing.assert_allclose(cosines, 1 / 1.36**0.5, atol=0.05)


def test_bfloat16_rounds_as_jax_does():
  import jax.numpy as jnp

  exact = worlds.corpus(worlds.World(dim=8), 20)
  rounded = worlds.corpus(worlds.World(dim=8, dtype="bfloat16"), 20)
  expected = jnp.asarray(exact, jnp.bfloat16).astype(jnp.float32)
  np.testing.assert_array_equal(rounded, expected)


def test_unknown_worlds_are_named():
  with pytest.raises(ValueError, match="kind must be one of"):
    worlds.World(kind="flat")
  with pytest.raises(ValueError, match="dtype must be one of"):
    worlds.World(dtype="int8")


def test_score_is_that_of_an_independent_optimum():
  rng = np.random.default_rng(0)
  corpus, query, l1, l2 = rng.random((9, 4)), rng.random(4), 0.2, 0.3
  w = cvxpy.Variable(9, nonneg=True)
  loss = 0.5 * cvxpy.sum_squares(corpus.T @ w - query)
  problem = cvxpy.Problem(
    cvxpy.Minimize(loss + l1 * cvxpy.sum(w) + 0.5 * l2 * cvxpy.sum_squares(w))
  )
  problem.solve(solver="CLARABEL")
  best = np.where(w.value > 1e-6, w.value, 0.0)
  quality = scoring.evaluate(
    query[None], corpus, [scoring.Sparse.of(best)], l1=l1, l2=l2
  )
  np.testing.assert_allclose(quality.objective, [problem.value], atol=1e-6)
  assert quality.kkt_violation[0] < 1e-4
  nothing = scoring.evaluate(
    query[None], corpus, [scoring.Sparse.of(np.zeros(9))], l1=l1, l2=l2
  )
  np.testing.assert_allclose(
    nothing.kkt_violation, [(corpus @ query).max() - l1]
  )


def test_agreement_counts_the_exact_top():
  corpus, query = np.eye(4), np.array([[4.0, 3.0, 2.0, 1.0]])
  assert scoring.agreement(query, corpus, np.array([[1, 0]])) == 1.0
  assert scoring.agreement(query, corpus, np.array([[0, 3]])) == 0.5


def test_peak_memory_is_that_of_the_call():
  peak, result = memory.peak_mib(lambda: np.ones(40 * 2**20, np.uint8).sum())
  assert result == 40 * 2**20
  if peak is None:
    pytest.skip("this system has no high-water mark to set back")
  assert 35 <= peak < 60


def test_exponent_of_linear_cost_is_one():
  rows = [
    {"decoder": "dense", "batch": 1, "num_docs": n, "ms": 2.0 * n}
    for n in (10, 100, 1000)
  ]
  (line,) = summary.exponents(rows)
  assert line == "dense, batch 1: time ~ N^1.00 from 100 to 1,000"
