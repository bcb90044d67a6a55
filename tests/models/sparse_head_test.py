"""The sparse head against numpy, with an encoder of 8 dimensions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnn_jax.models import sparse_head, text_encoder, tokenization

TEXTS = ["a red fox", "the blue sea", "a fox in the sea", "red"]
CONFIG = sparse_head.SparseHeadConfig(max_query_terms=4, max_document_terms=6)


@pytest.fixture(scope="module")
def retriever():
  tokenizer = tokenization.Tokenizer.train(TEXTS, vocab_size=60)
  config = text_encoder.TextEncoderConfig(
    vocab_size=tokenizer.vocab_size,
    dim=8,
    num_layers=1,
    num_heads=2,
    mlp_dim=16,
    max_length=12,
  )
  encoder = text_encoder.TextEncoder(config, rngs=nnx.Rngs(0))
  terms = np.arange(5, tokenizer.vocab_size)
  own = np.linspace(0.2, 1.4, len(terms))
  return sparse_head.SparseRetriever(
    model=sparse_head.SparseHead(encoder, terms, own, CONFIG),
    tokenizer=tokenizer,
    query_length=12,
    document_length=12,
  )


def trained(model, seed=0):
  """The model with a shift that is not zero."""
  model = nnx.clone(model)
  shape = model.shift[...].shape
  model.shift[...] = 0.3 * jax.random.normal(jax.random.key(seed), shape)
  return model


def test_weights_follow_the_formula(retriever):
  model = trained(retriever.model)
  tokens = retriever.tokenizer(TEXTS, max_length=12)
  weights = model(tokens.ids, tokens.mask)
  outputs, _ = model.encoder.token_outputs(tokens.ids, tokens.mask)
  table = np.asarray(model.encoder.word_embedding[...], np.float64)
  unit = table / np.linalg.norm(table, axis=1, keepdims=True)
  terms = np.asarray(model.terms)
  for row in range(len(TEXTS)):
    used = np.flatnonzero(tokens.mask[row])
    vectors = unit[tokens.ids[row, used]]
    vectors += np.asarray(outputs[row, used]) @ np.asarray(model.shift[...])
    logits = CONFIG.sharpness * vectors @ unit[terms].T
    logits += np.asarray(model.bias[...])
    expected = np.log1p(np.maximum(logits, 0.0)).max(axis=0)
    np.testing.assert_allclose(weights[row], expected, atol=2e-5)


def test_starts_as_a_lexical_retriever(retriever):
  model = retriever.model
  tokens = retriever.tokenizer(TEXTS, max_length=12)
  weights = np.asarray(model(tokens.ids, tokens.mask))
  own = np.linspace(0.2, 1.4, len(model.terms))
  for row, ids in enumerate(tokens.ids):
    for place, term in enumerate(model.terms):
      if term in ids[tokens.mask[row] != 0]:
        np.testing.assert_allclose(weights[row, place], own[place], atol=1e-5)
      else:
        assert weights[row, place] < own[place]


def test_padding_does_not_matter(retriever):
  model = trained(retriever.model)
  tokens = retriever.tokenizer(TEXTS[:1], max_length=12)
  length = int(tokens.mask.sum())
  whole = np.full((2, 12), 7, tokens.ids.dtype), np.zeros((2, 12), int)
  whole[0][0, :length] = tokens.ids[0, :length]
  whole[1][0, :length] = 1
  weights = model(*whole)
  cut = model(tokens.ids[:, :length], tokens.mask[:, :length])
  np.testing.assert_allclose(weights[0], cut[0], atol=1e-5)
  assert not weights[1].any()  # Padding alone.


def test_gradients_reach_every_parameter(retriever):
  tokens = retriever.tokenizer(TEXTS, max_length=12)
  graphdef, params = nnx.split(trained(retriever.model))

  def loss(params):
    weights = nnx.merge(graphdef, params)(tokens.ids, tokens.mask)
    return jnp.sum(weights[0] * weights[2]) + jnp.sum(weights**2)

  gradients = jax.grad(loss)(params)
  for place, x in jax.tree.leaves_with_path(gradients):
    assert np.isfinite(x).all(), place
    # Softmax ignores what all keys share.
    if "'key'" not in str(place) or "bias" not in str(place):
      assert np.any(x), place


def test_lists_hold_the_largest_weights(retriever):
  lists = retriever.encode_documents(TEXTS)
  tokens = retriever.tokenizer(TEXTS, max_length=12)
  weights = np.asarray(retriever.model(tokens.ids, tokens.mask))
  assert lists.indices.shape == (4, 6)
  for row in range(4):
    used = lists.indices[row] >= 0
    at = lists.indices[row][used]
    np.testing.assert_allclose(
      lists.values[row][used], weights[row, at], atol=1e-5
    )
    rest = np.delete(weights[row], at)
    if used.all():
      assert rest.max() <= lists.values[row].min() + 1e-5
    else:
      assert rest.max() < 1e-6
    assert not lists.values[row][~used].any()
  assert retriever.encode_queries(TEXTS).indices.shape == (4, 4)


def test_saves_and_loads(retriever, tmp_path):
  folder = tmp_path / "retriever"
  retriever.save(folder, {"stage": "sparse"})
  assert sparse_head.is_saved_in(folder)
  loaded, metadata = sparse_head.SparseRetriever.load(folder)
  assert metadata == {"stage": "sparse"}
  for a, b in zip(
    retriever.encode_queries(TEXTS), loaded.encode_queries(TEXTS), strict=True
  ):
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
  ("terms", "own", "match"),
  [
    ([], [], "terms"),
    ([5, 5], [1, 1], "twice"),
    ([5, 10_000], [1, 1], "vocabulary"),
    ([5, 6], [1], "own_weights"),
  ],
)
def test_bad_terms(retriever, terms, own, match):
  with pytest.raises(ValueError, match=match):
    sparse_head.SparseHead(retriever.model.encoder, terms, own, CONFIG)


def test_bad_settings(tmp_path):
  with pytest.raises(ValueError, match="sharpness"):
    sparse_head.SparseHeadConfig(sharpness=0.0)
  with pytest.raises(ValueError, match="max_query_terms"):
    sparse_head.SparseHeadConfig(max_query_terms=0)
  with pytest.raises(ValueError, match="holds no trained sparse encoder"):
    sparse_head.SparseRetriever.load(tmp_path)
