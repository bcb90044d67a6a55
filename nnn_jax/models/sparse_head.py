"""Sparse vectors of texts: a weight for each term of a vocabulary.

With h_t the encoder's output at token x_t, e_v the word embedding of v and
d_v = e_v / ||e_v||, a text's weight for the term v is

  w_v = log(1 + max(0, max_t l_tv))
  l_tv = sharpness d_v . (d_{x_t} + A h_t) + b_v

as SPLADE has it, with the token's own embedding in place of the hidden layer of
a masked language model: encoders of sentences come without one. At the start
A = 0 and b_v is such that a token gives its own term a chosen weight and others
one that falls with their distance: a lexical retriever, in which words that
nearly are synonyms match, too. From there A learns which terms matter and which
to add.

Terms are token ids: those of a corpus, say, since a term that no document can
have is never matched and costs as much as another.

Reference: Formal, Piwowarski and Clinchant (2021), SPLADE, arXiv 2107.05720,
and its second version, arXiv 2109.10086 (maximum over tokens).
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from flax import nnx

from nnn_jax import files, types
from nnn_jax.core import linalg, sparse, topk
from nnn_jax.models import bi_encoder, pretrained, text_encoder
from nnn_jax.models import tokenization as tokens_lib

_DESCRIPTION = "sparse_head.json"
_TENSORS = "sparse_head.safetensors"
# Logits `[texts, length, num_terms]` are formed for so many texts at a time.
_TEXTS_AT_ONCE = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparseHeadConfig:
  """Static description; hashable.

  Attributes:
    sharpness: Of the cosine of two terms; larger lets fewer others in.
    max_query_terms: Largest weights that are kept of a query, in search.
    max_document_terms: Likewise of a document.

  Raises:
    ValueError: A value is out of range.
  """

  sharpness: float = 6.0
  max_query_terms: int = 64
  max_document_terms: int = 256

  def __post_init__(self) -> None:
    if not self.sharpness > 0:
      raise ValueError(f"sharpness must be positive, got {self.sharpness}.")
    for name in ("max_query_terms", "max_document_terms"):
      if getattr(self, name) < 1:
        raise ValueError(
          f"{name} must be at least 1, got {getattr(self, name)}."
        )


class SparseHead(nnx.Module):
  """An encoder with a head of sparse vectors; see the module's docstring.

  >>> sizes = dict(dim=8, num_layers=1, num_heads=2, mlp_dim=8, max_length=6)
  >>> encoder = text_encoder.TextEncoder(
  ...   text_encoder.TextEncoderConfig(vocab_size=10, **sizes), rngs=nnx.Rngs(0)
  ... )
  >>> terms = np.asarray([4, 5, 6])
  >>> model = SparseHead(encoder, terms, np.ones(3), SparseHeadConfig())
  >>> weights = model(jnp.asarray([[2, 5, 3]]), jnp.ones((1, 3)))
  >>> weights.shape, round(float(weights[0, 1]), 3)
  ((1, 3), 1.0)
  """

  def __init__(
    self,
    encoder: text_encoder.TextEncoder,
    terms: types.Array,
    own_weights: types.Array,
    config: SparseHeadConfig,
  ):
    """Adds a head to an encoder.

    Args:
      encoder: Shared by queries and documents, such as a pretrained one.
      terms: `[num_terms]` token ids, distinct: the coordinates.
      own_weights: `[num_terms]`, what a token gives its own term at the start.
      config: Static choices.
    """
    terms = np.asarray(terms, np.int32)
    if terms.ndim != 1 or not len(terms):
      raise ValueError(f"terms must be a list of ids, got shape {terms.shape}.")
    if len(np.unique(terms)) < len(terms):
      raise ValueError("terms lists an id twice: drop one.")
    if terms.min() < 0 or terms.max() >= encoder.config.vocab_size:
      raise ValueError(
        f"terms must be ids below {encoder.config.vocab_size}, the encoder's "
        f"vocabulary, got {terms.min()} to {terms.max()}."
      )
    own_weights = np.asarray(own_weights, np.float32)
    if own_weights.shape != terms.shape:
      raise ValueError(
        f"own_weights must have the shape of terms, {terms.shape}, got "
        f"{own_weights.shape}."
      )
    self.encoder = encoder
    self.config = config
    self.terms = tuple(terms.tolist())
    dim = encoder.config.dim
    self.shift = nnx.Param(jnp.zeros((dim, dim)))
    self.bias = nnx.Param(jnp.expm1(own_weights) - config.sharpness)

  def __call__(
    self, token_ids: jax.Array, attention_mask: jax.Array
  ) -> jax.Array:
    """Weighs tokenised texts.

    Args:
      token_ids: Integers `[batch, length]`.
      attention_mask: `[batch, length]`, non-zero at tokens.

    Returns:
      `[batch, num_terms]` weights, not negative; zeros for a text of padding.
    """
    outputs, mask = self.encoder.token_outputs(token_ids, attention_mask)
    table = self.encoder.word_embedding[...]
    own = linalg.normalize(jnp.take(table, token_ids, axis=0, mode="clip"))
    vectors = own + outputs @ self.shift[...]
    terms = linalg.normalize(table[jnp.asarray(self.terms)])
    terms = (self.config.sharpness * terms).T

    # Formed again for the gradient: they take more memory than all else.
    @jax.checkpoint
    def largest(text):
      vectors, mask = text
      logits = jnp.where(mask[:, None], vectors @ terms, -jnp.inf)
      return jnp.max(logits, axis=0)

    batch_size = min(_TEXTS_AT_ONCE, mask.shape[0])
    logits = jax.lax.map(largest, (vectors, mask), batch_size=batch_size)
    return jnp.log1p(jax.nn.relu(logits + self.bias[None]))


class TermList(nnx.Module):
  """A head that lists the largest weights, as `core.sparse.SparseVector`."""

  def __init__(self, head: SparseHead, max_terms: int):
    self.head = head
    self.max_terms = max_terms

  def __call__(
    self, token_ids: jax.Array, attention_mask: jax.Array
  ) -> sparse.SparseVector:
    """(indices, values) `[batch, max_terms]`, -1 and 0 where fewer."""
    weights = self.head(token_ids, attention_mask)
    size = min(self.max_terms, weights.shape[1])
    values, indices = jax.vmap(lambda row: topk.top_k(row, size))(weights)
    used = values > 0
    return sparse.SparseVector(
      jnp.where(used, indices, -1), jnp.where(used, values, 0.0)
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparseRetriever:
  """What the stage "sparse" produces; `bi_encoder.BiEncoder`'s counterpart.

  Attributes:
    model: Encodes both sides.
    tokenizer: Of both.
    query_length: Tokens a query is cut to.
    document_length: Tokens a document is cut to.
  """

  model: SparseHead
  tokenizer: tokens_lib.Tokenizer
  query_length: int
  document_length: int

  def encode_queries(
    self, texts: Sequence[str], *, description: str | None = None
  ) -> sparse.SparseVector:
    """`[num_texts, max_query_terms]` terms and weights, as numpy arrays."""
    head = TermList(self.model, self.model.config.max_query_terms)
    return self._encode(head, texts, self.query_length, description)

  def encode_documents(
    self, texts: Sequence[str], *, description: str | None = None
  ) -> sparse.SparseVector:
    """`[num_texts, max_document_terms]`, likewise.

    `indexes.sparse.from_padded` takes them.
    """
    head = TermList(self.model, self.model.config.max_document_terms)
    return self._encode(head, texts, self.document_length, description)

  def _encode(self, head, texts, length, description):
    tokens = self.tokenizer(texts, max_length=length)
    lists = bi_encoder.encode_tokens(
      *nnx.split(head), tokens, description=description
    )
    return sparse.SparseVector(*lists)

  def save(self, folder: pathlib.Path, metadata: dict[str, Any]) -> None:
    """Writes `encoder/` in Hugging Face format, and the rest.

    The folder appears whole or not at all; an older one is replaced last.
    """
    model = self.model
    with files.new_folder(folder) as temporary:
      pretrained.save(temporary / "encoder", model.encoder, self.tokenizer)
      tensors = {
        "terms": np.asarray(model.terms, np.int32),
        "shift": np.asarray(model.shift[...]),
        "bias": np.asarray(model.bias[...]),
      }
      files.write(temporary / _TENSORS, safetensors.numpy.save(tensors))
      description = {
        "query_length": self.query_length,
        "document_length": self.document_length,
        "config": dataclasses.asdict(model.config),
        "metadata": metadata,
      }
      files.write(temporary / _DESCRIPTION, json.dumps(description, indent=2))

  @classmethod
  def load(cls, folder: pathlib.Path) -> tuple[SparseRetriever, dict[str, Any]]:
    """Reads what `save` wrote.

    Returns:
      (retriever, metadata).

    Raises:
      ValueError: If the folder does not hold one.
    """
    path = folder / _DESCRIPTION
    if not path.exists():
      raise ValueError(
        f"{folder} holds no trained sparse encoder ({_DESCRIPTION} is "
        "missing): train one with `python -m experiments.train "
        "--stages=sparse`."
      )
    description = json.loads(path.read_text())
    encoder, tokenizer = pretrained.load(str(folder / "encoder"))
    stored = safetensors.numpy.load_file(folder / _TENSORS)
    terms = stored["terms"]
    config = SparseHeadConfig(**description["config"])
    model = SparseHead(encoder, terms, np.zeros(len(terms)), config)
    model.shift[...] = jnp.asarray(stored["shift"])
    model.bias[...] = jnp.asarray(stored["bias"])
    retriever = cls(
      model=model,
      tokenizer=tokenizer,
      query_length=description["query_length"],
      document_length=description["document_length"],
    )
    return retriever, description["metadata"]


def is_saved_in(folder: pathlib.Path) -> bool:
  """Whether a folder holds what `SparseRetriever.save` wrote."""
  return (folder / _DESCRIPTION).exists()
