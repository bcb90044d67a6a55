"""Q-nets against numpy; every search against the exhaustive one."""

import dataclasses
import itertools

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
    order = np.argsort(-expected)[:K]
    np.testing.assert_array_equal(result.indices, order)
    np.testing.assert_allclose(
      result.scores, expected[order], rtol=2e-5, atol=2e-5
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


@pytest.mark.parametrize("scale", [0.3, 1.0])
def test_certified_never_misses(scale):
  """500 networks a scale, each with its own `where`; ties included."""
  rng = np.random.default_rng(2)
  corpus = make_corpus(rng)
  corpus[150:160] = corpus[0]
  index = clusters.build(corpus, max_size=16)
  nets = [make_net(rng, scale=scale) for _ in range(500)]
  nets = jax.tree.map(lambda *x: np.stack(x), *nets)
  where = rng.random((500, 300)) < 0.9
  where[:5, 8:] = False  # Fewer, or as many as k.
  where[0, 2:] = False

  def both(net, where):
    exact = hypencoder.decode(
      (),
      net,
      corpus,
      k=K,
      config=config(hypencoder.Exhaustive(), False),
      where=where,
    )
    ours = hypencoder.decode(
      (),
      net,
      index,
      k=K,
      config=config(hypencoder.Certified(), False),
      where=where,
    )
    early = hypencoder.decode(
      (),
      net,
      index,
      k=K,
      config=config(hypencoder.Certified(num_probes=4), False),
      where=where,
    )
    return exact, ours, early

  exact, ours, early = jax.jit(jax.vmap(both))(nets, where)
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
  assert (np.asarray(ours.aux.num_scored) <= 300).all()
  # Stopped early, the bound covers what is missed, and exact does not lie.
  missed = np.asarray(exact.scores[:, -1] - early.scores[:, -1])[5:]
  assert (missed <= np.asarray(early.aux.bound)[5:] + 1e-5).all()
  certain = np.asarray(early.aux.exact)
  np.testing.assert_allclose(
    early.scores[certain], exact.scores[certain], rtol=1e-5, atol=1e-5
  )


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
