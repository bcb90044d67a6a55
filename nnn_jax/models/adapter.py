"""Residual adapter on the embeddings of a frozen encoder.

  x -> normalise((1 - g) x + g MLP(x)),  g = sigmoid(a),  a = -5 at the start
  MLP(x) = W_2 gelu(W_1 x + b_1) + b_2

At the start g is .0067, so the adapter nearly is the identity on unit vectors
and training begins from the frozen encoder's retrieval quality.

Reference: "Non-negative Elastic Net Decoding for Information Retrieval" (2026),
arXiv 2606.17910, Section 3.2 and Appendix B (NNN-Tr).  The paper does not state
how the layers are initialised: Flax's defaults are used (LeCun normal weights,
zero biases).
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from nnn_jax.core import linalg

_INITIAL_GATE = -5.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdapterConfig:
  """Static description of an adapter; hashable.

  Attributes:
    dim: width of the embeddings.
    hidden: width of the hidden layer.

  Raises:
    ValueError: a size is below 1.
  """

  dim: int
  hidden: int = 768

  def __post_init__(self) -> None:
    for name in ("dim", "hidden"):
      value = getattr(self, name)
      if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}.")


class Adapter(nnx.Module):
  """Residual two-layer MLP; see the module's docstring for the equations.

  >>> adapter = Adapter(AdapterConfig(dim=2, hidden=8), rngs=nnx.Rngs(0))
  >>> adapter(jnp.array([[1.0, 0.0], [0.6, 0.8]])).shape
  (2, 2)
  """

  def __init__(self, config: AdapterConfig, *, rngs: nnx.Rngs):
    """Initialises the layers at random and the gate's logit at -5.

    Args:
      config: sizes.
      rngs: the stream `params` is used.
    """
    self.config = config
    self.gate = nnx.Param(jnp.full((), _INITIAL_GATE, jnp.float32))
    self.mlp_in = nnx.Linear(config.dim, config.hidden, rngs=rngs)
    self.mlp_out = nnx.Linear(config.hidden, config.dim, rngs=rngs)

  def __call__(self, x: jax.Array) -> jax.Array:
    """Adapts embeddings.

    Args:
      x: `[..., dim]`, floating point.

    Returns:
      `[..., dim]`, of unit L2 norm (zero where the mixture is zero).

    Raises:
      ValueError: while tracing, if the last axis is not `config.dim`.
    """
    shape = jnp.shape(x)
    if not shape or shape[-1] != self.config.dim:
      raise ValueError(
        f"x must be [..., dim] with dim {self.config.dim}, got shape {shape};"
        " build the adapter with the encoder's dim."
      )
    share = jax.nn.sigmoid(self.gate[...])
    hidden = jax.nn.gelu(self.mlp_in(x), approximate=False)
    mixed = (1.0 - share) * x + share * self.mlp_out(hidden)
    return linalg.normalize(mixed)
