"""One contract that every decoder keeps. A new decoder adds a row to ROWS."""

import dataclasses
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnn_jax.core import gradients, mixture, sharding, sparse
from nnn_jax.decoders import (
  dense,
  diversity,
  dpp,
  hypencoder,
  max_sum,
  mmr,
  mol,
  nnn,
  seismic,
)
from nnn_jax.solvers import fista, selection, working_set

NUM_DOCS, DIM, K = 13, 6, 5


def unit_rows(seed, num_docs=NUM_DOCS, dim=DIM):
  """A unit query and unit rows that lean towards one direction."""
  rng = np.random.default_rng(seed)
  rows = rng.normal(size=(num_docs + 1, dim)) + 0.5
  rows /= np.linalg.norm(rows, axis=1, keepdims=True)
  return rows[0].astype(np.float32), rows[1:].astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Row:
  """What the contract needs to know about one decoder."""

  name: str
  module: ModuleType
  params: Any
  config: Any
  converged: Any = None  # A config for gradients at the optimum, if another.
  exported: Any = None  # A config without kernels for CPU, if another.
  sweep: tuple[Any, ...] = ()  # Params whose sweep must compile once.
  wrong_params: tuple[Any, ...] = ()
  skips_nan: bool = True  # A NaN document does not spoil the others.
  keeps_ties: bool = True  # Equal documents score equal to the last bit.
  make_inputs: Callable = unit_rows
  # Arrays -> what the decoder takes, where that is not the two arrays.
  represent: Callable | None = None

  def decode(self, query, corpus, *, k=K, params=None, config=None, where=None):
    if self.represent is not None:
      query, corpus = self.represent(query, corpus)
    return self.module.decode(
      self.params if params is None else params,
      query,
      corpus,
      k=k,
      config=self.config if config is None else config,
      where=where,
    )


def two_components(query, corpus):
  """A query of two components and items of one, both also their gates."""
  query, corpus = jnp.asarray(query), jnp.asarray(corpus)
  return (
    mixture.QuerySide(jnp.stack([query, query[::-1]]), query[:2]),
    mixture.ItemSide(corpus[:, None], corpus[:, :2]),
  )


def two_layers(query, corpus):
  """A network of a query: its entries are in every layer."""
  query = jnp.asarray(query)  # Its storage is narrow, not this arithmetic.
  query = query.astype(jnp.promote_types(query.dtype, jnp.float32))
  mixed = jnp.outer(query, query[::-1]) + jnp.diag(query)
  wide = jnp.concatenate([mixed, -mixed], axis=1)
  return (
    hypencoder.QNet(
      (wide, jnp.concatenate([mixed, mixed])),
      (jnp.concatenate([query, query]), query),
      query[::-1],
    ),
    corpus,
  )


def all_coordinates(query, corpus):
  """Sparse vectors with an entry in each coordinate, and no lists.

  One more coordinate is 1 in all: what shares none is never returned.
  """
  query, corpus = jnp.asarray(query), jnp.asarray(corpus)
  query = jnp.concatenate([query, jnp.ones_like(query[:1])])
  corpus = jnp.concatenate([corpus, jnp.ones_like(corpus[:, :1])], axis=1)
  num_docs, dim = corpus.shape
  none = jnp.zeros(0)
  return (
    sparse.SparseVector(jnp.arange(dim), query),
    sparse.SparseBlocks(
      indices=jnp.tile(jnp.arange(dim), (num_docs, 1)),
      values=corpus,
      list_starts=jnp.zeros(dim + 1, jnp.int32),
      block_starts=jnp.zeros(1, jnp.int32),
      postings=none.astype(jnp.int32),
      bucket_starts=jnp.zeros(dim + 1, jnp.int32),
      entry_coords=none.astype(jnp.int32),
      entry_blocks=none.astype(jnp.int32),
      entry_codes=none,
      summary_least=none,
      summary_step=none,
      vocab=dim,
      max_blocks=1,
      max_size=1,
      bucket_bits=dim.bit_length(),
      max_bucket=1,
    ),
  )


def gate_params(seed):
  """Of the gate of two pairs."""
  rng = np.random.default_rng(seed)
  return mol.MolParams(
    *(rng.normal(size=s).astype(np.float32) for s in ((2, 3), 3, (3, 2), 2)),
    0.5,
  )


ROWS = [
  Row(
    name="dense",
    module=dense,
    params=(),
    config=dense.DenseConfig(),
    wrong_params=(None, 0.5, np.ones(()), jnp.ones(3), mmr.MmrParams(0.5)),
  ),
  Row(
    name="mmr",
    module=mmr,
    params=mmr.MmrParams(0.6),
    config=mmr.MmrConfig(),
    sweep=(
      mmr.MmrParams(0.5),
      mmr.MmrParams(1),
      mmr.MmrParams(np.float32(0.3)),
      mmr.MmrParams(np.float64(0.3)),
      mmr.MmrParams(jnp.float32(0.2)),
      mmr.MmrParams(jnp.asarray(0.1)),
      (0.7,),
    ),
    wrong_params=((), "0.5", {"trade_off": 0.5}, nnn.NnnParams(0.1, 0.1)),
  ),
  Row(
    name="nnn",
    module=nnn,
    params=nnn.NnnParams(0.1, 0.1),
    config=nnn.NnnConfig(solver=fista.Fista(num_steps=300)),
    converged=nnn.NnnConfig(solver=fista.Fista(num_steps=3_000)),
    sweep=(
      nnn.NnnParams(0.1, 0.2),
      nnn.NnnParams(l1=0.1),
      nnn.NnnParams(1, 0),
      nnn.NnnParams(np.float32(0.1), 0.2),
      nnn.NnnParams(jnp.float32(0.1), np.float64(0.2)),
      nnn.NnnParams(jnp.asarray(0.1), jnp.asarray(0.2)),
      (0.3, 0.4),
    ),
    wrong_params=((), 0.1, ("a", "b"), mmr.MmrParams(0.5), {"l1": 1, "l2": 2}),
    skips_nan=False,  # The documents share one residual.
  ),
  Row(
    name="nnn_working_set",
    module=nnn,
    params=nnn.NnnParams(0.1, 0.1),
    config=nnn.NnnConfig(
      solver=working_set.WorkingSet(capacity=16),
      gradient=gradients.Implicit(capacity=16),
    ),
    skips_nan=False,
    keeps_ties=False,  # Elimination rounds the weights of duplicates.
  ),
  Row(
    name="dpp",
    module=dpp,
    params=dpp.DppParams(0.6),
    config=dpp.DppConfig(),
    sweep=(dpp.DppParams(0.5), dpp.DppParams(1), (0.7,)),
    wrong_params=((), "0.5", nnn.NnnParams(0.1, 0.1)),
  ),
  Row(
    name="max_sum",
    module=max_sum,
    params=max_sum.MaxSumParams(0.6),
    config=max_sum.MaxSumConfig(),
    sweep=(max_sum.MaxSumParams(0.5), max_sum.MaxSumParams(1), (0.7,)),
    wrong_params=((), "0.5", nnn.NnnParams(0.1, 0.1)),
  ),
  Row(
    name="diversity",
    module=diversity,
    params=diversity.DiversityParams(0.6),
    config=diversity.DiversityConfig(
      pool_size=NUM_DOCS,  # Padding over devices does not enter.
      order="marginal",  # Its scores depend on the trade-off.
    ),
    exported=diversity.DiversityConfig(
      method=selection.Polished(backend="xla"),
      pool_size=NUM_DOCS,
      order="marginal",
    ),
    sweep=(
      diversity.DiversityParams(0.5),
      diversity.DiversityParams(np.float64(0.3)),
      diversity.DiversityParams(jnp.float32(1)),
      (0.7,),
    ),
    wrong_params=((), "0.5", nnn.NnnParams(0.1, 0.1)),
  ),
  Row(
    name="mol",
    module=mol,
    params=gate_params(0),
    config=mol.MolConfig(search=mol.BruteForce()),
    sweep=(gate_params(1), gate_params(2)._replace(temperature=1)),
    wrong_params=((), "0.5", nnn.NnnParams(0.1, 0.1)),
    represent=two_components,
  ),
  Row(
    name="hypencoder",
    module=hypencoder,
    params=(),
    config=hypencoder.HypencoderConfig(layer_norm=False),
    wrong_params=(None, 0.5, np.ones(()), nnn.NnnParams(0.1, 0.1)),
    represent=two_layers,
  ),
  Row(
    name="seismic",
    module=seismic,
    params=(),
    config=seismic.SeismicConfig(search=seismic.Exact()),
    wrong_params=(None, 0.5, np.ones(()), nnn.NnnParams(0.1, 0.1)),
    represent=all_coordinates,
  ),
]

per_decoder = pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)


def assert_same(result, expected, atol=1e-5):
  np.testing.assert_array_equal(result.indices, expected.indices)
  np.testing.assert_allclose(result.scores, expected.scores, atol=atol)


# Shapes, order, batching.


@per_decoder
@pytest.mark.parametrize("k", [1, K, NUM_DOCS])
def test_shapes_and_dtypes(row, k):
  result = row.decode(*row.make_inputs(0), k=k)
  assert result.indices.shape == result.scores.shape == (k,)
  assert result.indices.dtype == jnp.int32
  assert result.scores.dtype == jnp.float32
  for flag in (result.aux.exact, result.aux.finite):
    assert flag.shape == ()
    assert flag.dtype == jnp.bool_
  assert bool(result.aux.finite)
  passes = int(getattr(result.aux, "num_passes", 1))
  assert int(result.aux.num_scored) == NUM_DOCS * passes
  assert result.aux.num_scored.dtype == jnp.int32
  indices = result.indices.tolist()
  assert len(set(indices)) == k
  assert set(indices) <= set(range(NUM_DOCS))


@per_decoder
@pytest.mark.parametrize("batch", [1, 4])
def test_vmap_equals_loop(row, batch):
  _, corpus = row.make_inputs(0)
  queries = np.stack([row.make_inputs(s)[0] for s in range(1, batch + 1)])
  batched = jax.vmap(lambda query: row.decode(query, corpus))(queries)
  for i, query in enumerate(queries):
    single = row.decode(query, corpus)
    assert_same(jax.tree.map(lambda x, i=i: x[i], batched), single, 1e-6)
    jax.tree.map(
      lambda b, s, i=i: np.testing.assert_allclose(
        np.float32(b[i]), np.float32(s), atol=1e-5
      ),
      batched.aux,
      single.aux,
    )


@per_decoder
def test_vmap_with_published_axes(row):
  _, corpus = row.make_inputs(0)
  queries = np.stack([row.make_inputs(s)[0] for s in (1, 2)])

  def decode(params, query, corpus):
    return row.decode(query, corpus, params=params)

  result = jax.vmap(decode, in_axes=(None, 0, None))(
    row.params, queries, corpus
  )
  assert result.indices.shape == (2, K)


# Gradients.


def sum_of_scores(row):
  def fn(query, corpus, where=None):
    scores = row.decode(query, corpus, where=where).scores
    return jnp.sum(jnp.where(jnp.isfinite(scores), scores, 0.0))

  return fn


@per_decoder
def test_gradient_reaches_inputs_and_is_finite(row):
  query, corpus = row.make_inputs(0)
  grad = jax.jit(jax.grad(sum_of_scores(row), argnums=(0, 1)))

  zero_row, duplicates = corpus.copy(), corpus.copy()
  zero_row[3] = 0.0
  duplicates[1:4] = duplicates[0]
  cases = {
    "plain": (query, corpus),
    "zero query": (np.zeros_like(query), corpus),
    "zero row": (query, zero_row),
    "zero corpus": (query, np.zeros_like(corpus)),
    "duplicates": (query, duplicates),
  }
  for name, inputs in cases.items():
    for value in grad(*inputs):
      assert np.isfinite(value).all(), name
  for value in grad(query, corpus):
    assert np.abs(value).max() > 1e-3


@per_decoder
def test_gradient_is_finite_where_places_are_missing(row):
  query, corpus = row.make_inputs(0)
  where = np.arange(NUM_DOCS) < K - 2

  def total(*x):
    return jnp.sum(row.decode(*x, where=where).scores)

  for value in jax.grad(total, argnums=(0, 1))(query, corpus):
    assert np.isfinite(value).all()
    assert np.abs(value).max() > 1e-3


@per_decoder
def test_gradient_matches_finite_differences(row):
  with jax.enable_x64(True):
    query, corpus = (np.float64(x) for x in row.make_inputs(0))
    converged = dataclasses.replace(row, config=row.converged or row.config)
    fn = jax.jit(sum_of_scores(converged))
    rng = np.random.default_rng(1)
    for argnum, x in enumerate((query, corpus)):
      grad = jax.jit(jax.grad(fn, argnum))(query, corpus)
      for _ in range(3):
        direction = rng.normal(size=x.shape)
        values = []
        for eps in (1e-6, -1e-6):
          inputs = [query, corpus]
          inputs[argnum] = x + eps * direction
          values.append(float(fn(*inputs)))
        numeric = (values[0] - values[1]) / 2e-6
        assert numeric == pytest.approx(np.vdot(grad, direction), rel=1e-5)


# Sharding: 13 documents over 8 devices.


@per_decoder
def test_sharded_equals_unsharded(row):
  query, corpus = row.make_inputs(0)
  queries = np.stack([row.make_inputs(s)[0] for s in (1, 2)])
  keep = np.arange(NUM_DOCS) % 4 != 1

  def everything(query, queries, corpus, where, keep):
    grads = jax.grad(sum_of_scores(row), argnums=(0, 1))
    return {
      "plain": row.decode(query, corpus, where=where),
      "kept": row.decode(query, corpus, where=keep),
      "vmap": jax.vmap(lambda q: row.decode(q, corpus, where=where))(queries),
      "grad": grads(query, corpus, where),
      "vmap grad": jax.vmap(lambda q: grads(q, corpus, where)[0])(queries),
    }

  where = np.ones(NUM_DOCS, bool)
  expected = jax.jit(everything)(query, queries, corpus, where, keep)
  mesh = sharding.make_mesh()
  assert mesh.size == 8
  with jax.set_mesh(mesh):
    rows, padding = sharding.pad_and_shard(corpus, mesh)
    assert rows.shape[0] == 16
    keep = jax.device_put(np.pad(keep, (0, 3)), padding.sharding)
    result = jax.jit(everything)(query, queries, rows, padding, keep)
    eager = row.decode(query, rows, where=padding)
  for key in ("plain", "kept", "vmap"):
    assert_same(result[key], expected[key])
    np.testing.assert_array_equal(
      result[key].aux.exact, expected[key].aux.exact
    )
  assert_same(eager, expected["plain"])
  np.testing.assert_allclose(
    result["vmap grad"], expected["vmap grad"], atol=1e-5
  )
  np.testing.assert_allclose(result["grad"][0], expected["grad"][0], atol=1e-5)
  np.testing.assert_allclose(
    result["grad"][1][:NUM_DOCS], expected["grad"][1], atol=1e-5
  )
  np.testing.assert_allclose(result["grad"][1][NUM_DOCS:], 0.0, atol=1e-6)


@per_decoder
@pytest.mark.parametrize("batch", [None, 3])
def test_a_sharded_corpus_is_not_gathered(row, batch):
  """Devices exchange candidates: nothing of num_docs rows."""
  num_docs = 4_096
  query, corpus = row.make_inputs(0, num_docs=num_docs)

  def decode(q, rows, where):
    return row.decode(q, rows, where=where)

  if batch is not None:
    query = np.stack([query] * batch)
    decode = jax.vmap(decode, in_axes=(0, None, None))
  mesh = sharding.make_mesh()
  with jax.set_mesh(mesh):
    rows, where = sharding.pad_and_shard(corpus, mesh)
    hlo = jax.jit(decode).lower(query, rows, where).compile().as_text()
  gathers = re.findall(r"= \w+\[([\d,]*)\]\S* all-gather(?:-start)?\(", hlo)
  sizes = [np.prod([int(n) for n in dims.split(",")]) for dims in gathers]
  assert sizes  # The regular expression still finds them.
  assert max(sizes) < num_docs


@per_decoder
def test_a_mesh_that_does_not_divide_the_corpus_is_ignored(row):
  query, corpus = row.make_inputs(0)
  expected = row.decode(query, corpus)
  with jax.set_mesh(sharding.make_mesh()):
    assert_same(row.decode(query, corpus), expected)


# Where, ties.


@per_decoder
@pytest.mark.parametrize("seed", range(3))
def test_where_equals_removing_documents(row, seed):
  query, corpus = row.make_inputs(seed)
  left_out = np.random.default_rng(seed).permutation(NUM_DOCS)[:5]
  where = ~np.isin(np.arange(NUM_DOCS), left_out)
  kept = np.flatnonzero(where)
  masked = row.decode(query, corpus, where=where)
  removed = row.decode(query, corpus[kept])
  np.testing.assert_array_equal(masked.indices, kept[removed.indices])
  np.testing.assert_allclose(masked.scores, removed.scores, atol=1e-5)
  everything = row.decode(query, corpus, where=[True] * NUM_DOCS)
  assert_same(everything, row.decode(query, corpus))


@per_decoder
@pytest.mark.parametrize("num_allowed", [0, 2])
def test_missing_places_are_marked(row, num_allowed):
  query, corpus = row.make_inputs(0)
  where = np.arange(NUM_DOCS) >= NUM_DOCS - num_allowed
  result = row.decode(query, corpus, where=where)
  found, missing = np.split(np.asarray(result.indices), [num_allowed])
  assert set(found) == set(np.flatnonzero(where))
  assert (missing == -1).all()
  assert (np.asarray(result.scores)[num_allowed:] == -np.inf).all()
  assert np.isfinite(np.asarray(result.scores)[:num_allowed]).all()
  assert bool(result.aux.finite)


@per_decoder
@pytest.mark.parametrize("sharded", [False, True])
def test_ties_go_to_the_lowest_index(row, sharded):
  query = np.float32([1, 0, 0, 0])
  same, opposite = np.tile(query, (16, 1)), np.tile(-query, (16, 1))
  for corpus in (same, opposite, np.zeros_like(same)):
    if sharded:
      mesh = sharding.make_mesh()
      with jax.set_mesh(mesh):
        result = row.decode(query, sharding.pad_and_shard(corpus, mesh)[0])
    else:
      result = row.decode(query, corpus)
    if row.keeps_ties or corpus is not same:
      assert result.indices.tolist() == list(range(K))
    else:
      np.testing.assert_allclose(result.scores, result.scores[0], atol=1e-6)


# Errors while tracing.


@per_decoder
@pytest.mark.parametrize(
  ("k", "message"),
  [
    (0, r"k must be between 1 and num_docs = 13, got k = 0; use min\(k, num_"),
    (14, r"k must be between 1 and num_docs = 13, got k = 14"),
    (-1, r"k must be between 1 and num_docs = 13, got k = -1"),
    (2.0, r"k must be a Python int \(it is static\), got 2.0"),
    (True, r"k must be a Python int \(it is static\), got True"),
    (None, r"k must be a Python int \(it is static\), got None"),
  ],
)
def test_k_out_of_bounds(row, k, message):
  with pytest.raises(ValueError, match=message):
    row.decode(*row.make_inputs(0), k=k)


@per_decoder
def test_traced_k_is_refused(row):
  with pytest.raises(ValueError, match="k must be a Python int"):
    jax.jit(lambda k: row.decode(*row.make_inputs(0), k=k))(3)


@per_decoder
def test_bad_shapes_and_dtypes(row):
  if row.represent is not None:
    pytest.skip("its inputs are not two arrays: see its own tests")
  query, corpus = row.make_inputs(0)
  where = np.ones(NUM_DOCS, bool)

  def message(*args, **kwargs):
    with pytest.raises(ValueError, match=r".") as eager:
      row.decode(*args, **kwargs)
    with pytest.raises(ValueError, match=r".") as traced:
      jax.eval_shape(lambda: row.decode(*args, **kwargs))
    assert str(eager.value) == str(traced.value)
    return str(eager.value)

  assert message(query, corpus[:0]) == (
    "corpus is empty (num_docs = 0): nothing to retrieve."
  )
  assert message(np.stack([query] * 2), corpus) == (
    "query must have shape [dim], got (2, 6); for a batch of `query`, use "
    "jax.vmap over its first axis."
  )
  assert message(query, corpus[None]) == (
    "corpus must have shape [num_docs, dim], got (1, 13, 6); for a batch of "
    "`corpus`, use jax.vmap over its first axis."
  )
  assert message(query, query) == (
    "corpus must have shape [num_docs, dim], got (6,)."
  )
  assert message(query[:4], corpus) == (
    "corpus must have shape [num_docs, dim], got (13, 6): dim is 4 in `query` "
    "and 6 here."
  )
  assert message(query, corpus, where=where[:4]) == (
    "where must have shape [num_docs], got (4,): num_docs is 13 in `corpus` "
    "and 4 here."
  )
  assert "jax.vmap" in message(query, corpus, where=where[None])
  assert message(query, corpus, where=where.astype(np.float32)) == (
    "where must be bool, got float32."
  )
  assert message(query, corpus, where=np.arange(NUM_DOCS)).startswith(
    "where must be bool, got int"
  )


@per_decoder
def test_wrong_params(row):
  query, corpus = row.make_inputs(0)
  none = dataclasses.replace(row, params=None)  # None stands for row.params.
  for params in row.wrong_params:
    with pytest.raises(ValueError, match=r"params"):
      none.decode(query, corpus, params=params)


@per_decoder
def test_batched_params_suggest_vmap(row):
  if row.params == ():
    pytest.skip("no params")
  query, corpus = row.make_inputs(0)
  params = jax.tree.map(lambda p: jnp.stack([p, p]), row.params)
  with pytest.raises(ValueError, match=r"jax\.vmap over params"):
    row.decode(query, corpus, params=params)
  swept = jax.vmap(lambda p: row.decode(query, corpus, params=p))(params)
  assert swept.indices.shape == (2, K)


@per_decoder
def test_wrong_config(row):
  query, corpus = row.make_inputs(0)
  others = [r.config for r in ROWS if r.module is not row.module]
  for config in [(), {}, type(row.config), gradients.Unroll(), *others]:
    with pytest.raises(ValueError, match=r"config must be .*Config, got"):
      row.decode(query, corpus, config=config)


@per_decoder
def test_config_is_hashable_frozen_and_keyword_only(row):
  config = row.config
  assert hash(config) == hash(dataclasses.replace(config))
  assert config == dataclasses.replace(config)
  with pytest.raises(TypeError):
    type(config)(1)
  with pytest.raises(TypeError):
    type(config)(unknown_key=1)
  for field in dataclasses.fields(config):
    with pytest.raises(dataclasses.FrozenInstanceError):
      setattr(config, field.name, None)


# Values.


@per_decoder
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_values_are_flagged(row, bad):
  query, corpus = row.make_inputs(0)
  spoiled = query.copy()
  spoiled[2] = bad
  result = row.decode(spoiled, corpus)
  assert not bool(result.aux.finite)
  assert not bool(result.aux.exact)

  rows = corpus.copy()
  rows[4, 2] = bad
  result = row.decode(query, rows, k=NUM_DOCS)
  assert not bool(result.aux.finite)
  assert not bool(result.aux.exact)
  if np.isnan(bad):
    assert 4 not in result.indices.tolist()
    assert int(result.indices[-1]) == -1
    if row.skips_nan:
      kept = np.delete(np.arange(NUM_DOCS), 4)
      expected = row.decode(query, corpus[kept], k=NUM_DOCS - 1)
      np.testing.assert_array_equal(result.indices[:-1], kept[expected.indices])


@per_decoder
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, np.float64])
def test_storage_dtypes(row, dtype):
  query, corpus = row.make_inputs(0)
  query, corpus = np.asarray(query, dtype), np.asarray(corpus, dtype)
  result = row.decode(query, corpus)
  assert result.scores.dtype == jnp.float32
  # Only the storage is narrow: the same numbers in float32 give the same.
  assert_same(result, row.decode(np.float32(query), np.float32(corpus)), 1e-6)
  mixed = row.decode(np.float32(query), corpus)
  assert_same(mixed, result, 1e-6)


@per_decoder
def test_int_lists(row):
  result = row.decode([2, 1], [[0, 1], [1, 0], [-1, 0]], k=3)
  expected = row.decode(
    np.float32([2, 1]), np.float32([[0, 1], [1, 0], [-1, 0]]), k=3
  )
  assert_same(result, expected, 0.0)
  assert result.scores.dtype == jnp.float32


@per_decoder
def test_float64_is_kept(row):
  with jax.enable_x64(True):
    query, corpus = row.make_inputs(0)
    double = row.decode(np.float64(query), np.float64(corpus))
    assert double.scores.dtype == jnp.float64
  single = row.decode(query, corpus)
  assert single.scores.dtype == jnp.float32
  assert_same(single, double)


# Tracing.


@per_decoder
def test_a_sweep_of_params_compiles_once(row):
  if not row.sweep:
    pytest.skip("no params")
  query, corpus = row.make_inputs(0, num_docs=11)  # A shape of its own.
  before = row.module._decode._cache_size()
  for params in row.sweep:
    row.decode(query, corpus, params=params)
    row.decode(jnp.asarray(query), corpus.tolist(), params=params)
  assert row.module._decode._cache_size() == before + 1


@per_decoder
def test_inside_jit_and_export(row):
  query, corpus = row.make_inputs(0)
  expected = row.decode(query, corpus)
  fn = jax.jit(lambda params, q, c: row.decode(q, c, params=params))
  assert_same(fn(row.params, query, corpus), expected, 1e-6)
  if row.exported is not None:
    fn = jax.jit(
      lambda params, q, c: row.decode(q, c, params=params, config=row.exported)
    )
  exported = jax.export.export(fn)(
    jax.tree.map(jnp.float32, row.params), query, corpus
  )
  result = exported.call(jax.tree.map(jnp.float32, row.params), query, corpus)
  assert_same(type(expected)(*result), expected, 1e-6)


@per_decoder
def test_params_inside_grad(row):
  if row.params == ():
    pytest.skip("no params")
  query, corpus = row.make_inputs(0)

  def total(params):
    return jnp.sum(row.decode(query, corpus, params=params).scores)

  for value in jax.tree.leaves(jax.grad(total)(row.params)):
    assert np.isfinite(value).all()
    assert np.abs(value).max() > 1e-3


def dot_generals(jaxpr):
  """Every dot_general equation, also in nested programs."""
  for eqn in jaxpr.eqns:
    if eqn.primitive.name == "dot_general":
      yield eqn
    for value in eqn.params.values():
      for inner in value if isinstance(value, (tuple, list)) else (value,):
        inner = getattr(inner, "jaxpr", inner)
        if hasattr(inner, "eqns"):
          yield from dot_generals(inner)


@per_decoder
@pytest.mark.parametrize("num_docs", [8, 20])  # Both sides of 2 dim.
def test_every_product_is_highest_precision(row, num_docs):
  query, corpus = row.make_inputs(0, num_docs=num_docs)
  fn = jax.value_and_grad(sum_of_scores(row), argnums=(0, 1))
  products = list(dot_generals(jax.make_jaxpr(fn)(query, corpus).jaxpr))
  assert len(products) >= 2
  highest = jax.lax.Precision.HIGHEST
  for eqn in products:
    assert eqn.params["precision"] == (highest, highest)


def test_decoders_swap_without_changing_the_call():
  query, corpus = unit_rows(0)
  for row in ROWS:
    result = row.decode(query, corpus, k=2, config=type(row.config)())
    assert result._fields == ("indices", "scores", "aux")
