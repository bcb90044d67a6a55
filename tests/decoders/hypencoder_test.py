"""Q-nets against numpy; every search against the exhaustive one."""

import dataclasses
import itertools
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnn_jax.core import qnet
from nnn_jax.decoders import hypencoder
from nnn_jax.indexes import clusters, neighbours

DIM, K = 6, 5


def make_net(rng, widths=(8, 8), scale=1.0, skip=False):
  sizes = (DIM, *widths)
  draw = lambda *shape: (scale * rng.normal(size=shape)).astype(np.float32)  # noqa: E731
  return hypencoder.QNet(
    tuple(
      draw(i, o) / np.float32(i**0.5) for i, o in itertools.pairwise(sizes)
    ),
    tuple(0.3 * draw(o) for o in widths),
    draw(sizes[-1]),
    draw(DIM) if skip else None,
  )


def numpy_scores(net, documents, layer_norm):
  x = np.float64(documents)
  last = len(net.matrices) - 1
  for i, (matrix, bias) in enumerate(
    zip(net.matrices, net.biases, strict=True)
  ):
    y = np.maximum(x @ np.float64(matrix) + bias, 0)
    if layer_norm:
      y = (y - y.mean(1, keepdims=True)) / np.sqrt(y.var(1) + 1e-5)[:, None]
    x = x + y if i < last and matrix.shape[0] == matrix.shape[1] else y
  skip = 0.0 if net.skip is None else np.float64(documents) @ net.skip
  return x @ np.float64(net.output) + skip


def make_corpus(rng, num_docs=300, groups=12):
  centres = rng.normal(size=(groups, DIM))
  rows = centres[rng.integers(0, groups, num_docs)]
  return (rows + 0.2 * rng.normal(size=rows.shape)).astype(np.float32)


def config(search, layer_norm=True):
  return hypencoder.HypencoderConfig(search=search, layer_norm=layer_norm)


@pytest.mark.parametrize("layer_norm", [True, False])
@pytest.mark.parametrize("widths", [(), (4,), (6, 6, 6), (8, 5)])
def test_equals_numpy(widths, layer_norm):
  rng = np.random.default_rng(0)
  # Half of the cases with a skip.
  net = make_net(rng, widths, skip=len(widths) % 2 == layer_norm)
  documents = make_corpus(rng, 40)
  expected = numpy_scores(net, documents, layer_norm)
  ours = qnet.scores(net, documents, layer_norm=layer_norm)
  np.testing.assert_allclose(ours, expected, rtol=2e-5, atol=2e-5)
  for block_size in (7, 40, 100):
    result = hypencoder.decode(
      (),
      net,
      documents,
      k=K,
      config=config(hypencoder.Exhaustive(block_size=block_size), layer_norm),
    )
    # By score, not by place: layer norm leaves scores of 1e-7 between them.
    assert len(set(result.indices.tolist())) == K
    for scores in (result.scores, expected[result.indices]):
      np.testing.assert_allclose(
        scores, np.sort(expected)[::-1][:K], rtol=2e-5, atol=2e-5
      )
    assert bool(result.aux.exact)


def test_bounds_hold_at_the_edge_of_the_balls():
  rng = np.random.default_rng(1)
  for widths in ((), (8,), (6, 6), (8, 5, 5)):
    net = make_net(rng, widths, skip=len(widths) > 1)
    centres = rng.normal(size=(20, DIM)).astype(np.float32)
    radii = rng.uniform(0, 0.5, 20).astype(np.float32)
    bounds = np.asarray(qnet.upper_bounds(net, centres, radii))
    steps = rng.normal(size=(500, 20, DIM))
    steps /= np.linalg.norm(steps, axis=-1, keepdims=True)
    inside = centres + steps * radii[:, None] * rng.choice(
      [0, 0.5, 1], (500, 20, 1)
    )
    values = numpy_scores(net, inside.reshape(-1, DIM), False).reshape(500, 20)
    assert (values <= bounds + 1e-6).all()
    if not widths:  # An inner product's bound is reached.
      best = centres @ net.output + radii * np.linalg.norm(net.output)
      assert (bounds >= best).all()  # By what rounding can do.
      np.testing.assert_allclose(bounds, best, atol=1e-4)


def make_indexes(rng, num_worlds, groups=20, size=15):
  """A batch of corpora, each in its own clusters; and those as indexes."""
  shape = num_worlds, groups, size, DIM
  spread = rng.uniform(0.05, 0.5, (num_worlds, 1, 1, 1))
  rows = rng.normal(size=(num_worlds, groups, 1, DIM))
  rows = (rows + spread * rng.normal(size=shape)).astype(np.float32)
  centres = rows.mean(axis=2)
  radii = np.linalg.norm(rows - centres[:, :, None], axis=-1).max(axis=-1)
  rows = rows.reshape(num_worlds, -1, DIM)
  ids = np.stack([rng.permutation(groups * size) for _ in rows])
  places = np.argsort(ids, axis=1)
  corpora = np.take_along_axis(rows, places[:, :, None], axis=1)
  every = np.arange(groups, dtype=np.int32)
  index = clusters.Clusters(
    embeddings=rows,
    ids=np.int32(ids),
    places=np.int32(places),
    starts=np.tile(size * every, (num_worlds, 1)),
    sizes=np.full((num_worlds, groups), size, np.int32),
    centres=centres,
    radii=np.float32(radii * 1.00001 + 1e-6),
    longest=np.linalg.norm(rows, axis=-1).max(axis=1),
    max_size=size,
  )
  return corpora, index


def test_certified_never_misses():
  """1,000 worlds: a corpus, its clusters, a network and a `where` each."""
  rng = np.random.default_rng(2)
  num = 1_000
  corpora, index = make_indexes(rng, num)
  scales = rng.choice([0.3, 1.0], num)
  nets = [make_net(rng, scale=scale, skip=True) for scale in scales]
  nets = jax.tree.map(lambda *x: np.stack(x), *nets)
  nets.skip[::2] = 0.0
  where = rng.random((num, 300)) < 0.9
  where[:5, 8:] = False  # Fewer, or as many as k.
  where[0, 2:] = False

  def both(net, corpus, index, where):
    def found(corpus, search):
      return hypencoder.decode(
        (), net, corpus, k=K, config=config(search, False), where=where
      )

    return (
      found(corpus, hypencoder.Exhaustive()),
      found(index, hypencoder.Certified()),
      found(index, hypencoder.Certified(num_probes=4)),
    )

  exact, ours, early = jax.jit(jax.vmap(both))(nets, corpora, index, where)
  assert ours.aux.finite.all()
  # The network rounds a row differently in another product: ids may swap
  # between scores that are equal to rounding.
  finite = np.isfinite(exact.scores)
  np.testing.assert_allclose(
    np.where(finite, ours.scores, 0),
    np.where(finite, exact.scores, 0),
    rtol=1e-5,
    atol=1e-5,
  )
  np.testing.assert_array_equal(ours.indices >= 0, finite)
  same = (ours.indices == exact.indices).all(axis=1)
  assert same.mean() > 0.99
  share = np.asarray(ours.aux.num_scored)[5:] / 300
  print(f"certified: {share.mean():.3f} of the documents scored")
  assert share.max() <= 1
  assert share.mean() < 0.95
  # Stopped early, the bound covers what is missed, and exact does not lie.
  missed = np.asarray(exact.scores[:, -1] - early.scores[:, -1])[5:]
  assert (missed <= np.asarray(early.aux.bound)[5:] + 1e-5).all()
  certain = np.asarray(early.aux.exact)
  np.testing.assert_allclose(
    early.scores[certain], exact.scores[certain], rtol=1e-5, atol=1e-5
  )


def test_certified_takes_the_lowest_row_of_a_tie():
  rng = np.random.default_rng(7)
  corpus = make_corpus(rng)
  corpus[150:160] = corpus[0]
  index = clusters.build(corpus, max_size=16)
  net = make_net(rng)._replace(output=np.zeros(8, np.float32), skip=corpus[0])
  for search, documents in (
    (hypencoder.Exhaustive(), corpus),
    (hypencoder.Certified(), index),
  ):
    result = hypencoder.decode(
      (), net, documents, k=11, config=config(search, False)
    )
    # All that tie with the first row, in order, wherever they start.
    rows = list(np.asarray(result.indices))
    tied = [0, *range(150, 160)]
    kept = [row for row in rows if row in tied]
    assert kept == tied[: len(kept)]


@pytest.mark.slow
def test_memory_is_of_a_block_not_of_the_corpus():
  """1M documents of 64: all hidden layers at once would be 128 MiB each."""
  program = """
import functools, sys
import jax, numpy as np
from experiments.bench import memory
from nnn_jax.decoders import hypencoder
rng = np.random.default_rng(0)
draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
net = hypencoder.QNet((draw(64, 32), draw(32, 32)), (draw(32), draw(32)),
                      draw(32))
corpus = jax.numpy.asarray(draw(1_000_000, 64))
for block_size in (4096, 1_000_000):
  search = hypencoder.Exhaustive(block_size=block_size)
  decode = functools.partial(
    hypencoder.decode, (), net, corpus, k=10,
    config=hypencoder.HypencoderConfig(search=search))
  jax.block_until_ready(decode())
  print(memory.peak_mib(lambda: jax.block_until_ready(decode()))[0])
"""
  done = subprocess.run(
    [sys.executable, "-c", program],
    cwd=pathlib.Path(__file__).parents[2],
    env=dict(os.environ, MALLOC_ARENA_MAX="1", JAX_PLATFORMS="cpu"),
    capture_output=True,
    text=True,
    check=True,
  )
  if "None" in done.stdout:
    pytest.skip("this system keeps no high-water mark")
  block, whole = map(float, done.stdout.split())
  print(f"{block:.0f} MiB by blocks, {whole:.0f} MiB at once")
  assert block < 64
  assert whole > 100


def test_clusters_find_more_with_more_probes():
  rng = np.random.default_rng(3)
  corpus = make_corpus(rng, 600, 30)
  index = clusters.build(corpus, max_size=16)
  num_clusters = index.centres.shape[0]
  nets = [make_net(rng) for _ in range(20)]
  nets = jax.tree.map(lambda *x: np.stack(x), *nets)

  def decode(corpus, search):
    fn = lambda net: hypencoder.decode(  # noqa: E731
      (), net, corpus, k=K, config=config(search)
    )
    return jax.jit(jax.vmap(fn))(nets)

  exact = decode(corpus, hypencoder.Exhaustive())
  recalls = []
  for num in (4, 16, num_clusters):
    result = decode(index, hypencoder.Clusters(num_probes=num))
    recalls.append(
      np.mean(
        [
          len(set(a) & set(b)) / K
          for a, b in zip(
            np.asarray(result.indices), np.asarray(exact.indices), strict=True
          )
        ]
      )
    )
    assert bool(result.aux.exact.all()) == (num == num_clusters)
  assert recalls[0] < recalls[1] < recalls[2] == 1.0


def python_walk(net, graph, beam, max_steps, k):
  """The walk, one document at a time."""
  embeddings = np.asarray(graph.embeddings)
  scores = np.asarray(qnet.scores(net, embeddings))
  frontier = list(np.asarray(graph.entries))
  visited, best = set(frontier), []
  scored = 0
  for _ in range(max_steps):
    scored += len(frontier)
    entered = sorted({*best, *frontier}, key=lambda i: (-scores[i], i))[:k]
    sources = sorted(frontier, key=lambda i: -scores[i])[:beam]
    reached = {int(j) for i in sources for j in np.asarray(graph.neighbours)[i]}
    frontier = sorted(reached - visited - {-1})
    visited |= set(frontier)
    if entered == best or not frontier:
      best = entered
      break
    best = entered
  return best, scored


@pytest.mark.parametrize("kind", ["nearest", "random"])
def test_graph_equals_a_walk_in_python(kind):
  rng = np.random.default_rng(4)
  corpus = make_corpus(rng, 200)
  graph = neighbours.build(corpus, degree=4, num_entries=6, kind=kind)
  search = hypencoder.Graph(beam=3, max_steps=6)
  decode = jax.jit(
    lambda net: hypencoder.decode((), net, graph, k=K, config=config(search))
  )
  for _ in range(30):
    net = make_net(rng)
    result = decode(net)
    expected, scored = python_walk(net, graph, 3, 6, K)
    np.testing.assert_array_equal(result.indices, expected)
    assert int(result.aux.num_scored) == scored
    assert not bool(result.aux.exact)


def test_gradient_is_that_of_the_returned_documents():
  with jax.enable_x64(True):
    rng = np.random.default_rng(5)
    net = jax.tree.map(np.float64, make_net(rng))
    corpus = np.float64(make_corpus(rng, 60))
    index = clusters.build(corpus, max_size=16)
    embeddings = index.embeddings

    def total(net, embeddings):
      result = hypencoder.decode(
        (),
        net,
        dataclasses.replace(index, embeddings=embeddings),
        k=K,
        config=config(hypencoder.Clusters(num_probes=4)),
      )
      return jnp.sum(result.scores)

    grads = jax.grad(total, argnums=(0, 1))(net, embeddings)
    leaves, tree = jax.tree.flatten((net, embeddings))
    step = [rng.normal(size=x.shape) for x in leaves]
    values = [
      float(
        total(
          *jax.tree.unflatten(
            tree, [x + e * d for x, d in zip(leaves, step, strict=True)]
          )
        )
      )
      for e in (1e-6, -1e-6)
    ]
    numeric = (values[0] - values[1]) / 2e-6
    exact = sum(
      np.vdot(g, d) for g, d in zip(jax.tree.leaves(grads), step, strict=True)
    )
    assert numeric == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_graph_is_saved_and_loaded(tmp_path, dtype):
  corpus = jnp.asarray(make_corpus(np.random.default_rng(8), 40), dtype)
  graph = neighbours.build(corpus, degree=3, num_entries=4)
  path = tmp_path / "graph.npz"
  graph.save(path)
  loaded = neighbours.load(path)
  assert loaded.dtype == dtype
  jax.tree.map(np.testing.assert_array_equal, graph, loaded)
  path.write_bytes(path.read_bytes()[:-100])
  with pytest.raises(ValueError, match=r"graph\.npz is not a whole file"):
    neighbours.load(path)
  clusters.build(corpus).save(path)
  with pytest.raises(ValueError, match="not a whole file of format 'nnn_jax n"):
    neighbours.load(path)
  with pytest.raises(FileNotFoundError):
    neighbours.load(tmp_path / "none.npz")


def test_errors():
  rng = np.random.default_rng(6)
  net, corpus = make_net(rng), make_corpus(rng, 30)
  index = clusters.build(corpus)
  decode = lambda net=net, corpus=corpus, k=3, **kw: hypencoder.decode(  # noqa: E731
    (), net, corpus, k=k, config=hypencoder.HypencoderConfig(**kw)
  )
  with pytest.raises(ValueError, match="layer_norm=False"):
    decode(search=hypencoder.Certified())
  with pytest.raises(ValueError, match=r"pass indexes\.clusters\.build"):
    decode(search=hypencoder.Clusters())
  with pytest.raises(ValueError, match=r"indexes\.neighbours\.build"):
    decode(search=hypencoder.Graph(), corpus=index)
  with pytest.raises(ValueError, match="is an index, Clusters, and search"):
    decode(corpus=index)
  with pytest.raises(ValueError, match="corpus has dim 4, and the query's"):
    decode(corpus=corpus[:, :4])
  with pytest.raises(ValueError, match=r"search\.num_probes must be at least"):
    decode(search=hypencoder.Clusters(num_probes=0))
  with pytest.raises(ValueError, match="raise its num_probes"):
    decode(
      corpus=clusters.build(corpus, max_size=2),
      search=hypencoder.Clusters(num_probes=1),
      k=20,
    )
  with pytest.raises(ValueError, match="2 matrices and 1 biases"):
    decode(net=net._replace(biases=net.biases[:1]))
  with pytest.raises(ValueError, match=r"matrices\[0\]`, use jax\.vmap"):
    decode(net=jax.tree.map(lambda x: np.stack([x, x]), net))
  with pytest.raises(ValueError, match="query must be a QNet"):
    decode(net=corpus[0])
