"""Mixture of logits for texts: several components a text, from its tokens.

Learned tokens, as many as components, stand before the text and read it as a
[CLS] token does. Of the outputs h_t of all tokens, component n is

  f_n = normalise(sum_t w_nt h_t)
  w_n = softmax_t(Linear(SiLU(LN(Linear h_0))))

where h_0 is the first token's output, the last Linear has an output for each
component and position, and padding has no weight. At the start the weights are
nearly equal, so every component is about the mean of the tokens, and the
similarity about that of the encoder that training starts from.

Both sides share one encoder; tokens, pooling and gates are their own. The gates
a and b read the encoder's own embedding, the mean of a text's outputs.

Reference: "Retrieval with Learned Similarities" (2025), arXiv 2407.15462, for
question answering; the paper does not state how the new layers are
initialised.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nnn_jax import files
from nnn_jax.core import linalg, mixture
from nnn_jax.models import (
  bi_encoder,
  mol,
  parameters,
  pretrained,
  text_encoder,
)
from nnn_jax.models import tokenization as tokens_lib

_EPS = 1e-6
_DESCRIPTION = "text_mol.json"
_TENSORS = "mixture.safetensors"
_INIT = nnx.initializers.normal(stddev=0.02)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextMolConfig:
  """Static description; hashable.

  Attributes:
    num_query_components: P_Q.
    num_item_components: P_X.
    temperature: tau.
    pooling_hidden: Width of the pooling layer.
    gate_hidden: Width of the gates' hidden layers.
    gate_dropout: On pi, in training.

  Raises:
    ValueError: A size is out of range.
  """

  num_query_components: int = 4
  num_item_components: int = 4
  temperature: float = 0.05
  pooling_hidden: int = 128
  gate_hidden: int = 128
  gate_dropout: float = 0.2

  def __post_init__(self) -> None:
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if field.type == "int" and value < 1:
        raise ValueError(f"{field.name} must be at least 1, got {value}.")
    if not self.temperature > 0:
      raise ValueError(f"temperature must be positive, got {self.temperature}.")
    if not 0 <= self.gate_dropout < 1:
      raise ValueError(
        f"gate_dropout must be in [0, 1), got {self.gate_dropout}."
      )


class ComponentEncoder(nnx.Module):
  """One side: texts to components and a gate; see the module's docstring."""

  def __init__(
    self,
    encoder: text_encoder.TextEncoder,
    config: TextMolConfig,
    num_components: int,
    *,
    rngs: nnx.Rngs,
  ):
    self.encoder = encoder
    dim = encoder.config.dim
    pairs = config.num_query_components * config.num_item_components
    self.extra = nnx.Param(_INIT(rngs.params(), (num_components, dim)))
    self.pooling_in = nnx.Linear(dim, config.pooling_hidden, rngs=rngs)
    self.pooling_norm = nnx.LayerNorm(config.pooling_hidden, rngs=rngs)
    positions = num_components + encoder.config.max_length
    self.pooling_out = nnx.Linear(
      config.pooling_hidden,
      num_components * positions,
      kernel_init=_INIT,
      rngs=rngs,
    )
    self.gate = mol.GateMlp(
      dim, config.gate_hidden, pairs, output_bias=False, rngs=rngs
    )

  def __call__(
    self, token_ids: jax.Array, attention_mask: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Encodes tokenised texts.

    Args:
      token_ids: integers `[batch, length]`.
      attention_mask: `[batch, length]`, non-zero at tokens.

    Returns:
      (components `[batch, num_components, dim]` of unit norm, gate
      `[batch, P]`).
    """
    extra = self.extra[...]
    num, _ = extra.shape
    outputs, mask = self.encoder.token_outputs(token_ids, attention_mask, extra)
    batch, length, _ = outputs.shape
    hidden = self.pooling_norm(self.pooling_in(outputs[:, 0]))
    logits = self.pooling_out(jax.nn.silu(hidden)).reshape(batch, num, -1)
    # The extra tokens are never padding: each softmax has a term.
    logits = jnp.where(mask[:, None], logits[..., :length], -jnp.inf)
    components = linalg.normalize(
      jax.nn.softmax(logits, axis=-1) @ outputs, eps=_EPS
    )
    text = mask.at[:, :num].set(False).astype(outputs.dtype)
    total = (text[:, None] @ outputs)[:, 0]
    return components, self.gate(linalg.normalize(total))


class TextMol(nnx.Module):
  """A mixture of logits of two texts; see the module's docstring.

  >>> sizes = dict(dim=8, num_layers=1, num_heads=2, mlp_dim=8, max_length=6)
  >>> encoder = text_encoder.TextEncoder(
  ...   text_encoder.TextEncoderConfig(vocab_size=10, **sizes), rngs=nnx.Rngs(0)
  ... )
  >>> model = TextMol(encoder, TextMolConfig(), rngs=nnx.Rngs(1))
  >>> texts = jnp.asarray([[2, 5, 3], [2, 3, 0]]), jnp.asarray([[1] * 3] * 2)
  >>> components, gate = model.query(*texts)
  >>> components.shape, gate.shape
  ((2, 4, 8), (2, 16))
  """

  def __init__(
    self,
    encoder: text_encoder.TextEncoder,
    config: TextMolConfig,
    *,
    rngs: nnx.Rngs,
  ):
    """Adds components and gates to an encoder.

    Args:
      encoder: Shared by both sides, such as a pretrained one.
      config: Sizes.
      rngs: The stream `params` is used.
    """
    self.config = config
    self.query = ComponentEncoder(
      encoder, config, config.num_query_components, rngs=rngs
    )
    self.item = ComponentEncoder(
      encoder, config, config.num_item_components, rngs=rngs
    )
    pairs = config.num_query_components * config.num_item_components
    self.pair_gate = mol.GateMlp(
      pairs, config.gate_hidden, pairs, output_bias=True, rngs=rngs
    )

  def __call__(
    self,
    queries: mixture.QuerySide,
    items: mixture.ItemSide,
    *,
    rngs: nnx.Rngs | None = None,
  ) -> tuple[jax.Array, jax.Array]:
    """Scores and gates, as `mol.Mol.__call__`."""
    return mol.score(
      self.params(),
      queries,
      items,
      gate_dropout=self.config.gate_dropout,
      rngs=rngs,
    )

  def params(self) -> mixture.MixtureParams:
    """What `core.mixture` and the decoder need of the model, traced."""
    return mol.gate_params(self.pair_gate, self.config.temperature)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextMolRetriever:
  """What the stage "mol" produces; `bi_encoder.BiEncoder`'s counterpart.

  Attributes:
    model: Encodes both sides.
    tokenizer: Of both.
    query_length: Tokens a query is cut to.
    document_length: Tokens a document is cut to.
  """

  model: TextMol
  tokenizer: tokens_lib.Tokenizer
  query_length: int
  document_length: int

  def params(self) -> mixture.MixtureParams:
    """Of the decoder."""
    return self.model.params()

  def encode_queries(
    self, texts: Sequence[str], *, description: str | None = None
  ) -> mixture.QuerySide:
    """The query side of texts, as numpy arrays."""
    tokens = self.tokenizer(texts, max_length=self.query_length)
    side = bi_encoder.encode_tokens(
      *nnx.split(self.model.query), tokens, description=description
    )
    return mixture.QuerySide(*side)

  def encode_documents(
    self, texts: Sequence[str], *, description: str | None = None
  ) -> mixture.ItemSide:
    """The item side of texts, as numpy arrays."""
    tokens = self.tokenizer(texts, max_length=self.document_length)
    side = bi_encoder.encode_tokens(
      *nnx.split(self.model.item), tokens, description=description
    )
    return mixture.ItemSide(*side)

  def save(self, folder: pathlib.Path, metadata: dict[str, Any]) -> None:
    """Writes `encoder/` in Hugging Face format, and the rest.

    The folder appears whole or not at all; an older one is replaced last.
    """
    with files.new_folder(folder) as temporary:
      pretrained.save(
        temporary / "encoder", self.model.query.encoder, self.tokenizer
      )
      parameters.write(temporary / _TENSORS, self.model, leave_out="encoder")
      description = {
        "query_length": self.query_length,
        "document_length": self.document_length,
        "config": dataclasses.asdict(self.model.config),
        "metadata": metadata,
      }
      files.write(temporary / _DESCRIPTION, json.dumps(description, indent=2))

  @classmethod
  def load(
    cls, folder: pathlib.Path
  ) -> tuple[TextMolRetriever, dict[str, Any]]:
    """Reads what `save` wrote.

    Returns:
      (retriever, metadata).

    Raises:
      ValueError: If the folder does not hold one.
    """
    path = folder / _DESCRIPTION
    if not path.exists():
      raise ValueError(
        f"{folder} holds no trained mixture of logits ({_DESCRIPTION} is "
        "missing): train one with `python -m experiments.train --stages=mol`."
      )
    description = json.loads(path.read_text())
    encoder, tokenizer = pretrained.load(str(folder / "encoder"))
    config = TextMolConfig(**description["config"])
    model = TextMol(encoder, config, rngs=nnx.Rngs(0))
    parameters.read(folder / _TENSORS, model, leave_out="encoder")
    retriever = cls(
      model=model,
      tokenizer=tokenizer,
      query_length=description["query_length"],
      document_length=description["document_length"],
    )
    return retriever, description["metadata"]


def is_saved_in(folder: pathlib.Path) -> bool:
  """Whether a folder holds what `TextMolRetriever.save` wrote."""
  return (folder / _DESCRIPTION).exists()
