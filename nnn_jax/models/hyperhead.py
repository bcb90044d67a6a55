"""Hyperhead: the token states of a query in, the weights of its q-net out.

For each tensor of the q-net, seen as o rows of f features (a matrix [in, out]
has o = out and f = in; a bias or the output o = 1 and f = its width), and E the
n token states,

  K = E A_K + a_K,  V = E A_V + a_V                    [n, f]
  H = softmax(Q K^T / scale) V,  padding left out      [o, f]
  theta = LN(relu(H)) P + p + B                        [o, f]

where Q `[o, f]` are learned queries, LN has no affine part, and the base B is
the same for every query. P starts tiny and p at zero: so does the dependence on
the query.

The published scale is sqrt(o). It leaves the softmax of the tensors with o = 1
one-hot at the start (logits of standard deviation about 85 at f = 768), where
it has no gradient; sqrt(f) does not, and is the default.

Reference: arXiv 2502.05364, section 3.
"""

import dataclasses
import math
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from nnn_jax.core import qnet

Scale = Literal["features", "outputs"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HyperheadConfig:
  """Static description of a hyperhead; hashable.

  Attributes:
    token_dim: Width of the token states.
    dim: Of the documents.
    widths: Of the q-net's hidden layers; `(768,) * 6` as published, `()` is the
      inner product of a bi-encoder with attention for pooling.
    scale: The softmax's: the root of the "features", or as published of the
      "outputs".
    query_stddev: Of Q at the start, as published.
    change: Of P at the start: theta's query-dependent part is about so large,
      relative to B.
    output_base: Of the output's B at the start, relative to what is published.
      At 0 the network starts close to nothing, to be added to an inner product
      (`QNet.skip`).

  Raises:
    ValueError: A size is below 1, or `scale` is unknown.
  """

  token_dim: int
  dim: int
  widths: tuple[int, ...] = (32, 32)
  scale: Scale = "features"
  query_stddev: float = 10.0
  change: float = 0.05
  output_base: float = 1.0

  def __post_init__(self) -> None:
    object.__setattr__(self, "widths", tuple(self.widths))  # JSON has lists.
    sizes = {"token_dim": self.token_dim, "dim": self.dim}
    sizes |= {f"widths[{i}]": width for i, width in enumerate(self.widths)}
    for name, value in sizes.items():
      if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}.")
    if self.scale not in ("features", "outputs"):
      raise ValueError(
        f'scale must be "features" or "outputs", got {self.scale!r}.'
      )
    for name in ("query_stddev", "change"):
      if not getattr(self, name) > 0:
        raise ValueError(
          f"{name} must be positive, got {getattr(self, name)}: at zero the "
          "q-net would not depend on the query, or not learn to."
        )
    if not self.output_base >= 0:
      raise ValueError(
        f"output_base must not be negative, got {self.output_base}."
      )


class TensorHead(nnx.Module):
  """Generates one tensor `[outputs, features]`; see the module's docstring."""

  def __init__(
    self,
    config: HyperheadConfig,
    outputs: int,
    features: int,
    *,
    base_stddev: float,
    rngs: nnx.Rngs,
  ):
    normal = nnx.initializers.normal
    root = features if config.scale == "features" else outputs
    self.scale = math.sqrt(root)
    self.key = nnx.Linear(config.token_dim, features, rngs=rngs)
    self.value = nnx.Linear(config.token_dim, features, rngs=rngs)
    shape = (outputs, features)
    self.queries = nnx.Param(normal(config.query_stddev)(rngs.params(), shape))
    self.base = nnx.Param(normal(base_stddev)(rngs.params(), shape))
    # LN gives rows of norm sqrt(features); the base's entries are of 2 / f.
    stddev = config.change * math.sqrt(2) / features
    self.project = nnx.Linear(
      features, features, kernel_init=normal(stddev), rngs=rngs
    )

  def __call__(self, states: jax.Array, mask: jax.Array) -> jax.Array:
    """Maps states `[batch, length, token_dim]` to `[batch, *shape]`."""
    keys, values = self.key(states), self.value(states)
    queries = self.queries[...] / self.scale
    logits = jnp.einsum("of,bnf->bon", queries, keys)
    mask = mask[:, None, :]
    # The lowest finite number, which every dtype has; -1e9 overflows float16.
    logits = jnp.where(mask, logits, jnp.finfo(logits.dtype).min)
    # Nothing to attend to gives H = 0, and so the base: no NaN, and no
    # dependence on how long the padding is.
    attention = jnp.where(mask, jax.nn.softmax(logits, axis=-1), 0.0)
    mixed = jnp.einsum("bon,bnf->bof", attention, values)
    theta = self.project(qnet.normalize(jax.nn.relu(mixed)))
    return theta + self.base[...][None]


class Hyperhead(nnx.Module):
  """Generates the q-nets of a batch of queries.

  >>> config = HyperheadConfig(token_dim=4, dim=6, widths=(8, 5))
  >>> head = Hyperhead(config, rngs=nnx.Rngs(0))
  >>> weights = head(jnp.ones((3, 7, 4)), jnp.ones((3, 7)))
  >>> [matrix.shape for matrix in weights.matrices], weights.output.shape
  ([(3, 6, 8), (3, 8, 5)], (3, 5))
  """

  def __init__(self, config: HyperheadConfig, *, rngs: nnx.Rngs):
    """Initialises as published: B normal(0, 2 / f) in variance, biases 0.

    Args:
      config: Sizes.
      rngs: The stream `params` is used.
    """
    self.config = config
    ins = (config.dim, *config.widths[:-1])

    def head(outputs: int, features: int, base_stddev: float) -> TensorHead:
      return TensorHead(
        config, outputs, features, base_stddev=base_stddev, rngs=rngs
      )

    self.matrices = nnx.List(
      head(out, in_, math.sqrt(2 / in_))
      for in_, out in zip(ins, config.widths, strict=False)
    )
    self.biases = nnx.List(head(1, width, 0.0) for width in config.widths)
    last = (config.dim, *config.widths)[-1]
    self.output = head(1, last, config.output_base * math.sqrt(2 / last))

  def __call__(self, states: jax.Array, mask: jax.Array) -> qnet.QNet:
    """Maps the token states of queries to their q-nets.

    Args:
      states: `[batch, length, token_dim]`.
      mask: `[batch, length]`, non-zero at tokens. Padding changes nothing; a
        query of padding alone gets a q-net that no query changes.

    Returns:
      A QNet with a leading `[batch]` axis.

    Raises:
      ValueError: While tracing, for shapes that do not fit.
    """
    shape = jnp.shape(states)
    if len(shape) != 3 or shape[-1] != self.config.token_dim:
      raise ValueError(
        "states must be [batch, length, token_dim] with token_dim "
        f"{self.config.token_dim}, got {shape}."
      )
    if jnp.shape(mask) != shape[:2]:
      raise ValueError(
        f"mask must be [batch, length] = {shape[:2]}, got {jnp.shape(mask)}."
      )
    states, mask = jnp.asarray(states), jnp.asarray(mask) != 0
    return qnet.QNet(
      matrices=tuple(
        jnp.swapaxes(head(states, mask), 1, 2) for head in self.matrices
      ),
      biases=tuple(head(states, mask)[:, 0] for head in self.biases),
      output=self.output(states, mask)[:, 0],
    )
