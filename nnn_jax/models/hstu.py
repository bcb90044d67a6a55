"""HSTU: hierarchical sequential transduction units.

  [u, v, q, k] = SiLU(LN(x) W)
  A            = SiLU(q k^T + rab) / length, causal, a place reads itself
  y            = x + W_o dropout(u * LN(A v)) + b_o

LN has no learned scale (eps 1e-6). There is no softmax, no feed-forward layer
and no 1 / sqrt(dim). `length` is the padded length, so that an entry's weight
does not depend on how many others there are. The relative bias, one a block,
adds what lies between two places in order and in time:

  rab[i, j] = w_position[length - 1 + j - i] + w_time[bucket(|t_{i+1} - t_j|)]
  bucket(s) = clip(floor(ln(max(s, 1)) / .301), 0, 128), s in seconds

Row i asks for the item after i, so its clock is t_{i+1}, the time of that
request, which is known when it is made: put it at the first place of padding.
Where t_{i+1} lies beyond the array, t_i stands in.

Reference: Zhai et al. (2024), arXiv 2402.17152; the variant that arXiv
2407.15462 measures.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from nnn_jax.models import sequence

_EPS = 1e-6
_NUM_BUCKETS = 128
_BUCKET_WIDTH = 0.301
_NORMAL = nnx.initializers.normal(0.02)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HstuConfig(sequence.SequenceConfig):
  """Static description of an HSTU.

  Attributes:
    key_dim: Width of a head's queries and keys.
    value_dim: Width of a head's values.

  Raises:
    ValueError: As `SequenceConfig`.
  """

  key_dim: int
  value_dim: int


def time_buckets(timestamps: jax.Array) -> jax.Array:
  """The bucket of |t_{i+1} - t_j|, int32 `[batch, length, length]`."""
  following = jnp.concatenate([timestamps[:, 1:], timestamps[:, -1:]], axis=1)
  delta = jnp.abs(following[:, :, None] - timestamps[:, None, :])
  logs = jnp.log(jnp.maximum(delta, 1).astype(jnp.float32)) / _BUCKET_WIDTH
  return jnp.clip(logs.astype(jnp.int32), 0, _NUM_BUCKETS)


class Block(nnx.Module):
  """One block; see the module's docstring."""

  def __init__(self, config: HstuConfig, *, rngs: nnx.Rngs):
    self.config = config
    keys, values = (
      config.num_heads * width for width in (config.key_dim, config.value_dim)
    )
    self.uvqk = nnx.Linear(
      config.dim, 2 * values + 2 * keys, use_bias=False, kernel_init=_NORMAL,
      rngs=rngs,
    )  # fmt: skip
    self.output = nnx.Linear(
      values, config.dim, kernel_init=nnx.initializers.xavier_uniform(),
      rngs=rngs,
    )  # fmt: skip
    self.position_bias = nnx.Param(
      _NORMAL(rngs.params(), (2 * config.length - 1,))
    )
    self.time_bias = nnx.Param(_NORMAL(rngs.params(), (_NUM_BUCKETS + 1,)))

  def __call__(
    self,
    x: jax.Array,
    mask: jax.Array,
    buckets: jax.Array | None,
    *,
    key: jax.Array | None = None,
  ) -> jax.Array:
    """Maps x `[batch, length, dim]` to its shape; buckets None: no time."""
    config, (batch, length, _) = self.config, x.shape
    keys, values = (
      config.num_heads * width for width in (config.key_dim, config.value_dim)
    )
    mixed = jax.nn.silu(self.uvqk(sequence.layer_norm(x, _EPS)))
    u, v, q, k = jnp.split(
      mixed, [values, 2 * values, 2 * values + keys], axis=-1
    )

    def split(y):
      y = y.reshape(batch, length, config.num_heads, -1)
      return y.transpose(0, 2, 1, 3)

    places = jnp.arange(length)
    bias = self.position_bias[...][
      length - 1 + places[None, :] - places[:, None]
    ]
    bias = bias[None, None]
    if buckets is not None:
      bias = bias + self.time_bias[...][buckets][:, None]
    weights = jax.nn.silu(split(q) @ split(k).transpose(0, 1, 3, 2) + bias)
    weights = jnp.where(sequence.causal(length)[None, None], weights, 0.0)
    attended = (weights / length) @ split(v)
    attended = attended.transpose(0, 2, 1, 3).reshape(batch, length, values)
    gated = u * sequence.layer_norm(attended, _EPS)
    gated = sequence.dropout(gated, config.dropout, key)
    return (x + self.output(gated)) * mask


class Hstu(nnx.Module):
  """HSTU; see the module's docstring for the equations.

  >>> config = HstuConfig(
  ...   num_items=9, length=4, dim=8, num_blocks=1, num_heads=2, key_dim=4,
  ...   value_dim=4,
  ... )
  >>> model = Hstu(config, rngs=nnx.Rngs(0))
  >>> ids, timestamps = jnp.array([[3, 7, 0, 0]]), jnp.array([[0, 60, 90, 0]])
  >>> model(ids, timestamps).shape  # The request comes at second 90.
  (1, 4, 8)
  """

  def __init__(self, config: HstuConfig, *, rngs: nnx.Rngs):
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
      timestamps: `[batch, length]` seconds since any base, int32; the time of
        the request at the first place of padding. None: position bias only.
      key: Of dropout; None in evaluation.

    Returns:
      `[batch, length, dim]`; row t predicts item t + 1; padding gives 0.

    Raises:
      ValueError: While tracing, for shapes that do not fit the config.
    """
    sequence.check_inputs(self.config, ids, timestamps)
    x, mask = self.embedding(ids, key=sequence.fold(key, 0))
    buckets = None if timestamps is None else time_buckets(timestamps)
    for n, block in enumerate(self.blocks, start=1):
      x = block(x, mask, buckets, key=sequence.fold(key, n))
    return sequence.normalize(x, self.config.output) * mask
