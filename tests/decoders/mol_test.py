"""Mixture of logits: searches, certificates and bounds, against numpy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnn_jax.core import mixture, sharding
from nnn_jax.decoders import mol
from nnn_jax.indexes import mixture as mixture_index

NUM_DOCS, K, TAU = 24, 4, 0.05
NUM_QUERY, NUM_ITEM, DIM, HIDDEN = 2, 2, 4, 8
PAIRS = NUM_QUERY * NUM_ITEM

SEARCHES = (
  mol.BruteForce(block_size=7),
  mol.PerEmbedding(num=4),
  mol.Average(num=8),
  mol.Combined(per_embedding=2, average=5),
  mol.TwoPass(num=8),
  mol.TwoPass(num=8, fallback=True),
)


# One of each kind of code: the exhaustive, the union of both, the two passes.
KINDS = (SEARCHES[0], SEARCHES[3], SEARCHES[5])


def unit(x):
  return x / np.linalg.norm(x, axis=-1, keepdims=True)


def worlds(seed, num, *, follow=3.0, copies=True):
  """Random (params, query, items), `[num, ...]`; every third item is a copy.

  Args:
    seed: Of the generator.
    num: How many.
    follow: How much the gates follow the logits, on average.
    copies: Whether items repeat.
  """
  rng = np.random.default_rng(seed)

  def normal(*shape):
    return rng.normal(size=(num, *shape)).astype(np.float32)

  # c(s) holds +-SiLU(+-s / 20) in pairs, so that it can follow s; and noise.
  share = follow * rng.random((num, 1, 1)).astype(np.float32)
  eye = np.eye(PAIRS, dtype=np.float32)
  hidden = np.concatenate([eye, -eye], axis=1) / 5 + 0.02 * normal(
    PAIRS, HIDDEN
  )
  output = share * np.concatenate([eye, -eye], axis=0)
  output = output + 0.5 * normal(HIDDEN, PAIRS)
  params = mol.MolParams(
    hidden, normal(HIDDEN) / 4, output, normal(PAIRS) / 4, np.full(num, TAU)
  )
  params = params._replace(temperature=params.temperature.astype(np.float32))
  query = mixture.QuerySide(unit(normal(NUM_QUERY, DIM)), normal(PAIRS))
  components, gate = (
    unit(normal(NUM_DOCS, NUM_ITEM, DIM)),
    normal(NUM_DOCS, PAIRS),
  )
  if copies:
    # Of a random earlier item, in a random place.
    for i in range(num):
      to, source = rng.permutation(NUM_DOCS)[:16].reshape(2, 8)
      components[i, to], gate[i, to] = components[i, source], gate[i, source]
  return params, query, mixture.ItemSide(components, gate)


def oracle(params, query, items):
  """(s, pi, phi) in float64 numpy, of one world."""
  f, a, g, b = (np.asarray(x, np.float64) for x in (*query, *items))
  w1, b1, w2, b2, tau = (np.asarray(p, np.float64) for p in params)
  s = np.stack(
    [[[x @ y / tau for y in item] for x in f] for item in g]
  ).reshape(len(g), -1)

  def silu(x):
    return x / (1 + np.exp(-x))

  z = silu(a * b + silu(s @ w1 + b1) @ w2 + b2)
  pi = np.exp(z - z.max(axis=-1, keepdims=True))
  pi /= pi.sum(axis=-1, keepdims=True)
  return s, pi, (pi * s).sum(axis=-1)


def world_of(batch, i):
  return jax.tree.map(lambda x: x[i], batch)


@functools.partial(jax.jit, static_argnames=("search", "k"))
def decode_worlds(params, query, items, search, where=None, k=K):
  config = mol.MolConfig(search=search)
  decode = functools.partial(mol.decode, k=k, config=config)
  return jax.vmap(lambda p, q, x, w: decode(p, q, x, where=w))(
    params, query, items, where
  )


def test_brute_force_equals_numpy():
  batch = worlds(0, 30, copies=False)
  result = decode_worlds(*batch, mol.BruteForce(block_size=7))
  for i in range(30):
    _, _, phi = oracle(*world_of(batch, i))
    order = np.argsort(-phi)[:K]
    np.testing.assert_array_equal(result.indices[i], order)
    np.testing.assert_allclose(
      result.scores[i], phi[order], atol=1e-4, rtol=1e-5
    )
  assert result.aux.exact.all()
  assert (result.aux.num_scored == NUM_DOCS).all()
  assert (result.aux.bound == 0).all()


def test_two_pass_equals_brute_force_on_a_thousand_worlds():
  batch = worlds(1, 1_000)
  where = np.random.default_rng(2).random((1_000, NUM_DOCS)) < 0.8
  exclude = np.random.default_rng(3).integers(-1, NUM_DOCS, (1_000, 3))
  params, query, items = batch
  query = mol.MolQuery(*query, exclude=exclude)
  brute = decode_worlds(
    params, query, items, mol.BruteForce(block_size=7), where
  )
  certified = decode_worlds(params, query, items, mol.TwoPass(num=8), where)
  filled = decode_worlds(
    params, query, items, mol.TwoPass(num=8, fallback=True), where
  )
  np.testing.assert_array_equal(filled.indices, brute.indices)
  np.testing.assert_allclose(filled.scores, brute.scores, rtol=1e-4, atol=1e-4)
  assert filled.aux.exact.all()
  exact = np.asarray(certified.aux.exact)
  assert 0.2 < exact.mean() < 1  # Both kinds are tested.
  np.testing.assert_array_equal(certified.indices[exact], brute.indices[exact])
  # Where it was certain, the fallback scored no more.
  np.testing.assert_array_equal(
    filled.aux.num_scored[exact], certified.aux.num_scored[exact]
  )
  shown = np.take_along_axis(where, np.asarray(brute.indices), axis=1)
  assert shown.all()
  assert not (
    np.asarray(brute.indices)[:, :, None] == exclude[:, None, :]
  ).any()
  # Copies come in the order of their rows: ties by lowest index.
  scores, rows = np.asarray(brute.scores), np.asarray(brute.indices)
  tied = scores[:, 1:] == scores[:, :-1]
  assert tied.sum() > 100
  assert (rows[:, 1:] > rows[:, :-1])[tied].all()


@pytest.mark.parametrize("coarse", [False, True])
def test_the_certificate_is_never_wrong(coarse):
  # Near ties: items are small perturbations of a few, on every scale.
  num = 1_000
  params, query, items = worlds(4, num, follow=6.0, copies=False)
  rng = np.random.default_rng(5)
  base = items.components[:, :3][:, rng.integers(0, 3, NUM_DOCS)]
  scale = 10.0 ** rng.uniform(-8, -1, (num, NUM_DOCS, 1, 1))
  components = unit(base + scale * rng.normal(size=base.shape))
  gate = np.repeat(items.gate[:, :1], NUM_DOCS, axis=1)
  items = mixture.ItemSide(components.astype(np.float32), gate)
  cached = jax.vmap(mixture.cache)(items)
  if coarse:
    cached = cached._replace(coarse=cached.components.astype(jnp.bfloat16))
  result = decode_worlds(params, query, cached, mol.TwoPass(num=12))
  exact = np.asarray(result.aux.exact)
  assert exact.mean() > 0.02
  for i in np.flatnonzero(exact):
    _, _, phi = oracle(*world_of((params, query, items), i))
    missing = np.delete(phi, result.indices[i])
    # Float32 scores cannot be told apart below this.
    assert missing.max() <= phi[result.indices[i]].min() + 2e-5


def test_coarse_search_needs_its_slack():
  # Worlds where the bfloat16 pass alone, without slack, is wrong.
  num = 300
  params, query, items = worlds(6, num, follow=9.0, copies=False)
  noise = np.random.default_rng(7).normal(size=items.components.shape)
  components = unit(items.components[:, :1] + 0.02 * noise).astype(np.float32)
  gate = np.repeat(items.gate[:, :1], NUM_DOCS, axis=1)
  cached = jax.vmap(mixture.cache)(mixture.ItemSide(components, gate))
  cached = cached._replace(coarse=cached.components.astype(jnp.bfloat16))
  brute = decode_worlds(params, query, cached, mol.BruteForce())
  found = decode_worlds(params, query, cached, mol.TwoPass(num=8))
  right = (brute.indices == found.indices).all(axis=1)
  naive = found.aux.rest < found.scores[:, -1]
  assert (naive & ~right).sum() > 0
  assert not (found.aux.exact & ~right).any()


@pytest.mark.parametrize(
  "search",
  [
    mol.PerEmbedding(num=2),
    mol.Combined(per_embedding=1, average=4),
    mol.TwoPass(num=6),
  ],
  ids=repr,
)
def test_the_corrected_bound_holds(search):
  batch = worlds(8, 2_000, copies=False)
  brute = decode_worlds(*batch, mol.BruteForce())
  found = decode_worlds(*batch, search)
  # `found` may hold fewer than k items: its missing scores are -inf.
  gap = np.max(np.asarray(brute.scores) - np.asarray(found.scores), axis=1)
  bound = np.asarray(found.aux.bound)
  assert (gap <= bound + 1e-4).all()
  exact = np.asarray(found.aux.exact)
  np.testing.assert_array_equal(found.indices[exact], brute.indices[exact])


def test_the_printed_bound_is_false():
  """One pair: phi is its logit, so the search is exact; S - T is negative."""
  zeros = np.zeros((1, 1), np.float32)
  params = mol.MolParams(zeros, zeros[0], zeros, zeros[0], 1.0)
  query = mixture.QuerySide(np.float32([[1, 0]]), np.float32([0]))
  angles = np.float32([0.1, 0.5, 1.0, 1.5])
  components = np.stack([np.cos(angles), np.sin(angles)], axis=1)[:, None]
  items = mixture.ItemSide(components, np.zeros((4, 1), np.float32))
  config = mol.MolConfig(search=mol.PerEmbedding(num=2))
  found = mol.decode(params, query, items, k=2, config=config)
  brute = mol.decode(
    params, query, items, k=2, config=mol.MolConfig(search=mol.BruteForce())
  )
  gap = float(jnp.max(brute.scores - found.scores))
  printed = float(found.aux.rest - found.scores[-1])
  assert gap == 0
  assert printed < -0.3 < gap  # "gap <= S - T" is false,
  assert found.aux.bound == 0  # and "gap <= max(0, S - T)" is not.
  assert found.aux.exact


def test_every_search_finds_everything_when_it_scores_everything():
  params, query, items = worlds(9, 20)
  brute = decode_worlds(params, query, items, mol.BruteForce())
  found = decode_worlds(params, query, items, mol.Average(num=100))
  np.testing.assert_array_equal(found.indices, brute.indices)
  assert found.aux.exact.all()
  assert (found.aux.num_scored == NUM_DOCS).all()
  assert (found.aux.rest == -np.inf).all()


def one_world(seed=10):
  return world_of(worlds(seed, 1, copies=False), 0)


def scores_of(result):
  return np.asarray(result.scores)


@pytest.mark.parametrize("search", KINDS, ids=repr)
def test_batch_shards_and_masks(search):
  """vmap, a sharded index, `where` with fewer than k items, and exclude."""
  params, query, items = one_world()
  index = mixture_index.build(items)
  config = mol.MolConfig(search=search)
  where = np.arange(NUM_DOCS) % 11 == 0  # Items 0, 11 and 22.
  exclude = jnp.asarray([[-1, -1], [11, -1], [0, 22]])

  @jax.jit
  def batch(index, where):
    def one(exclude):
      asked = mol.MolQuery(*query, exclude=exclude)
      return mol.decode(params, asked, index, k=K, config=config, where=where)

    return jax.vmap(one)(exclude)

  result = batch(index, where)
  left = [{0, 11, 22}, {0, 22}, {11}]
  for i, expected in enumerate(left):
    found = result.indices[i].tolist()
    size = len(expected)
    assert set(found[:size]) == expected
    assert found[size:] == [-1] * (K - size)
    assert (scores_of(result)[i, size:] == -np.inf).all()
    assert (np.diff(scores_of(result)[i, :size]) <= 0).all()
  assert result.aux.exact.all()  # All that may be shown was scored.
  assert (result.aux.bound == 0).all()

  everywhere = np.ones(NUM_DOCS, bool)
  expected = batch(index, everywhere)
  mesh = sharding.make_mesh()
  with jax.set_mesh(mesh):
    spec = jax.sharding.PartitionSpec
    placed = jax.tree.map(
      lambda x: jax.device_put(
        x,
        jax.NamedSharding(mesh, spec(sharding.DOCS_AXIS) if x.ndim else spec()),
      ),
      index,
    )
    sharded = batch(placed, everywhere)
  np.testing.assert_array_equal(sharded.indices, expected.indices)
  np.testing.assert_allclose(sharded.scores, expected.scores, rtol=1e-5)
  np.testing.assert_array_equal(sharded.aux.num_scored, expected.aux.num_scored)


@pytest.mark.parametrize("search", SEARCHES[1:5], ids=repr)
def test_duplicates_are_scored_once(search):
  # Item ids [3, 3, 5] and ten copies of the best: copies are items of their
  # own, candidates found twice are not.
  params, query, items = one_world()
  brute = mol.MolConfig(search=mol.BruteForce())
  best = int(mol.decode(params, query, items, k=1, config=brute).indices[0])
  rows = np.asarray([3, 3, 5, *[best] * 10, 0, 1, 2])
  items = mixture.ItemSide(*(np.asarray(x)[rows] for x in items))
  config = mol.MolConfig(search=search)
  result = mol.decode(params, query, items, k=4, config=config)
  expected = mol.decode(params, query, items, k=4, config=brute)
  copies = [i for i, row in enumerate(rows) if row == best]
  np.testing.assert_array_equal(expected.indices, copies[:4])
  np.testing.assert_array_equal(result.indices, expected.indices)
  assert len(set(scores_of(result).tolist())) == 1
  assert result.aux.num_scored <= len(rows)


@pytest.mark.parametrize("search", KINDS, ids=repr)
def test_a_broken_item_is_last_and_shows(search):
  params, query, items = one_world()
  components = np.array(items.components)
  components[5] = np.nan
  broken = items._replace(components=components)
  config = mol.MolConfig(search=search)
  result = mol.decode(params, query, broken, k=K, config=config)
  assert not result.aux.finite
  assert not result.aux.exact
  assert 5 not in result.indices.tolist()
  where = np.arange(NUM_DOCS) != 5
  healthy = mol.decode(params, query, items, k=K, config=config, where=where)
  np.testing.assert_array_equal(result.indices, healthy.indices)
  left_out = mol.decode(params, query, broken, k=K, config=config, where=where)
  assert left_out.aux.finite


@pytest.mark.parametrize("search", [mol.BruteForce(), mol.Average(num=8)])
def test_gradients_are_those_of_the_similarity(search):
  inputs = one_world()
  config = mol.MolConfig(search=search)

  def through_search(inputs):
    return jnp.sum(mol.decode(*inputs, k=K, config=config).scores ** 2)

  indices = mol.decode(*inputs, k=K, config=config).indices

  def directly(inputs):
    params, query, items = inputs
    items = mixture.ItemSide(*(x[indices] for x in items))
    return jnp.sum(mixture.similarity(params, query, items)[0] ** 2)

  inputs = jax.tree.map(jnp.asarray, inputs)
  got, expected = jax.grad(through_search)(inputs), jax.grad(directly)(inputs)
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
    assert np.any(np.asarray(a) != 0)


def test_universal_approximation():
  """Any matrix is a mixture of two constant logits.

  With c >= max |A|, logits B_1 = +c and B_2 = -c and gates pi_1 = 1/2 + A/(2c),
  pi_2 = 1 - pi_1, the mixture pi_1 B_1 + pi_2 B_2 is A, of whatever rank; the
  logits have rank one. It takes gates that are any function of the pair: the
  coded ones, softmax(SiLU(a b + c(s))), cannot tell two pairs with equal s and
  equal a b apart.
  """
  a = np.random.default_rng(0).normal(size=(40, 30))
  assert np.linalg.matrix_rank(a) == 30
  c = np.abs(a).max()
  first = mixture.pair_logits(
    np.full((40, 1, 1, 1), 1.0), np.full((30, 1, 1), 1.0), 1 / c
  )[..., 0]
  pi = 0.5 + a / (2 * c)
  assert pi.min() >= 0
  assert pi.max() <= 1
  mixed = pi * first + (1 - pi) * -first
  np.testing.assert_allclose(mixed, a, atol=1e-5)
  assert np.linalg.matrix_rank(np.asarray(first)) == 1


def test_gates_off_the_simplex_are_refused():
  params, query, items = one_world()
  config = mol.MolConfig(search=mol.TwoPass(num=NUM_DOCS - 1))
  bad = params._replace(output_bias=params.output_bias * np.nan)
  result = mol.decode(bad, query, items, k=K, config=config)
  assert not result.aux.exact
  assert result.aux.rest == np.inf
  with pytest.raises(ValueError, match="params must be MixtureParams"):
    mol.decode((), query, items, k=K)


def test_one_compilation_for_a_sweep():
  params, query, items = one_world()
  config = mol.MolConfig(search=mol.Average(num=9))
  index = mixture_index.build(items)
  before = mol._decode._cache_size()
  for tau in (0.05, np.float32(0.1), np.float64(0.2), jnp.asarray(1)):
    swept = params._replace(temperature=tau)
    mol.decode(swept, query, index, k=K, config=config)
  assert mol._decode._cache_size() == before + 1


def test_bfloat16_items_are_scored_in_float32():
  params, query, items = one_world()
  index = mixture_index.build(items, dtype=jnp.bfloat16)
  rounded = mixture.ItemSide(
    *(jnp.asarray(x, jnp.bfloat16).astype(jnp.float32) for x in items)
  )
  for search in (mol.BruteForce(), mol.TwoPass(num=10)):
    config = mol.MolConfig(search=search)
    got = mol.decode(params, query, index, k=K, config=config)
    expected = mol.decode(params, query, rounded, k=K, config=config)
    assert got.scores.dtype == jnp.float32
    np.testing.assert_array_equal(got.indices, expected.indices)
    np.testing.assert_allclose(got.scores, expected.scores, rtol=1e-5)


def test_errors():
  params, query, items = one_world()
  decode = functools.partial(mol.decode, params)
  with pytest.raises(ValueError, match="search must be BruteForce or"):
    mol.MolConfig(search="average")
  with pytest.raises(ValueError, match=r"search.num must be at least 1, got 0"):
    mol.MolConfig(search=mol.Average(num=0))
  config = mol.MolConfig(search=mol.Average(num=2))
  with pytest.raises(ValueError, match="finds 2 items at most, fewer than k"):
    decode(query, items, k=3, config=config)
  with pytest.raises(ValueError, match="k must be between 1 and num_docs"):
    decode(query, items, k=NUM_DOCS + 1)
  with pytest.raises(ValueError, match="query must be MolQuery or QuerySide"):
    decode(np.ones(3), items, k=1)
  with pytest.raises(ValueError, match="corpus must be CachedItems or ItemS"):
    decode(query, np.ones((3, 2)), k=1)
  with pytest.raises(ValueError, match=r"use jax\.vmap over its first axis"):
    decode(jax.tree.map(lambda x: x[None], query), items, k=1)
  with pytest.raises(ValueError, match="where must be bool"):
    decode(query, items, k=1, where=np.ones(NUM_DOCS))
  with pytest.raises(ValueError, match=r"query.exclude must be integer"):
    decode(mol.MolQuery(*query, exclude=np.ones(2)), items, k=1)
  with pytest.raises(ValueError, match=r"corpus.gate must have shape"):
    decode(query, items._replace(gate=items.gate[:, :-1]), k=1)
