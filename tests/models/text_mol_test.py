"""Tests of nnn_jax.models.text_mol, with an encoder of 8 dimensions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnn_jax.core import mixture
from nnn_jax.models import text_encoder, text_mol, tokenization

TEXTS = ["a red fox", "the blue sea", "a fox in the sea", "red"]


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
  settings = text_mol.TextMolConfig(
    num_query_components=3,
    num_item_components=2,
    pooling_hidden=6,
    gate_hidden=5,
  )
  return text_mol.TextMolRetriever(
    model=text_mol.TextMol(encoder, settings, rngs=nnx.Rngs(1)),
    tokenizer=tokenizer,
    query_length=12,
    document_length=12,
  )


def test_components_are_weighted_sums_of_token_outputs(retriever):
  side = retriever.model.query
  tokens = retriever.tokenizer(TEXTS[:1], max_length=12)
  length = int(tokens.mask.sum())
  ids, mask = tokens.ids[:, :length], tokens.mask[:, :length]
  components, gate = side(ids, mask)
  outputs, _ = side.encoder.token_outputs(ids, mask, side.extra[...])
  outputs = np.asarray(outputs[0], np.float64)
  assert outputs.shape == (3 + length, 8)

  def linear(layer, x):
    return x @ np.asarray(layer.kernel[...]) + np.asarray(layer.bias[...])

  hidden = linear(side.pooling_in, outputs[0])
  hidden = (hidden - hidden.mean()) / np.sqrt(hidden.var() + 1e-6)
  hidden = hidden / (1 + np.exp(-hidden))
  logits = linear(side.pooling_out, hidden).reshape(3, -1)[:, : len(outputs)]
  weights = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
  expected = weights @ outputs
  expected /= np.linalg.norm(expected, axis=1, keepdims=True)
  np.testing.assert_allclose(components[0], expected, atol=1e-5)
  assert gate.shape == (1, 6)


def test_padding_does_not_matter(retriever):
  side = jax.jit(lambda model, *tokens: model(*tokens))
  tokens = retriever.tokenizer(TEXTS[:1], max_length=12)
  length = int(tokens.mask.sum())
  cut = side(
    retriever.model.item, tokens.ids[:, :length], tokens.mask[:, :length]
  )
  wide = np.full((1, 12), 1, tokens.ids.dtype), np.zeros((1, 12), int)
  wide[0][:, :length] = tokens.ids[:, :length]
  wide[1][:, :length] = 1
  padded = side(retriever.model.item, *wide)
  for a, b in zip(cut, padded, strict=True):
    np.testing.assert_allclose(a, b, atol=1e-6)


def test_the_encoder_without_extra_tokens_is_unchanged(retriever):
  encoder = retriever.model.query.encoder
  tokens = retriever.tokenizer(TEXTS, max_length=12)
  outputs, mask = encoder.token_outputs(tokens.ids, tokens.mask)
  mean = (outputs * mask[..., None]).sum(axis=1)
  mean /= np.linalg.norm(mean, axis=1, keepdims=True)
  np.testing.assert_allclose(encoder(tokens.ids, tokens.mask), mean, atol=1e-5)


def test_both_sides_share_one_encoder_and_all_is_trained(retriever):
  graphdef, params = nnx.split(retriever.model)
  num = sum(x.size for x in jax.tree.leaves(params))
  encoder = nnx.split(retriever.model.query.encoder)[1]
  shared = sum(x.size for x in jax.tree.leaves(encoder))
  assert num < 2 * shared + 2_000
  tokens = retriever.tokenizer(TEXTS, max_length=12)

  @jax.jit
  @jax.grad
  def gradient(params):
    model = nnx.merge(graphdef, params)
    components, gate = model.query(tokens.ids, tokens.mask)
    queries = mixture.QuerySide(components[:, None], gate[:, None])
    items = mixture.ItemSide(*model.item(tokens.ids, tokens.mask))
    scores, _ = model(queries, items, rngs=nnx.Rngs(dropout=0))
    return jnp.mean(scores**2)

  grads = gradient(params)
  assert all(np.isfinite(g).all() for g in jax.tree.leaves(grads))
  zero = [
    jax.tree_util.keystr(path)
    for path, g in jax.tree_util.tree_leaves_with_path(grads)
    if not np.any(np.asarray(g))
  ]
  assert all("key" in name for name in zero), zero  # Keys' bias cancels.


def test_save_and_load(retriever, tmp_path):
  folder = tmp_path / "mol"
  retriever.save(folder, {"a": 1})
  loaded, metadata = text_mol.TextMolRetriever.load(folder)
  assert metadata == {"a": 1}
  assert text_mol.is_saved_in(folder)
  for name in ("encode_queries", "encode_documents"):
    old, new = (getattr(r, name)(TEXTS) for r in (retriever, loaded))
    for a, b in zip(old, new, strict=True):
      np.testing.assert_allclose(a, b, atol=1e-6)
  jax.tree.map(
    np.testing.assert_array_equal, retriever.params(), loaded.params()
  )
  with pytest.raises(ValueError, match="no trained mixture of logits"):
    text_mol.TextMolRetriever.load(tmp_path)


def test_config_errors():
  with pytest.raises(ValueError, match="gate_hidden must be at least 1"):
    text_mol.TextMolConfig(gate_hidden=0)
  with pytest.raises(ValueError, match="temperature must be positive"):
    text_mol.TextMolConfig(temperature=0.0)
  with pytest.raises(ValueError, match=r"gate_dropout must be in \[0, 1\)"):
    text_mol.TextMolConfig(gate_dropout=1.0)
