"""Mixture of logits: a learned similarity of two vectors.

  h = x W + b, (l, r) = halves of h,  GLU(x) = act(l) r
  f(q) = Linear(GLU(q)) as [P_Q - n_user, dim], then n_user rows of tables
  g(x) = Linear(x) as [P_X, dim]
  a(q), b(x) = Linear(SiLU(Linear(.))) as [P]

Components have unit norm; `core.mixture` joins the two sides to phi. The item
side does not depend on the query: it is computed once and cached.

In training, with `rngs`, there is dropout on the inputs of f and g, on the user
rows, and on pi, which is then divided by its sum again.

Reference: "Retrieval with Learned Similarities" (2025), arXiv 2407.15462. The
paper does not state how the layers are initialised: Flax's defaults are used
(LeCun normal weights, zero biases), and normal(0, .02) for the user tables.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from nnn_jax import types
from nnn_jax.core import linalg, mixture

_EPS = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class MolConfig:
  """Static description of a mixture of logits; hashable.

  Attributes:
    query_dim: Width of a query vector.
    item_dim: Width of an item vector.
    num_query_components: P_Q, those of users included.
    num_item_components: P_X.
    component_dim: Width of a component.
    temperature: tau. It is part of the similarity, so that the temperature of
      a loss on it is 1.
    query_hidden: Width of the gated linear unit.
    query_gate_hidden: Width of the hidden layer of a(q).
    item_gate_hidden: Width of the hidden layer of b(x).
    pair_gate_hidden: Width of the hidden layer of c(s).
    num_user_components: How many query components are rows of user tables.
    num_user_rows: Rows of a user table; user u has row u mod num_user_rows.
    activation: Of the gated linear unit.
    query_dropout: On the vector that the query components are made of.
    item_dropout: Likewise of items.
    user_dropout: On user rows.
    gate_dropout: On pi.

  Raises:
    ValueError: A size is out of range, or the activation unknown.
  """

  query_dim: int
  item_dim: int
  num_query_components: int = 8
  num_item_components: int = 8
  component_dim: int = 32
  temperature: float = 0.05
  query_hidden: int = 512
  query_gate_hidden: int = 128
  item_gate_hidden: int = 128
  pair_gate_hidden: int = 128
  num_user_components: int = 0
  num_user_rows: int = 0
  activation: Literal["swiglu", "geglu"] = "swiglu"
  query_dropout: float = 0.0
  item_dropout: float = 0.0
  user_dropout: float = 0.0
  gate_dropout: float = 0.2

  def __post_init__(self) -> None:
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if field.name.startswith("num_user"):
        if value < 0:
          raise ValueError(f"{field.name} must not be negative, got {value}.")
      elif field.type == "int" and value < 1:
        raise ValueError(f"{field.name} must be at least 1, got {value}.")
      elif field.name.endswith("dropout") and not 0 <= value < 1:
        raise ValueError(f"{field.name} must be in [0, 1), got {value}.")
    if not self.temperature > 0:
      raise ValueError(f"temperature must be positive, got {self.temperature}.")
    if self.num_user_components >= self.num_query_components:
      raise ValueError(
        f"num_user_components must be below num_query_components, got "
        f"{self.num_user_components} of {self.num_query_components}: at least "
        "one component is made of the query."
      )
    if (self.num_user_components > 0) != (self.num_user_rows > 0):
      raise ValueError(
        f"num_user_rows, {self.num_user_rows}, must be positive if and only if "
        f"num_user_components, {self.num_user_components}, is."
      )
    if self.activation not in ("swiglu", "geglu"):
      raise ValueError(
        f'activation must be "swiglu" or "geglu", got {self.activation!r}.'
      )

  @property
  def num_pairs(self) -> int:
    """P = P_Q P_X."""
    return self.num_query_components * self.num_item_components


class GateMlp(nnx.Module):
  """Linear, SiLU, Linear."""

  def __init__(
    self,
    in_dim: int,
    hidden: int,
    out_dim: int,
    *,
    output_bias: bool,
    rngs: nnx.Rngs,
  ):
    self.hidden = nnx.Linear(in_dim, hidden, rngs=rngs)
    self.output = nnx.Linear(hidden, out_dim, use_bias=output_bias, rngs=rngs)

  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps `[..., in_dim]` to `[..., out_dim]`."""
    return self.output(jax.nn.silu(self.hidden(x)))


class Mol(nnx.Module):
  """Mixture of logits; see the module's docstring for the equations.

  It holds no random state: pass `rngs`, with a stream `dropout`, to a call that
  is to drop; without it the call is deterministic.

  >>> config = MolConfig(query_dim=6, item_dim=5, num_query_components=3,
  ...                    num_item_components=2, component_dim=4)
  >>> mol = Mol(config, rngs=nnx.Rngs(0))
  >>> queries, items = mol.queries(jnp.ones((7, 1, 6))), mol.items(jnp.eye(5))
  >>> items.components.shape, items.gate.shape
  ((5, 2, 4), (5, 6))
  >>> scores, gates = mol(queries, items)
  >>> scores.shape, gates.shape
  ((7, 5), (7, 5, 6))
  """

  def __init__(self, config: MolConfig, *, rngs: nnx.Rngs):
    """Initialises the layers.

    Args:
      config: Sizes.
      rngs: The stream `params` is used.
    """
    self.config = config
    own = config.num_query_components - config.num_user_components
    self.query_glu = nnx.Linear(
      config.query_dim, 2 * config.query_hidden, rngs=rngs
    )
    self.query_components = nnx.Linear(
      config.query_hidden, own * config.component_dim, rngs=rngs
    )
    self.item_components = nnx.Linear(
      config.item_dim,
      config.num_item_components * config.component_dim,
      rngs=rngs,
    )
    # Row 0 is for padding: users have rows from 1.
    shape = (
      config.num_user_components,
      config.num_user_rows + 1,
      config.component_dim,
    )
    self.user_tables = (
      nnx.Param(0.02 * jax.random.normal(rngs.params(), shape))
      if config.num_user_components
      else None
    )
    pairs = config.num_pairs
    self.query_gate = GateMlp(
      config.query_dim,
      config.query_gate_hidden,
      pairs,
      output_bias=False,
      rngs=rngs,
    )
    self.item_gate = GateMlp(
      config.item_dim,
      config.item_gate_hidden,
      pairs,
      output_bias=False,
      rngs=rngs,
    )
    self.pair_gate = GateMlp(
      pairs, config.pair_gate_hidden, pairs, output_bias=True, rngs=rngs
    )

  def queries(
    self,
    query: types.Array,
    user_ids: types.Array | None = None,
    *,
    rngs: nnx.Rngs | None = None,
  ) -> mixture.QuerySide:
    """The query side.

    Args:
      query: `[..., query_dim]`.
      user_ids: `[...]` integers >= 0, if the model has user components.
      rngs: For dropout; None drops nothing.

    Returns:
      QuerySide(components `[..., P_Q, component_dim]`, gate `[..., P]`).

    Raises:
      ValueError: While tracing, if a shape does not fit, or user_ids are
        missing or not asked for.
    """
    config = self.config
    query = _check_width("query", query, config.query_dim)
    if (user_ids is None) != (self.user_tables is None):
      raise ValueError(
        "user_ids must be given if and only if num_user_components, "
        f"{config.num_user_components}, is positive."
      )
    gated = self.query_glu(_dropout(query, config.query_dropout, rngs))
    left, right = jnp.split(gated, 2, axis=-1)
    if config.activation == "swiglu":
      left = jax.nn.silu(left)
    else:
      left = jax.nn.gelu(left, approximate=False)
    components = self.query_components(left * right)
    components = components.reshape(*query.shape[:-1], -1, config.component_dim)
    if user_ids is not None:
      users = self.user_embeddings(user_ids)
      users = _dropout(users, config.user_dropout, rngs)
      components = jnp.concatenate([components, users], axis=-2)
    components = linalg.normalize(components, eps=_EPS)
    return mixture.QuerySide(components, self.query_gate(query))

  def items(
    self, items: types.Array, *, rngs: nnx.Rngs | None = None
  ) -> mixture.ItemSide:
    """The item side, which can be cached.

    Args:
      items: `[..., item_dim]`.
      rngs: For dropout; None drops nothing.

    Returns:
      ItemSide(components `[..., P_X, component_dim]`, gate `[..., P]`).

    Raises:
      ValueError: While tracing, if a shape does not fit.
    """
    config = self.config
    items = _check_width("items", items, config.item_dim)
    dropped = _dropout(items, config.item_dropout, rngs)
    components = self.item_components(dropped)
    components = components.reshape(*items.shape[:-1], -1, config.component_dim)
    components = linalg.normalize(components, eps=_EPS)
    return mixture.ItemSide(components, self.item_gate(items))

  def __call__(
    self,
    queries: mixture.QuerySide,
    items: mixture.ItemSide,
    *,
    rngs: nnx.Rngs | None = None,
  ) -> tuple[jax.Array, jax.Array]:
    """Scores and gates of queries and items whose leading axes broadcast.

    Args:
      queries: From `queries`. `[batch, 1]` with items `[num]` gives all pairs;
        `[batch, 1]` with `[batch, num]` gives each query its own items.
      items: From `items`.
      rngs: For the dropout of pi; None drops nothing.

    Returns:
      (phi `[...]`, pi `[..., P]` before its dropout).
    """
    return score(
      self.params(),
      queries,
      items,
      gate_dropout=self.config.gate_dropout,
      rngs=rngs,
    )

  def user_embeddings(self, user_ids: types.Array) -> jax.Array:
    """Rows of the user tables, `[..., num_user_components, component_dim]`.

    The published recipe for MovieLens adds .1 times the mean over the batch of
    their squared norm (of each table) to the loss.

    Args:
      user_ids: `[...]` integers >= 0.
    """
    if self.user_tables is None:
      raise ValueError("the model has no user components.")
    rows = jnp.asarray(user_ids) % self.config.num_user_rows + 1
    return jnp.moveaxis(self.user_tables[...][:, rows], 0, -2)

  def params(self) -> mixture.MixtureParams:
    """What `core.mixture` and the decoder need of the model, traced."""
    return gate_params(self.pair_gate, self.config.temperature)


def gate_params(
  pair_gate: GateMlp, temperature: float
) -> mixture.MixtureParams:
  """The network c(s) and the temperature, as plain arrays."""
  assert pair_gate.hidden.bias is not None
  assert pair_gate.output.bias is not None
  return mixture.MixtureParams(
    hidden_kernel=pair_gate.hidden.kernel[...],
    hidden_bias=pair_gate.hidden.bias[...],
    output_kernel=pair_gate.output.kernel[...],
    output_bias=pair_gate.output.bias[...],
    temperature=jnp.asarray(temperature, jnp.float32),
  )


def score(
  params: mixture.MixtureParams,
  queries: mixture.QuerySide,
  items: mixture.ItemSide,
  *,
  gate_dropout: float,
  rngs: nnx.Rngs | None,
) -> tuple[jax.Array, jax.Array]:
  """The similarity, in training with dropout on pi; see `Mol.__call__`."""
  if rngs is None or gate_dropout == 0:
    return mixture.similarity(params, queries, items)
  mixture.check_sides(params, queries, items)
  logits = mixture.pair_logits(
    queries.components, items.components, params.temperature
  )
  pi = mixture.gates(params, logits, queries.gate, items.gate)
  kept = _dropout(pi, gate_dropout, rngs)
  kept /= jnp.maximum(jnp.sum(kept, axis=-1, keepdims=True), _EPS)
  return jnp.sum(kept * logits, axis=-1), pi


def _dropout(x: jax.Array, rate: float, rngs: nnx.Rngs | None) -> jax.Array:
  if rngs is None or rate == 0:
    return x
  return nnx.Dropout(rate)(x, deterministic=False, rngs=rngs)


def _check_width(name: str, x: types.Array, dim: int) -> jax.Array:
  shape = jnp.shape(x)
  if not shape or shape[-1] != dim:
    raise ValueError(f"{name} must be [..., {dim}], got shape {shape}.")
  return jnp.asarray(x)
