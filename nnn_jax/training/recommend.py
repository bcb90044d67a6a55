"""Training a recommender by sampled softmax, as a task for the loop.

Output t of a history of ids is a query whose positive is item t + 1. Against
it stand `num_negatives` items drawn uniformly, with replacement,

  negatives="each"    anew for each position, as published
  negatives="shared"  once for the whole batch: the item side is computed once,
                      which makes training on a CPU affordable

and one that equals the positive is masked out. With p = phi / temperature
inside the similarity,

  loss = -log softmax([p+, p-])[0] + balance L_MI + user_penalty ||user||^2

the last two for Mixture-of-Logits only. Validation ranks every item.

Reference: arXiv 2407.15462 (Retrieval with Learned Similarities), section 5.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from nnn_jax import losses, types
from nnn_jax.data import sequences
from nnn_jax.decoders import dense, mol
from nnn_jax.indexes import mixture
from nnn_jax.models import recommender as recommender_lib
from nnn_jax.training import loop

Negatives = Literal["each", "shared"]
Recommender = recommender_lib.Recommender

KS = (1, 10, 50, 200)
MONITOR = "hr@10"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecommendStage:
  """Settings of training.

  Attributes:
    num_epochs: At most.
    passes: Over the users, in one epoch: validation follows an epoch.
    batch_size: Users a step.
    learning_rate: Of AdamW (.9, .98), constant.
    weight_decay: Of AdamW.
    patience: Epochs without improvement before stopping.
    num_negatives: Sampled for each position, or for the batch.
    negatives: See the module's docstring.
    window: Of `sequences.train_batches`.
    balance: Weight of L_MI; 0 leaves it out.
    user_penalty: Weight of the user embeddings' mean squared norm.
    num_validation_users: Validation ranks for so many users, drawn by the
      seed; None for all.
  """

  num_epochs: int = 101
  passes: int = 1
  batch_size: int = 128
  learning_rate: float = 1e-3
  weight_decay: float = 0.0
  patience: int = 101
  num_negatives: int = 128
  negatives: Negatives = "each"
  window: Literal["last", "random"] = "last"
  balance: float = 1e-3
  user_penalty: float = 0.0
  num_validation_users: int | None = None

  def __post_init__(self) -> None:
    if self.negatives not in get_args(Negatives):
      raise ValueError(
        f"negatives must be each or shared, got {self.negatives!r}."
      )
    if self.num_negatives < 1:
      raise ValueError(
        f"num_negatives must be at least 1, got {self.num_negatives}."
      )

  def optimizer(self) -> optax.GradientTransformation:
    """AdamW as published."""
    return optax.adamw(
      self.learning_rate, b1=0.9, b2=0.98, weight_decay=self.weight_decay
    )


def pair_loss(
  model: Recommender,
  batch: dict[str, jax.Array],
  stage: RecommendStage,
  key: jax.Array,
) -> jax.Array:
  """The loss of one batch; see the module's docstring.

  Args:
    model: In training.
    batch: Of `sequences.train_batches`.
    stage: Settings.
    key: Of dropout and of the negatives.
  """
  sequence_key, negatives_key, dropout_key = jax.random.split(key, 3)
  rngs = nnx.Rngs(dropout=dropout_key)
  similarity, vectors = model.similarity, model.sequence.embedding.item_vectors
  ids = batch["ids"]
  outputs = model.sequence(ids, batch.get("timestamps"), key=sequence_key)
  positives = ids[:, 1:].reshape(-1)
  num_pairs = positives.shape[0]
  users = jnp.repeat(batch["query"], ids.shape[1] - 1)
  queries = model.query_sides(
    outputs[:, :-1].reshape(num_pairs, -1), users, rngs=rngs
  )
  shape: tuple[int, ...] = (stage.num_negatives,)
  if stage.negatives == "each":
    shape = (num_pairs, *shape)
  num_items = model.config.sequence.num_items
  negatives = jax.random.randint(negatives_key, shape, 1, num_items + 1)
  positive_scores, gates = similarity(
    queries, similarity.items(vectors(positives), rngs=rngs), rngs=rngs
  )
  negative_scores, _ = similarity(
    jax.tree.map(lambda leaf: leaf[:, None], queries),
    similarity.items(vectors(negatives), rngs=rngs),
    rngs=rngs,
  )
  where = positives != 0
  each = losses.sampled_softmax(
    positive_scores,
    negative_scores,
    positive_ids=positives,
    negative_ids=negatives,
    where=where,
  )

  def mean(values):
    return jnp.sum(values, where=where) / jnp.maximum(jnp.sum(where), 1)

  loss = mean(each)
  if gates is not None and stage.balance:
    loss += stage.balance * losses.load_balancing(gates, where=where)
  if gates is not None and stage.user_penalty:
    rows = similarity.user_embeddings(users)
    loss += stage.user_penalty * mean(jnp.sum(rows**2, axis=(-2, -1)))
  return loss


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


def task(
  model: Recommender,
  dataset: sequences.SequenceDataset,
  stage: RecommendStage,
  *,
  seed: int,
) -> loop.Task:
  """Training of a recommender; params are its state.

  Args:
    model: At its start.
    dataset: With the splits of `sequences.leave_one_out`.
    stage: Settings.
    seed: Of batches, negatives, dropout and the users of validation.
  """
  train = sequences.leave_one_out(dataset, "train")
  validation = sequences.leave_one_out(dataset, "validation")
  num_users = stage.num_validation_users
  if num_users is not None and num_users < len(validation):
    rng = np.random.default_rng(seed)
    rows = rng.choice(len(validation), size=num_users, replace=False)
    validation = validation.take(np.sort(rows))
  windows = sequences.train_batches(
    train,
    length=model.config.sequence.length - 1,
    batch_size=stage.batch_size,
    seed=seed,
    window=stage.window,
  )
  num_trainable = sequences.num_trainable(train)
  graphdef, params = nnx.split(model)

  def batch_fn(step: int) -> dict[str, np.ndarray]:
    return {**windows[step], "step": np.int32(step)}

  def loss_fn(params, frozen, batch):
    del frozen
    # Of the step alone, so that a resumed run draws what it would have drawn.
    key = jax.random.fold_in(jax.random.key(seed), batch["step"])
    return pair_loss(nnx.merge(graphdef, params), batch, stage, key)

  def eval_fn(params):
    current = nnx.merge(graphdef, params)
    ranks = rank_targets(current, validation)
    return summarize(ranks) | gate_usage(current, validation)

  return loop.Task(
    params=params,
    frozen=(),
    loss_fn=loss_fn,
    batch_fn=batch_fn,
    eval_fn=eval_fn,
    steps_per_epoch=stage.passes * (num_trainable // stage.batch_size),
    monitor=MONITOR,
  )
