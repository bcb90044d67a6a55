"""Tests of experiments.report; metrics_test reads its TREC files back."""

from __future__ import annotations

import json
import os
import pathlib
import urllib.parse

import hypothesis
import hypothesis.strategies as st
import ir_measures
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import report
from nnn_jax import metrics


def test_run_lines(tmp_path):
  path = tmp_path / "new" / "run.txt"
  report.write_run(
    path, ["q 1", 2], ["a", "Ada Lovelace", "100%"],
    jnp.array([[1, 0, -1], [-1, 2, 1]]), tag="NNN Fix",
  )  # fmt: skip
  assert path.read_text() == (
    "q%201 Q0 Ada%20Lovelace 1 3 NNN%20Fix\n"
    "q%201 Q0 a 2 2 NNN%20Fix\n"
    "2 Q0 100%25 2 2 NNN%20Fix\n"
    "2 Q0 Ada%20Lovelace 3 1 NNN%20Fix\n"
  )


def test_qrels_lines(tmp_path):
  path = tmp_path / "qrels.txt"
  relevant = np.array([[0, 2, 1], [0, 0, 0]])
  report.write_qrels(path, ["q1", "q2"], ["a", "b c", "d"], relevant)
  assert path.read_text() == "q1 0 b%20c 2\nq1 0 d 1\n"
  report.write_qrels(path, ["q1", "q2"], ["a", "b c", "d"], relevant > 0)
  assert path.read_text() == "q1 0 b%20c 1\nq1 0 d 1\n"


def test_tools_keep_the_decoders_order(tmp_path):
  # Ids in descending order, where a tool would break ties the other way.
  docs = [f"d{9 - i}" for i in range(10)]
  indices = np.random.default_rng(0).permutation(10)[None, :]
  report.write_run(tmp_path / "run", ["q"], docs, indices, tag="t")
  run = ir_measures.read_trec_run(str(tmp_path / "run"))
  order = [s.doc_id for s in sorted(run, key=lambda s: -s.score)]
  assert order == [docs[i] for i in indices[0]]


@hypothesis.given(st.text(min_size=1).filter(lambda s: s.isprintable()))
def test_encode_id_is_one_reversible_ascii_word(name):
  encoded = report.encode_id(name)
  assert urllib.parse.unquote(encoded) == name
  assert encoded.isascii()
  assert encoded.split() == [encoded]


@pytest.mark.parametrize("name", [" ", "\t\n", "\u00a0", "\u3000x", "%20"])
def test_encode_id_of_white_space(name):
  assert report.encode_id(name).split() == [report.encode_id(name)]
  assert urllib.parse.unquote(report.encode_id(name)) == name


def test_encode_id_keeps_usual_ids():
  name = "numpy.linalg.norm/AWS:S3-put_object(x,y)#1"
  assert report.encode_id(name) == name


def test_errors(tmp_path):
  path = tmp_path / "file"
  with pytest.raises(ValueError, match=r"doc_ids\[1\] repeats doc_ids\[0\]"):
    report.write_run(path, ["q"], ["a", "a"], [[0]], tag="t")
  with pytest.raises(ValueError, match=r"query_ids\[0\] is empty"):
    report.write_qrels(path, [""], ["a"], [[1]])
  with pytest.raises(ValueError, match="an id is empty"):
    report.write_run(path, ["q"], ["a"], [[0]], tag="")
  with pytest.raises(ValueError, match="indices reach from 0 to 2, but there"):
    report.write_run(path, ["q"], ["a", "b"], [[0, 2]], tag="t")
  with pytest.raises(ValueError, match="indices must be an integer array"):
    report.write_run(path, ["q"], ["a", "b"], [[0.5, 0.25]], tag="t")
  with pytest.raises(ValueError, match=r"\(1, 1\), but there are 2 query_ids"):
    report.write_run(path, ["q", "r"], ["a"], [[0]], tag="t")
  with pytest.raises(ValueError, match="relevant has shape"):
    report.write_qrels(path, ["q"], ["a", "b"], [[1]])
  with pytest.raises(ValueError, match="whole grades"):
    report.write_qrels(path, ["q"], ["a"], [[0.5]])
  with pytest.raises(ValueError, match="whole grades"):
    report.write_qrels(path, ["q"], ["a"], [[-1]])
  assert list(tmp_path.iterdir()) == []


def test_markdown_table():
  rows = [
    {"decoder": "a|b", "comp@5": np.float32(0.5), "n": jnp.asarray(12)},
    {"decoder": "NNN\nFix", "comp@5": 0.12345, "n": None, "other": 1},
  ]
  got = report.markdown_table(rows, ["decoder", "comp@5", "n"], digits=2)
  assert got == (
    "| decoder | comp@5 |   n |\n"
    "| ------- | -----: | --: |\n"
    "| a\\|b    |   0.50 |  12 |\n"
    "| NNN Fix |   0.12 |     |\n"
  )
  assert report.markdown_table([], ["a"]) == "| a   |\n| --- |\n"
  with pytest.raises(ValueError, match="columns is empty"):
    report.markdown_table(rows, [])


def test_write_json(tmp_path):
  path = tmp_path / "deep" / "result.json"
  report.write_json(
    path,
    {
      "numpy": np.float64(0.25),
      "jax": jnp.asarray(0.5),
      "bfloat16": jnp.asarray(0.5, jnp.bfloat16),
      "count": np.int64(3),
      "array": jnp.arange(2),
      "path": pathlib.Path("a/b"),
      "interval": metrics.Interval(0.5, 0.25, 1.0),
      np.int64(5): [True, None, "é"],
    },
  )
  assert json.loads(path.read_text()) == {
    "numpy": 0.25,
    "jax": 0.5,
    "bfloat16": 0.5,
    "count": 3,
    "array": [0, 1],
    "path": "a/b",
    "interval": {"mean": 0.5, "low": 0.25, "high": 1.0},
    "5": [True, None, "é"],
  }


def test_write_json_refuses_nan_and_keeps_the_old_file(tmp_path):
  path = tmp_path / "result.json"
  report.write_json(path, {"loss": 1.0})
  with pytest.raises(ValueError, match="JSON compliant"):
    report.write_json(path, {"loss": jnp.asarray(np.nan)})
  with pytest.raises(TypeError, match="not JSON serializable"):
    report.write_json(path, {"loss": object()})
  assert json.loads(path.read_text()) == {"loss": 1.0}
  assert os.listdir(tmp_path) == ["result.json"]


def test_csv(tmp_path):
  path = tmp_path / "rows.csv"
  report.write_csv(path, [{"a": 'x, "y"', "b": None}, {"a": 1, "b": 0.5}])
  assert path.read_text() == 'a,b\n"x, ""y""",\n1,0.5\n'
