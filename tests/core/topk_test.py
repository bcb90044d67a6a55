"""Top-k against a lexicographic sort in numpy."""

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from nnn_jax.core import sharding, topk

NUM_DOCS = 24
VALUES = st.one_of(
  st.sampled_from([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan]),
  st.floats(width=32, allow_subnormal=False),
)


def oracle(scores, k, where=None):
  """Descending score, then ascending row; NaN and left-out rows last."""
  scores = np.float32(scores)
  value = np.where(np.isnan(scores), -np.inf, scores)
  if where is not None:
    value = np.where(where, value, -np.inf)
  order = np.lexsort((np.arange(len(value)), -value))[:k]
  return value[order], np.where(value[order] == -np.inf, -1, order)


def assert_equal(result, expected):
  np.testing.assert_array_equal(result[0], expected[0])
  np.testing.assert_array_equal(result[1], expected[1])
  assert result[1].dtype == jnp.int32


jitted = jax.jit(topk.top_k, static_argnums=1)


@hypothesis.given(
  scores=st.lists(VALUES, min_size=NUM_DOCS, max_size=NUM_DOCS),
  where=st.lists(st.booleans(), min_size=NUM_DOCS, max_size=NUM_DOCS),
  k=st.sampled_from([1, 4, NUM_DOCS]),
  sharded=st.booleans(),
)
def test_equals_a_lexicographic_sort(scores, where, k, sharded):
  scores, where = np.float32(scores), np.asarray(where)
  if not sharded:
    assert_equal(jitted(scores, k), oracle(scores, k))
    assert_equal(jitted(scores, k, where=where), oracle(scores, k, where))
    return
  mesh = sharding.make_mesh()
  spec = jax.sharding.NamedSharding(
    mesh, jax.sharding.PartitionSpec(sharding.DOCS_AXIS)
  )
  with jax.set_mesh(mesh):
    placed = jax.device_put((scores, where), spec)
    assert_equal(jitted(placed[0], k), oracle(scores, k))
    assert_equal(
      jitted(placed[0], k, where=placed[1]), oracle(scores, k, where)
    )


@hypothesis.given(
  levels=st.lists(st.integers(-1, 1), min_size=NUM_DOCS, max_size=NUM_DOCS)
)
def test_ties_across_shards(levels):
  scores = np.float32(levels)
  with jax.set_mesh(sharding.make_mesh()):
    assert_equal(jitted(scores, 7), oracle(scores, 7))


@pytest.mark.parametrize("sharded", [False, True])
def test_batched(sharded):
  scores = np.random.default_rng(0).integers(-2, 3, (5, NUM_DOCS))
  scores = np.float32(scores)
  batched = jax.jit(jax.vmap(lambda s: topk.top_k(s, 4)))
  if sharded:
    with jax.set_mesh(sharding.make_mesh()):
      values, indices = batched(scores)
  else:
    values, indices = batched(scores)
  for row, value, index in zip(scores, values, indices, strict=True):
    assert_equal((value, index), oracle(row, 4))


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("scale", [1.0, 0.0])
def test_gradient_selects(sharded, scale):
  """One for the documents returned, also where all scores are zero."""
  scores = scale * np.arange(NUM_DOCS, dtype=np.float32)[::-1]
  where = np.arange(NUM_DOCS) != 1
  grad = jax.grad(lambda s: topk.top_k(s, 3, where=where)[0].sum())
  if sharded:
    with jax.set_mesh(sharding.make_mesh()):
      value = grad(scores)
  else:
    value = grad(scores)
  expected = np.isin(np.arange(NUM_DOCS), [0, 2, 3])
  np.testing.assert_array_equal(value, np.float32(expected))


def test_gradient_is_finite_around_nan_and_missing():
  scores = np.float32([1.0, np.nan, -np.inf, 0.0])
  grad = jax.grad(
    lambda s: jnp.where(
      jnp.isfinite(topk.top_k(s, 4)[0]), topk.top_k(s, 4)[0], 0.0
    ).sum()
  )(scores)
  np.testing.assert_array_equal(grad, [1.0, 0.0, 0.0, 1.0])


def test_other_dtypes():
  values, indices = topk.top_k([3, 1, 2], 2)
  assert values.tolist() == [3.0, 2.0]
  assert indices.tolist() == [0, 2]
  values, _ = topk.top_k(jnp.asarray([3, 1], jnp.bfloat16), 1)
  assert values.dtype == jnp.bfloat16


def test_more_than_a_shard_holds():
  """k = 20 of 24 rows in shards of three."""
  scores = np.random.default_rng(1).normal(size=NUM_DOCS).astype(np.float32)
  with jax.set_mesh(sharding.make_mesh()):
    assert_equal(jitted(scores, 20), oracle(scores, 20))


def test_entering_a_mesh_recompiles_and_leaving_it_works():
  scores = np.random.default_rng(2).normal(size=NUM_DOCS).astype(np.float32)
  fn = jax.jit(lambda s: topk.top_k(s, 5))
  expected = oracle(scores, 5)
  assert_equal(fn(scores), expected)
  with jax.set_mesh(sharding.make_mesh()):
    assert_equal(fn(scores), expected)
  with jax.set_mesh(sharding.make_mesh(jax.devices()[:2])):
    assert_equal(fn(scores), expected)
  assert_equal(fn(scores), expected)


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("num_levels", [1, 2, 40, 5_000, None])
def test_two_levels(num_levels, sharded):
  """Few values are many ties, at the last place and between blocks too."""
  shards = 8 if sharded else 1
  num_docs = shards * (32 * topk._MIN_BLOCKS + (0 if sharded else 7))
  rng = np.random.default_rng(3)
  scores = rng.normal(size=(3, num_docs)).astype(np.float32)
  if num_levels is not None:
    scores = np.float32(rng.integers(0, num_levels, scores.shape))
  scores[0, ::3] = np.nan
  scores[1, ::7] *= -0.0
  where = rng.random(num_docs) < 0.5
  few = np.arange(num_docs) % 1_001 == 5  # About eight.
  batched = jax.jit(
    jax.vmap(lambda s, where: topk.top_k(s, 10, where=where), (0, None))
  )
  with jax.set_mesh(sharding.make_mesh(jax.devices()[:shards])):
    for allowed in (where, few):
      result = batched(scores, allowed)
      for i, row in enumerate(scores):
        assert_equal(
          jax.tree.map(lambda x, i=i: x[i], result), oracle(row, 10, allowed)
        )


def test_two_levels_have_the_gradient_of_what_they_return():
  scores = np.random.default_rng(4).normal(size=8_200).astype(np.float32)
  grad = jax.grad(lambda s: topk.top_k(s, 5)[0] @ jnp.arange(1.0, 6))(scores)
  expected = np.zeros_like(scores)
  expected[np.argsort(-scores)[:5]] = np.arange(1, 6)
  np.testing.assert_array_equal(grad, expected)
