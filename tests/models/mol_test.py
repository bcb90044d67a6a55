"""Tests of nnn_jax.models.mol."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnn_jax import losses
from nnn_jax.core import mixture
from nnn_jax.models import mol

GOLDEN = pathlib.Path(__file__).parents[1] / "golden/mol/mol_8.npz"


@pytest.fixture(scope="module")
def golden():
  with np.load(GOLDEN) as file:
    return dict(file)


@pytest.fixture(scope="module")
def reference(golden):
  """The model of the golden vectors: 4 x 3 components, one of the user."""
  config = mol.MolConfig(
    query_dim=12,
    item_dim=12,
    num_query_components=4,
    num_item_components=3,
    component_dim=5,
    query_hidden=16,
    query_gate_hidden=7,
    item_gate_hidden=8,
    pair_gate_hidden=6,
    num_user_components=1,
    num_user_rows=10,
    activation="swiglu",
  )
  model = mol.Mol(config, rngs=nnx.Rngs(0))

  def p(name):
    return jnp.asarray(golden[f"p/{name}"], jnp.float32)

  query, item = "_query_embeddings_fn.", "_item_embeddings_fn."
  model.query_glu.kernel[...] = p(query + "_query_emb_proj_module.1._w")
  model.query_glu.bias[...] = p(query + "_query_emb_proj_module.1._b")[0]
  for layer, name in {
    model.query_components: query + "_query_emb_proj_module.2",
    model.item_components: item + "_item_emb_proj_module.1",
    model.query_gate.hidden: "_gating_fn._query_only_partial_module.0",
    model.query_gate.output: "_gating_fn._query_only_partial_module.2",
    model.item_gate.hidden: "_gating_fn._item_only_partial_module.1",
    model.item_gate.output: "_gating_fn._item_only_partial_module.3",
    model.pair_gate.hidden: "_gating_fn._qi_partial_module.1",
    model.pair_gate.output: "_gating_fn._qi_partial_module.3",
  }.items():
    layer.kernel[...] = p(name + ".weight").T
    if layer.bias is not None:
      layer.bias[...] = p(name + ".bias")
  model.user_tables[...] = p(query + "_uid_embeddings_0.weight")[None]
  return model


def small(**changes):
  settings = dict(
    query_dim=6,
    item_dim=5,
    num_query_components=3,
    num_item_components=2,
    component_dim=4,
    query_hidden=8,
    query_gate_hidden=7,
    item_gate_hidden=7,
    pair_gate_hidden=9,
  )
  config = mol.MolConfig(**(settings | changes))
  return mol.Mol(config, rngs=nnx.Rngs(0))


def normal(seed, *shape):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_parity_with_the_published_model(golden, reference):
  queries = reference.queries(golden["q"][:, None], golden["uid"][:, None])
  items = reference.items(golden["items"])
  phi, pi = reference(queries, items)
  logits = mixture.pair_logits(queries.components, items.components, 0.05)
  np.testing.assert_allclose(logits, golden["s"], atol=1e-5, rtol=1e-5)
  np.testing.assert_allclose(pi, golden["pi"], atol=1e-5)
  np.testing.assert_allclose(phi, golden["phi"], atol=1e-5, rtol=1e-5)


def test_parity_of_the_auxiliary_losses(golden, reference):
  loss = losses.load_balancing(golden["pi"].astype(np.float32))
  np.testing.assert_allclose(loss, golden["mi"], atol=1e-5)
  users = reference.user_embeddings(golden["uid"])
  norms = jnp.sum(users**2, axis=-1)
  np.testing.assert_allclose(jnp.mean(norms), golden["uid_l2"], atol=1e-5)


def test_gradients_at_a_zero_vector_are_finite():
  graphdef, params = nnx.split(small())

  @jax.jit
  @jax.grad
  def gradient(inputs):
    params, query, item = inputs
    model = nnx.merge(graphdef, params)
    phi, _ = model(model.queries(query), model.items(item))
    return phi

  # Zero biases: the components of zero vectors are zero.
  grads = gradient((params, jnp.zeros(6), jnp.zeros(5)))
  assert all(np.isfinite(g).all() for g in jax.tree.leaves(grads))


def test_finite_differences_in_float64():
  with jax.enable_x64(True):
    graphdef, params = nnx.split(small())
    params = jax.tree.map(lambda p: jnp.asarray(p, jnp.float64), params)
    inputs = (params, jnp.asarray(normal(0, 6), float), normal(1, 5) * 1.0)
    inputs = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), inputs)

    @jax.jit
    def phi(inputs):
      params, query, item = inputs
      model = nnx.merge(graphdef, params)
      return model(model.queries(query), model.items(item))[0]

    slope = jax.grad(phi)(inputs)
    rng = np.random.default_rng(2)
    way = jax.tree.map(lambda x: rng.normal(size=x.shape), inputs)
    step = 1e-5
    up = phi(jax.tree.map(lambda x, w: x + step * w, inputs, way))
    down = phi(jax.tree.map(lambda x, w: x - step * w, inputs, way))
    products = jax.tree.map(lambda g, w: jnp.sum(g * w), slope, way)
    expected = sum(jax.tree.leaves(products))
    assert phi(inputs).dtype == jnp.float64
    np.testing.assert_allclose((up - down) / (2 * step), expected, rtol=1e-6)


@pytest.mark.parametrize(
  ("query", "item"),
  [((), ()), ((7, 1), (5,)), ((7, 1), (7, 5)), ((2, 1, 1), (3, 4)), ((3,), ())],
)
def test_leading_axes_broadcast(query, item):
  model = small()
  queries = model.queries(normal(0, *query, 6))
  items = model.items(normal(1, *item, 5))
  phi, pi = model(queries, items)
  shape = np.broadcast_shapes(query, item)
  assert phi.shape == shape
  assert pi.shape == (*shape, 6)
  flat = [
    jnp.broadcast_to(x, (*shape, *x.shape[-n:])).reshape(-1, *x.shape[-n:])
    for x, n in zip((*queries, *items), (2, 1, 2, 1), strict=True)
  ]
  for i in range(phi.size):
    f, a, g, b = (x[i] for x in flat)
    one, _ = model(mixture.QuerySide(f, a), mixture.ItemSide(g, b))
    np.testing.assert_allclose(phi.ravel()[i], one, atol=1e-4)


def test_dropout_needs_rngs_and_keeps_the_mixture():
  model = small(gate_dropout=0.5, item_dropout=0.3, query_dropout=0.3)
  query, item = normal(0, 40, 1, 6), normal(1, 30, 5)
  fixed = model(model.queries(query), model.items(item))
  again = model(model.queries(query), model.items(item))
  np.testing.assert_array_equal(fixed[0], again[0])

  def dropped(seed):
    rngs = nnx.Rngs(dropout=seed)
    return model(model.queries(query), model.items(item), rngs=rngs)

  phi, pi = dropped(0)
  np.testing.assert_array_equal(pi, fixed[1])  # pi is that before its dropout.
  assert np.abs(phi - fixed[0]).max() > 0.1
  np.testing.assert_array_equal(phi, dropped(0)[0])
  assert np.abs(phi - dropped(1)[0]).max() > 0.1
  # What is left is a mixture again, or nothing: within the largest logit.
  assert np.abs(phi).max() <= 20.0 + 1e-4
  rngs = nnx.Rngs(dropout=0)
  changed = model.items(item, rngs=rngs).components
  norms = np.linalg.norm(changed, axis=-1)
  np.testing.assert_allclose(norms[norms > 0], 1.0, atol=1e-5)
  assert np.abs(changed - model.items(item).components).max() > 0.1


def test_user_components():
  model = small(num_user_components=2, num_user_rows=3, user_dropout=0.5)
  query = normal(0, 4, 6)
  side = model.queries(query, np.asarray([0, 1, 3, 4]))
  assert side.components.shape == (4, 3, 4)
  own = side.components[:, 1:]
  np.testing.assert_array_equal(own[0], own[2])  # 3 mod 3 = 0.
  np.testing.assert_array_equal(own[1], own[3])
  assert np.abs(own[0] - own[1]).max() > 0
  with pytest.raises(ValueError, match="user_ids must be given"):
    model.queries(query)
  with pytest.raises(ValueError, match="user_ids must be given"):
    small().queries(query, np.zeros(4, int))


def test_every_parameter_gets_a_gradient():
  graphdef, params = nnx.split(
    small(num_user_components=1, num_user_rows=2, gate_dropout=0.0)
  )

  @jax.jit
  @jax.grad
  def gradient(params):
    model = nnx.merge(graphdef, params)
    queries = model.queries(normal(0, 8, 1, 6), np.arange(8)[:, None] % 2)
    phi, _ = model(queries, model.items(normal(1, 8, 5)))
    return jnp.mean(losses.in_batch_softmax(phi, np.arange(8)))

  grads = gradient(params)
  assert all(np.any(np.asarray(g) != 0) for g in jax.tree.leaves(grads))


def test_geglu_is_the_exact_gelu():
  model = small(activation="geglu")
  x = normal(0, 6)
  left, right = jnp.split(model.query_glu(jnp.asarray(x)), 2)
  hidden = jax.nn.gelu(left, approximate=False) * right
  expected = np.asarray(model.query_components(hidden)).reshape(3, 4)
  expected = expected / np.linalg.norm(expected, axis=-1, keepdims=True)
  np.testing.assert_allclose(model.queries(x).components, expected, atol=1e-6)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"component_dim": 0}, "component_dim must be at least 1, got 0"),
    ({"temperature": 0.0}, "temperature must be positive"),
    ({"gate_dropout": 1.0}, r"gate_dropout must be in \[0, 1\)"),
    ({"num_user_components": 3}, "must be below num_query_components"),
    ({"num_user_components": 1}, "num_user_rows, 0, must be positive if"),
    ({"num_user_rows": -1}, "num_user_rows must not be negative"),
    ({"activation": "relu"}, "activation must be"),
  ],
)
def test_config_errors(changes, message):
  with pytest.raises(ValueError, match=message):
    small(**changes)


def test_shape_errors():
  model = small()
  with pytest.raises(ValueError, match=r"query must be \[..., 6\]"):
    model.queries(np.ones((3, 5)))
  with pytest.raises(ValueError, match=r"items must be \[..., 5\]"):
    model.items(np.ones((3, 6)))
  queries, items = model.queries(np.ones(6)), model.items(np.ones(5))
  other = small(component_dim=3).items(np.ones(5))
  with pytest.raises(ValueError, match=r"queries.components has dim 4"):
    model(queries, other)
  with pytest.raises(ValueError, match=r"items.gate must be"):
    model(queries, items._replace(gate=np.ones(5)))
