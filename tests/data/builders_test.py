"""Each builder on hand-written rows that hold the faults of its source."""

import functools
import gzip
import http.server
import json
import socket
import threading
import time

import pytest

from nnn_jax.data import pipeline
from nnn_jax.data.toollens import toollens_dataset_builder


def _jsonl(path, rows):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _json(path, value):
  path.write_text(json.dumps(value))


def _relevant(dataset, split):
  """{query id: relevant document ids}."""
  queries = dataset.splits[split]
  return {
    query_id: [dataset.doc_ids[row] for row in rows]
    for query_id, rows in zip(queries.ids, queries.relevant, strict=True)
  }


def _write_toollens(folder):
  _jsonl(
    folder / "corpus.jsonl",
    [
      {"_id": "a", "title": "", "text": "tool a"},
      {"_id": "b", "title": "B", "text": "tool b"},
      {"_id": "a", "title": "", "text": "again"},  # Repeated id.
      {"_id": "c", "title": "", "text": "tool a"},  # Repeated text.
    ],
  )
  _jsonl(
    folder / "queries.jsonl",
    [{"_id": f"q{i}", "text": f"request {i}"} for i in range(9)],
  )
  train = [f"q{i}\ta\t1" for i in range(6)]
  train += ["q0\tb\t1", "q0\tb\t1"]  # Repeated pair.
  train += ["q1\tz\t1"]  # Unknown document.
  train += ["q6\tz\t1"]  # Left without a relevant document.
  (folder / "qrels").mkdir(exist_ok=True)
  for name, rows in (("train", train), ("test", ["q7\tb\t1", "q7\ta\t0"])):
    text = "\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n"
    (folder / "qrels" / f"{name}.tsv").write_text(text)


def test_toollens(tmp_path, data_dir):
  _write_toollens(tmp_path)
  dataset = pipeline.load("toollens", data_dir=data_dir, manual_dir=tmp_path)
  assert dataset.doc_ids == ["a", "b", "c"]
  assert dataset.doc_texts == ["tool a", "B tool b", "tool a"]
  # A fifth of the seven judged training queries, rounded down, is validation.
  train, held_out = (_relevant(dataset, s) for s in ("train", "validation"))
  assert len(held_out) == 1
  assert train | held_out == {
    "q0": ["a", "b"],
    **{f"q{i}": ["a"] for i in range(1, 6)},
  }
  assert list(train) == sorted(train)  # In the order of the file.
  assert _relevant(dataset, "test") == {"q7": ["b"]}
  expected = {
    "duplicate_documents_removed": 1,
    "duplicate_texts_kept": 1,
    "duplicate_pairs_removed": 1,
    "unknown_pairs_removed": 2,
    "unlabelled_queries_dropped": 1,
    "duplicate_queries_removed": 0,
    "unjudged_queries": 1,  # q8.
    "split_seed": 0,
    "source": str(tmp_path),
  }
  assert expected.items() <= dataset.metadata.items()


def test_changed_files_are_read_again(tmp_path, data_dir):
  _write_toollens(tmp_path)
  pipeline.load("toollens", data_dir=data_dir, manual_dir=tmp_path)
  _jsonl(tmp_path / "corpus.jsonl", [{"_id": "a", "text": "only this one"}])
  again = pipeline.load("toollens", data_dir=data_dir, manual_dir=tmp_path)
  assert again.doc_texts == ["only this one"]


def test_missing_file_is_named_with_folder_and_address(tmp_path, data_dir):
  _write_toollens(tmp_path)
  (tmp_path / "queries.jsonl").unlink()
  with pytest.raises(FileNotFoundError, match=r"lacks queries\.jsonl") as error:
    pipeline.load("toollens", data_dir=data_dir, manual_dir=tmp_path)
  assert str(tmp_path) in str(error.value)
  assert "https://raw.githubusercontent.com/quchangle1" in str(error.value)


def test_empty_manual_dir(tmp_path, data_dir):
  with pytest.raises(FileNotFoundError, match="no directory, or empty"):
    pipeline.load("toollens", data_dir=data_dir, manual_dir=tmp_path)


@pytest.fixture
def web(tmp_path):
  """A local web server over a folder: (folder, address)."""

  class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
      pass

  folder = tmp_path / "web"
  folder.mkdir()
  handler = functools.partial(Quiet, directory=str(folder))
  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
  threading.Thread(target=server.serve_forever, daemon=True).start()
  yield folder, f"http://127.0.0.1:{server.server_port}/"
  server.shutdown()
  server.server_close()


def test_download(web, tmp_path, monkeypatch):
  folder, address = web
  _write_toollens(folder)
  monkeypatch.setattr(toollens_dataset_builder, "_URL", address)
  dataset = pipeline.load("toollens", data_dir=tmp_path / "prepared")
  assert dataset.doc_ids == ["a", "b", "c"]
  assert dataset.metadata["source"] == "download"


def test_failed_download_says_what_to_do(web, tmp_path, monkeypatch):
  _, address = web  # An empty folder: every address is a 404.
  monkeypatch.setattr(toollens_dataset_builder, "_URL", address)
  with pytest.raises(FileNotFoundError, match="pass it as manual_dir") as error:
    pipeline.load("toollens", data_dir=tmp_path / "prepared")
  assert f"corpus.jsonl: {address}corpus.jsonl" in str(error.value)


def test_without_network_it_fails_at_once(tmp_path, monkeypatch):
  with socket.create_server(("127.0.0.1", 0)) as closed:
    address = f"http://127.0.0.1:{closed.getsockname()[1]}/"
  monkeypatch.setattr(toollens_dataset_builder, "_URL", address)
  start = time.monotonic()
  with pytest.raises(FileNotFoundError, match="ConnectionRefusedError"):
    pipeline.load("toollens", data_dir=tmp_path / "prepared")
  assert time.monotonic() - start < 20


def test_toolbank(tmp_path, data_dir):
  described = {
    "numpy.cos": {"new_func": "ratio", "description": "Cosine."},
    "numpy.sin": {"new_func": "ratio", "description": "Sine."},
    "numpy.add": {"new_func": "plus", "description": "Sum."},
    "numpy.x": {"new_func": "unused", "description": "Not in all_tools."},
  }
  _json(tmp_path / "numpy_function_descriptions.json", described)
  _json(tmp_path / "all_tools.json", {"ratio": "ratio", "plus": "plus"})
  queries = [
    {"refined_instruction": "Do both.", "functions": ["plus", "ratio"]},
    {"refined_instruction": "Twice.", "functions": ["plus", "plus", "gone"]},
  ]
  _json(tmp_path / "NumpyBank_val.json", queries)
  dataset = pipeline.load(
    "toolbank/numpy", data_dir=data_dir, manual_dir=tmp_path
  )
  assert dataset.doc_texts == ["ratio: Cosine. Sine.", "plus: Sum."]
  assert list(dataset.splits) == ["validation"]
  assert _relevant(dataset, "validation") == {
    "validation-0": ["ratio", "plus"],
    "validation-1": ["plus"],
  }
  expected = {
    "joined_descriptions": 1,
    "missing_splits": ["train", "test"],
    "duplicate_pairs_removed": 1,
    "unknown_pairs_removed": 1,
  }
  assert expected.items() <= dataset.metadata.items()


def test_toolbank_without_queries(tmp_path, data_dir):
  described = {"s3.get": {"new_func": "s3.get", "description": "Get."}}
  _json(tmp_path / "aws_function_descriptions.json", described)
  _json(tmp_path / "all_tools.json", {"s3.get": "s3.get"})
  dataset = pipeline.load(
    "toolbank/aws", data_dir=data_dir, manual_dir=tmp_path
  )
  assert (dataset.doc_ids, dataset.splits) == (["s3.get"], {})
  assert "| toolbank/aws | 1 | - | 0 | - |" in pipeline.describe(dataset)


def _evidence(*urls):
  return [{"url": url, "title": url, "fact": "It is so."} for url in urls]


def test_multihop_rag_full_files(tmp_path, data_dir):
  articles = [
    {"url": url, "title": f"Title {url}", "body": "Body."} for url in "abc"
  ]
  queries = [
    {"query": f"Question {i}?", "evidence_list": _evidence("a", "b", "a")}
    for i in range(20)
  ]
  queries.append({"query": "Unanswerable?", "evidence_list": []})
  _json(tmp_path / "corpus.json", articles)
  _json(tmp_path / "MultiHopRAG.json", queries)
  dataset = pipeline.load(
    "multihop_rag", data_dir=data_dir, manual_dir=tmp_path
  )
  assert dataset.doc_texts[0] == "Title a Body."
  sizes = {split: len(q) for split, q in dataset.splits.items()}
  assert sizes == {"train": 16, "validation": 2, "test": 2}
  assert set(map(tuple, _relevant(dataset, "test").values())) == {("a", "b")}
  expected = {
    "sample": False,
    "null_queries_dropped": 1,
    "duplicate_pairs_removed": 20,
  }
  assert expected.items() <= dataset.metadata.items()


def test_multihop_rag_sample_files(tmp_path, data_dir):
  rows = [{"url": u, "title": u.upper(), "text": "Fact."} for u in "ab"]
  _jsonl(tmp_path / "corpus_from_evidence.jsonl", rows)
  _json(
    tmp_path / "queries.json",
    {"queries": [{"id": str(i), "question": "Who?"} for i in range(3)]},
  )
  truth = {"0": _evidence("b", "a"), "1": _evidence("a"), "2": []}
  _json(
    tmp_path / "ground_truth.json",
    {i: {"evidence_list": evidence} for i, evidence in truth.items()},
  )
  dataset = pipeline.load(
    "multihop_rag", data_dir=data_dir, manual_dir=tmp_path
  )
  assert dataset.doc_texts == ["A Fact.", "B Fact."]
  assert _relevant(dataset, "train") == {"0": ["a", "b"], "1": ["a"]}
  assert list(dataset.splits) == ["train"]  # A tenth of two is none.
  assert dataset.metadata["sample"]


def test_limit(tmp_path, data_dir):
  _jsonl(
    tmp_path / "corpus.jsonl",
    [{"_id": n, "title": "", "text": f"{n} likes X."} for n in ("Ann", "Bo")],
  )
  _jsonl(
    tmp_path / "queries.jsonl",
    [{"_id": f"q{i}", "text": "Who likes X?"} for i in range(10)],
  )
  _jsonl(
    tmp_path / "qrels.jsonl",
    [
      {"query-id": f"q{i}", "corpus-id": name, "score": 1}
      for i in range(10)
      for name in ("Bo", "Ann")
    ],
  )
  dataset = pipeline.load("limit", data_dir=data_dir, manual_dir=tmp_path)
  sizes = {split: len(q) for split, q in dataset.splits.items()}
  assert sizes == {"train": 7, "validation": 1, "test": 2}
  assert _relevant(dataset, "validation").popitem()[1] == ["Ann", "Bo"]


def _tool(name, description, **properties):
  return {
    "name": name,
    "description": description,
    "parameters": {"type": "dict", "properties": properties},
  }


def test_bfcl(tmp_path, data_dir):
  from nnn_jax.data.bfcl import bfcl_dataset_builder as bfcl

  for category in (*bfcl._LABELLED, *bfcl._UNLABELLED, bfcl._MULTI_TURN):
    _jsonl(tmp_path / f"BFCL_v4_{category}.json", [])
    _jsonl(tmp_path / "possible_answer" / f"BFCL_v4_{category}.json", [])
  for api in bfcl._MULTI_TURN_APIS:
    _jsonl(tmp_path / "multi_turn_func_doc" / f"{api}.json", [])
  user = {"role": "user", "content": "Add 1 and 2, then 3 times 4."}
  system = {"role": "system", "content": "Be brief."}
  plus = _tool("plus", "Adds.", x={"type": "int", "description": "A number."})
  times = _tool("times", "Multiplies.", y={"type": "int"})
  _jsonl(
    tmp_path / "BFCL_v4_parallel_multiple.json",
    [
      {"id": "p0", "question": [[system, user]], "function": [plus, times]},
      {"id": "p1", "question": [[user]], "function": [plus]},
    ],
  )
  _jsonl(
    tmp_path / "possible_answer" / "BFCL_v4_parallel_multiple.json",
    [
      {
        "id": "p0",
        "ground_truth": [{"times": {}}, {"plus": {}}, {"plus": {}}],
      },
      {"id": "p1", "ground_truth": [{"plus": {"x": [1]}}]},
    ],
  )
  longer = _tool("plus", "Adds two numbers.")
  _jsonl(
    tmp_path / "BFCL_v4_irrelevance.json",
    [{"id": "i0", "question": [[user]], "function": [longer]}],
  )
  _jsonl(
    tmp_path / "multi_turn_func_doc" / "math_api.json",
    [_tool("cd", "Goes to a folder."), _tool("ls", "Lists.")],
  )
  turns = [[{"role": "user", "content": text}] for text in ("Go up.", "List.")]
  _jsonl(
    tmp_path / "BFCL_v4_multi_turn_base.json",
    [{"id": "m0", "question": turns}],
  )
  _jsonl(
    tmp_path / "possible_answer" / "BFCL_v4_multi_turn_base.json",
    [{"id": "m0", "ground_truth": [["cd(folder='ls(x)')"], ["ls(a=True)"]]}],
  )
  dataset = pipeline.load("bfcl", data_dir=data_dir, manual_dir=tmp_path)
  assert dataset.doc_texts == [
    "plus: Adds two numbers.",
    "times: Multiplies.\ny (int)",
    "cd: Goes to a folder.",
    "ls: Lists.",
  ]
  assert _relevant(dataset, "test") == {"p0": ["plus", "times"]}
  assert _relevant(dataset, "single") == {"p1": ["plus"]}
  assert _relevant(dataset, "multi_turn") == {"m0": ["cd", "ls"]}
  assert dataset.splits["test"].texts == [user["content"]]
  assert dataset.splits["multi_turn"].texts == ["Go up.\nList."]


def test_bfcl_missing_file(tmp_path, data_dir):
  (tmp_path / "other.txt").write_text("")
  with pytest.raises(FileNotFoundError, match="lacks BFCL_v4_simple_python"):
    pipeline.load("bfcl", data_dir=data_dir, manual_dir=tmp_path)


def test_cranfield(tmp_path, data_dir):
  document = "<doc>\n<docno>{}</docno>\n<text>{}</text>\n</doc>\n"
  (tmp_path / "cran.all.1400.xml.gz").write_bytes(
    gzip.compress(
      "".join(
        document.format(i, text)
        for i, text in enumerate(("wings\nin  flow", "", "heat & gas"), 1)
      ).encode()
    )
  )
  (tmp_path / "cran.qry.xml").write_text(
    "<xml><top><num> 1</num><title>\nwhat\nflow .\n</title></top>"
    "<top><num> 4</num><title>heat</title></top></xml>"
  )
  # The second topic is number 4, and its judgements say 2.
  (tmp_path / "cranqrel.trec.txt").write_text(
    "1 0 1 1\n1 0 3 0\n2 0 3 3\n2 0 2 1\n"
  )
  dataset = pipeline.load("cranfield", data_dir=data_dir, manual_dir=tmp_path)
  assert dataset.doc_texts == ["wings in flow", "heat & gas"]
  assert dataset.splits["test"].texts == ["what flow .", "heat"]
  assert _relevant(dataset, "test") == {"1": ["1"], "2": ["3"]}
  assert dataset.metadata["empty_documents_dropped"] == 1
  assert dataset.metadata["unknown_pairs_removed"] == 1
