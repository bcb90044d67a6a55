"""Seismic against brute force and a plain Python reference."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnn_jax import native
from nnn_jax.decoders import seismic
from nnn_jax.indexes import sparse, sparse_blocks

NUM_DOCS, VOCAB, K = 40, 12, 5


def world(seed, num_docs=NUM_DOCS, vocab=VOCAB):
  """Rows and a query of eighths, so that sums are exact; ties occur."""
  rng = np.random.default_rng(seed)
  docs = rng.integers(1, 17, (num_docs, vocab)) / 8
  docs *= rng.random(docs.shape) < 0.4
  docs[rng.integers(num_docs)] = 0
  query = rng.integers(1, 17, vocab) / 8 * (rng.random(vocab) < 0.6)
  return docs.astype(np.float32), query.astype(np.float32)


def rows_of(docs):
  indices = [np.flatnonzero(row) for row in docs]
  values = [row[row > 0] for row in docs]
  return sparse.from_lists(indices, values, docs.shape[1])


def vector(query, size=VOCAB):
  at = np.flatnonzero(query)
  indices = np.full(size, -1, np.int32)
  indices[: len(at)] = at
  values = np.zeros(size, np.float32)
  values[: len(at)] = query[at]
  return seismic.SparseVector(indices, values)


def build(docs, **settings):
  settings = {"dtype": np.float32, "centroid_fraction": 0.3, **settings}
  config = sparse_blocks.BuildConfig(**settings)
  return sparse_blocks.build(rows_of(docs), config=config)


def brute_force(docs, query, k=K):
  scores = docs.astype(np.float64) @ query
  shared = ((docs > 0) & (query > 0)).any(axis=1)
  order = [i for i in np.lexsort((np.arange(len(docs)), -scores)) if shared[i]]
  return (order[:k] + [-1] * k)[:k]


def reference(index, query, k, cut, heap_factor):
  """The search, in plain Python, of the arrays of an index."""
  index = jax.tree.map(np.asarray, index)
  panel = np.append(query, 0).astype(np.float64)
  lists = sorted(np.flatnonzero(query), key=lambda c: (-query[c], c))[:cut]
  heap = []
  for number, coord in enumerate(lists):
    blocks = range(index.list_starts[coord], index.list_starts[coord + 1])
    routes = dict.fromkeys(blocks, 0.0)
    buckets = index.bucket_starts[coord * index.num_buckets :]
    for at in range(buckets[0], buckets[index.num_buckets]):
      block = blocks.start + index.entry_blocks[at]
      entry = index.summary_least[block] * (index.entry_codes.dtype == np.uint8)
      entry += index.summary_step[block] * index.entry_codes[at]
      routes[block] += float(panel[index.entry_coords[at]] * entry)
    if number == 0:
      blocks = sorted(blocks, key=lambda b: -routes[b])
    for block in blocks:
      if len(heap) == k and routes[block] < heap_factor * -heap[-1][0]:
        continue
      start, end = index.block_starts[block : block + 2]
      for doc in index.postings[start:end]:
        score = float(panel[index.indices[doc]] @ index.values[doc])
        heap = sorted({*heap, (-score, int(doc))})[:k]
  return ([doc for _, doc in heap] + [-1] * k)[:k]


def config_of(search, backend="xla"):
  if backend == "native" and not native.seismic():
    pytest.skip("there is no C++ compiler")
  return seismic.SeismicConfig(search=search, backend=backend)


def padded_to(index, like):
  """An index in the shapes of another, so that worlds compile once."""
  names = ("max_blocks", "max_size", "bucket_bits", "max_bucket")
  sizes = {name: getattr(like, name) for name in names}

  def pad(x, shape, fill):
    x = np.asarray(x)
    width = [(0, n - m) for n, m in zip(shape, x.shape, strict=True)]
    return np.pad(x, width, constant_values=fill)

  def field(name, fill=0):
    return pad(getattr(index, name), getattr(like, name).shape, fill)

  return dataclasses.replace(
    index,
    indices=field("indices", VOCAB),
    values=field("values"),
    block_starts=field("block_starts"),
    postings=field("postings"),
    bucket_starts=padded_starts(index, like),
    entry_coords=field("entry_coords", VOCAB),
    entry_blocks=field("entry_blocks"),
    entry_codes=field("entry_codes"),
    summary_least=field("summary_least"),
    summary_step=field("summary_step"),
    **sizes,
  )


def padded_starts(index, like):
  """The starts of a bucket for each coordinate."""
  index, num = jax.tree.map(np.asarray, index), index.num_buckets
  counts = np.zeros((VOCAB, VOCAB), int)
  for coord in range(VOCAB):
    at = slice(*index.bucket_starts[[coord * num, (coord + 1) * num]])
    counts[coord] = np.bincount(index.entry_coords[at], minlength=VOCAB)
  return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def template(quantize):
  """The largest shapes that a world can have."""
  zeros = np.zeros
  blocks = NUM_DOCS * VOCAB
  code = np.uint8 if quantize else np.float32
  return seismic.SparseBlocks(
    indices=zeros((NUM_DOCS, VOCAB)),
    values=zeros((NUM_DOCS, VOCAB)),
    list_starts=zeros(VOCAB + 1),
    block_starts=zeros(blocks + 1),
    postings=zeros(blocks),
    bucket_starts=zeros(VOCAB * VOCAB + 1),
    entry_coords=zeros(blocks * VOCAB),
    entry_blocks=zeros(blocks * VOCAB),
    entry_codes=zeros(blocks * VOCAB, code),
    summary_least=zeros(blocks),
    summary_step=zeros(blocks),
    vocab=VOCAB,
    max_blocks=NUM_DOCS,
    max_size=NUM_DOCS,
    bucket_bits=0,
    max_bucket=NUM_DOCS,
  )


@pytest.mark.parametrize("backend", ["xla", "native"])
def test_sequential_is_the_reference_on_500_worlds(backend):
  search = seismic.Sequential(cut=3, heap_factor=0.75)
  config = config_of(search, backend)
  indexes, queries, expected = [], [], []
  for seed in range(500):
    docs, query = world(seed)
    index = build(docs, alpha=0.5, quantize=False, n_postings=8)
    expected.append(reference(index, query, K, 3, 0.75))
    indexes.append(padded_to(index, template(False)))
    queries.append(vector(query))
  indexes = jax.tree.map(lambda *x: np.stack(x), *indexes)
  queries = jax.tree.map(lambda *x: np.stack(x), *queries)
  decode = jax.jit(
    jax.vmap(lambda q, i: seismic.decode((), q, i, k=K, config=config))
  )
  result = decode(queries, indexes)
  np.testing.assert_array_equal(result.indices, expected)


@pytest.mark.parametrize(
  "search",
  [
    seismic.Exact(),
    seismic.Sequential(cut=VOCAB, heap_factor=1.0),
    seismic.Routed(
      cut=VOCAB,
      num_entries=6000,
      num_blocks=500,
      num_postings=500,
      num_rescored=512,
    ),
  ],
  ids=lambda s: type(s).__name__,
)
def test_exact_where_nothing_is_left_out(search):
  config = config_of(search)
  for seed in range(4):
    docs, query = world(seed)
    index = build(docs, alpha=1.0, quantize=False, n_postings=None)
    index = padded_to(index, template(False))
    result = seismic.decode((), vector(query), index, k=K, config=config)
    assert result.indices.tolist() == brute_force(docs, query)
    found = result.indices[result.indices >= 0]
    np.testing.assert_allclose(
      result.scores[: len(found)], docs[found] @ query, rtol=1e-6
    )
    assert int(result.aux.overflow) == 0
    assert bool(result.aux.exact) == isinstance(search, seismic.Exact)


SEARCHES = [
  seismic.Exact(),
  seismic.Sequential(),
  seismic.Routed(num_entries=256, num_blocks=16, num_postings=64, num_docs=40),
]
per_search = pytest.mark.parametrize(
  "search", SEARCHES, ids=lambda s: type(s).__name__
)


@per_search
def test_where_gradients_and_batches(search):
  docs, query = world(1)
  index, config = build(docs), config_of(search)
  q = vector(query)

  def decode(q, index=index, **kwargs):
    return seismic.decode((), q, index, k=K, config=config, **kwargs)

  plain = decode(q)
  where = np.ones(NUM_DOCS, bool)
  where[plain.indices[0]] = False
  assert int(plain.indices[0]) not in decode(q, where=where).indices.tolist()

  # An unseen query in the middle of a batch.
  nothing = seismic.SparseVector(np.full(VOCAB, VOCAB + 7), np.ones(VOCAB))
  batch = jax.tree.map(lambda *x: np.stack(x), q, nothing, q)
  result = jax.vmap(decode)(batch)
  assert result.indices[1].tolist() == [-1] * K
  assert (result.scores[1] == -np.inf).all()
  for i in (0, 2):
    np.testing.assert_array_equal(result.indices[i], plain.indices)
    np.testing.assert_array_equal(result.scores[i], plain.scores)

  def total(values, rows):
    own = dataclasses.replace(index, values=rows)
    scores = decode(seismic.SparseVector(q.indices, values), own).scores
    return jnp.sum(scores * jnp.arange(1, K + 1))

  by_query, by_rows = jax.grad(total, argnums=(0, 1))(q.values, index.values)
  expected = jnp.arange(1, K + 1) @ docs[np.asarray(plain.indices)]
  at = q.indices[q.indices >= 0]
  np.testing.assert_allclose(by_query[: len(at)], expected[at], rtol=1e-5)
  touched = np.flatnonzero(np.abs(by_rows).sum(axis=1))
  assert set(touched) == set(plain.indices.tolist())
  step = 2.0**-6
  moved = q.values.copy()
  moved[0] += step
  slope = (total(moved, index.values) - total(q.values, index.values)) / step
  np.testing.assert_allclose(slope, by_query[0], rtol=1e-3)


@per_search
def test_duplicate_ids_of_a_query_are_summed(search):
  index, config = build(np.float32([[0, 3], [1, 0]])), config_of(search)
  query = seismic.SparseVector(np.int32([1, 1]), np.float32([1, 1]))
  result = seismic.decode((), query, index, k=2, config=config)
  assert result.indices.tolist() == [0, -1]
  assert float(result.scores[0]) == 6.0


@per_search
def test_empty_and_non_finite(search):
  config = config_of(search)
  query = seismic.SparseVector(np.int32([1]), np.float32([1]))
  empty = build(np.zeros((3, 4), np.float32))
  result = seismic.decode((), query, empty, k=2, config=config)
  assert result.indices.tolist() == [-1, -1]
  index = build(np.float32([[0, 0], [0, 1]]))
  none = seismic.SparseVector(np.zeros(0, np.int32), np.zeros(0))
  result = seismic.decode((), none, index, k=2, config=config)
  assert result.indices.tolist() == [-1, -1]
  bad = seismic.SparseVector(np.int32([1]), np.float32([np.nan]))
  result = seismic.decode((), bad, index, k=2, config=config)
  assert not bool(result.aux.finite)
  assert not bool(result.aux.exact)
  for k in (0, 3):
    with pytest.raises(ValueError, match="k must be between 1 and num_docs"):
      seismic.decode((), query, index, k=k, config=config)


def test_native_batches_equal_xla():
  docs, _ = world(0, num_docs=300)
  index = build(docs + np.float32(0.01) * (docs > 0), dtype=np.float16)
  queries = [vector(world(seed)[1]) for seed in range(8)]
  queries = jax.tree.map(lambda *x: np.stack(x), *queries)
  where = np.arange(300) % 3 > 0
  search, results = seismic.Sequential(cut=6, heap_factor=0.9), []
  for backend in ("native", "xla"):
    config = config_of(search, backend)
    decode = partial(seismic.decode, k=K, config=config, where=where)
    results.append(jax.vmap(lambda q, f=decode: f((), q, index))(queries))
  np.testing.assert_array_equal(results[0].indices, results[1].indices)
  np.testing.assert_allclose(results[0].scores, results[1].scores, rtol=1e-5)
  grad = jax.grad(
    lambda values: jnp.sum(
      seismic.decode(
        (),
        seismic.SparseVector(queries.indices[0], values),
        index,
        k=K,
        config=config_of(search, "native"),
      ).scores
    )
  )(queries.values[0])
  assert float(jnp.sum(grad)) > 0


def test_no_compiler_is_one_line_in_the_log(monkeypatch, caplog):
  monkeypatch.setenv("CXX", "no-such-compiler")
  native.seismic.cache_clear()
  try:
    assert not native.seismic()
    assert not native.seismic()
    assert len(caplog.records) == 1
    assert "no-such-compiler" in caplog.text
    with pytest.raises(ValueError, match="a C\\+\\+ compiler"):
      seismic.decode(
        (),
        vector(world(0)[1]),
        build(world(0)[0]),
        k=K,
        config=seismic.SeismicConfig(backend="native"),
      )
  finally:
    native.seismic.cache_clear()


def test_errors_name_the_argument():
  index = build(np.float32([[0, 3], [1, 0]]))
  query = seismic.SparseVector(np.int32([1]), np.float32([1, 2]))
  with pytest.raises(ValueError, match=r"query\.values must have shape"):
    seismic.decode((), query, index, k=1)
  with pytest.raises(ValueError, match="query must be SparseVector"):
    seismic.decode((), np.ones(2), index, k=1)
  with pytest.raises(ValueError, match=r"search\.cut must be at least 1"):
    seismic.SeismicConfig(search=seismic.Sequential(cut=0))
  query = seismic.SparseVector(np.int32([1]), np.float32([1]))
  config = config_of(seismic.Routed(num_docs=1))
  with pytest.raises(ValueError, match=r"num_docs = 1 is below k = 2"):
    seismic.decode((), query, index, k=2, config=config)


def test_budgets_that_overflow_are_counted():
  index = build(world(3)[0])
  query = vector(world(3)[1])
  small = seismic.Routed(
    num_entries=8, num_blocks=8, num_postings=8, num_docs=5
  )
  result = seismic.decode((), query, index, k=K, config=config_of(small))
  assert int(result.aux.overflow) > 0
  assert int(result.aux.num_scored) <= 5
