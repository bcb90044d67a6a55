"""The recommender: parity of its loss with golden vectors, dot, saving."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnn_jax import losses
from nnn_jax.models import hstu, mol, recommender, sasrec

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "mol"
SIZES = {"num_items": 30, "length": 11, "dim": 12, "num_blocks": 2}
SEQUENCE = "p/_hstu._attention_layers.{}."
MOL = "p/_ndp_module."


def _set(linear, weight, bias=None):
  linear.kernel[...] = jnp.asarray(weight.T, jnp.float32)
  if bias is not None:
    linear.bias[...] = jnp.asarray(bias.reshape(-1), jnp.float32)


def golden_recommender(golden, output, similarity):
  config = recommender.RecommenderConfig(
    sequence=hstu.HstuConfig(
      **SIZES, num_heads=2, key_dim=4, value_dim=5, output=output
    ),
    similarity=similarity,
  )
  model = recommender.Recommender(config, rngs=nnx.Rngs(0))
  embedding = model.sequence.embedding
  embedding.table[...] = jnp.float32(
    golden["p/_embedding_module._item_emb.weight"]
  )
  embedding.positions[...] = jnp.float32(
    golden["p/_input_features_preproc._pos_emb.weight"]
  )
  for n, block in enumerate(model.sequence.blocks):
    p = SEQUENCE.format(n)
    _set(block.uvqk, golden[p + "_uvqk"].T)
    _set(block.output, golden[p + "_o.weight"], golden[p + "_o.bias"])
    block.position_bias[...] = jnp.float32(golden[p + "_rel_attn_bias._pos_w"])
    block.time_bias[...] = jnp.float32(golden[p + "_rel_attn_bias._ts_w"])
  if isinstance(similarity, mol.MolConfig):
    _set_mol(model.similarity, golden)
  return model


def _set_mol(model, golden):
  def gate(mlp, name, first, second):
    p = f"{MOL}_gating_fn._{name}_partial_module."
    _set(mlp.hidden, golden[f"{p}{first}.weight"], golden[f"{p}{first}.bias"])
    bias = golden.get(f"{p}{second}.bias")
    _set(mlp.output, golden[f"{p}{second}.weight"], bias)

  gate(model.query_gate, "query_only", 0, 2)
  gate(model.item_gate, "item_only", 1, 3)
  gate(model.pair_gate, "qi", 1, 3)
  p = MOL + "_query_embeddings_fn._query_emb_proj_module."
  _set(model.query_glu, golden[p + "1._w"].T, golden[p + "1._b"])
  _set(model.query_components, golden[p + "2.weight"], golden[p + "2.bias"])
  p = MOL + "_item_embeddings_fn._item_emb_proj_module.1."
  _set(model.item_components, golden[p + "weight"], golden[p + "bias"])
  users = golden[MOL + "_query_embeddings_fn._uid_embeddings_0.weight"]
  model.user_tables[...] = jnp.float32(users)[None]


def _pairs(golden, model):
  """Outputs, targets, rows of users of all pairs, in the golden's order."""
  ids, lengths = golden["ids"], golden["lengths"]
  outputs = model.sequence(
    jnp.int32(ids), jnp.int32(golden["ts"] - golden["ts"].max())
  )
  rows = [(b, t) for b, n in enumerate(lengths) for t in range(n)]
  users, places = (np.array(column) for column in zip(*rows, strict=True))
  return outputs[users, places], jnp.int32(ids[users, places + 1]), users


MIXTURE = mol.MolConfig(
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
)


def test_loss_parity_of_mol():
  golden = dict(np.load(GOLDEN / "loss_hstu_ln.npz"))
  model = golden_recommender(golden, "layer_norm", MIXTURE)

  @jax.jit
  def values():
    outputs, positives, users = _pairs(golden, model)
    users = jnp.asarray(users) + 1  # The golden's user ids start from 1.
    mixture, vectors = model.similarity, model.sequence.embedding.item_vectors
    queries = model.query_sides(outputs, users)
    negatives = jnp.int32(golden["neg"])
    positive_scores, gates = mixture(queries, mixture.items(vectors(positives)))
    negative_scores, _ = mixture(
      jax.tree.map(lambda leaf: leaf[:, None], queries),
      mixture.items(vectors(negatives)),
    )
    loss = losses.sampled_softmax(
      positive_scores,
      negative_scores,
      positive_ids=positives,
      negative_ids=negatives,
    )
    squares = jnp.sum(mixture.user_embeddings(users) ** 2, axis=(-2, -1))
    return loss.mean(), losses.load_balancing(gates), squares.mean()

  loss, balance, squares = values()
  assert float(loss) == pytest.approx(float(golden["loss"]), abs=1e-5)
  assert float(balance) == pytest.approx(float(golden["aux_mi_loss"]), abs=1e-5)
  assert float(squares) == pytest.approx(
    float(golden["aux_uid_embedding_l2_norm"]), abs=1e-6
  )


def test_loss_parity_of_dot():
  golden = dict(np.load(GOLDEN / "loss_hstu_l2.npz"))
  model = golden_recommender(golden, "l2", recommender.DotConfig())

  @jax.jit
  def value():
    outputs, positives, _ = _pairs(golden, model)
    vectors = model.sequence.embedding.item_vectors
    negatives = jnp.int32(golden["neg"])
    loss = losses.sampled_softmax(
      model.similarity(outputs, vectors(positives))[0],
      model.similarity(outputs[:, None], vectors(negatives))[0],
      positive_ids=positives,
      negative_ids=negatives,
    )
    return loss.mean()

  assert float(value()) == pytest.approx(float(golden["loss"]), abs=1e-5)


def test_dot_is_the_inner_product():
  rng = np.random.default_rng(0)
  queries, items = rng.normal(size=(3, 4)), rng.normal(size=(5, 4))
  dot = recommender.Dot(recommender.DotConfig(temperature=0.5))
  every, gates = dot(jnp.float32(queries)[:, None], jnp.float32(items))
  assert gates is None
  np.testing.assert_allclose(every, queries @ items.T / 0.5, rtol=1e-5)
  own, _ = dot(jnp.float32(queries), jnp.float32(items[:3]))
  np.testing.assert_allclose(own, np.diag(every[:, :3]), rtol=1e-5)
  with pytest.raises(ValueError, match="temperature must be positive"):
    recommender.DotConfig(temperature=0.0)


@pytest.mark.parametrize("kind", ["dot", "mol"])
def test_a_saved_recommender_is_the_same(kind, tmp_path):
  shared = SIZES | {"num_blocks": 1, "num_heads": 2, "length": 4}
  if kind == "dot":
    config = recommender.RecommenderConfig(
      sequence=sasrec.SasrecConfig(**shared, mlp_dim=8),
      similarity=recommender.DotConfig(temperature=0.1),
    )
  else:
    config = recommender.RecommenderConfig(
      sequence=hstu.HstuConfig(
        **shared, key_dim=3, value_dim=3, output="layer_norm"
      ),
      similarity=MIXTURE,
    )
  model = recommender.Recommender(config, rngs=nnx.Rngs(0))
  model.save(tmp_path / "model", {"seed": 3})
  again, metadata = recommender.Recommender.load(tmp_path / "model")
  assert (again.config, metadata) == (config, {"seed": 3})
  ids = jnp.array([[3, 7, 0, 0], [0, 0, 0, 0]])

  @jax.jit
  def scores(state):
    model = nnx.merge(graphdef, state)
    queries = model.queries(
      ids, last=jnp.array([1, 0]), users=jnp.array([0, 12])
    )
    queries = jax.tree.map(lambda leaf: leaf[:, None], queries)
    return model.similarity(queries, model.items())[0]

  graphdef, state = nnx.split(model)
  before, after = scores(state), scores(nnx.split(again)[1])
  assert before.shape == (2, 30)
  assert jnp.isfinite(before).all()  # Also of an empty history.
  np.testing.assert_array_equal(before, after)


def test_a_folder_without_a_recommender(tmp_path):
  with pytest.raises(ValueError, match="holds no recommender"):
    recommender.Recommender.load(tmp_path)
