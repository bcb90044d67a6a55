"""Readers of ASQA and QAMPARI, on files in their format."""

import json

import numpy as np
import pytest

from nnn_jax.data import multi_answer, records

DOCS = [
  {"id": "7", "title": "Nile", "text": "The Nile is long.", "score": "1.5"},
  {"title": "Amazon", "text": "A river in Brazil."},
]


def write(tmp_path, rows):
  path = tmp_path / "file.json"
  path.write_text(json.dumps(rows))
  return path


def test_asqa(tmp_path):
  pairs = [
    {"question": "Africa?", "short_answers": ["Nile", "the Nile river"]},
    {"question": "America?", "short_answers": ["Amazon"]},
  ]
  row = {"sample_id": "a1", "question": "Longest river?", "qa_pairs": pairs}
  (question,) = multi_answer.read_asqa(write(tmp_path, [row | {"docs": DOCS}]))
  assert question.id == "a1"
  assert question.text == "Longest river?"
  assert question.answers == (("Nile", "the Nile river"), ("Amazon",))
  assert question.documents == (
    records.Document("7", "Nile\nThe Nile is long."),
    records.Document("1", "Amazon\nA river in Brazil."),
  )
  found = multi_answer.found(question.documents, question.answers)
  np.testing.assert_array_equal(found, np.eye(2, dtype=bool))


def test_qampari(tmp_path):
  row = {"id": "q", "question": "Rivers?", "answers": [["Nile"], ["Rhine"]]}
  (question,) = multi_answer.read_qampari(
    write(tmp_path, [row | {"docs": DOCS}])
  )
  assert question.answers == (("Nile",), ("Rhine",))
  found = multi_answer.found(question.documents, question.answers)
  assert found.tolist() == [[True, False], [False, False]]
  assert multi_answer.found([], question.answers).shape == (0, 2)


@pytest.mark.parametrize("rows", [{"a": 1}, [{"question": "?"}], ["text"]])
def test_other_files_are_named(tmp_path, rows):
  path = write(tmp_path, rows)
  for read in (multi_answer.read_asqa, multi_answer.read_qampari):
    with pytest.raises(ValueError, match=r"file\.json"):
      read(path)
