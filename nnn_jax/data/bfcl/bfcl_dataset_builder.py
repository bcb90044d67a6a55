"""BFCL: user requests and the function schemas that real tools declare."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterable
from typing import Any, ClassVar

import tensorflow_datasets as tfds

from nnn_jax import wheels
from nnn_jax.data import base, beir, records

WHEEL = wheels.Wheel(
  project="bfcl-eval",
  version="2026.3.23",
  sha256="3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a",
  member="bfcl_eval/data/",
)
# Single-turn categories with gold calls.
_LABELLED = (
  "simple_python",
  "simple_java",
  "simple_javascript",
  "multiple",
  "parallel",
  "parallel_multiple",
  "live_simple",
  "live_multiple",
  "live_parallel",
  "live_parallel_multiple",
)
# Their tools join the corpus; none of their requests has a gold call.
_UNLABELLED = ("irrelevance", "live_irrelevance", "live_relevance")
_MULTI_TURN = "multi_turn_base"
_MULTI_TURN_APIS = (
  "gorilla_file_system",
  "math_api",
  "message_api",
  "posting_api",
  "ticket_api",
  "trading_bot",
  "travel_booking",
  "vehicle_control",
)


class Builder(base.RetrievalBuilder):
  """BFCL v4 as tool retrieval: the candidate lists of all requests, pooled.

  Document: a tool's name, its longest description (339 names have several) and
  its parameters. Query: what the user says; relevant: the tools of the gold
  calls. There is no training split: this is an independent test.

    test         207 requests with two or more relevant tools
    single     2,294 requests with one
    multi_turn   200 conversations of `multi_turn_base`, all turns in one text

  Labels come from small candidate lists, so the pool holds near-duplicates of
  relevant tools that are not labelled, and 207 queries are few: quote
  confidence intervals. Files: the JSON of the wheel's `bfcl_eval/data/`.
  """

  VERSION = tfds.core.Version("1.0.0")
  RELEASE_NOTES: ClassVar[dict[str, str]] = {"1.0.0": f"{WHEEL.requirement}."}
  MANUAL_DOWNLOAD_INSTRUCTIONS = (
    f"The folder bfcl_eval/data/ of `pip download --no-deps "
    f"{WHEEL.requirement}` (a wheel is a zip file)."
  )
  HOMEPAGE = "https://gorilla.cs.berkeley.edu/leaderboard.html"
  LICENSE = "Apache-2.0"
  CITATION = """@inproceedings{patil2025bfcl,
  title={The Berkeley Function Calling Leaderboard ({BFCL}): From Tool Use to
         Agentic Evaluation of Large Language Models},
  author={Patil, Shishir G. and Mao, Huanzhi and Yan, Fanjia and
          Ji, Charlie Cheng-Jie and Suresh, Vishnu and Stoica, Ion and
          Gonzalez, Joseph E.},
  booktitle={ICML}, year={2025}}"""

  def read_source(
    self, dl_manager: tfds.download.DownloadManager
  ) -> records.Source:
    """See the base class."""
    folder = base.manual_folder(dl_manager)
    origin = str(folder) if folder else WHEEL.requirement
    folder = folder or wheels.fetch(WHEEL)
    tools: dict[str, dict[str, Any]] = {}
    splits: dict[str, list[records.Query]] = {
      "test": [],
      "single": [],
      "multi_turn": [],
    }
    for category in (*_LABELLED, *_UNLABELLED):
      rows = _read(folder, f"BFCL_v4_{category}.json")
      for row in rows:
        _pool(tools, row["function"])
      if category in _UNLABELLED:
        continue
      for query in _queries(rows, _gold(folder, category)):
        split = "test" if len(query.relevant) > 1 else "single"
        splits[split].append(query)
    for api in _MULTI_TURN_APIS:
      _pool(tools, _read(folder, f"multi_turn_func_doc/{api}.json"))
    splits["multi_turn"] = _queries(
      _read(folder, f"BFCL_v4_{_MULTI_TURN}.json"), _gold(folder, _MULTI_TURN)
    )
    corpus = [records.Document(name, _text(t)) for name, t in tools.items()]
    return records.Source(corpus, splits, {"source": origin})


def _read(folder: pathlib.Path, name: str) -> list[dict[str, Any]]:
  path = folder / name
  if not path.is_file():
    raise FileNotFoundError(
      f"manual directory {folder} lacks {name}: "
      f"{Builder.MANUAL_DOWNLOAD_INSTRUCTIONS}"
    )
  return [row for _, row in beir.read_jsonl(path)]


def _pool(
  tools: dict[str, dict[str, Any]], found: Iterable[dict[str, Any]]
) -> None:
  """Adds tools by name; of several descriptions the longest stays."""
  for tool in found:
    known = tools.setdefault(tool["name"], tool)
    if len(tool["description"]) > len(known["description"]):
      tools[tool["name"]] = tool


def _text(tool: dict[str, Any]) -> str:
  """A tool as text: name, description, one line for each parameter."""
  lines = [f"{tool['name']}: {tool['description']}"]
  properties = tool.get("parameters", {}).get("properties", {})
  for name, schema in properties.items():
    described = f"{name} ({schema.get('type', 'any')})"
    lines.append(f"{described}: {schema.get('description', '')}".rstrip(": "))
  return "\n".join(lines)


def _gold(folder: pathlib.Path, category: str) -> dict[str, tuple[str, ...]]:
  """{request id: names of the tools called}, in order of the first call."""
  rows = _read(folder, f"possible_answer/BFCL_v4_{category}.json")
  return {
    row["id"]: tuple(dict.fromkeys(_called(row["ground_truth"])))
    for row in rows
  }


def _called(calls: Any) -> list[str]:
  """Names in gold calls: {"name": arguments}, or "name(...)" by turn."""
  if isinstance(calls, list):
    return [name for call in calls for name in _called(call)]
  if isinstance(calls, dict):
    return list(calls)
  return re.findall(r"^\s*([\w.]+)\(", calls)


def _queries(
  rows: Iterable[dict[str, Any]], gold: dict[str, tuple[str, ...]]
) -> list[records.Query]:
  return [
    records.Query(row["id"], _said(row), gold.get(row["id"], ()))
    for row in rows
  ]


def _said(row: dict[str, Any]) -> str:
  """What the user says in all turns, without the system's instructions."""
  return "\n".join(
    message["content"]
    for turn in row["question"]
    for message in turn
    if message["role"] == "user"
  )
