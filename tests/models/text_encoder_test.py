"""Tests of nnn_jax.models.text_encoder.

Agreement with reference implementations is tested in pretrained_test.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnn_jax.models import text_encoder

CONFIG = text_encoder.TextEncoderConfig(
  vocab_size=50, dim=16, num_layers=1, num_heads=4, mlp_dim=32, max_length=24
)


def make_encoder(**changes):
  config = dataclasses.replace(CONFIG, **changes)
  encoder = text_encoder.TextEncoder(config, rngs=nnx.Rngs(0))
  # Larger weights than at the start, so that every part of the sum matters.
  graphdef, params = nnx.split(encoder)
  larger = jax.tree.map(lambda p: jnp.asarray(10 * np.asarray(p)), params)
  return nnx.merge(graphdef, larger)


@functools.partial(jax.jit, static_argnums=0)
def apply(graphdef, params, ids, mask):
  return nnx.merge(graphdef, params)(ids, mask)


def embed(encoder, ids, mask):
  """Compiled as a whole, which takes less time than op by op."""
  return np.asarray(apply(*nnx.split(encoder), ids, mask))


def make_batch(lengths, length=12, seed=0):
  rng = np.random.default_rng(seed)
  mask = (np.arange(length)[None] < np.asarray(lengths)[:, None]).astype(int)
  ids = rng.integers(1, 50, (len(lengths), length)) * mask
  return ids.astype(np.int32), mask.astype(np.int32)


@pytest.mark.parametrize(
  "changes",
  [{"num_layers": 2, "normalize": False}, {"pooling": "cls"}],
)
def test_padding_does_not_change_embeddings(changes):
  encoder = make_encoder(**changes)
  ids, mask = make_batch([12, 3, 7, 1])
  extra = ((0, 0), (0, 8))
  padded_ids = np.pad(ids, extra, constant_values=9)
  padded = embed(encoder, padded_ids, np.pad(mask, extra))
  np.testing.assert_allclose(
    embed(encoder, ids, mask), padded, atol=1e-5, rtol=1e-5
  )


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_rows_do_not_depend_on_their_batch(pooling):
  encoder = make_encoder(pooling=pooling)
  ids, mask = make_batch([12, 3, 7, 1])
  together = embed(encoder, ids, mask)
  for row in range(4):
    alone = embed(encoder, ids[row : row + 1], mask[row : row + 1])
    np.testing.assert_allclose(alone[0], together[row], atol=1e-5)


def test_order_of_words_matters_and_length_is_one():
  ids = np.array([[1, 2, 3], [3, 2, 1]], np.int32)
  embeddings = embed(make_encoder(), ids, np.ones_like(ids))
  assert np.max(np.abs(embeddings[0] - embeddings[1])) > 1e-3
  np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, atol=1e-6)


def test_an_id_outside_of_the_vocabulary_shows_as_nan():
  ids = np.array([[1, 2, 3], [1, 50, 3]], np.int32)
  embeddings = embed(make_encoder(), ids, np.ones_like(ids))
  assert np.all(np.isfinite(embeddings[0]))
  assert np.all(np.isnan(embeddings[1]))


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_row_of_padding_is_zero_with_finite_gradients(pooling):
  graphdef, params = nnx.split(make_encoder(pooling=pooling))
  ids, mask = make_batch([5, 0])

  def loss(params):
    embeddings = nnx.merge(graphdef, params)(ids, mask)
    return jnp.sum(embeddings * jnp.arange(16.0)[None]), embeddings

  gradients, embeddings = jax.jit(jax.grad(loss, has_aux=True))(params)
  np.testing.assert_array_equal(embeddings[1], np.zeros(16))
  assert np.all(np.isfinite(embeddings))
  assert all(np.all(np.isfinite(g)) for g in jax.tree.leaves(gradients))


def test_without_jit_and_with_strict_rank_promotion():
  encoder = make_encoder()
  ids, mask = make_batch([12, 3, 7, 1])
  with jax.numpy_rank_promotion("raise"):
    eager = encoder(ids, mask)
  np.testing.assert_allclose(eager, embed(encoder, ids, mask), atol=1e-6)


def test_split_gives_parameters_only_and_a_static_graph():
  graphdef, params = nnx.split(make_encoder())
  leaves = jax.tree.leaves(
    params, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)
  )
  assert {type(leaf) for leaf in leaves} == {nnx.Param}
  # Equal graphs share one compilation.
  assert graphdef == nnx.split(make_encoder())[0]


def test_bool_and_float_masks_agree_with_integers():
  encoder = make_encoder()
  ids, mask = make_batch([12, 3, 7, 1])
  expected = embed(encoder, ids, mask)
  for dtype in (bool, np.float32):
    np.testing.assert_array_equal(
      embed(encoder, ids, mask.astype(dtype)), expected
    )


def test_gradient_matches_finite_differences():
  graphdef, params = nnx.split(make_encoder())
  params = jax.tree.map(lambda p: np.asarray(p, np.float64), params)
  rng = np.random.default_rng(1)
  direction = jax.tree.map(lambda p: rng.normal(size=p.shape), params)
  target = rng.normal(size=(2, 16))
  ids, mask = make_batch([6, 3], length=6)
  with jax.enable_x64(True):

    @jax.jit
    @jax.value_and_grad
    def loss(params):
      return jnp.sum(nnx.merge(graphdef, params)(ids, mask) * target)

    def moved(eps):
      step = jax.tree.map(lambda p, d: p + eps * d, params, direction)
      return float(loss(step)[0])

    difference = (moved(1e-6) - moved(-1e-6)) / 2e-6
    gradients = loss(params)[1]
  slope = sum(
    np.vdot(g, d)
    for g, d in zip(
      jax.tree.leaves(gradients), jax.tree.leaves(direction), strict=True
    )
  )
  np.testing.assert_allclose(difference, slope, rtol=1e-5)


def test_starts_as_bert_does():
  config = dataclasses.replace(CONFIG, vocab_size=2000, dim=64)
  encoder = text_encoder.TextEncoder(config, rngs=nnx.Rngs(0))
  for kernel in (
    encoder.word_embedding,
    encoder.layers[0].mlp_in.kernel,
  ):
    np.testing.assert_allclose(np.std(kernel[...]), 0.02, rtol=0.05)
  assert not np.any(encoder.layers[0].attention.query.bias[...])


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"vocab_size": 0}, "vocab_size must be at least 1, got 0"),
    ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
    ({"max_length": -1}, "max_length must be at least 1, got -1"),
    ({"num_heads": 3}, "num_heads must divide dim, got dim 16 and num_heads 3"),
    ({"type_vocab_size": -1}, "use 0 for an encoder without token types"),
    ({"layer_norm_eps": 0.0}, "layer_norm_eps must be positive, got 0.0"),
    ({"pooling": "max"}, 'pooling must be "mean" or "cls", got \'max\''),
  ],
)
def test_config_errors(changes, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(CONFIG, **changes)


@pytest.mark.parametrize(
  ("ids", "mask", "message"),
  [
    (np.ones(3, int), np.ones(3), "token_ids must be .* add a batch axis"),
    (
      np.ones((2, 3), int),
      np.ones((2, 4)),
      "attention_mask must have the shap",
    ),
    (np.ones((2, 3)), np.ones((2, 3)), "token_ids must be integers, got float"),
    (np.ones((2, 25), int), np.ones((2, 25)), "truncate with .*max_length=24"),
    (np.ones((2, 0), int), np.ones((2, 0)), "at least one token"),
  ],
)
def test_input_errors_while_tracing(ids, mask, message):
  encoder = make_encoder()
  with pytest.raises(ValueError, match=message):
    jax.jit(lambda i, m: encoder(i, m))(ids, mask)
