"""A query encoder and a document encoder that share an embedding space.

A `BiEncoder` is what training produces and what evaluation and search load:
two text encoders, one tokenizer, and optionally an adapter on the documents.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import tqdm
from flax import nnx

from nnn_jax import files
from nnn_jax.models import adapter as adapter_lib
from nnn_jax.models import (
  parameters,
  pretrained,
  text_encoder,
  tokenization,
)

_DESCRIPTION = "bi_encoder.json"
_ADAPTER = "adapter.safetensors"


@partial(jax.jit, static_argnums=0)
def _apply(graphdef, params, *args):
  return nnx.merge(graphdef, params)(*args)


def encode_tokens(
  graphdef: Any,
  params: Any,
  tokens: tokenization.Tokens,
  *,
  batch_size: int = 64,
  description: str | None = None,
) -> Any:
  """Encodes token arrays in batches of like length.

  Args:
    graphdef: From `nnx.split(encoder)`.
    params: Likewise; may be newer than the encoder's own.
    tokens: ids and mask `[num_texts, length]`.
    batch_size: Texts a batch.
    description: Label of a progress bar; None shows none.

  Returns:
    `[num_texts, dim]` float32; of a module that returns a tuple of arrays, that
    tuple.
  """
  if len(tokens.ids) == 0:
    raise ValueError("texts is empty: there is nothing to encode.")
  lengths = tokens.mask.sum(axis=1)
  order = np.argsort(-lengths, kind="stable")
  chunks: list[Any] = []
  for start in tqdm.tqdm(
    range(0, len(order), batch_size),
    desc=description,
    unit="batch",
    disable=description is None,
    mininterval=5.0,
  ):
    rows = order[start : start + batch_size]
    # The last batch is filled up with its first row: one shape less.
    filled = np.concatenate([rows, np.repeat(rows[:1], batch_size - len(rows))])
    cut = tokenization.Tokens(tokens.ids[filled], tokens.mask[filled]).trimmed()
    batch = _apply(graphdef, params, *cut)
    chunks.append(jax.tree.map(lambda x, n=len(rows): np.asarray(x)[:n], batch))

  def joined(*parts: np.ndarray) -> np.ndarray:
    rows = np.concatenate(parts)
    rows[order] = rows.copy()
    return rows

  return jax.tree.map(joined, *chunks)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BiEncoder:
  """Two encoders, a tokenizer, and how texts are cut.

  Attributes:
    query_encoder: Encodes queries.
    document_encoder: Encodes documents; may be the same object.
    tokenizer: Of both.
    query_length: Tokens a query is cut to.
    document_length: Tokens a document is cut to.
    adapter: Applied to document embeddings, or None.
  """

  query_encoder: text_encoder.TextEncoder
  document_encoder: text_encoder.TextEncoder
  tokenizer: tokenization.Tokenizer
  query_length: int
  document_length: int
  adapter: adapter_lib.Adapter | None = None

  @classmethod
  def from_pretrained(
    cls, source: str, *, query_length: int, document_length: int
  ) -> BiEncoder:
    """One pretrained encoder for both sides (see `pretrained.load`)."""
    encoder, tokenizer = pretrained.load(source)
    return cls(
      query_encoder=encoder,
      document_encoder=encoder,
      tokenizer=tokenizer,
      query_length=query_length,
      document_length=document_length,
    )

  def encode_queries(
    self, texts: Sequence[str], *, description: str | None = None
  ) -> np.ndarray:
    """Returns unit rows `[num_texts, dim]`."""
    tokens = self.tokenizer(texts, max_length=self.query_length)
    return encode_tokens(
      *nnx.split(self.query_encoder), tokens, description=description
    )

  def encode_documents(
    self, texts: Sequence[str], *, description: str | None = None
  ) -> np.ndarray:
    """Returns unit rows `[num_texts, dim]`, through the adapter if any."""
    tokens = self.tokenizer(texts, max_length=self.document_length)
    embeddings = encode_tokens(
      *nnx.split(self.document_encoder), tokens, description=description
    )
    if self.adapter is None:
      return embeddings
    return np.asarray(_apply(*nnx.split(self.adapter), embeddings))

  def save(self, folder: pathlib.Path, metadata: dict[str, Any]) -> None:
    """Writes `query/` and `document/` in Hugging Face format, and the rest.

    The folder appears whole or not at all; an older one is replaced last.

    Args:
      folder: Where to.
      metadata: JSON-able facts about how it was trained; kept as they are.
    """
    with files.new_folder(folder) as temporary:
      pretrained.save(temporary / "query", self.query_encoder, self.tokenizer)
      pretrained.save(
        temporary / "document", self.document_encoder, self.tokenizer
      )
      if self.adapter is not None:
        parameters.write(temporary / _ADAPTER, self.adapter)
      description = {
        "query_length": self.query_length,
        "document_length": self.document_length,
        "adapter": self.adapter and dataclasses.asdict(self.adapter.config),
        "metadata": metadata,
      }
      files.write(temporary / _DESCRIPTION, json.dumps(description, indent=2))

  @classmethod
  def load(cls, folder: pathlib.Path) -> tuple[BiEncoder, dict[str, Any]]:
    """Reads what `save` wrote.

    Returns:
      (bi-encoder, metadata).

    Raises:
      ValueError: If the folder does not hold one.
    """
    path = folder / _DESCRIPTION
    if not path.exists():
      raise ValueError(
        f"{folder} holds no trained bi-encoder ({_DESCRIPTION} is missing): "
        "train one with `python -m experiments.train`."
      )
    description = json.loads(path.read_text())
    query_encoder, tokenizer = pretrained.load(str(folder / "query"))
    document_encoder, _ = pretrained.load(str(folder / "document"))
    adapter = None
    if description["adapter"] is not None:
      adapter = adapter_lib.Adapter(
        adapter_lib.AdapterConfig(**description["adapter"]), rngs=nnx.Rngs(0)
      )
      parameters.read(folder / _ADAPTER, adapter)
    bi_encoder = cls(
      query_encoder=query_encoder,
      document_encoder=document_encoder,
      tokenizer=tokenizer,
      query_length=description["query_length"],
      document_length=description["document_length"],
      adapter=adapter,
    )
    return bi_encoder, description["metadata"]
