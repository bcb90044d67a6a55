"""Text encoder of the BERT family: token ids in, one vector a text out.

  h_0 = LayerNorm(word[ids] + position[0 .. length - 1] + type[0])
  a_i = LayerNorm(h_i + Attention(h_i))
  h_{i+1} = LayerNorm(a_i + W_2 gelu(W_1 a_i))
  embedding = normalise(pool(h_last)),  pool = masked mean, or first token

The same class serves pretrained weights (`nnn_jax.models.pretrained`) and a
small encoder trained from scratch.  It has no dropout: the encoders are short
to train, a step stays a deterministic function of its parameters and batch, and
a resumed run repeats an uninterrupted one bit for bit.

References: Devlin et al. (2019), BERT; Reimers and Gurevych (2019),
Sentence-BERT, for the pooling; Sanh et al. (2019), DistilBERT, which is this
architecture without token types (`type_vocab_size=0`).
"""

import dataclasses
import math
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from nnn_jax.core import linalg

Pooling = Literal["mean", "cls"]

# The standard deviation of every BERT weight at the start.
_INIT = nnx.initializers.normal(stddev=0.02)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextEncoderConfig:
  """Static description of a text encoder; hashable.

  Attributes:
    vocab_size: rows of the word embedding.
    dim: width of the encoder and of the embedding it returns.
    num_layers: transformer layers.
    num_heads: attention heads; must divide `dim`.
    mlp_dim: width of the feed-forward layer.
    max_length: longest input, in tokens (rows of the position embedding).
    type_vocab_size: rows of the token type embedding; every token has type 0.
      0 means that there is no such embedding (DistilBERT).
    layer_norm_eps: added to the variance in layer normalisation.
    pooling: "mean" over unpadded tokens, or "cls", the first token.
    normalize: whether the embedding is scaled to unit L2 norm.

  Raises:
    ValueError: a size is out of range, or `pooling` is unknown.
  """

  vocab_size: int
  dim: int
  num_layers: int
  num_heads: int
  mlp_dim: int
  max_length: int
  type_vocab_size: int = 2
  layer_norm_eps: float = 1e-12
  pooling: Pooling = "mean"
  normalize: bool = True

  def __post_init__(self) -> None:
    for name in (
      "vocab_size",
      "dim",
      "num_layers",
      "num_heads",
      "mlp_dim",
      "max_length",
    ):
      value = getattr(self, name)
      if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}.")
    if self.type_vocab_size < 0:
      raise ValueError(
        f"type_vocab_size must not be negative, got {self.type_vocab_size};"
        " use 0 for an encoder without token types."
      )
    if self.dim % self.num_heads:
      raise ValueError(
        f"num_heads must divide dim, got dim {self.dim} and num_heads"
        f" {self.num_heads}."
      )
    if not self.layer_norm_eps > 0:
      raise ValueError(
        f"layer_norm_eps must be positive, got {self.layer_norm_eps}."
      )
    if self.pooling not in ("mean", "cls"):
      raise ValueError(
        f'pooling must be "mean" or "cls", got {self.pooling!r}.'
      )


def _linear(in_dim: int, out_dim: int, rngs: nnx.Rngs) -> nnx.Linear:
  return nnx.Linear(in_dim, out_dim, kernel_init=_INIT, rngs=rngs)


def _layer_norm(config: TextEncoderConfig, rngs: nnx.Rngs) -> nnx.LayerNorm:
  # The fast variance, E[x^2] - E[x]^2, cancels: parity needs the two-pass form.
  return nnx.LayerNorm(
    config.dim,
    epsilon=config.layer_norm_eps,
    use_fast_variance=False,
    rngs=rngs,
  )


class SelfAttention(nnx.Module):
  """Multi-head self-attention over the unpadded tokens."""

  def __init__(self, config: TextEncoderConfig, *, rngs: nnx.Rngs):
    self.num_heads = config.num_heads
    self.query = _linear(config.dim, config.dim, rngs)
    self.key = _linear(config.dim, config.dim, rngs)
    self.value = _linear(config.dim, config.dim, rngs)
    self.output = _linear(config.dim, config.dim, rngs)

  def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
    """Maps x `[batch, length, dim]`, mask bool `[batch, length]` to x's shape.

    The products run as `[batch, heads, length, head_dim]` matrices, and the
    softmax is divided by its sum after the value product, where the array is
    smaller: faster on CPU than the einsum over `[batch, length, heads,
    head_dim]`.
    """
    batch, length, dim = x.shape
    head_dim = dim // self.num_heads

    def split_heads(y: jax.Array) -> jax.Array:
      y = y.reshape(batch, length, self.num_heads, head_dim)
      return y.transpose(0, 2, 1, 3)

    query = split_heads(self.query(x)) / math.sqrt(head_dim)
    key, value = split_heads(self.key(x)), split_heads(self.value(x))
    logits = query @ key.transpose(0, 1, 3, 2)
    # The lowest finite number, not -inf: a row of padding alone then attends
    # uniformly, instead of giving inf - inf = NaN.
    lowest = jnp.finfo(logits.dtype).min
    logits = jnp.where(mask[:, None, None, :], logits, lowest)
    peak = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    weights = jnp.exp(logits - peak)
    mixed = (weights @ value) / jnp.sum(weights, axis=-1, keepdims=True)
    mixed = mixed.transpose(0, 2, 1, 3).reshape(batch, length, dim)
    return self.output(mixed)


class Layer(nnx.Module):
  """One post-normalised transformer layer."""

  def __init__(self, config: TextEncoderConfig, *, rngs: nnx.Rngs):
    self.attention = SelfAttention(config, rngs=rngs)
    self.attention_norm = _layer_norm(config, rngs)
    self.mlp_in = _linear(config.dim, config.mlp_dim, rngs)
    self.mlp_out = _linear(config.mlp_dim, config.dim, rngs)
    self.mlp_norm = _layer_norm(config, rngs)

  def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
    """Maps x `[batch, length, dim]` to its shape, by mask `[batch, length]`."""
    x = self.attention_norm(x + self.attention(x, mask))
    # BERT has the exact GELU; JAX defaults to the tanh approximation.
    hidden = jax.nn.gelu(self.mlp_in(x), approximate=False)
    return self.mlp_norm(x + self.mlp_out(hidden))


class TextEncoder(nnx.Module):
  """BERT-family encoder; see the module's docstring for the equations.

  Parameters start as float32, and the products follow their dtype.  They hold
  no random state, so that `graphdef, params = nnx.split(encoder)` gives
  parameters only.  On GPU and TPU the products have JAX's default precision,
  which may be less than float32: wrap the call in
  `jax.default_matmul_precision("highest")` where parity matters more than
  speed.

  >>> config = TextEncoderConfig(
  ...   vocab_size=10, dim=4, num_layers=1, num_heads=2, mlp_dim=8, max_length=6
  ... )
  >>> encoder = TextEncoder(config, rngs=nnx.Rngs(0))
  >>> token_ids = jnp.array([[2, 5, 3], [2, 3, 0]])
  >>> attention_mask = jnp.array([[1, 1, 1], [1, 1, 0]])
  >>> encoder(token_ids, attention_mask).shape
  (2, 4)
  """

  def __init__(self, config: TextEncoderConfig, *, rngs: nnx.Rngs):
    """Initialises as BERT does: weights normal(0, .02), biases zero.

    Args:
      config: sizes and pooling.
      rngs: the stream `params` is used.
    """
    self.config = config

    # Plain tables: nnx.Embed casts to the dtype it was made with, which would
    # round parameters that were converted to float64.
    def table(rows: int) -> nnx.Param:
      shape = (rows, config.dim)
      return nnx.Param(_INIT(rngs.params(), shape, jnp.float32))

    self.word_embedding = table(config.vocab_size)
    self.position_embedding = table(config.max_length)
    self.type_embedding = (
      table(config.type_vocab_size) if config.type_vocab_size else None
    )
    self.embedding_norm = _layer_norm(config, rngs)
    self.layers = nnx.List(
      [Layer(config, rngs=rngs) for _ in range(config.num_layers)]
    )

  def __call__(
    self, token_ids: jax.Array, attention_mask: jax.Array
  ) -> jax.Array:
    """Embeds a batch of tokenised texts.

    Args:
      token_ids: integers `[batch, length]`, `length <= config.max_length`.
        Ids outside of the vocabulary give NaN.
      attention_mask: `[batch, length]`, non-zero at tokens, zero at padding.
        Padding does not change the embedding of the text.

    Returns:
      `[batch, dim]`.  A row of padding alone embeds to zeros.

    Raises:
      ValueError: while tracing, on a wrong rank, shape, dtype or length.
    """
    return self.pool(*self.token_outputs(token_ids, attention_mask))

  def pool(self, outputs: jax.Array, mask: jax.Array) -> jax.Array:
    """The embeddings `[batch, dim]`, from what `token_outputs` returns."""
    x = _pool(outputs, mask, self.config.pooling)
    return linalg.normalize(x) if self.config.normalize else x

  def token_outputs(
    self,
    token_ids: jax.Array,
    attention_mask: jax.Array,
    extra: jax.Array | None = None,
  ) -> tuple[jax.Array, jax.Array]:
    """The last layer's output at every token, before pooling.

    Args:
      token_ids: As of `__call__`.
      attention_mask: Likewise.
      extra: `[num_extra, dim]`, embeddings of further tokens to put before
        each text. They have no position: the text keeps its own.

    Returns:
      (outputs `[batch, num_extra + length, dim]`, mask of the same length,
      bool: False at padding, where the output has no meaning).
    """
    _check_inputs(token_ids, attention_mask, self.config)
    mask = jnp.asarray(attention_mask) != 0
    batch, length = mask.shape
    # Filled with NaN, not clamped, out of range: a mix-up of tokenizers shows.
    x = jnp.take(
      self.word_embedding[...], jnp.asarray(token_ids), axis=0, mode="fill"
    )
    x = x + self.position_embedding[None, :length]
    if self.type_embedding is not None:
      x = x + self.type_embedding[None, :1]
    if extra is not None:
      first = jnp.broadcast_to(extra[None], (batch, *extra.shape))
      x = jnp.concatenate([first, x], axis=1)
      mask = jnp.concatenate(
        [jnp.ones_like(mask, shape=first.shape[:2]), mask], 1
      )
    x = self.embedding_norm(x)
    for layer in self.layers:
      x = layer(x, mask)
    return x, mask


def _pool(x: jax.Array, mask: jax.Array, pooling: Pooling) -> jax.Array:
  """Reduces x `[batch, length, dim]` to `[batch, dim]`."""
  if pooling == "cls":
    return jnp.where(jnp.any(mask, axis=1, keepdims=True), x[:, 0], 0.0)
  # A product of a [1, length] row a text, which XLA runs faster than a masked
  # sum on CPU.
  weights = mask.astype(x.dtype)[:, None, :]
  count = jnp.sum(mask, axis=1, keepdims=True).astype(x.dtype)
  return (weights @ x)[:, 0] / jnp.maximum(count, 1.0)


def _check_inputs(
  token_ids: jax.Array, attention_mask: jax.Array, config: TextEncoderConfig
) -> None:
  """Raises ValueError, while tracing, on inputs the encoder cannot take."""
  shape = jnp.shape(token_ids)
  if len(shape) != 2:
    raise ValueError(
      f"token_ids must be [batch, length], got shape {shape}; add a batch axis"
      " of 1 to embed a single text."
    )
  if not jnp.issubdtype(jnp.result_type(token_ids), jnp.integer):
    raise ValueError(
      f"token_ids must be integers, got {jnp.result_type(token_ids)}; pass the"
      " ids that the tokenizer returns."
    )
  if jnp.shape(attention_mask) != shape:
    raise ValueError(
      f"attention_mask must have the shape of token_ids, {shape}, got"
      f" {jnp.shape(attention_mask)}; pass the mask that the tokenizer returns."
    )
  if shape[1] < 1:
    raise ValueError(
      "token_ids must have at least one token a text; pad empty texts."
    )
  if shape[1] > config.max_length:
    raise ValueError(
      f"token_ids has length {shape[1]}, but the encoder's max_length is"
      f" {config.max_length}; truncate with tokenizer(texts,"
      f" max_length={config.max_length})."
    )
