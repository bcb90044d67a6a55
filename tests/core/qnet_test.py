"""Tests of nnn_jax.core.qnet."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnn_jax.core import qnet


def random_qnet(rng, dim, widths, dtype=np.float32):
  sizes = (dim, *widths)

  def normal(*shape):
    return rng.normal(size=shape).astype(dtype)

  return qnet.QNet(
    matrices=tuple(
      normal(*pair) / pair[0] ** 0.5 for pair in itertools.pairwise(sizes)
    ),
    biases=tuple(normal(width) for width in widths),
    output=normal(sizes[-1]),
  )


def plain_numpy(weights, x, layer_norm):
  """One document, one neuron at a time, in float64."""
  x = [float(value) for value in x]
  last = len(weights.matrices) - 1
  for i, (w, b) in enumerate(
    zip(weights.matrices, weights.biases, strict=True)
  ):
    y = [
      max(sum(x[r] * float(w[r, c]) for r in range(len(x))) + float(b[c]), 0.0)
      for c in range(len(b))
    ]
    if layer_norm:
      mean = sum(y) / len(y)
      variance = sum((v - mean) ** 2 for v in y) / len(y)
      y = [(v - mean) / (variance + 1e-5) ** 0.5 for v in y]
    if i < last and len(x) == len(y):
      y = [a + c for a, c in zip(x, y, strict=True)]
    x = y
  return sum(a * float(c) for a, c in zip(x, weights.output, strict=True))


@pytest.mark.parametrize("layer_norm", [True, False])
@pytest.mark.parametrize("widths", [(), (5,), (7, 7, 7), (4, 4, 6)])
def test_matches_plain_numpy(widths, layer_norm):
  rng = np.random.default_rng(0)
  weights = random_qnet(rng, 7, widths)
  documents = rng.normal(size=(6, 7)).astype(np.float32)
  result = qnet.scores(weights, documents, layer_norm=layer_norm)
  expected = [plain_numpy(weights, x, layer_norm) for x in documents]
  np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-5)


def test_a_batch_of_queries_is_one_product_in_the_first_layer():
  rng = np.random.default_rng(0)
  nets = [random_qnet(rng, 7, (5, 4)) for _ in range(3)]
  batch = jax.tree.map(lambda *leaves: np.stack(leaves), *nets)
  documents = rng.normal(size=(6, 7)).astype(np.float32)
  batched = jax.vmap(qnet.scores, in_axes=(0, None))
  expected = np.stack([qnet.scores(net, documents) for net in nets])
  np.testing.assert_allclose(batched(batch, documents), expected, rtol=1e-5)
  jaxpr = jax.make_jaxpr(batched)(batch, documents).jaxpr
  first = next(e for e in jaxpr.eqns if "dot_general" in str(e.primitive))
  assert first.params["dimension_numbers"][1] == ((), ())  # No batch axis.


def test_bfloat16_documents_are_not_rounded_further():
  rng = np.random.default_rng(0)
  weights = random_qnet(rng, 8, (8, 8))
  documents = jnp.asarray(rng.normal(size=(6, 8)), jnp.bfloat16)
  np.testing.assert_allclose(
    qnet.scores(weights, documents),
    qnet.scores(weights, documents.astype(jnp.float32)),
    rtol=1e-5,
    atol=1e-5,
  )


def test_gradients_are_finite_where_a_layer_is_dead():
  weights = qnet.QNet((jnp.ones((2, 3)),), (jnp.full(3, -9.0),), jnp.ones(3))

  def total(weights, documents):
    return jnp.sum(qnet.scores(weights, documents))

  gradients = jax.grad(total, argnums=(0, 1))(weights, jnp.zeros((2, 2)))
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


@pytest.mark.parametrize(
  ("weights", "message"),
  [
    (np.ones(3), "query must be a QNet"),
    (((np.ones((2, 3)),), (), np.ones(3)), "1 matrices and 0 biases"),
    (((np.ones((2, 3)),), (np.ones(4),), np.ones(3)), "width_1 is 3 in"),
    (((np.ones((5, 2, 3)),), (np.ones(3),), np.ones(3)), "use jax.vmap"),
  ],
)
def test_what_is_no_qnet_is_named(weights, message):
  with pytest.raises(ValueError, match=message):
    qnet.check(weights)
