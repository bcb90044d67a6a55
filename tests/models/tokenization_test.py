"""Tests of nnn_jax.models.tokenization."""

import json
import pickle
import subprocess
import sys

import numpy as np
import pytest

from nnn_jax.models import tokenization

TEXTS = [
  "Sort an array along an axis.",
  "Return the sorted indices of an array.",
  "Compute the eigenvalues of a symmetric matrix.",
  "Zürich's café: naïve 検索 🚀",
] * 3
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", "##s"]


@pytest.fixture(scope="module")
def tokenizer():
  return tokenization.Tokenizer.train(TEXTS, vocab_size=200)


def write_vocab(folder, **settings):
  (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n", encoding="utf-8")
  if settings:
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def test_rows_are_padded_and_truncated_to_the_length(tokenizer):
  tokens = tokenizer([TEXTS[0], "", "array " * 50], max_length=10)
  assert tokens.ids.shape == tokens.mask.shape == (3, 10)
  assert tokens.ids.dtype == tokens.mask.dtype == np.int32
  assert tokens.mask.sum(axis=1).tolist() == [9, 2, 10]
  assert tokens.ids[1].tolist() == [2, 3] + [0] * 8  # [CLS] [SEP] [PAD]...
  assert tokens.ids[2, 0] == 2
  assert tokens.ids[2, -1] == 3
  assert not np.any(tokens.ids[tokens.mask == 0])


def test_lengths_do_not_disturb_each_other(tokenizer):
  before = tokenizer(TEXTS, max_length=16)
  tokenizer(TEXTS, max_length=4)
  after = tokenizer(TEXTS, max_length=16)
  np.testing.assert_array_equal(before.ids, after.ids)


def test_trimmed_keeps_every_token(tokenizer):
  short = tokenizer(["graph search", ""], max_length=64)
  np.testing.assert_array_equal(short.trimmed().ids, short.ids[:, :16])
  np.testing.assert_array_equal(short.trimmed().mask, short.mask[:, :16])
  long = tokenizer(["g " * 15, ""], max_length=64)
  assert long.mask.sum(axis=1).tolist() == [17, 2]
  assert long.trimmed().ids.shape == (2, 32)
  assert long.trimmed().mask.sum() == long.mask.sum()
  cut = tokenizer(["g " * 90], max_length=20)
  assert cut.trimmed().ids.shape == (1, 20)
  assert tokenizer([], max_length=20).trimmed().ids.shape == (0, 16)


def test_no_texts(tokenizer):
  assert tokenizer([], max_length=5).ids.shape == (0, 5)
  assert tokenizer.truncated_share([], 5) == 0.0


def test_trained_vocabulary(tokenizer):
  assert tokenizer.vocab_size <= 200
  ids = tokenizer(["SORT an Array"], max_length=5).ids[0]
  np.testing.assert_array_equal(
    ids, tokenizer(["sort an array"], max_length=5).ids[0]
  )
  # Specials come first, and no character of the training texts is unknown.
  assert tokenizer.pad_id == 0
  assert not np.any(tokenizer(TEXTS, max_length=64).ids == 1)
  assert np.any(tokenizer(["✓"], max_length=4).ids == 1)


def test_training_is_deterministic_across_processes(tokenizer, tmp_path):
  program = (
    "import sys; from nnn_jax.models.tokenization import Tokenizer;"
    f"Tokenizer.train({TEXTS!r}, vocab_size=200).save(sys.argv[1])"
  )
  tokenizer.save(tmp_path / "0")
  for name in ("1", "2"):
    command = [sys.executable, "-c", program, str(tmp_path / name)]
    subprocess.run(command, check=True)
  contents = [
    (tmp_path / name / "tokenizer.json").read_bytes() for name in "012"
  ]
  assert contents[0] == contents[1] == contents[2]


def test_a_small_vocabulary_keeps_frequent_characters():
  texts = ["aab", "aac" * 3] * 4
  tokenizer = tokenization.Tokenizer.train(texts, vocab_size=16)
  assert tokenizer.vocab_size <= 16
  many = ["".join(chr(0x61 + i) * (30 - i) for i in range(26))]
  small = tokenization.Tokenizer.train(many, vocab_size=16)
  assert small.vocab_size <= 16


def test_save_load_round_trip(tokenizer, tmp_path):
  tokenizer.save(tmp_path)
  loaded = tokenization.Tokenizer.from_folder(tmp_path)
  assert loaded.vocab_size == tokenizer.vocab_size
  for before, after in zip(
    tokenizer(TEXTS, max_length=20), loaded(TEXTS, max_length=20), strict=True
  ):
    np.testing.assert_array_equal(before, after)


def test_pickle_round_trip(tokenizer):
  copied = pickle.loads(pickle.dumps(tokenizer))
  np.testing.assert_array_equal(
    copied(TEXTS, max_length=20).ids, tokenizer(TEXTS, max_length=20).ids
  )


def test_truncated_share(tokenizer):
  texts = ["an", "an array an array", "array", ""]
  assert tokenizer.truncated_share(texts, 5) == 0.25
  assert tokenizer.truncated_share(texts, 6) == 0.0


def test_what_is_cut_is_said(tokenizer, caplog):
  texts = ["an array an array"] * 3 + ["an"] * 21
  tokenizer(texts, max_length=6)
  tokenizer(texts[:9], max_length=4)
  tokenizer(texts[1:], max_length=4)  # 2 of 23.
  assert not caplog.records
  tokenizer(texts, max_length=4)
  assert "3 of 24 texts are longer than 4 tokens" in caplog.text


def test_vocab_txt_is_read_as_bert(tmp_path):
  write_vocab(tmp_path)
  tokenizer = tokenization.Tokenizer.from_folder(tmp_path)
  tokens = tokenizer(["Hello worlds, hello"], max_length=8)
  assert tokens.ids[0].tolist() == [2, 5, 6, 7, 1, 5, 3, 0]
  assert tokenizer.vocab_size == len(VOCAB)


def test_vocab_txt_with_case(tmp_path):
  write_vocab(tmp_path, do_lower_case=False)
  tokenizer = tokenization.Tokenizer.from_folder(tmp_path)
  assert tokenizer(["Hello hello"], max_length=4).ids[0].tolist() == [
    2,
    1,
    5,
    3,
  ]


def test_padding_and_truncation_in_the_file_are_ignored(tokenizer, tmp_path):
  tokenizer.save(tmp_path)
  path = tmp_path / "tokenizer.json"
  raw = json.loads(path.read_text())
  raw["truncation"] = {
    "max_length": 4,
    "strategy": "LongestFirst",
    "stride": 0,
    "direction": "Right",
  }
  path.write_text(json.dumps(raw))
  loaded = tokenization.Tokenizer.from_folder(tmp_path)
  assert loaded.truncated_share(TEXTS, 4) == 1.0
  np.testing.assert_array_equal(
    loaded(TEXTS, max_length=20).ids, tokenizer(TEXTS, max_length=20).ids
  )


def test_folder_errors(tmp_path):
  with pytest.raises(ValueError, match=r"no tokenizer.json and no vocab.txt"):
    tokenization.Tokenizer.from_folder(tmp_path)
  write_vocab(tmp_path, tokenizer_class="BertJapaneseTokenizer")
  with pytest.raises(ValueError, match="does not describe a BertJapanese"):
    tokenization.Tokenizer.from_folder(tmp_path)
  (tmp_path / "tokenizer.json").write_text("{")
  with pytest.raises(ValueError, match=r"Cannot read .*tokenizer.json"):
    tokenization.Tokenizer.from_folder(tmp_path)


def test_a_vocabulary_without_padding_is_an_error(tmp_path):
  (tmp_path / "vocab.txt").write_text("[UNK]\n[CLS]\n[SEP]\nhello\n")
  with pytest.raises(ValueError, match=r"no \[PAD\] token"):
    tokenization.Tokenizer.from_folder(tmp_path)


def test_argument_errors(tokenizer):
  with pytest.raises(ValueError, match="max_length must be at least 3"):
    tokenizer(["a"], max_length=2)
  with pytest.raises(TypeError, match=r"write \[text\]"):
    tokenizer("a", max_length=5)
  with pytest.raises(
    TypeError, match=r"texts\[1\] must be a string, got bytes"
  ):
    tokenizer(["a", b"b"], max_length=5)
  with pytest.raises(ValueError, match="vocab_size must be at least 16, got 5"):
    tokenization.Tokenizer.train(["a"], vocab_size=5)
  with pytest.raises(ValueError, match="no characters"):
    tokenization.Tokenizer.train(["", " "], vocab_size=50)
