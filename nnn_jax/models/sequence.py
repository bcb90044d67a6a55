"""What the sequence models share: item and position embeddings, their ends.

A history is a row of item ids, oldest first, padded on the right with id 0:

  x_t = dropout(E[id_t] sqrt(dim) + P[t]),  0 at padding

Output t reads the ids up to t and predicts id t + 1. With output "l2" it has
unit norm, and so has an item's vector E[id]: they compare by their directions.
With "layer_norm" it has zero mean and unit variance, without learned scale, and
an item's vector is E[id] itself, for a similarity that normalises what it makes
of both.

Reference: arXiv 2407.15462 (Retrieval with Learned Similarities), section 5.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal, get_args

import jax
import jax.numpy as jnp
from flax import nnx

from nnn_jax.core import linalg

Output = Literal["l2", "layer_norm"]

_EPS = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceConfig:
  """Static description that all sequence models share; hashable.

  Attributes:
    num_items: Items have ids 1 to num_items; 0 is padding.
    length: Places of a history (rows of the position embedding).
    dim: Width of the model and of its output.
    num_blocks: Attention blocks.
    num_heads: Attention heads.
    dropout: Rate, in training.
    output: How an output is normalised; see the module's docstring.

  Raises:
    ValueError: A size is below 1, a rate outside [0, 1), output unknown.
  """

  num_items: int
  length: int
  dim: int
  num_blocks: int
  num_heads: int
  dropout: float = 0.0
  output: Output = "l2"

  def __post_init__(self) -> None:
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if isinstance(value, int) and value < 1:
        raise ValueError(f"{field.name} must be at least 1, got {value}.")
    if not 0 <= self.dropout < 1:
      raise ValueError(f"dropout must be in [0, 1), got {self.dropout}.")
    if self.output not in get_args(Output):
      raise ValueError(
        f"output must be one of {', '.join(get_args(Output))}, got "
        f"{self.output!r}."
      )


def dropout(x: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
  """Inverted dropout; without a key (evaluation) x itself."""
  if key is None or rate == 0:
    return x
  keep = jax.random.bernoulli(key, 1 - rate, x.shape)
  return jnp.where(keep, x / (1 - rate), 0.0)


def fold(key: jax.Array | None, data: int) -> jax.Array | None:
  """`jax.random.fold_in` that passes "no key" on."""
  return None if key is None else jax.random.fold_in(key, data)


def layer_norm(x: jax.Array, eps: float) -> jax.Array:
  """Zero mean and unit variance of the last axis, without learned scale."""
  x = x - jnp.mean(x, axis=-1, keepdims=True)
  return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)


def normalize(x: jax.Array, output: Output) -> jax.Array:
  """An output of a sequence model."""
  if output == "layer_norm":
    return layer_norm(x, _EPS)
  return linalg.normalize(x, eps=_EPS)


def causal(length: int) -> jax.Array:
  """Bool `[length, length]`: whether place i reads place j, j <= i."""
  return jnp.tril(jnp.ones((length, length), bool))


class Embedding(nnx.Module):
  """Item and position embeddings.

  >>> config = SequenceConfig(
  ...   num_items=9, length=4, dim=2, num_blocks=1, num_heads=1
  ... )
  >>> embedding = Embedding(config, rngs=nnx.Rngs(0))
  >>> embedding.item_vectors(jnp.array([3, 0])).shape
  (2, 2)
  """

  def __init__(self, config: SequenceConfig, *, rngs: nnx.Rngs):
    self.config = config
    normal = jax.nn.initializers.truncated_normal
    self.table = nnx.Param(
      normal(0.02)(rngs.params(), (config.num_items + 1, config.dim))
    )
    self.positions = nnx.Param(
      normal(config.dim**-0.5)(rngs.params(), (config.length, config.dim))
    )

  def __call__(
    self, ids: jax.Array, *, key: jax.Array | None = None
  ) -> tuple[jax.Array, jax.Array]:
    """Embeds histories.

    Args:
      ids: `[batch, length]` integers, 0 at padding.
      key: Of dropout; None in evaluation.

    Returns:
      x `[batch, length, dim]` and mask `[batch, length, 1]`, 1 at items.
    """
    mask = (ids != 0)[..., None].astype(self.table.dtype)
    x = self.table[...][ids] * math.sqrt(self.config.dim)
    x = x + self.positions[...][None, : ids.shape[1]]
    return dropout(x, self.config.dropout, key) * mask, mask

  def item_vectors(self, ids: jax.Array | None = None) -> jax.Array:
    """Items as they are compared, `[..., dim]`.

    Args:
      ids: `[...]`; None for all items in order, id 1 first, no padding.
    """
    table = self.table[...]
    rows = table[1:] if ids is None else table[ids]
    if self.config.output == "l2":
      rows = linalg.normalize(rows, eps=_EPS)
    return rows


def check_inputs(
  config: SequenceConfig, ids: jax.Array, timestamps: jax.Array | None
) -> None:
  """Raises ValueError while tracing, for shapes that do not fit."""
  shape = jnp.shape(ids)
  if len(shape) != 2 or not jnp.issubdtype(jnp.result_type(ids), jnp.integer):
    raise ValueError(
      f"ids must be integers [batch, length], got shape {shape} of "
      f"{jnp.result_type(ids)}."
    )
  if shape[1] != config.length:
    raise ValueError(
      f"ids must have length {config.length}, as the model's config, got "
      f"{shape[1]}; pad on the right with 0."
    )
  if timestamps is not None and jnp.shape(timestamps) != shape:
    raise ValueError(
      f"timestamps must have the shape of ids, {shape}, got "
      f"{jnp.shape(timestamps)}."
    )
