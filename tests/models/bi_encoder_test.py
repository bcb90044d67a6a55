"""Tests of nnn_jax.models.bi_encoder."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx

from nnn_jax.models import adapter as adapter_lib
from nnn_jax.models import bi_encoder, text_encoder, tokenization

WORDS = ("sort", "an", "array", "along", "axis", "the", "indices", "matrix")
TEXTS = [
  " ".join(np.random.default_rng(i).choice(WORDS, size=1 + (7 * i) % 23))
  for i in range(11)
]


def make(seed=0, adapter=False):
  tokenizer = tokenization.Tokenizer.train(TEXTS, vocab_size=100)
  encoders = [
    text_encoder.TextEncoder(
      text_encoder.TextEncoderConfig(
        vocab_size=tokenizer.vocab_size,
        dim=16,
        num_layers=1,
        num_heads=2,
        mlp_dim=24,
        max_length=40,
      ),
      rngs=nnx.Rngs(seed + i),
    )
    for i in range(2)
  ]
  module = adapter_lib.Adapter(
    adapter_lib.AdapterConfig(dim=16, hidden=8), rngs=nnx.Rngs(seed)
  )
  module.gate[...] += 4.0  # So that it changes the embeddings visibly.
  return bi_encoder.BiEncoder(
    query_encoder=encoders[0],
    document_encoder=encoders[1],
    tokenizer=tokenizer,
    query_length=40,
    document_length=20,
    adapter=module if adapter else None,
  )


@pytest.fixture(scope="module")
def one():
  return make()


@pytest.fixture(scope="module")
def adapted():
  return make(adapter=True)


def one_by_one(encoder, tokens):
  """Without batches, and at full length."""
  encode = jax.jit(lambda ids, mask: encoder(ids[None], mask[None])[0])
  return np.stack([encode(*row) for row in zip(*tokens, strict=True)])


@pytest.mark.parametrize("batch_size", [1, 4, 11, 64])
def test_order_and_values_are_those_of_one_by_one(one, batch_size):
  tokens = one.tokenizer(TEXTS, max_length=40)
  lengths = tokens.mask.sum(axis=1)
  assert lengths.min() < 16 < lengths.max()
  assert np.any(np.diff(lengths) < 0)
  assert np.any(np.diff(lengths) > 0)
  got = bi_encoder.encode_tokens(
    *nnx.split(one.query_encoder), tokens, batch_size=batch_size
  )
  expected = one_by_one(one.query_encoder, tokens)
  assert got.dtype == np.float32
  np.testing.assert_allclose(got, expected, atol=1e-5)


def test_newer_parameters_are_used(one):
  graphdef, params = nnx.split(one.query_encoder)
  _, newer = nnx.split(one.document_encoder)
  tokens = one.tokenizer(TEXTS, max_length=40)
  got = bi_encoder.encode_tokens(graphdef, newer, tokens)
  np.testing.assert_allclose(
    got, one_by_one(one.document_encoder, tokens), atol=1e-5
  )
  assert np.abs(
    got - bi_encoder.encode_tokens(graphdef, params, tokens)
  ).max() > 1e-2  # fmt: skip


def test_each_side_has_its_encoder_and_length(one):
  texts = [TEXTS[3], "axis " * 60]
  for encode, encoder, length in (
    (one.encode_queries, one.query_encoder, 40),
    (one.encode_documents, one.document_encoder, 20),
  ):
    tokens = one.tokenizer(texts, max_length=length)
    assert tokens.mask[1].sum() == length
    got = encode(texts)
    np.testing.assert_allclose(got, one_by_one(encoder, tokens), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, atol=1e-5)


def test_the_adapter_is_for_documents(one, adapted):
  np.testing.assert_array_equal(
    adapted.encode_queries(TEXTS), one.encode_queries(TEXTS)
  )
  plain, got = one.encode_documents(TEXTS), adapted.encode_documents(TEXTS)
  np.testing.assert_allclose(got, adapted.adapter(plain), atol=1e-5)
  assert np.abs(got - plain).max() > 1e-2


def leaves(encoder):
  return [
    np.asarray(leaf)
    for module in (
      encoder.query_encoder, encoder.document_encoder, encoder.adapter
    )
    if module is not None
    for leaf in jax.tree.leaves(nnx.state(module))
  ]  # fmt: skip


def assert_same(got, expected):
  assert (got.query_length, got.document_length) == (40, 20)
  assert (got.adapter is None) == (expected.adapter is None)
  for one, other in zip(leaves(got), leaves(expected), strict=True):
    np.testing.assert_array_equal(one, other)
  for name in ("encode_queries", "encode_documents"):
    np.testing.assert_array_equal(
      getattr(got, name)(TEXTS), getattr(expected, name)(TEXTS)
    )


@pytest.mark.parametrize("fixture", ["one", "adapted"])
def test_round_trip_is_exact(request, tmp_path, fixture):
  encoder = request.getfixturevalue(fixture)
  metadata = {"best_value": 0.1 + 0.2, "history": [{"step": 0}], "why": None}
  encoder.save(tmp_path / "new" / "retriever", metadata)
  assert [p.name for p in (tmp_path / "new").iterdir()] == ["retriever"]
  got, got_metadata = bi_encoder.BiEncoder.load(tmp_path / "new" / "retriever")
  assert got_metadata == metadata
  assert_same(got, encoder)


def test_a_later_save_replaces_the_whole_folder(tmp_path, adapted):
  folder = tmp_path / "retriever"
  adapted.save(folder, {"run": 1})
  newer = make(seed=5)
  newer.save(folder, {"run": 2})
  got, metadata = bi_encoder.BiEncoder.load(folder)
  assert metadata == {"run": 2}
  assert_same(got, newer)
  assert [p.name for p in tmp_path.iterdir()] == ["retriever"]


def test_a_failed_save_leaves_the_old_folder(tmp_path, adapted):
  folder = tmp_path / "retriever"
  adapted.save(folder, {"run": 1})
  before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
  with pytest.raises(TypeError):  # After the weights have been written.
    make(seed=5).save(folder, {"run": object()})
  small = text_encoder.TextEncoder(
    dataclasses.replace(adapted.query_encoder.config, vocab_size=6),
    rngs=nnx.Rngs(0),
  )
  with pytest.raises(ValueError, match="tokenizer has"):
    dataclasses.replace(adapted, document_encoder=small).save(folder, {})
  after = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
  assert after == before
  assert [p.name for p in tmp_path.iterdir()] == ["retriever"]


def test_a_failed_first_save_leaves_nothing(tmp_path, one):
  with pytest.raises(TypeError):
    one.save(tmp_path / "retriever", {"run": object()})
  assert list(tmp_path.iterdir()) == []


def test_a_folder_without_a_bi_encoder(tmp_path, one):
  match = (
    r"holds no trained bi-encoder \(bi_encoder.json is missing\): train one "
    r"with `python -m experiments.train`"
  )
  with pytest.raises(ValueError, match=match):
    bi_encoder.BiEncoder.load(tmp_path / "missing")
  # One side of it is an encoder, not a bi-encoder.
  one.save(tmp_path / "retriever", {})
  with pytest.raises(ValueError, match=match):
    bi_encoder.BiEncoder.load(tmp_path / "retriever" / "query")


def test_from_pretrained_shares_one_encoder(tmp_path, one):
  one.save(tmp_path / "retriever", {})
  got = bi_encoder.BiEncoder.from_pretrained(
    str(tmp_path / "retriever" / "query"), query_length=40, document_length=40
  )
  assert got.query_encoder is got.document_encoder
  assert got.adapter is None
  np.testing.assert_array_equal(
    got.encode_documents(TEXTS), one.encode_queries(TEXTS)
  )
