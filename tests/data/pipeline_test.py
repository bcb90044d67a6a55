import json
import subprocess
import sys

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from nnn_jax.data import pipeline, records


def _queries(num_queries, num_relevant=3):
  """Query i has the relevant documents 10 i, 10 i + 1, ..."""
  relevant = [
    np.arange(10 * i, 10 * i + num_relevant, dtype=np.int32)
    for i in range(num_queries)
  ]
  names = [str(i) for i in range(num_queries)]
  return pipeline.Queries(names, names, relevant)


def test_labels():
  queries = pipeline.Queries(
    ["a", "b"], ["", ""], [np.array([1]), np.array([0, 3])]
  )
  expected = [[False, True, False, False], [True, False, False, True]]
  np.testing.assert_array_equal(queries.labels(4), expected)


@hypothesis.settings(max_examples=20)
@hypothesis.given(
  num_queries=st.integers(1, 40),
  batch_size=st.integers(1, 40),
  seed=st.integers(0, 2**31 - 1),
)
def test_an_epoch_covers_each_query_at_most_once(num_queries, batch_size, seed):
  hypothesis.assume(batch_size <= num_queries)
  batches = pipeline.train_batches(
    _queries(num_queries), batch_size=batch_size, seed=seed
  )
  steps = num_queries // batch_size
  for epoch in range(2):
    seen = []
    for step in range(epoch * steps, (epoch + 1) * steps):
      batch = batches[step]
      assert batch["query"].shape == batch["positive"].shape == (batch_size,)
      assert batch["query"].dtype == batch["positive"].dtype == np.int32
      np.testing.assert_array_equal(batch["positive"] // 10, batch["query"])
      seen += batch["query"].tolist()
    assert len(set(seen)) == len(seen) == steps * batch_size


def test_batches_are_a_function_of_seed_and_step():
  queries = _queries(50)
  first = pipeline.train_batches(queries, batch_size=8, seed=3)
  second = pipeline.train_batches(queries, batch_size=8, seed=3)
  other = pipeline.train_batches(queries, batch_size=8, seed=4)
  forward = [first[step] for step in range(30)]
  for step in reversed(range(30)):  # In another order, from another object.
    batch = second[step]
    for name in ("query", "positive"):
      np.testing.assert_array_equal(batch[name], forward[step][name])
  assert any((first[s]["query"] != other[s]["query"]).any() for s in range(3))
  assert first[10**9]["query"].shape == (8,)


def test_epochs_are_reshuffled_and_draw_positives_afresh():
  batches = pipeline.train_batches(_queries(300), batch_size=300, seed=0)
  epochs = [batches[step] for step in range(2)]
  assert (epochs[0]["query"] != epochs[1]["query"]).mean() > 0.9
  by_query = [
    dict(zip(e["query"].tolist(), e["positive"].tolist(), strict=True))
    for e in epochs
  ]
  same = np.mean([by_query[0][q] == by_query[1][q] for q in range(300)])
  assert 0.2 < same < 0.5  # A third, for three relevant documents each.
  drawn = np.bincount(epochs[0]["positive"] % 10, minlength=3)
  assert drawn.min() > 70


@pytest.mark.parametrize("batch_size", [0, 6])
def test_batch_size_out_of_range(batch_size):
  with pytest.raises(ValueError, match="expected 1 to 5"):
    pipeline.train_batches(_queries(5), batch_size=batch_size, seed=0)


def test_unknown_name_lists_the_known():
  with pytest.raises(ValueError, match=r"unknown data set 'toolens'.*toollens"):
    pipeline.load("toolens")
  with pytest.raises(ValueError, match="toolbank/pandas"):
    pipeline.load("toolbank")


def _write_beir(folder, *, validation=None, corpus=None):
  (folder / "qrels").mkdir()
  corpus = corpus or [{"_id": i, "text": f"text {i}"} for i in ("a", "b")]
  rows = {
    "corpus.jsonl": corpus,
    "queries.jsonl": [{"_id": f"q{i}", "text": "?"} for i in range(10)],
  }
  for name, values in rows.items():
    text = "\n".join(json.dumps(value) for value in values)
    (folder / name).write_text(text)
  train = "".join(f"q{i}\ta\t1\n" for i in range(8))
  (folder / "qrels" / "train.tsv").write_text("query corpus score\n" + train)
  if validation:
    (folder / "qrels" / validation).write_text("header\nq8\tb\t1\n")


def test_beir_folder_carves_validation(tmp_path):
  _write_beir(tmp_path)
  dataset = pipeline.load(f"beir:{tmp_path}")
  assert {s: len(q) for s, q in dataset.splits.items()} == {
    "train": 7,
    "validation": 1,
  }
  assert dataset.metadata["split_seed"] == 0
  again = pipeline.load(f"beir:{tmp_path}")
  assert again.splits["train"].ids == dataset.splits["train"].ids


def test_beir_folder_with_dev(tmp_path):
  _write_beir(tmp_path, validation="dev.tsv")
  dataset = pipeline.load(f"beir:{tmp_path}")
  assert dataset.splits["validation"].ids == ["q8"]
  assert len(dataset.splits["train"]) == 8


def test_beir_folder_errors(tmp_path):
  with pytest.raises(FileNotFoundError, match=r"has no corpus\.jsonl"):
    pipeline.load(f"beir:{tmp_path}")
  _write_beir(tmp_path)
  (tmp_path / "qrels" / "train.tsv").write_text("header\nq0 a 1\n")
  with pytest.raises(ValueError, match=r"train\.tsv, line 2: expected"):
    pipeline.load(f"beir:{tmp_path}")
  (tmp_path / "qrels" / "train.tsv").unlink()
  with pytest.raises(FileNotFoundError, match=r"none of train\.tsv"):
    pipeline.load(f"beir:{tmp_path}")


def test_beir_folder_names_the_bad_document(tmp_path):
  corpus = [{"_id": "a", "text": "x"}, {"_id": "b", "text": " "}]
  _write_beir(tmp_path, corpus=corpus)
  with pytest.raises(ValueError, match=r"corpus row 1 \(id 'b'\) has an empty"):
    pipeline.load(f"beir:{tmp_path}")


def test_clean_rejects_an_empty_corpus_and_empty_ids():
  with pytest.raises(ValueError, match="corpus is empty"):
    records.clean(records.Source([], {}))
  with pytest.raises(ValueError, match="corpus row 0 has an empty id"):
    records.clean(records.Source([records.Document("", "text")], {}))


def test_clean_counts_repeated_queries():
  query = records.Query("q", "text", ("a",))
  source = records.Source(
    [records.Document("a", "text")], {"test": [query], "train": [query]}
  )
  cleaned, counts = records.clean(source)
  assert list(cleaned.splits) == ["train"]
  assert counts["duplicate_queries_removed"] == 1


def test_read_documents_jsonl(tmp_path):
  path = tmp_path / "docs.jsonl"
  path.write_text(
    '{"_id": "a", "title": "T", "text": "x"}\n\n{"id": 7, "text": "y"}\n'
  )
  assert pipeline.read_documents(path) == (["a", "7"], ["T x", "y"])


def test_read_documents_text(tmp_path):
  path = tmp_path / "docs.txt"
  path.write_text("first\n\n third \n")
  assert pipeline.read_documents(path) == (["1", "3"], ["first", "third"])


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("", "holds no document"),
    ('{"_id": "a", "text": "x"}\n{', "line 2: not JSON"),
    ('{"_id": "a"}', "line 1: no 'text'"),
    ('{"text": "x"}', "line 1: no '_id' or 'id'"),
    ("[1]", "line 1: expected a JSON object"),
    ('\n{"_id": "a", "text": ""}', "line 2: empty id or text"),
    (
      '{"_id": "a", "text": "x"}\n{"_id": "a", "text": "y"}',
      "line 2: id 'a' repeats line 1",
    ),
  ],
)
def test_read_documents_names_the_line(tmp_path, text, message):
  path = tmp_path / "docs.jsonl"
  path.write_text(text)
  with pytest.raises(ValueError, match=message):
    pipeline.read_documents(path)


def test_no_tensorflow():
  code = (
    "import sys, nnn_jax.data.pipeline; sys.exit('tensorflow' in sys.modules)"
  )
  subprocess.run([sys.executable, "-c", code], check=True)
