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
from typing import Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from nnn_jax import losses
from nnn_jax.data import sequences
from nnn_jax.models import recommender as recommender_lib
from nnn_jax.training import loop, ranking

Negatives = Literal["each", "shared"]
Recommender = recommender_lib.Recommender

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
    ranks = ranking.rank_targets(current, validation)
    return ranking.summarize(ranks) | ranking.gate_usage(current, validation)

  return loop.Task(
    params=params,
    frozen=(),
    loss_fn=loss_fn,
    batch_fn=batch_fn,
    eval_fn=eval_fn,
    steps_per_epoch=stage.passes * (num_trainable // stage.batch_size),
    monitor=MONITOR,
  )
