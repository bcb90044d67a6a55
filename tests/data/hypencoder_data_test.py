"""MS MARCO, TREC DL, TREC TOT, FollowIR and teachers' scores, in small."""

import gzip
import json
import math

import numpy as np
import pytest

from nnn_jax.data import pipeline, records, teacher_scores, trec
from nnn_jax.data.followir import followir_dataset_builder
from nnn_jax.training import teachers


def _lines(path, lines):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _jsonl(path, rows):
  _lines(path, map(json.dumps, rows))


def _graded(dataset, split):
  """{query id: {document id: grade}}."""
  queries = dataset.splits[split]
  gains = queries.gains(len(dataset.doc_ids))
  return {
    name: {dataset.doc_ids[d]: int(row[d]) for d in np.flatnonzero(row)}
    for name, row in zip(queries.ids, gains, strict=True)
  }


def _write_msmarco(folder):
  _lines(folder / "collection.tsv", [f"{i}\tpassage {i}" for i in range(6)])
  train = [str(100 + i) for i in range(12)]
  _lines(folder / "queries.train.tsv", [f"{q}\tquestion {q}" for q in train])
  # A query of the file without judgement, and one judged that is not there.
  _lines(
    folder / "qrels.train.tsv",
    [*(f"{q}\t0\t{i % 6}\t1" for i, q in enumerate(train[:-1])), "9\t0\t1\t1"],
  )
  _lines(folder / "queries.dev.small.tsv", ["7\tdev question"])
  _lines(folder / "qrels.dev.small.tsv", ["7\t0\t2\t1", "7\t0\t77\t1"])


def test_msmarco_with_trec_dl(tmp_path, data_dir):
  _write_msmarco(tmp_path)
  _lines(
    tmp_path / "msmarco-test2019-queries.tsv", ["19\tdl question", "20\tno"]
  )
  _lines(
    tmp_path / "2019qrels-pass.txt",
    ["19 Q0 5 3", "19 Q0 4 0", "19 Q0 1 1", "20 Q0 1 0"],
  )
  dataset = pipeline.load("msmarco", data_dir=data_dir, manual_dir=tmp_path)
  assert dataset.doc_texts[3] == "passage 3"
  sizes = {split: len(queries) for split, queries in dataset.splits.items()}
  assert sizes == {"train": 10, "validation": 1, "test": 1, "trec_dl_2019": 1}
  assert _graded(dataset, "test") == {"7": {"2": 1}}
  assert _graded(dataset, "trec_dl_2019") == {"19": {"1": 1, "5": 3}}
  assert dataset.metadata["unknown_pairs_removed"] == 1


def test_msmarco_is_not_downloaded(tmp_path):
  with pytest.raises(FileNotFoundError, match=r"pass it as manual_dir:\n.*tar"):
    pipeline.load("msmarco", data_dir=tmp_path)


@pytest.mark.parametrize(
  ("name", "line"),
  [
    ("collection.tsv", "6 no tab"),
    ("collection.tsv", "6\t"),
    ("queries.train.tsv", "1\tone\ttwo"),
    ("qrels.train.tsv", "100\t0\t1"),
    ("qrels.train.tsv", "100\t0\t1\tyes"),
  ],
)
def test_a_bad_line_is_named(tmp_path, data_dir, name, line):
  _write_msmarco(tmp_path)
  with (tmp_path / name).open("a") as file:
    file.write(f"{line}\n")
  number = len((tmp_path / name).read_text().splitlines())
  with pytest.raises(ValueError, match=rf"{name}, line {number}: expected"):
    pipeline.load("msmarco", data_dir=data_dir, manual_dir=tmp_path)


def test_qrels_keep_the_last_grade(tmp_path):
  path = tmp_path / "qrels.txt.gz"
  with gzip.open(path, "wt") as file:
    file.write("1 0 a 2\n1 0 b 1\n\n1 0 a 0\n2 0 c -1\n1 0 b 3\n")
  assert trec.read_qrels(path) == {"1": {"b": 3}, "2": {}}


def test_trec_tot(tmp_path, data_dir):
  page = {"wikidata_id": "Q1", "sections": {}, "infoboxes": []}
  _jsonl(
    tmp_path / "corpus.jsonl",
    [
      {"doc_id": "12", "page_title": "Alien", "text": "A film."} | page,
      {"doc_id": "13", "page_title": "Heat", "text": "Another."} | page,
    ],
  )
  for folder, names in {"train": "ab", "dev": "c"}.items():
    _jsonl(
      tmp_path / folder / "queries.jsonl",
      [
        {"id": n, "title": "Film?", "text": f"scene {n}", "domain": "movie"}
        for n in names
      ],
    )
    _lines(tmp_path / folder / "qrel.txt", [f"{name} 0 12 1" for name in names])
  # The queries of the test set come without judgements.
  _jsonl(tmp_path / "test" / "queries.jsonl", [{"id": "t", "text": "what"}])
  dataset = pipeline.load("trec_tot", data_dir=data_dir, manual_dir=tmp_path)
  assert dataset.doc_texts == ["Alien A film.", "Heat Another."]
  assert set(dataset.splits) == {"train", "validation"}
  assert dataset.splits["train"].texts == ["Film? scene a", "Film? scene b"]
  assert _graded(dataset, "validation") == {"c": {"12": 1}}
  with (tmp_path / "dev" / "queries.jsonl").open("a") as file:
    file.write('{"id": "d"}\n')
  with pytest.raises(ValueError, match=r"dev/queries\.jsonl, line 2: no 'text"):
    pipeline.load("trec_tot", data_dir=data_dir, manual_dir=tmp_path)


def test_followir(tmp_path, data_dir):
  _jsonl(
    tmp_path / "corpus.jsonl",
    [{"_id": f"d{i}", "title": "", "text": f"text {i}"} for i in range(3)],
  )
  ids = ["301-og", "301-changed"]
  _jsonl(
    tmp_path / "queries.jsonl",
    [{"_id": name, "text": "organised crime"} for name in ids],
  )
  _jsonl(
    tmp_path / "instruction.jsonl",
    [
      {"query-id": ids[0], "instruction": "Name groups."},
      {"query-id": ids[1], "instruction": "Name groups, not of Asia."},
    ],
  )
  scores = [(ids[0], 0, 2), (ids[0], 1, 1), (ids[1], 1, 1), (ids[1], 0, 0)]
  _jsonl(
    tmp_path / "qrels.jsonl",
    [
      {"query-id": q, "corpus-id": f"d{d}", "score": score}
      for q, d, score in scores
    ],
  )
  changes = [{"query-id": "301", "corpus-ids": ["d0"]}]
  _jsonl(tmp_path / "qrel_diff.jsonl", changes)
  dataset = pipeline.load("followir", data_dir=data_dir, manual_dir=tmp_path)
  assert dataset.splits["changed"].texts == [
    "organised crime Name groups, not of Asia."
  ]
  assert _graded(dataset, "original") == {ids[0]: {"d0": 2, "d1": 1}}
  assert _graded(dataset, "changed") == {ids[1]: {"d1": 1}}
  read = followir_dataset_builder.read_changes
  assert read(tmp_path) == {"301": ["d0"]}
  _jsonl(tmp_path / "qrel_diff.jsonl", [*changes, {"query-id": "302"}])
  with pytest.raises(ValueError, match=r"qrel_diff\.jsonl, line 2: no corpus-"):
    read(tmp_path)


def test_grades_survive_cleaning():
  query = records.Query("q", "?", ("x", "b", "a", "b"), (9, 2, 3, 2))
  documents = [records.Document(name, name) for name in "ab"]
  source, _ = records.clean(records.Source(documents, {"test": [query]}))
  assert source.splits["test"] == [records.Query("q", "?", ("b", "a"), (2, 3))]


def test_teacher_scores(tmp_path):
  path = tmp_path / "train.jsonl"
  items = [{"id": 5, "score": 1.5, "content": "text"}, {"id": "6"}]
  _jsonl(path, [{"query": {"id": 1, "content": "?"}, "items": items}])
  rows = list(teacher_scores.read(path))
  assert rows[0] == ("1", "5", 1.5)
  assert rows[1][:2] == ("1", "6")
  assert math.isnan(rows[1][2])
  path = tmp_path / "scores.tsv"
  _lines(path, ["9.5\t-1.25\t1\t5\t6"])
  assert list(teacher_scores.read(path)) == [("1", "5", 9.5), ("1", "6", -1.25)]
  path = tmp_path / "qidpidtriples.tsv"
  _lines(path, ["1\t5\t6"])
  assert [row[:2] for row in teacher_scores.read(path)] == [
    ("1", "5"),
    ("1", "6"),
  ]


@pytest.mark.parametrize(
  ("name", "line"),
  [
    ("a.tsv", "1\t2"),
    ("a.tsv", "x\t1\t1\t5\t6"),
    ("a.jsonl", "{"),
    ("a.jsonl", '{"query": {"id": 1}, "items": [{"score": 1}]}'),
    ("a.jsonl", '{"query": 1, "items": []}'),
  ],
)
def test_a_bad_line_of_scores_is_named(tmp_path, name, line):
  _lines(tmp_path / name, ["", line])
  with pytest.raises(ValueError, match=rf"{name}, line 2: cannot be read"):
    list(teacher_scores.read(tmp_path / name))
  with pytest.raises(ValueError, match=r"expected a \.jsonl or \.tsv"):
    list(teacher_scores.read(tmp_path / "scores.pkl"))


def test_candidates_of_scores():
  queries = pipeline.Queries(["a", "b"], ["", ""], [np.array([0])] * 2)
  scores = [("a", "x", 1.0), ("a", "y", 2.0), ("a", "x", 3.0), ("z", "x", 1.0)]
  found = teachers.from_scores(scores, queries, ["x", "y"])
  assert found.rows.tolist() == [[0, 1], [-1, -1]]
  assert found.scores[0].tolist() == [3.0, 2.0]
  both = np.asarray([0, 1])
  np.testing.assert_array_equal(
    found.score_of(both, np.asarray([1, 1])), [2.0, np.nan]
  )
  rows, drawn = found.draw(
    both, np.asarray([[0], [0]]), 3, np.random.default_rng(0)
  )
  assert rows.tolist() == [[1, -1, -1], [-1, -1, -1]]
  assert drawn[0, 0] == 2.0
  assert np.isnan(drawn).sum() == 5
  with pytest.raises(ValueError, match="no query and document"):
    teachers.from_scores([("a", "w", 1.0)], queries, ["x", "y"])
