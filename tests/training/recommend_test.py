"""Training of recommenders: ranks, the loss's rules, resume, learning."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnn_jax.data import sequences
from nnn_jax.data.synthetic_interests import world
from nnn_jax.models import hstu, mol, recommender, sasrec
from nnn_jax.training import loop, ranking, recommend

LENGTH, DIM, NUM_ITEMS = 8, 8, 60
STAGE = recommend.RecommendStage(
  num_epochs=4, batch_size=8, num_negatives=4, negatives="shared",
  window="random", learning_rate=1e-2, user_penalty=0.1,
)  # fmt: skip


@pytest.fixture(scope="module")
def dataset():
  log = world.build(0, num_users=24, num_items=NUM_ITEMS, num_genres=5)
  bounds = np.searchsorted(log.users, np.arange(25))

  def cut(column):
    return [column[a:b] for a, b in itertools.pairwise(bounds)]

  return sequences.SequenceDataset(
    "tiny", log.item_ids, log.item_texts, log.user_ids, cut(log.items + 1),
    cut(log.timestamps), {},
  )  # fmt: skip


def new(kind, model="sasrec", dropout=0.2):
  shared = {
    "num_items": NUM_ITEMS, "length": LENGTH + 1, "dim": DIM, "num_blocks": 1,
    "num_heads": 2, "dropout": dropout,
    "output": "l2" if kind == "dot" else "layer_norm",
  }  # fmt: skip
  if model == "sasrec":
    sequence = sasrec.SasrecConfig(**shared, mlp_dim=8)
  else:
    sequence = hstu.HstuConfig(**shared, key_dim=4, value_dim=4)
  similarity = (
    recommender.DotConfig()
    if kind == "dot"
    else mol.MolConfig(
      query_dim=DIM, item_dim=DIM, num_query_components=2,
      num_item_components=2, component_dim=4, query_hidden=8,
      query_gate_hidden=8, item_gate_hidden=8, pair_gate_hidden=8,
      num_user_components=1, num_user_rows=24, user_dropout=0.5,
    )
  )  # fmt: skip
  return recommender.Recommender(
    recommender.RecommenderConfig(sequence=sequence, similarity=similarity),
    rngs=nnx.Rngs(0),
  )


def test_ranks_by_hand():
  indices = jnp.array([4, 2, 0, 1, -1])
  scores = jnp.array([9.0, 5.0, 5.0, 5.0, -jnp.inf])
  ranks = [
    float(ranking.target_ranks(indices, scores, jnp.int32(t)))
    for t in (4, 2, 0, 1, 3, -1)
  ]
  # Equal scores have equal ranks; what is not there, padding too, is a miss.
  assert ranks == [1.0, 3.0, 3.0, 3.0, np.inf, np.inf]
  values = ranking.summarize(np.array([1.0, 10.0, 10.5, np.inf]))
  assert (values["hr@1"], values["hr@10"], values["hr@50"]) == (0.25, 0.5, 0.75)
  assert values["mrr"] == pytest.approx((1 + 0.1 + 1 / 10.5) / 4)


def test_a_model_that_scores_all_alike_is_not_rewarded(dataset):
  model = new("dot")
  model.sequence.embedding.table[...] *= 0
  test = sequences.leave_one_out(dataset, "test")
  ranks = ranking.rank_targets(model, test, remove_seen=False)
  # Wherever the target stands in the catalogue, it is in the middle.
  assert (ranks == (NUM_ITEMS + 1) / 2).all()


@pytest.mark.parametrize("kind", ["dot", "mol"])
def test_ranks_are_those_of_all_scores(kind, dataset):
  model = new(kind, "hstu")
  test = sequences.leave_one_out(dataset, "test")
  batch = test.padded(LENGTH)

  @jax.jit
  def all_scores():
    queries = model.queries(
      batch["ids"],
      batch["timestamps"],
      last=batch["last"],
      users=batch["query"],
    )
    queries = jax.tree.map(lambda leaf: leaf[:, None], queries)
    return model.similarity(queries, model.items())[0]

  scores = np.asarray(all_scores())
  for remove_seen in (True, False):
    allowed = scores.copy()
    if remove_seen:
      for row, items in zip(allowed, test.items, strict=True):
        row[items - 1] = -np.inf
    own = allowed[np.arange(len(test)), test.targets - 1]
    expected = 1 + (allowed > own[:, None]).sum(axis=1)
    got = ranking.rank_targets(model, test, remove_seen=remove_seen)
    np.testing.assert_array_equal(got, expected)


def test_a_target_in_the_history_is_a_miss_of_the_seen_filter(dataset):
  test = sequences.leave_one_out(dataset, "test").take(np.array([0, 1]))
  test.items[0] = np.append(test.items[0], test.targets[0])
  ranks = ranking.rank_targets(new("dot"), test)
  assert np.isinf(ranks[0])
  assert np.isfinite(ranks[1])
  assert np.isfinite(
    ranking.rank_targets(new("dot"), test, remove_seen=False)
  ).all()


def test_an_empty_history_ranks_without_nan(dataset):
  test = sequences.leave_one_out(dataset, "test").take(np.array([0]))
  test.items[0] = np.zeros(0, np.int32)
  test.timestamps[0] = np.zeros(0, np.int64)
  for kind in ("dot", "mol"):
    (rank,) = ranking.rank_targets(new(kind, "hstu"), test)
    assert 1 <= rank <= NUM_ITEMS


def _values(model, stages, batch):
  """The loss of one batch under each stage, compiled together."""
  graphdef, state = nnx.split(model)

  @jax.jit
  def run(state):
    model = nnx.merge(graphdef, state)
    key = jax.random.key(0)
    return [recommend.pair_loss(model, batch, s, key) for s in stages]

  return run(state)


def _gradients(model, stage, batches):
  """(loss, gradient) of each batch."""
  graphdef, state = nnx.split(model)

  @jax.jit
  @jax.value_and_grad
  def run(state, batch):
    model = nnx.merge(graphdef, state)
    return recommend.pair_loss(model, batch, stage, jax.random.key(0))

  return [run(state, batch) for batch in batches]


def _batch(dataset, size=4):
  train = sequences.leave_one_out(dataset, "train")
  return dict(
    sequences.train_batches(train, length=LENGTH, batch_size=size, seed=0)[0]
  )


@pytest.mark.parametrize(
  ("kind", "negatives"),
  [
    ("mol", "shared"),
    pytest.param("dot", "shared", marks=pytest.mark.slow),
    pytest.param("dot", "each", marks=pytest.mark.slow),
    pytest.param("mol", "each", marks=pytest.mark.slow),
  ],
)
def test_loss_and_gradient_are_finite_at_the_edges(kind, negatives, dataset):
  stage = dataclasses.replace(STAGE, negatives=negatives, balance=0.0)
  short, empty = _batch(dataset), _batch(dataset)
  short["ids"][0] = 0  # No item at all.
  short["ids"][1, 1:] = 0  # One item, so nothing to predict.
  empty["ids"][:] = 0
  some, none = _gradients(new(kind), stage, [short, empty])
  for loss, gradient in (some, none):
    assert np.isfinite(loss)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
  assert some[0] > 0
  assert none[0] == 0
  assert not any(leaf.any() for leaf in jax.tree.leaves(none[1]))


def test_where_every_negative_is_the_positive_the_loss_is_zero(dataset):
  model = new("dot")
  config = dataclasses.replace(model.config.sequence, num_items=1)
  one = recommender.Recommender(
    dataclasses.replace(model.config, sequence=config), rngs=nnx.Rngs(0)
  )
  batch = _batch(dataset)
  batch["ids"] = np.minimum(batch["ids"], 1)
  assert _values(one, [STAGE], batch) == [0.0]


def test_balance_and_penalty_are_in_the_loss(dataset):
  model, batch = new("mol"), _batch(dataset)
  plain = dataclasses.replace(STAGE, balance=0.0, user_penalty=0.0)
  base, balanced, punished = _values(
    model,
    [
      plain,
      dataclasses.replace(plain, balance=1.0),
      dataclasses.replace(plain, user_penalty=1.0),
    ],
    batch,
  )
  # L_MI lies between -log P and 0.
  assert -np.log(4) <= balanced - base < 0
  rows = model.similarity.user_embeddings(jnp.asarray(batch["query"]))
  assert punished - base == pytest.approx(
    float(jnp.mean(jnp.sum(rows**2, axis=(-2, -1)))), abs=1e-4
  )


def bytes_of(tree):
  return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def fit(dataset, folder, num_epochs, model):
  return loop.fit(
    recommend.task(model, dataset, STAGE, seed=0),
    STAGE.optimizer(),
    folder=folder,
    num_epochs=num_epochs,
    patience=99,
    checkpoint_every=99,
  )


@pytest.mark.parametrize(
  ("kind", "model", "epochs"),
  [
    ("dot", "sasrec", 4),
    ("mol", "hstu", 4),
  ],
)
@pytest.mark.slow  # The loop's own tests resume in the default tier.
def test_a_resumed_run_is_the_whole_run(kind, model, epochs, dataset, tmp_path):
  start = new(kind, model)
  whole, progress = fit(dataset, tmp_path / "whole", epochs, start)
  fit(dataset, tmp_path / "parts", epochs // 2, start)
  parts, resumed = fit(dataset, tmp_path / "parts", epochs, start)
  assert bytes_of(whole) == bytes_of(parts)
  assert dataclasses.asdict(progress) == dataclasses.asdict(resumed)


def test_gate_usage(dataset):
  test = sequences.leave_one_out(dataset, "test")
  assert ranking.gate_usage(new("dot"), test) == {}
  usage = ranking.gate_usage(new("mol"), test)
  shares = [usage.pop(f"gate_{n:02d}") for n in range(4)]
  assert sum(shares) == pytest.approx(1.0, abs=1e-5)
  assert sorted(usage) == ["gates_per_pair", "gates_used"]
  assert 1 <= usage["gates_per_pair"] <= usage["gates_used"] <= 4 + 1e-5


def test_settings_that_do_not_exist():
  with pytest.raises(ValueError, match="negatives must be each or shared"):
    recommend.RecommendStage(negatives="batch")
  with pytest.raises(ValueError, match="num_negatives must be at least 1"):
    recommend.RecommendStage(num_negatives=0)
