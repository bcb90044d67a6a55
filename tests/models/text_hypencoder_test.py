"""The retriever of texts: its parts, its start, and its files."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnn_jax.core import qnet
from nnn_jax.models import text_encoder, text_hypencoder, tokenization

TEXTS = ["a red fox", "the blue sea", "a fox in the sea", "red"]


def make(shared=True, **changes):
  tokenizer = tokenization.Tokenizer.train(TEXTS, vocab_size=60)
  config = text_encoder.TextEncoderConfig(
    vocab_size=tokenizer.vocab_size,
    dim=8,
    num_layers=1,
    num_heads=2,
    mlp_dim=16,
    max_length=12,
  )
  one = text_encoder.TextEncoder(config, rngs=nnx.Rngs(0))
  two = one
  if not shared:
    two = text_encoder.TextEncoder(config, rngs=nnx.Rngs(2))
  settings = text_hypencoder.TextHypencoderConfig(widths=(8,), **changes)
  return text_hypencoder.TextHypencoderRetriever(
    model=text_hypencoder.TextHypencoder(one, two, settings, rngs=nnx.Rngs(1)),
    tokenizer=tokenizer,
    query_length=12,
    document_length=12,
  )


@pytest.fixture(scope="module")
def retriever():
  return make()


def test_the_start_is_near_the_inner_product(retriever):
  networks = retriever.encode_queries(TEXTS)
  documents = retriever.encode_documents(TEXTS)
  np.testing.assert_allclose(
    np.linalg.norm(networks.skip, axis=1), 1 / 0.05, rtol=1e-5
  )
  scores = text_hypencoder.scores(networks, documents)
  product = networks.skip @ documents.T
  assert np.abs(scores - product).max() < 0.05 * np.abs(product).max()
  assert np.abs(scores - product).max() > 0


def test_without_skip_it_is_the_published_model(retriever):
  model = make(skip=False).model
  assert np.abs(model.query.head.output.base[...]).max() > 0.1
  assert np.abs(retriever.model.query.head.output.base[...]).max() == 0
  tokens = retriever.tokenizer(TEXTS, max_length=12)
  networks = jax.eval_shape(lambda: model.query(*tokens))
  assert networks.skip is None


def test_padding_does_not_matter(retriever):
  tokens = retriever.tokenizer(TEXTS[:1], max_length=12)
  alone = retriever.tokenizer([*TEXTS[:1], " ".join(TEXTS)], max_length=12)
  encode = jax.jit(lambda model, *tokens: model(*tokens))
  short = encode(retriever.model.query, *tokens)
  long = encode(retriever.model.query, *alone)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a[0], b[0], atol=1e-5), short, long
  )


@pytest.mark.slow
def test_gradients_reach_the_hyperhead_and_the_encoder(retriever):
  graphdef, params = nnx.split(retriever.model)
  tokens = retriever.tokenizer(TEXTS, max_length=12)

  @jax.jit
  def loss(params):
    model = nnx.merge(graphdef, params)
    scores = text_hypencoder.scores(
      model.query(*tokens), model.document(*tokens)
    )
    return -jnp.mean(jax.nn.log_softmax(scores)[jnp.arange(4), jnp.arange(4)])

  grads = jax.tree_util.tree_leaves_with_path(jax.jit(jax.grad(loss))(params))
  for path, value in grads:
    name = jax.tree_util.keystr(path)
    assert np.isfinite(value).all(), name
    # A key's bias shifts the logits of all tokens alike.
    if not ("key" in name and "bias" in name) and "embedding" not in name:
      assert np.abs(value).max() > 0, name


@pytest.mark.parametrize("shared", [True, False])
def test_save_and_load(shared, retriever, tmp_path):
  retriever = retriever if shared else make(shared=False)
  folder = tmp_path / "hypencoder"
  retriever.save(folder, {"a": 1})
  loaded, metadata = text_hypencoder.TextHypencoderRetriever.load(folder)
  assert metadata == {"a": 1}
  assert text_hypencoder.is_saved_in(folder)
  assert loaded.model.shares_encoder == retriever.model.shares_encoder
  assert loaded.model.query.config == retriever.model.query.config
  for name in ("encode_queries", "encode_documents"):
    old, new = (getattr(r, name)(TEXTS) for r in (retriever, loaded))
    assert isinstance(new, qnet.QNet) == (name == "encode_queries")
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), old, new
    )
  with pytest.raises(ValueError, match="no trained Hypencoder"):
    text_hypencoder.TextHypencoderRetriever.load(tmp_path)


def test_config_errors():
  with pytest.raises(ValueError, match="temperature must be positive"):
    text_hypencoder.TextHypencoderConfig(temperature=0.0)
  with pytest.raises(ValueError, match=r"widths\[0\] must be at least 1"):
    text_hypencoder.TextHypencoderConfig(widths=(0,))
