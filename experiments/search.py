r"""Answers queries over your own documents with each decoder, side by side.

  python -m experiments.search --workdir=runs/demo --documents=notes.jsonl \
    --query="interpolate data and integrate the result"
  python -m experiments.search --encoder=minilm --documents=notes.txt

Documents are JSONL with "id", "text" and optionally "title", or one text a
line. Without --query, queries are read from standard input, one a line. With
--workdir the trained encoders are used, and the parameters that
`experiments.evaluate` chose on validation.
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import app, flags

from experiments import comparison, report
from nnn_jax.core import checks
from nnn_jax.data import pipeline
from nnn_jax.decoders import mmr, nnn
from nnn_jax.models import bi_encoder as bi_encoder_lib

_WORKDIR = flags.DEFINE_string("workdir", None, "Of experiments.train.")
_ENCODER = flags.DEFINE_string(
  "encoder", None, "A pretrained encoder in place of --workdir."
)
_DOCUMENTS = flags.DEFINE_string(
  "documents", None, "JSONL or text lines.", required=True
)
_QUERY = flags.DEFINE_string("query", None, "One query; else standard input.")
_K = flags.DEFINE_integer("k", 5, "Documents a query.", lower_bound=1)
_L1 = flags.DEFINE_float("l1", None, "NNN's l1.")
_L2 = flags.DEFINE_float("l2", None, "NNN's l2.")
_TRADE_OFF = flags.DEFINE_float("trade_off", None, "MMR's trade-off.")

_WIDTH = 72


class Searcher(NamedTuple):
  """A decoder with its parameters and embedded documents."""

  method: comparison.Method
  params: Any
  encode_queries: Callable[[Sequence[str]], np.ndarray]
  corpus: np.ndarray


def _searchers(
  documents: Sequence[str], doc_ids: Sequence[str]
) -> dict[str, Searcher]:
  encoders = {}
  if _ENCODER.value:
    encoders["dense"] = bi_encoder_lib.BiEncoder.from_pretrained(
      _ENCODER.value, query_length=64, document_length=128
    )
  else:
    workdir = pathlib.Path(_WORKDIR.value or "")
    encoders["dense"], _ = bi_encoder_lib.BiEncoder.load(
      workdir / "dense" / "retriever"
    )
    if (workdir / "nnn_tr" / "retriever").exists():
      encoders["nnn_tr"], _ = bi_encoder_lib.BiEncoder.load(
        workdir / "nnn_tr" / "retriever"
      )
  corpora = {
    stage: encoder.encode_documents(documents, description=f"{stage} documents")
    for stage, encoder in encoders.items()
  }
  for stage, corpus in corpora.items():
    checks.check_embeddings(f"{stage} embeddings", corpus, doc_ids)
  chosen = _chosen()
  searchers = {}
  for name in ("dense", "mmr", "nnn_fix", "nnn_tr"):
    method = comparison.METHODS[name]
    if method.stage in encoders:
      searchers[name] = Searcher(
        method,
        _params(name, chosen),
        encoders[method.stage].encode_queries,
        corpora[method.stage],
      )
  return searchers


def _chosen() -> dict[str, dict[str, float]]:
  """What the evaluation chose, if it ran."""
  if not _WORKDIR.value:
    return {}
  path = pathlib.Path(_WORKDIR.value) / "evaluation" / "results.json"
  return json.loads(path.read_text())["chosen"] if path.exists() else {}


def _params(name: str, chosen: dict[str, dict[str, float]]) -> Any:
  if name == "dense":
    return ()
  given = {"trade_off": _TRADE_OFF.value}
  if name != "mmr":
    given = {"l1": _L1.value, "l2": _L2.value}
  values = dict(chosen.get(name, {}))
  values |= {key: value for key, value in given.items() if value is not None}
  return mmr.MmrParams(**values) if name == "mmr" else nnn.NnnParams(**values)


def answer(
  query: str,
  searchers: dict[str, Searcher],
  doc_ids: Sequence[str],
  documents: Sequence[str],
  k: int,
) -> str:
  """One Markdown table a decoder; NNN's has the weight of each document.

  A document without weight is one that NNN did not retrieve: it only fills
  the list.
  """
  sections = []
  for searcher in searchers.values():
    vector = searcher.encode_queries([query])[0]
    result = searcher.method.decode(
      searcher.params,
      vector,
      searcher.corpus,
      k=min(k, len(documents)),
      config=searcher.method.config,
    )
    weights: dict[int, float] = {}
    if isinstance(result.aux, nnn.NnnAux):
      pairs = (part.tolist() for part in result.aux.weights)
      weights = dict(zip(*pairs, strict=True))
    rows = []
    for rank, (row, score) in enumerate(
      zip(result.indices.tolist(), result.scores.tolist(), strict=True), 1
    ):
      entry = {"rank": rank, "score": score}
      if weights:
        entry["weight"] = weights.get(row) or None
      text = " ".join(documents[row].split())
      entry |= {"id": doc_ids[row], "text": text[:_WIDTH]}
      rows.append(entry)
    title = searcher.method.label
    described = comparison.describe_params(searcher.params)
    title += f" ({described})" if described else ""
    sections.append(f"{title}\n\n{report.markdown_table(rows, list(rows[0]))}")
  return "\n\n".join(sections)


def _queries() -> Iterator[str]:
  if _QUERY.value is not None:
    yield _QUERY.value
    return
  if sys.stdin.isatty():
    print("Type a query and press Enter; an empty line ends.")
  for line in sys.stdin:
    if not line.strip():
      return
    yield line.strip()


def main(argv: Sequence[str]) -> None:
  """Entry point."""
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {argv[1:]}")
  if (_WORKDIR.value is None) == (_ENCODER.value is None):
    raise app.UsageError("Name either --workdir or --encoder.")
  doc_ids, documents = pipeline.read_documents(_DOCUMENTS.value)
  searchers = _searchers(documents, doc_ids)
  for query in _queries():
    print(f"\n## {query}\n")
    print(answer(query, searchers, doc_ids, documents, _K.value))


if __name__ == "__main__":
  app.run(main)
