"""Hypencoder of texts: a query's tokens make the network, a document a vector.

Of a query with the encoder's outputs h_t at its tokens,

  weights = Hyperhead(h_1 .. h_n),   score(x) = network(x) + skip . x

with x the document's embedding, as a bi-encoder has it, and

  skip = embedding of the query / temperature

the bi-encoder's own score, as a logit. The network's output starts close to
zero, so the first scores are those of the encoder that training starts from,
and what is learned is what the inner product lacks. The published model has no
skip (`skip=False` here): it has to learn a similarity from nothing, which takes
some 100,000 steps, and is no better than chance after the few hundred that a
small data set has.

The encoder of documents is that of queries, as published, or one of its own.

Reference: arXiv 2502.05364, section 3; the skip is ours.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from nnn_jax import files
from nnn_jax.core import qnet
from nnn_jax.models import (
  bi_encoder,
  hyperhead,
  parameters,
  pretrained,
  text_encoder,
)
from nnn_jax.models import tokenization as tokens_lib

_DESCRIPTION = "text_hypencoder.json"
_TENSORS = "hyperhead.safetensors"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextHypencoderConfig:
  """Static description; hashable.

  Attributes:
    widths: Of the network's hidden layers; `(768,) * 6` as published.
    skip: Whether the network adds to the inner product of the embeddings.
    temperature: Of that inner product.
    scale: See `hyperhead.HyperheadConfig`.
    query_stddev: Likewise.
    change: Likewise.

  Raises:
    ValueError: A value is out of range.
  """

  widths: tuple[int, ...] = (32, 32)
  skip: bool = True
  temperature: float = 0.05
  scale: hyperhead.Scale = "features"
  query_stddev: float = 10.0
  change: float = 0.05

  def __post_init__(self) -> None:
    object.__setattr__(self, "widths", tuple(self.widths))  # JSON has lists.
    if not self.temperature > 0:
      raise ValueError(f"temperature must be positive, got {self.temperature}.")
    self.head(1)

  def head(self, dim: int) -> hyperhead.HyperheadConfig:
    """Of the hyperhead, for an encoder of this width."""
    return hyperhead.HyperheadConfig(
      token_dim=dim,
      dim=dim,
      widths=self.widths,
      scale=self.scale,
      query_stddev=self.query_stddev,
      change=self.change,
      output_base=0.0 if self.skip else 1.0,
    )


class QueryEncoder(nnx.Module):
  """The query's side; see the module's docstring."""

  def __init__(
    self,
    encoder: text_encoder.TextEncoder,
    config: TextHypencoderConfig,
    *,
    rngs: nnx.Rngs,
  ):
    self.config = config
    self.encoder = encoder
    self.head = hyperhead.Hyperhead(config.head(encoder.config.dim), rngs=rngs)

  def __call__(
    self, token_ids: jax.Array, attention_mask: jax.Array
  ) -> qnet.QNet:
    """Maps tokenised texts `[batch, length]` to a batch of networks."""
    states, mask = self.encoder.token_outputs(token_ids, attention_mask)
    network = self.head(states, mask)
    if not self.config.skip:
      return network
    return network._replace(
      skip=self.encoder.pool(states, mask) / self.config.temperature
    )


class TextHypencoder(nnx.Module):
  """Networks of queries, vectors of documents; see the module's docstring.

  >>> import jax.numpy as jnp
  >>> sizes = dict(dim=8, num_layers=1, num_heads=2, mlp_dim=8, max_length=6)
  >>> encoder = text_encoder.TextEncoder(
  ...   text_encoder.TextEncoderConfig(vocab_size=10, **sizes), rngs=nnx.Rngs(0)
  ... )
  >>> config = TextHypencoderConfig(widths=(8, 8))
  >>> model = TextHypencoder(encoder, encoder, config, rngs=nnx.Rngs(1))
  >>> texts = jnp.asarray([[2, 5, 3], [2, 3, 0]]), jnp.asarray([[1] * 3] * 2)
  >>> scores(model.query(*texts), model.document(*texts)).shape
  (2, 2)
  """

  def __init__(
    self,
    query_encoder: text_encoder.TextEncoder,
    document_encoder: text_encoder.TextEncoder,
    config: TextHypencoderConfig,
    *,
    rngs: nnx.Rngs,
  ):
    """Adds a hyperhead to a pair of encoders.

    Args:
      query_encoder: Such as a pretrained one.
      document_encoder: The same object, or another of its width.
      config: Sizes.
      rngs: The stream `params` is used.
    """
    dims = query_encoder.config.dim, document_encoder.config.dim
    if dims[0] != dims[1]:
      raise ValueError(f"the encoders must be of one width, got {dims}.")
    self.query = QueryEncoder(query_encoder, config, rngs=rngs)
    self.document = document_encoder

  @property
  def shares_encoder(self) -> bool:
    """Whether queries and documents have one encoder."""
    return self.document is self.query.encoder


def scores(networks: qnet.QNet, documents: jax.Array) -> jax.Array:
  """Of a batch of networks and `[num_docs, dim]`: `[batch, num_docs]`."""
  return jax.vmap(qnet.scores, in_axes=(0, None))(networks, documents)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextHypencoderRetriever:
  """What the stage "hypencoder" leaves; `bi_encoder.BiEncoder`'s counterpart.

  Attributes:
    model: Encodes both sides.
    tokenizer: Of both.
    query_length: Tokens a query is cut to.
    document_length: Tokens a document is cut to.
  """

  model: TextHypencoder
  tokenizer: tokens_lib.Tokenizer
  query_length: int
  document_length: int

  def encode_queries(
    self, texts: Sequence[str], *, description: str | None = None
  ) -> qnet.QNet:
    """The networks of texts, a batch of them as numpy arrays."""
    tokens = self.tokenizer(texts, max_length=self.query_length)
    return bi_encoder.encode_tokens(
      *nnx.split(self.model.query), tokens, description=description
    )

  def encode_documents(
    self, texts: Sequence[str], *, description: str | None = None
  ) -> np.ndarray:
    """Vectors `[num_texts, dim]`."""
    tokens = self.tokenizer(texts, max_length=self.document_length)
    return bi_encoder.encode_tokens(
      *nnx.split(self.model.document), tokens, description=description
    )

  def save(self, folder: pathlib.Path, metadata: dict[str, Any]) -> None:
    """Writes `query/`, `document/` where it is another, and the rest.

    The folder appears whole or not at all; an older one is replaced last.
    """
    query, document = self.model.query, self.model.document
    with files.new_folder(folder) as temporary:
      pretrained.save(temporary / "query", query.encoder, self.tokenizer)
      if not self.model.shares_encoder:
        pretrained.save(temporary / "document", document, self.tokenizer)
      parameters.write(temporary / _TENSORS, query.head)
      description = {
        "query_length": self.query_length,
        "document_length": self.document_length,
        "share_encoder": self.model.shares_encoder,
        "config": dataclasses.asdict(query.config),
        "metadata": metadata,
      }
      files.write(temporary / _DESCRIPTION, json.dumps(description, indent=2))

  @classmethod
  def load(
    cls, folder: pathlib.Path
  ) -> tuple[TextHypencoderRetriever, dict[str, Any]]:
    """Reads what `save` wrote.

    Returns:
      (retriever, metadata).

    Raises:
      ValueError: If the folder does not hold one.
    """
    path = folder / _DESCRIPTION
    if not path.exists():
      raise ValueError(
        f"{folder} holds no trained Hypencoder ({_DESCRIPTION} is missing): "
        "train one with `python -m experiments.train --stages=hypencoder`."
      )
    description = json.loads(path.read_text())
    query, tokenizer = pretrained.load(str(folder / "query"))
    document = query
    if not description["share_encoder"]:
      document, _ = pretrained.load(str(folder / "document"))
    config = TextHypencoderConfig(**description["config"])
    model = TextHypencoder(query, document, config, rngs=nnx.Rngs(0))
    parameters.read(folder / _TENSORS, model.query.head)
    retriever = cls(
      model=model,
      tokenizer=tokenizer,
      query_length=description["query_length"],
      document_length=description["document_length"],
    )
    return retriever, description["metadata"]


def is_saved_in(folder: pathlib.Path) -> bool:
  """Whether a folder holds what `TextHypencoderRetriever.save` wrote."""
  return (folder / _DESCRIPTION).exists()
