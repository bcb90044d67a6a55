"""Questions with several answers and their own candidate passages.

ASQA and QAMPARI in the files that the ALCE benchmark publishes: a JSON list of

  ASQA     {"sample_id", "question", "qa_pairs": [{"short_answers": [...]}],
            "docs": [{"id", "title", "text"}]}
  QAMPARI  {"id", "question", "answers": [[alias, ...], ...], "docs": ...}

A set of passages is as good as the share of answers found in it.

References: Stelmakh et al. (2022), ASQA; Amouyal et al. (2023), QAMPARI; Gao et
al. (2023), ALCE, whose normalisation of text this is.
"""

from __future__ import annotations

import json
import os
import re
import string
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from nnn_jax.data import records

PathLike = str | os.PathLike[str]


class Question(NamedTuple):
  """Attributes: answers: for each the strings that count as it."""

  id: str
  text: str
  answers: tuple[tuple[str, ...], ...]
  documents: tuple[records.Document, ...]


def read_asqa(path: PathLike) -> list[Question]:
  """Reads ALCE's ASQA file.

  Raises:
    ValueError: The file is no such list; the message names file and row.
  """
  return _read(
    path, "sample_id", lambda row: [p["short_answers"] for p in row["qa_pairs"]]
  )


def read_qampari(path: PathLike) -> list[Question]:
  """Reads ALCE's QAMPARI file.

  Raises:
    ValueError: The file is no such list; the message names file and row.
  """
  return _read(path, "id", lambda row: row["answers"])


def found(
  documents: Sequence[records.Document], answers: Sequence[Sequence[str]]
) -> np.ndarray:
  """Which answer is in which document, as a substring of normalised text.

  Returns:
    `[num_docs, num_answers]` bool.

  >>> documents = [records.Document("1", "The Nile, a river."),
  ...              records.Document("2", "Amazon")]
  >>> found(documents, [["nile"], ["amazon river", "Amazon"]]).tolist()
  [[True, False], [False, True]]
  """
  texts = [normalize(document.text) for document in documents]
  aliases = [[normalize(alias) for alias in answer] for answer in answers]
  return np.asarray(
    [
      [any(alias and alias in text for alias in answer) for answer in aliases]
      for text in texts
    ],
    bool,
  ).reshape(len(texts), len(aliases))


def normalize(text: str) -> str:
  """Lower case without punctuation, articles and doubled spaces.

  >>> normalize("The U.S.  of   A.")
  'us of'
  """
  kept = "".join(c for c in text.lower() if c not in string.punctuation)
  return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())


def _read(
  path: PathLike, id_key: str, answers_of: Callable[[dict[str, Any]], Any]
) -> list[Question]:
  with open(path, encoding="utf-8") as file:
    rows = json.load(file)
  if not isinstance(rows, list):
    raise ValueError(f"{path}: expected a JSON list of questions.")
  questions = []
  for number, row in enumerate(rows):
    try:
      answers = tuple(tuple(map(str, a)) for a in answers_of(row) if a)
      documents = tuple(
        records.Document(
          str(doc.get("id", place)), f"{doc['title']}\n{doc['text']}"
        )
        for place, doc in enumerate(row.get("docs", ()))
      )
      name = str(row.get(id_key, number))
      questions.append(Question(name, row["question"], answers, documents))
    except (KeyError, TypeError, AttributeError) as error:
      raise ValueError(f"{path}, question {number}: {error!r}") from None
  return questions
