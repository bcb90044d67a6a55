"""A small data set, and a maker of encoders of 16 dimensions for it."""

import pytest
import tiny_beir
from flax import nnx

from nnn_jax.data import pipeline
from nnn_jax.models import bi_encoder, text_encoder, tokenization


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
  folder = tmp_path_factory.mktemp("beir") / "tiny"
  return pipeline.load(f"beir:{tiny_beir.write(folder)}")


@pytest.fixture(scope="module")
def encoder(dataset):
  """A bi-encoder of two different encoders."""
  tokenizer = tokenization.Tokenizer.train(dataset.doc_texts, vocab_size=300)
  config = text_encoder.TextEncoderConfig(
    vocab_size=tokenizer.vocab_size,
    dim=16,
    num_layers=1,
    num_heads=2,
    mlp_dim=32,
    max_length=16,
  )
  one, two = (
    text_encoder.TextEncoder(config, rngs=nnx.Rngs(i)) for i in range(2)
  )
  return bi_encoder.BiEncoder(
    query_encoder=one,
    document_encoder=two,
    tokenizer=tokenizer,
    query_length=16,
    document_length=12,
  )
