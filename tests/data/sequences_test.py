"""Sequence data: readers, order, splits, windows, the seen filter."""

import io
import zipfile

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from nnn_jax.data import interactions, pipeline, sequences
from nnn_jax.data.movielens import movielens_dataset_builder


def _dataset(items, timestamps=None, num_items=9):
  return sequences.SequenceDataset(
    "x",
    [f"i{n}" for n in range(num_items)],
    [""] * num_items,
    [f"u{n}" for n in range(len(items))],
    [np.int32(row) for row in items],
    None if timestamps is None else [np.int64(row) for row in timestamps],
    {},
  )


def _ids(dataset, user):
  return [dataset.item_ids[i - 1] for i in dataset.items[user]]


def test_movielens_with_times(tmp_path, data_dir):
  (tmp_path / "ratings.csv").write_bytes(
    b"userId,movieId,rating,timestamp\r\n"
    b"1,30,4.0,200\r\n1,20,0.5,100\r\n2,20,3.0,7\r\n"
    b"1,10,5.0,200\r\n2,10,3.0,7\r\n"
  )
  (tmp_path / "movies.csv").write_text(
    "movieId,title,genres\n"
    '30,"Ran, again (1985)",Drama|War\n20,Up (2009),Kids\n'
    "99,Unrated (1990),Drama\n"
  )
  dataset = sequences.load(
    "movielens/latest_small", data_dir=data_dir, manual_dir=tmp_path
  )
  assert dataset.user_ids == ["1", "2"]
  # Equal times keep the order of the file: 30 stands before 10.
  assert _ids(dataset, 0) == ["20", "30", "10"]
  assert _ids(dataset, 1) == ["20", "10"]
  assert dataset.timestamps[0].tolist() == [100, 200, 200]
  assert dataset.item_texts == ["Ran, again (1985) [Drama, War]",
                                "Up (2009) [Kids]", ""]  # fmt: skip
  assert "| 2 | 3 | 5 | 2/2.5/3 | yes |" in sequences.describe(dataset)


def test_movielens_1m_in_both_formats(tmp_path, data_dir):
  old, new = tmp_path / "dat", tmp_path / "order"
  for folder in (old, new):
    folder.mkdir()
    (folder / "movies.dat").write_bytes(b"5::Caf\xe9 (1990)::Drama\n")
  (old / "ratings.dat").write_text("1::5::3::20\n1::6::3::10\n2::5::1::5\n")
  (new / "sequences.txt").write_text("1 6 5\n2 5\n")
  timed, ordered = (
    sequences.load("movielens/1m", data_dir=data_dir, manual_dir=folder)
    for folder in (old, new)
  )
  for dataset in (timed, ordered):
    assert [_ids(dataset, user) for user in range(2)] == [["6", "5"], ["5"]]
  assert dict(zip(timed.item_ids, timed.item_texts, strict=True))["5"] == (
    "Café (1990) [Drama]"
  )
  assert timed.timestamps[0].tolist() == [10, 20]
  assert ordered.timestamps is None


def test_movielens_1m_without_ratings(tmp_path, data_dir):
  (tmp_path / "movies.dat").write_text("5::A::Drama\n")
  with pytest.raises(FileNotFoundError, match=r"lacks ratings\.dat"):
    sequences.load("movielens/1m", data_dir=data_dir, manual_dir=tmp_path)


def test_movielens_archive_is_downloaded(tmp_path, monkeypatch):
  archive = io.BytesIO()
  with zipfile.ZipFile(archive, "w") as file:
    file.writestr("ml-20m/ratings.csv", "h\n7,1,5.0,1\n7,2,5.0,2\n7,3,1.0,3\n")
    file.writestr("ml-20m/movies.csv", "h\n1,A (1990),Drama\n")
  published = tmp_path / "ml-20m.zip"
  published.write_bytes(archive.getvalue())

  def source_files(dl_manager, urls, **_):
    assert list(urls) == ["ml-20m.zip"]
    return {"ml-20m.zip": published}, "download"

  monkeypatch.setattr(
    movielens_dataset_builder.base, "source_files", source_files
  )
  dataset = sequences.load("movielens/20m", data_dir=tmp_path / "prepared")
  assert _ids(dataset, 0) == ["1", "2", "3"]
  assert dataset.metadata["source"] == "download"


def test_amazon_sequences_and_ratings(tmp_path, data_dir):
  (tmp_path / "Beauty.txt").write_text("a 1 2 3\nb 3\n")
  dataset = sequences.load(
    "amazon/beauty", data_dir=data_dir, manual_dir=tmp_path
  )
  assert _ids(dataset, 0) == ["1", "2", "3"]
  books = tmp_path / "books"
  books.mkdir()
  rows = [f"u{u},b{b},5.0,{9 - b}" for u in range(5) for b in range(5)]
  rows += ["u9,b0,5.0,3", "u0,b9,1.0,3"]  # Outside the 5-core.
  (books / "ratings_Books.csv").write_text("\n".join(rows))
  dataset = sequences.load("amazon/books", data_dir=data_dir, manual_dir=books)
  assert len(dataset.user_ids) == dataset.num_items == 5
  assert _ids(dataset, 0) == ["b4", "b3", "b2", "b1", "b0"]
  assert dataset.metadata["outside_k_core"] == 2


def test_nq320k(tmp_path, data_dir):
  (tmp_path / "corpus_lite.json").write_text('["page a", "page b"]')
  train = ", ".join(f'["who {n}?", {n % 2}]' for n in range(20))
  (tmp_path / "train.json").write_text(f"[{train}]")
  (tmp_path / "dev.json").write_text('[["where?", 1]]')
  dataset = pipeline.load("nq320k", data_dir=data_dir, manual_dir=tmp_path)
  assert dataset.doc_texts == ["page a", "page b"]
  sizes = {split: len(q) for split, q in dataset.splits.items()}
  assert sizes == {"train": 18, "validation": 2, "test": 1}
  assert dataset.splits["test"].relevant[0].tolist() == [1]


def test_the_synthetic_world_says_so_and_needs_no_file(data_dir):
  dataset = sequences.load("synthetic_interests", data_dir=data_dir)
  assert dataset.metadata["synthetic"]
  assert (len(dataset.items), dataset.num_items) == (1000, 1000)
  for items, times in zip(dataset.items, dataset.timestamps, strict=True):
    assert 20 <= len(items) <= 60
    assert len(set(items.tolist())) == len(items)
    assert (np.diff(times) > 0).all()


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("1,2,3\n", "line 1: expected user, item, rating"),
    ("1,2,3,4\n1,,3,4\n", "line 2"),
    ("1,2,3,nan\n", "whole seconds"),
    ("", "the log is empty"),
  ],
)
def test_bad_ratings(tmp_path, text, message):
  path = tmp_path / "ratings.csv"
  path.write_text(text)
  with pytest.raises(ValueError, match=message):
    interactions.read_ratings(path, separator=",", header=False)


def test_bad_sequences(tmp_path):
  path = tmp_path / "sequences.txt"
  for text, message in (("1 2\n1 3\n", "repeats"), ("1\n", "has no item")):
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
      interactions.read_sequences(path)


def test_bad_data_sets():
  with pytest.raises(ValueError, match="item ids must be 1 to 9; 0 is padding"):
    _dataset([[0, 1]])
  one = _dataset([[1, 2]])
  with pytest.raises(ValueError, match="user row 1: id 'u0' is empty or rep"):
    sequences.SequenceDataset(
      "x", one.item_ids, one.item_texts, ["u0", "u0"], one.items * 2, None, {}
    )
  with pytest.raises(ValueError, match="unknown sequence data set 'films'"):
    sequences.load("films")
  with pytest.raises(ValueError, match="no user is in the split 'test'"):
    sequences.leave_one_out(one, "test")
  with pytest.raises(ValueError, match="split must be one of train"):
    sequences.leave_one_out(one, "dev")


@hypothesis.given(
  st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 2)),
    min_size=1,
    max_size=30,
  )
)
def test_order_is_by_user_time_and_row(rows):
  users, items, times = (np.array(column) for column in zip(*rows, strict=True))
  log = interactions.Log(
    list("abcd"), list("vwxyz"), users, items, times, [""] * 5
  )
  got = interactions.chronological(log)
  expected = sorted(rows, key=lambda row: (row[0], row[2]))  # Stable too.
  assert expected == list(
    zip(got.users, got.items, got.timestamps, strict=True)
  )


def test_leave_one_out_by_hand():
  items, times = [[4, 5, 6, 7], [8, 9]], [[10, 20, 30, 40], [1, 2]]
  dataset = _dataset(items, times)
  test = sequences.leave_one_out(dataset, "test")
  assert test.items[0].tolist() == [4, 5, 6]
  assert (test.targets.tolist(), test.requested.tolist()) == ([7], [40])
  validation = sequences.leave_one_out(dataset, "validation")
  assert validation.items[0].tolist() == [4, 5]
  assert validation.targets.tolist() == [6]
  train = sequences.leave_one_out(dataset, "train")
  # A user of two items is not evaluated, so both are learned from.
  assert [row.tolist() for row in train.items] == [[4, 5], [8, 9]]
  batch = test.padded(2)
  assert batch["ids"].tolist() == [[5, 6, 0]]
  assert batch["timestamps"].tolist() == [[0, 10, 20]]  # The request's time.
  assert batch["last"].tolist() == [1]
  padded = test.padded(5)
  assert padded["ids"].tolist() == [[4, 5, 6, 0, 0, 0]]
  assert padded["timestamps"].tolist() == [[0, 10, 20, 30, 0, 0]]
  assert (test.take(np.array([0])).padded(5)["ids"] == padded["ids"]).all()


def test_the_last_items_are_never_trained_on():
  rng = np.random.default_rng(0)
  dataset = _dataset([rng.integers(1, 8, size=n) for n in range(3, 20)])
  for n, items in enumerate(dataset.items):
    items[-2:] = (8, 9)  # Items that no user has elsewhere.
    assert n == dataset.user_ids.index(f"u{n}")
  train = sequences.leave_one_out(dataset, "train")
  for window in ("last", "random"):
    batches = sequences.train_batches(
      train, length=4, batch_size=4, seed=0, window=window
    )
    ids = np.concatenate([batches[step]["ids"] for step in range(40)])
    assert set(np.unique(ids)) == set(range(8))


def test_batches_are_a_function_of_the_step():
  dataset = _dataset([np.arange(1, 9)] * 10, [np.arange(8) * 60] * 10)
  train = sequences.leave_one_out(dataset, "train")
  make = lambda seed: sequences.train_batches(  # noqa: E731
    train, length=3, batch_size=4, seed=seed, window="random"
  )
  one, other = make(0), make(1)
  epochs = sequences.num_trainable(train) // 4
  assert epochs == 2
  users = np.concatenate([one[step]["query"] for step in range(2)])
  assert len(set(users.tolist())) == 8  # A pass visits a user once.
  late = one[1_000]
  assert (make(0)[1_000]["ids"] == late["ids"]).all()
  assert any((one[s]["query"] != other[s]["query"]).any() for s in range(4))
  assert (np.diff(late["ids"], axis=1) == 1).all()
  assert late["timestamps"].tolist() == [[0, 60, 120, 180]] * 4
  with pytest.raises(ValueError, match="window must be"):
    sequences.train_batches(
      train, length=3, batch_size=4, seed=0, window="first"
    )
  with pytest.raises(ValueError, match="batch_size is 11"):
    sequences.train_batches(train, length=3, batch_size=11, seed=0)


def test_the_seen_filter_is_the_whole_history():
  dataset = _dataset([[1, 2, 3, 1, 4], [5, 6, 7, 5, 5]])
  test = sequences.leave_one_out(dataset, "test")
  unseen = test.unseen()
  assert unseen[0].tolist() == [False, False, False] + [True] * 6
  # User 1's target was chosen before: the filter takes it away, a miss.
  assert test.targets[1] == 5
  assert not unseen[1, 4]
  assert (test.unseen(np.array([1])) == unseen[1:]).all()


def test_times_are_reduced_before_int32():
  times = np.array([2**40, 2**40 + 1, 2**42])
  since = sequences.since_first(times)
  assert since.dtype == np.int32
  assert since.tolist() == [0, 1, 2**31 - 1]
