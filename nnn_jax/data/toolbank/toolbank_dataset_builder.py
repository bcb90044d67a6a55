"""ToolBank: requests and the numpy, pandas or AWS functions that serve them."""

from __future__ import annotations

import json
import pathlib
from typing import Any, ClassVar

import tensorflow_datasets as tfds

from nnn_jax.data import base, records

_DESCRIPTIONS_URL = (
  "https://raw.githubusercontent.com/SqueezeAILab/Tool2Vec/"
  "5e8e7986b19d3c623d36bd20a50d5a400310c5db/toolrag/data_generation/"
)
_TOOLS_URL = (
  "https://raw.githubusercontent.com/redhat-et/Tool2Vec/"
  "5010c4fddf1f3da464e5351f485a4f0b3f0adb88/"
)
_QUERIES_URL = (
  "https://huggingface.co/datasets/squeeze-ai-lab/ToolBank/resolve/main/"
)
_ALL_TOOLS = "all_tools.json"
_DESCRIPTIONS = {
  "numpy": "numpy_function_descriptions.json",
  "pandas": "pandas_function_descriptions_with_classes.json",
  "aws": "aws_function_descriptions.json",
}
_BANKS = {"numpy": "NumpyBank", "pandas": "PandasBank", "aws": "AWSBank"}
_SPLITS = {"train": "train", "validation": "val", "test": "test"}


class Builder(base.RetrievalBuilder):
  """ToolBank (Tool2Vec), one configuration a bank: numpy, pandas, aws.

    numpy    511 tools, queries 15,994 / 1,998 / 2,000
    pandas 1,651 tools, queries 56,013 / 7,002 / 7,002
    aws    1,002 tools, queries 58,227 / 7,278 / 7,278

  Corpus: the names of the bank that are in `all_tools.json`, as "name:
  description". 12 numpy names stand for two or three functions each: their
  distinct descriptions are joined, and `joined_descriptions` in the metadata
  counts the names.

  Files: `all_tools.json`, the bank's `*_function_descriptions*.json`, and
  `<Bank>_{train,val,test}.json`. In a manual directory the query files are
  optional: those that are there make splits. The names of the query files on
  the hub are those of the copy of `NumpyBank_val.json` that circulates on
  GitHub and could not be checked: when the download fails, fetch them by hand.
  """

  VERSION = tfds.core.Version("1.0.0")
  RELEASE_NOTES: ClassVar[dict[str, str]] = {
    "1.0.0": "SqueezeAILab/Tool2Vec commit 5e8e798."
  }
  BUILDER_CONFIGS: ClassVar[list[tfds.core.BuilderConfig]] = [
    tfds.core.BuilderConfig(name=bank, description=f"{title} of ToolBank.")
    for bank, title in _BANKS.items()
  ]
  MANUAL_DOWNLOAD_INSTRUCTIONS = (
    f"Descriptions from {_DESCRIPTIONS_URL}bank_<bank>/, {_ALL_TOOLS} from "
    f"{_TOOLS_URL}, query files from {_QUERIES_URL}"
  )
  HOMEPAGE = "https://github.com/SqueezeAILab/Tool2Vec"
  LICENSE = "MIT"
  CITATION = """@article{moon2024tool2vec,
  title={Efficient and Scalable Estimation of Tool Representations in Vector
         Space},
  author={Moon, Suhong and Jha, Siddharth and Erdogan, Lutfi Eren and
          Kim, Sehoon and Lim, Woosang and Keutzer, Kurt and Gholami, Amir},
  journal={arXiv:2409.02141}, year={2024}}"""

  def read_source(
    self, dl_manager: tfds.download.DownloadManager
  ) -> records.Source:
    """See the base class."""
    bank = self.builder_config.name
    descriptions = _DESCRIPTIONS[bank]
    query_files = {
      split: f"{_BANKS[bank]}_{suffix}.json"
      for split, suffix in _SPLITS.items()
    }
    urls = {
      _ALL_TOOLS: _TOOLS_URL + _ALL_TOOLS,
      descriptions: f"{_DESCRIPTIONS_URL}bank_{bank}/{descriptions}",
    } | {name: _QUERIES_URL + name for name in query_files.values()}
    files, origin = base.source_files(
      dl_manager, urls, optional=tuple(query_files.values())
    )
    corpus, joined = _corpus(
      _load(files[descriptions]), set(_load(files[_ALL_TOOLS]))
    )
    splits = {
      split: _queries(_load(files[name]), split)
      for split, name in query_files.items()
      if name in files
    }
    metadata = {
      "joined_descriptions": joined,
      "missing_splits": [s for s in query_files if s not in splits],
      "source": origin,
    }
    return records.Source(corpus, splits, metadata)


def _load(path: pathlib.Path) -> Any:
  return json.loads(path.read_text(encoding="utf-8"))


def _corpus(
  described: dict[str, dict[str, str]], used: set[str]
) -> tuple[list[records.Document], int]:
  """Documents by new name in file order, and how many names were joined."""
  texts: dict[str, list[str]] = {}
  for entry in described.values():
    if entry["new_func"] in used:
      known = texts.setdefault(entry["new_func"], [])
      if entry["description"] not in known:
        known.append(entry["description"])
  corpus = [
    records.Document(name, f"{name}: {' '.join(parts)}")
    for name, parts in texts.items()
  ]
  return corpus, sum(len(parts) > 1 for parts in texts.values())


def _queries(rows: list[dict[str, Any]], split: str) -> list[records.Query]:
  return [
    records.Query(
      f"{split}-{row}", query["refined_instruction"], tuple(query["functions"])
    )
    for row, query in enumerate(rows)
  ]
