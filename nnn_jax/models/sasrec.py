"""SASRec: self-attentive sequential recommendation.

  Q = LN(x)
  z = LN(Q + MultiHead(query Q, key x, value x, causal))
  y = (z + W_2 relu(W_1 z)) mask

LN has no learned scale (eps 1e-8); attention has biases; the last block's
output is normalised (see `sequence`). Timestamps are accepted and not read.

Reference: Kang and McAuley (2018), arXiv 1808.09781; the variant that arXiv
2407.15462 measures.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
from flax import nnx

from nnn_jax.models import sequence

_EPS = 1e-8
_XAVIER = nnx.initializers.xavier_normal()


@dataclasses.dataclass(frozen=True, kw_only=True)
class SasrecConfig(sequence.SequenceConfig):
  """Static description of a SASRec.

  Attributes:
    mlp_dim: Width of the feed-forward layer.

  Raises:
    ValueError: As `SequenceConfig`; num_heads does not divide dim.
  """

  mlp_dim: int

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.dim % self.num_heads:
      raise ValueError(
        f"num_heads must divide dim, got dim {self.dim} and num_heads "
        f"{self.num_heads}."
      )


class Block(nnx.Module):
  """One block; see the module's docstring."""

  def __init__(self, config: SasrecConfig, *, rngs: nnx.Rngs):
    self.config = config

    def linear(in_dim, out_dim):
      return nnx.Linear(in_dim, out_dim, kernel_init=_XAVIER, rngs=rngs)

    self.query = linear(config.dim, config.dim)
    self.key = linear(config.dim, config.dim)
    self.value = linear(config.dim, config.dim)
    self.output = linear(config.dim, config.dim)
    self.mlp_in = linear(config.dim, config.mlp_dim)
    self.mlp_out = linear(config.mlp_dim, config.dim)

  def __call__(
    self, x: jax.Array, mask: jax.Array, *, key: jax.Array | None = None
  ) -> jax.Array:
    """Maps x `[batch, length, dim]` to its shape."""
    rate = self.config.dropout
    normed = sequence.layer_norm(x, _EPS)
    z = normed + self._attend(normed, x, sequence.fold(key, 0))
    z = sequence.layer_norm(z, _EPS)
    hidden = jax.nn.relu(self.mlp_in(z))
    hidden = sequence.dropout(hidden, rate, sequence.fold(key, 1))
    fed = self.mlp_out(hidden)
    fed = sequence.dropout(fed, rate, sequence.fold(key, 2))
    return (z + fed) * mask

  def _attend(self, query, x, key):
    batch, length, dim = x.shape
    heads = self.config.num_heads

    def split(y):
      return y.reshape(batch, length, heads, dim // heads).transpose(0, 2, 1, 3)

    queries = split(self.query(query)) / math.sqrt(dim // heads)
    keys, values = split(self.key(x)), split(self.value(x))
    logits = queries @ keys.transpose(0, 1, 3, 2)
    # A place reads itself at least, so no row of the softmax is empty.
    causal = sequence.causal(length)[None, None]
    weights = jax.nn.softmax(jnp.where(causal, logits, -jnp.inf), axis=-1)
    weights = sequence.dropout(weights, self.config.dropout, key)
    mixed = (weights @ values).transpose(0, 2, 1, 3)
    return self.output(mixed.reshape(batch, length, dim))


class Sasrec(nnx.Module):
  """SASRec; see the module's docstring for the equations.

  >>> config = SasrecConfig(
  ...   num_items=9, length=4, dim=8, num_blocks=1, num_heads=2, mlp_dim=8
  ... )
  >>> model = Sasrec(config, rngs=nnx.Rngs(0))
  >>> model(jnp.array([[3, 7, 0, 0]])).shape
  (1, 4, 8)
  """

  def __init__(self, config: SasrecConfig, *, rngs: nnx.Rngs):
    self.config = config
    self.embedding = sequence.Embedding(config, rngs=rngs)
    self.blocks = nnx.List(
      [Block(config, rngs=rngs) for _ in range(config.num_blocks)]
    )

  def __call__(
    self,
    ids: jax.Array,
    timestamps: jax.Array | None = None,
    *,
    key: jax.Array | None = None,
  ) -> jax.Array:
    """Encodes histories.

    Args:
      ids: `[batch, length]` integers, oldest first, 0 at padding (right).
      timestamps: Not read; so that the models share one call.
      key: Of dropout; None in evaluation.

    Returns:
      `[batch, length, dim]`; row t predicts item t + 1; padding gives 0.

    Raises:
      ValueError: While tracing, for shapes that do not fit the config.
    """
    sequence.check_inputs(self.config, ids, timestamps)
    x, mask = self.embedding(ids, key=sequence.fold(key, 0))
    for n, block in enumerate(self.blocks, start=1):
      x = block(x, mask, key=sequence.fold(key, n))
    return sequence.normalize(x, self.config.output) * mask
