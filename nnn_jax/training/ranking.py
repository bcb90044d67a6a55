"""How well a recommender ranks: every item for each history, by a decoder."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from nnn_jax import types
from nnn_jax.data import sequences
from nnn_jax.decoders import dense, mol
from nnn_jax.indexes import mixture
from nnn_jax.models import recommender as recommender_lib
from nnn_jax.training import loop

Recommender = recommender_lib.Recommender

KS = (1, 10, 50, 200)


def target_ranks(
  indices: jax.Array, scores: jax.Array, targets: jax.Array
) -> jax.Array:
  """The rank of one target a query, from 1; infinite where it is missing.

    1 + #{better} + #{others with the target's score} / 2

  With ties in the middle, the rank does not depend on where the target stands
  in the catalogue, and a model that scores all items alike is not rewarded.

  Args:
    indices: `[..., num_retrieved]`, of a decoder.
    scores: Likewise, best first.
    targets: `[...]` rows of the corpus; -1 is found nowhere.

  Returns:
    `[...]` float32.

  >>> indices, scores = jnp.array([2, 0, 1]), jnp.array([3.0, 1.0, 1.0])
  >>> [float(target_ranks(indices, scores, t)) for t in (2, 0, 1, 3)]
  [1.0, 2.5, 2.5, inf]
  """
  found = (indices == jnp.asarray(targets)[..., None]) & (indices >= 0)
  own = jnp.max(jnp.where(found, scores, -jnp.inf), axis=-1, keepdims=True)
  better = jnp.sum(scores > own, axis=-1)
  tied = jnp.sum((scores == own) & (indices >= 0), axis=-1)
  rank = 1.0 + better + (tied - 1) / 2
  return jnp.where(found.any(axis=-1), rank, jnp.inf).astype(jnp.float32)


def summarize(ranks: np.ndarray) -> loop.Metrics:
  """HR@k and MRR.

  >>> summarize(np.array([1.0, 20.0]))["hr@10"]
  0.5
  """
  ranks = np.asarray(ranks, float)
  values = {f"hr@{k}": float(np.mean(ranks <= k)) for k in KS}
  return values | {"mrr": float(np.mean(1.0 / ranks))}


class Search(NamedTuple):
  """How a recommender's items are ranked.

  Attributes:
    decode: A decoder.
    params: Its traced parameters.
    config: Its static choices.
  """

  decode: Callable[..., types.DecodeResult]
  params: Any
  config: Any


def exact_search(model: Recommender) -> Search:
  """The decoder that scores every item with the model's similarity."""
  if isinstance(model.similarity, recommender_lib.Dot):
    return Search(dense.decode, (), dense.DenseConfig())
  config = mol.MolConfig(search=mol.BruteForce())
  return Search(mol.decode, model.similarity.params(), config)


def rank_targets(
  model: Recommender,
  histories: sequences.Histories,
  *,
  remove_seen: bool = True,
  batch_size: int = 64,
) -> np.ndarray:
  """Ranks every item for each history, and says where its target stands.

  Args:
    model: In evaluation.
    histories: A validation or test split.
    remove_seen: Leave out the items of the whole history, also those before
      the window that the model reads. A target among them is a miss.
    batch_size: Histories encoded at a time.

  Returns:
    `[num]` float32, see `target_ranks`; infinite at a miss.
  """
  graphdef, state = nnx.split(model)
  items = item_index(model)
  length = model.config.sequence.length - 1
  ranks = []
  for start in range(0, len(histories), batch_size):
    rows = np.arange(start, start + batch_size) % len(histories)
    batch = histories.take(rows)  # The last one is filled up from the start.
    unseen = np.ones((batch_size, histories.num_items), bool)
    found = _rank_batch(
      graphdef,
      state,
      items,
      batch.padded(length),
      batch.unseen() if remove_seen else unseen,
      batch.targets - 1,
    )
    ranks.append(np.asarray(found))
  return np.concatenate(ranks)[: len(histories)]


@partial(jax.jit, static_argnums=0)
def _item_side(graphdef, state):
  return nnx.merge(graphdef, state).items()


def item_index(model: Recommender) -> Any:
  """All items, id 1 first, as the decoder of `exact_search` reads them."""
  items = _item_side(*nnx.split(model))
  if isinstance(model.similarity, recommender_lib.Dot):
    return items
  return mixture.build(items)


@partial(jax.jit, static_argnums=0)
def _rank_batch(graphdef, state, items, batch, unseen, targets):
  model = nnx.merge(graphdef, state)
  search = exact_search(model)
  queries = model.queries(
    batch["ids"],
    batch.get("timestamps"),
    last=batch["last"],
    users=batch["query"],
  )

  def one(inputs):
    query, where, target = inputs
    result = search.decode(
      search.params,
      query,
      items,
      k=unseen.shape[1],
      config=search.config,
      where=where,
    )
    return target_ranks(result.indices, result.scores, target)

  return jax.lax.map(one, (queries, unseen, targets), batch_size=16)


@partial(jax.jit, static_argnums=0)
def _target_gates(graphdef, state, batch, targets):
  """The gates of (history, target) pairs, `[num, P]`."""
  model = nnx.merge(graphdef, state)
  queries = model.queries(
    batch["ids"],
    batch.get("timestamps"),
    last=batch["last"],
    users=batch["query"],
  )
  vectors = model.sequence.embedding.item_vectors(targets)
  return model.similarity(queries, model.similarity.items(vectors))[1]


def gate_usage(
  model: Recommender, histories: sequences.Histories
) -> loop.Metrics:
  """How a mixture's gates are used on pairs of a history and its target.

  Returns:
    "gate_NN", the mean of pi_NN; "gates_used", exp of the entropy of these
    means, between 1 and P; "gates_per_pair", exp of the mean entropy of pi. No
    entry for a similarity without gates.
  """
  graphdef, state = nnx.split(model)
  batch = histories.padded(model.config.sequence.length - 1)
  gates = _target_gates(graphdef, state, batch, histories.targets)
  if gates is None:
    return {}
  pi = np.asarray(gates, float)
  mean = pi.mean(axis=0)
  usage = {f"gate_{n:02d}": float(share) for n, share in enumerate(mean)}

  def entropy(p):
    return -np.sum(p * np.log(np.maximum(p, 1e-30)), axis=-1)

  return usage | {
    "gates_used": float(np.exp(entropy(mean))),
    "gates_per_pair": float(np.exp(entropy(pi).mean())),
  }
