"""A head that chooses NNN penalties from a query's score profile.

With scores s_1 >= s_2 >= ... of the best documents and x = (s_2 / s_1, ...,
s_m / s_1, s_1 / ||query||),

  (a, b) = W_2 gelu(W_1 x + b_1) + b_2,
  l1     = s_1 sigmoid(logit(rho_0) + a),   l2 = l2_0 exp(b).

x does not change with the query's length and l1 is proportional to it, as the
problem demands: w(c query, c l1, l2) = c w(query, l1, l2). W_2 and b_2 start at
zero, so training begins from one pair (rho_0, l2_0) for all queries. It goes
through the solver's implicit gradients, which reach l1 and l2.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tqdm
from flax import nnx

from experiments import embeddings as embeddings_lib
from nnn_jax import losses, metrics, types
from nnn_jax.core import linalg, topk
from nnn_jax.decoders import nnn


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadConfig:
  """Static choices.

  Attributes:
    rho: l1 as a share of the largest score, at the start; in (0, 1).
    l2: At the start.
    profile: How many scores it sees (at most num_docs).
    hidden: Width of the hidden layer.
  """

  rho: float
  l2: float
  profile: int = 32
  hidden: int = 32

  def __post_init__(self):
    if not 0 < self.rho < 1:
      raise ValueError(f"rho must be in (0, 1), got {self.rho}.")
    if not self.l2 > 0:
      raise ValueError(f"l2 must be > 0, got {self.l2}.")


class PenaltyHead(nnx.Module):
  """Query and corpus -> penalties; see the module's docstring.

  >>> config = HeadConfig(rho=0.3, l2=0.1, profile=3)
  >>> head = PenaltyHead(config, rngs=nnx.Rngs(0))
  >>> params = head(jnp.asarray([0.0, 0.8, 0.6]), jnp.eye(3))
  >>> print(f"{params.l1:.2f} {params.l2:.2f}")
  0.24 0.10
  """

  def __init__(self, config: HeadConfig, *, rngs: nnx.Rngs):
    self.config = config
    self.mlp_in = nnx.Linear(config.profile, config.hidden, rngs=rngs)
    self.mlp_out = nnx.Linear(
      config.hidden, 2, kernel_init=nnx.initializers.zeros, rngs=rngs
    )

  def __call__(self, query: types.Array, corpus: types.Array) -> nnn.NnnParams:
    """Penalties for one query `[dim]`; batch with `jax.vmap`."""
    scores = linalg.matmul(corpus, query)
    best, _ = topk.top_k(scores, self.config.profile)
    tiny = jnp.finfo(best.dtype).tiny
    top = jnp.maximum(best[0], tiny)
    cosine = top / jnp.maximum(jnp.linalg.norm(query), tiny)
    profile = jnp.append(best[1:] / top, cosine)
    shift = self.mlp_out(jax.nn.gelu(self.mlp_in(profile), approximate=False))
    start = np.log(self.config.rho / (1.0 - self.config.rho))
    return nnn.NnnParams(
      l1=top * jax.nn.sigmoid(start + shift[0]),
      l2=self.config.l2 * jnp.exp(shift[1]),
    )


def decode(
  head: PenaltyHead,
  queries: types.Array,
  corpus: types.Array,
  *,
  k: int,
  config: nnn.NnnConfig,
) -> types.DecodeResult:
  """Decodes a batch `[batch, dim]`, each query with penalties of its own."""
  params = jax.vmap(head, in_axes=(0, None))(queries, corpus)
  decode_one = partial(nnn.decode, k=k, config=config)
  return jax.vmap(decode_one, in_axes=(0, 0, None))(params, queries, corpus)


def loss(
  head: PenaltyHead,
  queries: types.Array,
  corpus: types.Array,
  labels: types.Array,
  *,
  config: nnn.NnnConfig,
) -> jax.Array:
  """The mean NNN ranking loss of a batch, through the solver."""
  result = decode(head, queries, corpus, k=1, config=config)
  weights = result.aux.weights.dense(corpus.shape[0])
  return jnp.mean(losses.nnn_ranking_loss(weights, labels))


def train(
  head: PenaltyHead,
  fit: embeddings_lib.Embeddings,
  held_out: embeddings_lib.Embeddings,
  *,
  config: nnn.NnnConfig,
  num_steps: int = 200,
  evaluate_every: int = 20,
  batch_size: int = 64,
  learning_rate: float = 3e-3,
  seed: int = 0,
  description: str | None = None,
) -> tuple[PenaltyHead, list[float]]:
  """Trains with AdamW and keeps the step with the best Comp@5.

  Args:
    head: Where to start.
    fit: What the loss is taken of.
    held_out: What Comp@5 is taken of; ties go to the higher Recall@5, then to
      the earlier step. The start counts as a step.
    config: The decoder's static choices.
    num_steps: Batches.
    evaluate_every: Steps between evaluations.
    batch_size: Queries a batch, drawn with replacement.
    learning_rate: Of AdamW.
    seed: Of the batches.
    description: Label of a progress bar; None shows none.

  Returns:
    (the best head, Comp@5 of every evaluation, the start's first).
  """
  graphdef, params = nnx.split(head)
  optimizer = optax.adamw(learning_rate)
  corpus = jnp.asarray(fit.corpus)

  def batch_loss(params, queries, labels):
    merged = nnx.merge(graphdef, params)
    return loss(merged, queries, corpus, labels, config=config)

  @jax.jit
  def step(params, state, queries, labels):
    grads = jax.grad(batch_loss)(params, queries, labels)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state

  def value(params) -> tuple[float, float]:
    indices = rank(nnx.merge(graphdef, params), held_out, config=config)
    means = metrics.evaluate(indices, held_out.labels, ks=(5,))
    return float(means["comp@5"]), float(means["recall@5"])

  state = optimizer.init(params)
  rng = np.random.default_rng(seed)
  best, best_params = value(params), params
  history = [best[0]]
  for number in tqdm.trange(
    1,
    num_steps + 1,
    desc=description,
    disable=description is None,
    mininterval=5.0,
  ):
    rows = rng.integers(len(fit.queries), size=batch_size)
    params, state = step(params, state, fit.queries[rows], fit.labels[rows])
    if number % evaluate_every == 0:
      current = value(params)
      history.append(current[0])
      if current > best:
        best, best_params = current, params
  return nnx.merge(graphdef, best_params), history


def rank(
  head: PenaltyHead,
  embeddings: embeddings_lib.Embeddings,
  *,
  config: nnn.NnnConfig,
  k: int = 5,
) -> np.ndarray:
  """The retrieved rows `[num_queries, k]`."""
  graphdef, params = nnx.split(head)
  return np.asarray(
    _rank(graphdef, params, embeddings.queries, embeddings.corpus, k, config)
  )


@partial(jax.jit, static_argnames=("graphdef", "k", "config"))
def _rank(
  graphdef: Any,
  params: Any,
  queries: types.Array,
  corpus: types.Array,
  k: int,
  config: nnn.NnnConfig,
) -> jax.Array:
  head = nnx.merge(graphdef, params)

  def one(query):
    return nnn.decode(head(query, corpus), query, corpus, k=k, config=config)

  return jax.lax.map(one, jnp.asarray(queries), batch_size=64).indices
