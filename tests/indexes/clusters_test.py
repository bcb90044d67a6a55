"""Clusters: the answers of the whole corpus, and bounds that always hold."""

import dataclasses
import os
from functools import partial

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from nnn_jax.core import corpora
from nnn_jax.decoders import dense, mmr, nnn
from nnn_jax.indexes import clusters
from nnn_jax.solvers import fista, working_set

NUM_DOCS, DIM, K = 400, 6, 3
# Small enough to skip documents and to certify from candidates alone.
SMALL = working_set.WorkingSet(capacity=6)
LARGE = working_set.WorkingSet(capacity=32)
KINDS = (
  "tight",
  "loose",
  "duplicates",
  "zeros",
  "long",
  "short",
  "one",
  "half",
)


@pytest.fixture(scope="module", autouse=True)
def _small_steps():
  """Two clusters a step, or a small world would be visited in one."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(clusters, "_STEP_DOCS", 32)
    yield


def world(seed, kind, num_docs=NUM_DOCS):
  """(query, corpus) of a kind that is hard in its own way."""
  rng = np.random.default_rng(seed)
  num_topics = 1 if kind == "one" else 40
  spread = {"tight": 0.02, "loose": 2.0}.get(kind, 0.2)
  topics = rng.normal(size=(num_topics, DIM))
  rows = topics[rng.integers(num_topics, size=num_docs)]
  rows = rows + spread * rng.normal(size=rows.shape)
  rows /= np.linalg.norm(rows, axis=1, keepdims=True)
  if kind == "duplicates":
    rows = rows[rng.integers(20, size=num_docs)]
  if kind == "zeros":
    rows[rng.integers(num_docs, size=num_docs // 2)] = 0.0
  rows *= {"long": 10.0, "short": 0.01}.get(kind, 1.0)
  if kind == "short":  # Lengths that differ a hundredfold.
    rows[::7] *= 100.0
  query = rows[rng.integers(num_docs, size=3)].sum(axis=0)
  query += 0.1 * rng.normal(size=DIM)
  query /= np.linalg.norm(query)
  dtype = jnp.bfloat16 if kind == "half" else np.float32
  return query.astype(np.float32), rows.astype(dtype)


def build(corpus, **kwargs):
  """An index of one shape, so that all worlds share a compilation."""
  index = clusters.build(corpus, max_size=16, num_steps=3, **kwargs)
  missing = 120 - len(index.sizes)
  grown = {
    name: jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1))
    for name, x in vars(index).items()
    if name in ("starts", "sizes", "centres", "radii")
  }
  return dataclasses.replace(index, max_size=16, **grown)


@partial(jax.jit, static_argnames="solver")
def _decode(params, query, corpus, where, solver):
  return nnn.decode(
    params, query, corpus, k=K, config=nnn.NnnConfig(solver=solver), where=where
  )


def decode(params, query, corpus, where=None, solver=SMALL):
  if where is None:  # The same compilation as with a mask.
    where = np.ones(corpus.shape[0], bool)
  params = nnn.NnnParams(*(jnp.asarray(p, query.dtype) for p in params))
  return _decode(params, query, corpus, where, solver)


def true_violation(params, query, corpus, weights, where=None):
  """By brute force in float64."""
  query, corpus, weights = (
    np.asarray(x).astype(np.float64) for x in (query, corpus, weights)
  )
  excess = corpus @ (query - weights @ corpus) - params.l1
  on = np.abs(excess - params.l2 * weights)
  violation = np.where(weights > 0, on, np.maximum(excess, 0.0))
  return np.max(violation if where is None else violation[where])


@hypothesis.settings(max_examples=200)
@hypothesis.given(
  seed=st.integers(0, 10**6),
  kind=st.sampled_from(KINDS),
  l1=st.sampled_from([0.2, 0.5, 0.7]),
  l2=st.sampled_from([0.01, 0.1, 1.0]),
  masked=st.booleans(),
  solver=st.sampled_from([SMALL, LARGE]),
)
def test_equals_the_whole_corpus_with_an_honest_certificate(
  seed, kind, l1, l2, masked, solver
):
  if kind == "half":  # A dtype of its own is a compilation of its own.
    solver = SMALL
  query, corpus = world(seed, kind)
  params = nnn.NnnParams(l1, l2)
  where = np.ones(NUM_DOCS, bool)
  if masked:
    where[np.random.default_rng(seed).integers(NUM_DOCS, size=200)] = False
  index = build(corpus)
  plain = decode(params, query, corpus, where, solver)
  result = decode(params, query, index, where, solver)
  weights = result.aux.weights.dense(NUM_DOCS)
  scale = float(np.square(np.float32(corpus)).sum(axis=1).max())
  true = true_violation(params, query, corpus, weights, where)
  assert true <= float(result.aux.kkt_violation) + 2e-6 * max(1.0, scale)
  assert not np.any(np.asarray(weights)[~where])
  sizes = int(plain.aux.support_size), int(result.aux.support_size)
  if max(sizes) < solver.capacity and scale < 2:
    assert bool(result.aux.exact)
    # With l2 the optimum is unique: as close as violations over l2 allow.
    np.testing.assert_allclose(
      weights, plain.aux.weights.dense(NUM_DOCS), atol=4e-6 / l2
    )
    found = np.asarray(result.scores) > 0
    np.testing.assert_array_equal(found, np.asarray(plain.scores) > 0)
    np.testing.assert_allclose(
      result.scores[found], plain.scores[found], atol=4e-6 / l2
    )


@partial(jax.jit, static_argnames="num")
def search(index, residual, threshold, keep, where, *, num=8):
  return index.search(
    residual, num=num, keep=keep, threshold=threshold, where=where
  )


@hypothesis.settings(max_examples=100)
@hypothesis.given(
  seed=st.integers(0, 10**6),
  kind=st.sampled_from(KINDS),
  length=st.sampled_from([1e-3, 0.3, 1.0, 30.0]),
  level=st.floats(-0.5, 1.5),
  num_kept=st.integers(0, 7),
  share=st.sampled_from([0.0, 0.01, 0.5, 1.0]),
)
def test_search_keeps_its_promises(seed, kind, length, level, num_kept, share):
  rng = np.random.default_rng(seed)
  query, corpus = world(seed, kind)
  residual = np.float32(length) * query
  exact = np.float64(np.asarray(corpus).astype(np.float64) @ residual)
  eps = 2e-6 * max(1.0, np.abs(exact).max())
  threshold = np.float32(level * exact.max())
  where = rng.random(NUM_DOCS) < share
  allowed = np.flatnonzero(where)
  kept = np.sort(rng.permutation(allowed)[:num_kept])
  keep = np.full(8, NUM_DOCS, np.int32)
  keep[: len(kept)] = kept
  found = search(build(corpus), residual, threshold, keep, where)

  indices = np.asarray(found.indices)
  listed = indices[indices >= 0]
  assert len(set(listed)) == len(listed) == min(8, len(allowed))
  assert (indices[: len(kept)] == kept).all()
  assert where[listed].all()
  products = np.asarray(found.correlation)[: len(listed)]
  np.testing.assert_allclose(products, exact[listed], atol=eps)
  others = products[len(kept) :]
  assert (np.diff(others) <= 0).all()
  rest = np.setdiff1d(allowed, listed)
  if rest.size:
    assert exact[rest].max() <= float(found.rest) + eps
    if others.size and others.max() <= threshold:
      assert float(found.rest) <= threshold
  assert len(listed) <= int(found.num_scored) <= NUM_DOCS + len(kept)


@hypothesis.given(
  seed=st.integers(0, 10**6),
  kind=st.sampled_from(KINDS),
  along=st.booleans(),
)
def test_bounds_hold_also_where_they_are_tight(seed, kind, along):
  """Against float64, for residuals that point from a centre to a member."""
  query, corpus = world(seed, kind)
  index = build(corpus)
  rows = np.asarray(index.embeddings).astype(np.float64)
  cluster = np.repeat(np.arange(120), np.asarray(index.sizes))
  residual = query
  if along:
    apart = rows - np.asarray(index.centres, np.float64)[cluster]
    far = np.argmax(np.linalg.norm(apart, axis=1))
    residual = (1e3 * apart[far]).astype(np.float32)
  bounds = np.asarray(index.bounds(residual), np.float64)
  assert (rows @ residual <= bounds[cluster]).all()
  norms = np.linalg.norm(rows, axis=1)
  assert norms.max() <= float(index.max_norm()) <= 1.001 * norms.max()


def test_tight_clusters_are_skipped():
  query, corpus = world(0, "tight")
  params = nnn.NnnParams(0.7, 0.1)
  result = decode(params, query, build(corpus), solver=LARGE)
  assert bool(result.aux.exact)
  # 64 candidates a pass are asked for.
  assert int(result.aux.num_scored) < NUM_DOCS / 2


def test_vmap_equals_loop():
  _, corpus = world(0, "loose")
  index = build(corpus)
  queries = np.stack([world(seed, "loose")[0] for seed in range(4)])
  params = nnn.NnnParams(0.2, 0.1)
  batched = jax.vmap(decode, in_axes=(None, 0, None))(params, queries, index)
  for i, query in enumerate(queries):
    single = decode(params, query, index)
    jax.tree.map(
      lambda b, s, i=i: np.testing.assert_allclose(b[i], s, atol=1e-5),
      batched,
      single,
    )


def test_gradients_equal_those_of_the_array():
  with jax.enable_x64(True):
    query, corpus = (np.float64(x) for x in world(1, "loose"))
    index = build(corpus)
    pull = np.random.default_rng(0).normal(size=NUM_DOCS)

    @partial(jax.jit, static_argnums=3)
    def total(params, query, embeddings, indexed):
      documents = embeddings
      if indexed:
        documents = dataclasses.replace(index, embeddings=embeddings)
      weights = decode(params, query, documents).aux.weights
      return weights.dense(NUM_DOCS) @ pull

    grad = jax.grad(total, argnums=(0, 1, 2))
    params = nnn.NnnParams(0.5, 0.1)
    plain = grad(params, query, corpus, False)
    result = grad(params, query, index.embeddings, True)
    jax.tree.map(
      partial(np.testing.assert_allclose, atol=1e-9), plain[:2], result[:2]
    )
    np.testing.assert_allclose(plain[2][index.ids], result[2], atol=1e-9)
    assert np.abs(plain[2]).max() > 1e-3


# Building.


@pytest.mark.parametrize("kind", KINDS)
def test_every_document_is_in_one_cluster(kind):
  _, corpus = world(0, kind)
  index = clusters.build(corpus, num_clusters=5, max_size=32)
  assert isinstance(index, corpora.Searchable)
  assert index.shape == corpus.shape
  assert index.dtype == corpus.dtype
  assert sorted(np.asarray(index.ids)) == list(range(NUM_DOCS))
  np.testing.assert_array_equal(index.embeddings, corpus[index.ids])
  np.testing.assert_array_equal(index.ids[index.places], np.arange(NUM_DOCS))
  assert int(index.sizes.sum()) == NUM_DOCS
  assert 0 < int(index.sizes.min()) <= int(index.sizes.max()) <= 32
  np.testing.assert_array_equal(
    index.starts, np.cumsum(index.sizes) - index.sizes
  )
  np.testing.assert_array_equal(
    index.rows(np.asarray([7, 3])), np.float32(corpus[[7, 3]])
  )


def test_the_same_seed_gives_the_same_clusters():
  _, corpus = world(0, "loose")
  first, again, other = (clusters.build(corpus, seed=s) for s in (1, 1, 2))
  jax.tree.map(np.testing.assert_array_equal, first, again)
  assert not np.array_equal(first.ids, other.ids)


def test_more_clusters_than_documents():
  query, corpus = world(0, "loose", num_docs=5)
  index = clusters.build(corpus, num_clusters=50)
  assert index.sizes.tolist() == [1] * 5
  params = nnn.NnnParams(0.2, 0.1)
  result = decode(params, query, index)
  assert bool(result.aux.exact)
  weights = result.aux.weights.dense(5)
  assert true_violation(params, query, corpus, weights) < 1e-6


def test_what_cannot_be_built_is_named():
  _, corpus = world(0, "loose")
  spoiled = corpus.copy()
  spoiled[7, 1] = np.nan
  with pytest.raises(ValueError, match="corpus row 7 holds NaN"):
    clusters.build(spoiled)
  with pytest.raises(ValueError, match="corpus is empty"):
    clusters.build(corpus[:0])
  for name in ("num_clusters", "max_size", "num_steps"):
    with pytest.raises(ValueError, match=f"{name} must be >= 1, got 0"):
      clusters.build(corpus, **{name: 0})


def test_who_takes_an_index():
  query, corpus = world(0, "loose")
  index = build(corpus)
  solver = nnn.NnnConfig(solver=fista.Fista())
  with pytest.raises(
    ValueError, match=r"index, Clusters: Fista needs an array"
  ):
    nnn.decode(nnn.NnnParams(), query, index, k=K, config=solver)
  with pytest.raises(ValueError, match=r"index, Clusters: this decoder needs"):
    dense.decode((), query, index, k=K)
  with pytest.raises(ValueError, match=r"index, Clusters: this decoder needs"):
    mmr.decode(mmr.MmrParams(0.5), query, index, k=K)
  with pytest.raises(ValueError, match="dim is 5 in `query` and 6 here"):
    decode(nnn.NnnParams(), query[:5], index)


def test_a_nan_query_is_flagged():
  query, corpus = world(0, "loose")
  result = decode(nnn.NnnParams(), np.nan * query, build(corpus))
  assert not bool(result.aux.exact)
  assert not bool(result.aux.finite)


# Files.


@pytest.mark.parametrize("kind", ["loose", "half"])
def test_a_saved_index_loads_as_it_was(tmp_path, kind):
  index = clusters.build(world(0, kind)[1])
  index.save(tmp_path / "a.npz")
  loaded = clusters.load(tmp_path / "a.npz")
  assert loaded.dtype == index.dtype
  assert jax.tree.structure(loaded) == jax.tree.structure(index)
  jax.tree.map(np.testing.assert_array_equal, loaded, index)


def test_a_killed_save_leaves_the_old_file(tmp_path, monkeypatch):
  old, new = (clusters.build(world(s, "loose")[1]) for s in (0, 1))
  old.save(tmp_path / "a.npz")

  def killed(_):
    raise KeyboardInterrupt

  monkeypatch.setattr(os, "fsync", killed)
  with pytest.raises(KeyboardInterrupt):
    new.save(tmp_path / "a.npz")
  assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]
  loaded = clusters.load(tmp_path / "a.npz")
  np.testing.assert_array_equal(loaded.ids, old.ids)


def test_another_file_is_refused(tmp_path):
  path = tmp_path / "a.npz"
  index = clusters.build(world(0, "loose")[1])
  index.save(path)
  whole = path.read_bytes()
  with np.load(path) as file:
    arrays = dict(file)
  with pytest.raises(FileNotFoundError):
    clusters.load(tmp_path / "b.npz")
  for data in (b"", b"text", whole[: len(whole) // 2]):
    path.write_bytes(data)
    with pytest.raises(
      ValueError, match=r"a.npz is not a whole file of format"
    ):
      clusters.load(path)
  np.savez(path, **(arrays | {"format": np.str_("nnn_jax clusters 0")}))
  with pytest.raises(ValueError, match="format is nnn_jax clusters 0"):
    clusters.load(path)
  np.savez(path, ids=arrays["ids"])
  with pytest.raises(ValueError, match="build the clusters again"):
    clusters.load(path)
