"""A tiny data set in the BEIR format, learnable in seconds.

Not a test: tests of training and of the experiments import it.
"""

import itertools
import json
import pathlib

import numpy as np

NUM_DOCS = 24
SIZES = {"train": 160, "validation": 32, "test": 20}
_SYLLABLES = ("ba", "ko", "mi", "tu", "re", "so")
# Invented words: each document has two that no other document has.
_WORDS = ["".join(s) for s in itertools.product(_SYLLABLES, repeat=3)]


def doc_text(row: int) -> str:
  return f"the {_WORDS[2 * row]} function does {_WORDS[2 * row + 1]}"


def write(
  folder: pathlib.Path, splits: tuple[str, ...] = tuple(SIZES), seed: int = 0
) -> pathlib.Path:
  """Queries ask for two or three documents by one of their words each."""
  rng = np.random.default_rng(seed)
  (folder / "qrels").mkdir(parents=True)
  _write_jsonl(
    folder / "corpus.jsonl",
    [{"_id": f"d{row}", "text": doc_text(row)} for row in range(NUM_DOCS)],
  )
  queries = []
  for split in splits:
    lines = ["query-id\tcorpus-id\tscore"]
    for i in range(SIZES[split]):
      rows = rng.choice(NUM_DOCS, size=rng.integers(2, 4), replace=False)
      words = [_WORDS[2 * row + rng.integers(2)] for row in rows]
      queries.append({"_id": f"{split}-{i}", "text": " and ".join(words)})
      lines += [f"{split}-{i}\td{row}\t1" for row in rows]
    (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
  _write_jsonl(folder / "queries.jsonl", queries)
  return folder


def _write_jsonl(path: pathlib.Path, rows: list[dict[str, str]]) -> None:
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
