"""Tests of experiments.search, on a tiny trained work directory."""

import json
import re

import pytest
import tiny_beir

LABELS = ("dense", "MMR", "NNN-Fix", "NNN-Tr")


@pytest.fixture(scope="module")
def jsonl(tmp_path_factory):
  path = tmp_path_factory.mktemp("documents") / "notes.jsonl"
  rows = [
    {"_id": f"note {i}", "title": "About", "text": tiny_beir.doc_text(i)}
    for i in range(6)
  ]
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return path


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
  path = tmp_path_factory.mktemp("documents") / "notes.txt"
  texts = [tiny_beir.doc_text(i) for i in range(3)]
  path.write_text("\n\n".join(texts) + "\n")
  return path


def tables(text):
  """Heading -> the cells of each row."""
  found, heading = {}, None
  for line in text.splitlines():
    if line.startswith("| "):
      cells = [cell.strip() for cell in line.strip("|").split("|")]
      found.setdefault(heading, []).append(cells)
    elif line.strip():
      heading = line.strip()
  return {name: (rows[0], rows[2:]) for name, rows in found.items()}


def test_each_decoder_answers_with_the_chosen_parameters(
  commands, evaluated, jsonl
):
  query = "bababa and bababa"
  out, _ = commands.run(
    "search",
    f"--workdir={evaluated[0]}",
    f"--documents={jsonl}",
    f"--query={query}",
    "--k=4",
  )
  assert f"## {query}" in out
  got = tables(out)
  assert [name.split(" (")[0] for name in got] == list(LABELS)
  chosen = json.loads(
    (evaluated[0] / "evaluation" / "results.json").read_text()
  )["chosen"]
  assert f"MMR (trade_off={chosen['mmr']['trade_off']:g})" in got
  for label, name in (("NNN-Fix", "nnn_fix"), ("NNN-Tr", "nnn_tr")):
    l1, l2 = chosen[name]["l1"], chosen[name]["l2"]
    assert f"{label} (l1={l1:g} l2={l2:g})" in got
  for name, (header, rows) in got.items():
    nnn = name.startswith("NNN")
    weight = ["weight"] if nnn else []
    assert header == ["rank", "score", *weight, "id", "text"]
    assert [row[0] for row in rows] == ["1", "2", "3", "4"]
    ids = [row[-2] for row in rows]
    assert len(set(ids)) == 4
    for row in rows:
      number = int(row[-2].removeprefix("note "))
      assert row[-1] == f"About {tiny_beir.doc_text(number)}"
      if nnn:  # The score is the weight, and no weight is not above zero.
        assert (float(row[1]) > 0) == bool(row[2])
        assert not row[2] or float(row[2]) == float(row[1])


def test_text_lines_queries_from_input_and_a_pretrained_encoder(
  commands, trained, lines
):
  encoder = trained / "dense" / "retriever" / "query"
  out, _ = commands.run(
    "search",
    f"--encoder={encoder}",
    f"--documents={lines}",
    "--l1=0.001",
    "--l2=0.5",
    "--trade_off=0.25",
    text="bababa\nbabako and babami\n\nnot read\n",
  )
  assert re.findall("^## (.*)$", out, re.MULTILINE) == [
    "bababa",
    "babako and babami",
  ]
  for answer in out.split("## ")[1:]:
    got = tables(answer)
    names = ["dense", "MMR (trade_off=0.25)", "NNN-Fix (l1=0.001 l2=0.5)"]
    assert list(got) == names
    for _, rows in got.values():
      # Fewer documents than k; a document's id is its line.
      assert sorted(row[-2] for row in rows) == ["1", "3", "5"]


def test_errors(commands, trained, jsonl, tmp_path):
  bad = {
    "torn.jsonl": '{"_id": "a", "text": "b"}\n{"_id": "c", "te\n',
    "twice.jsonl": '{"_id": "a", "text": "b"}\n' * 2,
    "empty.txt": "\n \n",
  }
  for name, text in bad.items():
    (tmp_path / name).write_text(text)
  workdir = f"--workdir={trained}"
  errors = commands.fail(
    "search",
    *([workdir, f"--documents={tmp_path / name}"] for name in bad),
    [f"--workdir={tmp_path}", f"--documents={jsonl}"],
    [f"--documents={jsonl}"],
    [workdir, "--encoder=minilm", f"--documents={jsonl}"],
  )
  assert f"{tmp_path / 'torn.jsonl'}, line 2: not JSON" in errors[0]
  assert "line 2: id 'a' repeats line 1" in errors[1]
  assert f"{tmp_path / 'empty.txt'} holds no document" in errors[2]
  assert "holds no trained bi-encoder" in errors[3]
  assert "Name either --workdir or --encoder" in errors[4]
  assert "Name either --workdir or --encoder" in errors[5]
