"""experiments.sparse_search, on an encoder that was not trained."""

import json

import numpy as np
import pytest
import tiny_beir
from flax import nnx

from experiments import sparse_search
from nnn_jax.core import sparse
from nnn_jax.data import pipeline
from nnn_jax.models import bi_encoder, text_encoder, tokenization
from nnn_jax.training import sparse_stage


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
  folder = tmp_path_factory.mktemp("sparse")
  dataset = pipeline.load(f"beir:{tiny_beir.write(folder / 'tiny')}")
  tokenizer = tokenization.Tokenizer.train(dataset.doc_texts, vocab_size=300)
  config = text_encoder.TextEncoderConfig(
    vocab_size=tokenizer.vocab_size,
    dim=16,
    num_layers=1,
    num_heads=2,
    mlp_dim=32,
    max_length=16,
  )
  encoder = text_encoder.TextEncoder(config, rngs=nnx.Rngs(0))
  dense = bi_encoder.BiEncoder(
    query_encoder=encoder,
    document_encoder=encoder,
    tokenizer=tokenizer,
    query_length=16,
    document_length=12,
  )
  stage = sparse_stage.SparseStage(terms="corpus")
  dense.save(folder / "dense" / "retriever", {})
  sparse_one = stage.make_retriever(dense, dataset)
  sparse_one.save(folder / "sparse" / "retriever", {})
  return folder


def test_writes_quality_recall_and_concentration(commands, workdir):
  out, _ = commands.run(
    "sparse_search",
    f"--workdir={workdir}",
    f"--datasets=beir:{workdir / 'tiny'}",
    "--cut=64",
    "--heap_factor=0.01",
  )
  assert "| sparse, index |" in out
  folder = workdir / "sparse_search"
  results = json.loads((folder / "results.json").read_text())
  names = [row["decoder"] for row in results["rows"]]
  assert names == ["dense", "sparse, exact", "sparse, index"]
  _, exact, index = results["rows"]
  # All lists, and hardly a block left out: what differs are documents that tie
  # to 1e-6, as those of an untrained encoder do.
  assert index["recall of exact"] >= 95.0
  assert exact["recall of exact"] is None
  assert 0 < index["scored"] <= 200
  shares = results["shares"]
  assert len(shares) == 2
  assert shares[0]["largest 100"] == 1.0
  lines = (folder / "concentration.csv").read_text().splitlines()
  assert lines[1].split(",")[1:] == ["0.0000", "0.0000"]
  assert (folder / "concentration.png").stat().st_size > 1000
  assert (folder / "results.md").read_text() in out


def test_concentration_leaves_empty_vectors_out():
  values = np.asarray([[1.0, 3.0], [0.0, 0.0]])
  curve = sparse_search.concentration(sparse.SparseVector(values, values))
  assert curve[:3].tolist() == [0.0, 0.75, 1.0]


def test_names_the_missing_stage(commands, tmp_path):
  (error,) = commands.fail("sparse_search", [f"--workdir={tmp_path}"])
  assert "has no stage sparse" in error
