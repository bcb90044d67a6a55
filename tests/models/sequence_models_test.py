"""SASRec and HSTU: parity with golden vectors, causality, padding."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnn_jax.models import hstu, sasrec, sequence

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "mol"
OUTPUT = {"l2": "l2", "ln": "layer_norm"}
SIZES = {"num_items": 30, "length": 11, "dim": 12, "num_blocks": 2}


def _set(linear, weight, bias=None):
  linear.kernel[...] = jnp.asarray(weight.T, jnp.float32)
  if bias is not None:
    linear.bias[...] = jnp.asarray(bias, jnp.float32)


def _set_embedding(model, golden):
  items = golden["p/_embedding_module._item_emb.weight"]
  places = golden["p/_input_features_preproc._pos_emb.weight"]
  model.embedding.table[...] = jnp.asarray(items, jnp.float32)
  model.embedding.positions[...] = jnp.asarray(places, jnp.float32)


def golden_sasrec(golden, output):
  config = sasrec.SasrecConfig(**SIZES, num_heads=3, mlp_dim=7, output=output)
  model = sasrec.Sasrec(config, rngs=nnx.Rngs(0))
  _set_embedding(model, golden)
  for n, block in enumerate(model.blocks):
    p = f"p/attention_layers.{n}."
    weights = np.split(golden[p + "in_proj_weight"], 3)
    biases = np.split(golden[p + "in_proj_bias"], 3)
    for linear, weight, bias in zip(
      (block.query, block.key, block.value), weights, biases, strict=True
    ):
      _set(linear, weight, bias)
    _set(
      block.output, golden[p + "out_proj.weight"], golden[p + "out_proj.bias"]
    )
    p = f"p/forward_layers.{n}._conv1d."
    for linear, m in ((block.mlp_in, 0), (block.mlp_out, 3)):
      _set(linear, golden[f"{p}{m}.weight"][..., 0], golden[f"{p}{m}.bias"])
  return model


def golden_hstu(golden, output):
  config = hstu.HstuConfig(
    **SIZES, num_heads=2, key_dim=4, value_dim=5, output=output
  )
  model = hstu.Hstu(config, rngs=nnx.Rngs(0))
  _set_embedding(model, golden)
  for n, block in enumerate(model.blocks):
    p = f"p/_hstu._attention_layers.{n}."
    _set(block.uvqk, golden[p + "_uvqk"].T)
    _set(block.output, golden[p + "_o.weight"], golden[p + "_o.bias"])
    block.position_bias[...] = jnp.float32(golden[p + "_rel_attn_bias._pos_w"])
    block.time_bias[...] = jnp.float32(golden[p + "_rel_attn_bias._ts_w"])
  return model


def run(model, ids, timestamps=None, key=None):
  """The model's call, compiled as a whole: eager calls compile each product."""
  graphdef, state = nnx.split(model)

  @jax.jit
  def call(state):
    return nnx.merge(graphdef, state)(ids, timestamps, key=key)

  return call(state)


MAKE = {"sasrec": golden_sasrec, "hstu": golden_hstu}


@pytest.mark.parametrize("output", ["l2", "ln"])
@pytest.mark.parametrize("name", ["sasrec", "hstu"])
def test_parity(name, output):
  golden = np.load(GOLDEN / f"{name}_{output}.npz")
  model = MAKE[name](golden, OUTPUT[output])
  ids = jnp.asarray(golden["ids"], jnp.int32)
  timestamps = golden["ts"] - golden["ts"].min()
  got = np.asarray(run(model, ids, jnp.asarray(timestamps, jnp.int32)))
  np.testing.assert_allclose(got, golden["y"], atol=1e-5)


def _small(name, **changes):
  sizes = {
    "num_items": 20, "length": 6, "dim": 8, "num_blocks": 2, "num_heads": 2
  } | changes  # fmt: skip
  if name == "sasrec":
    config = sasrec.SasrecConfig(**sizes, mlp_dim=8)
    return sasrec.Sasrec(config, rngs=nnx.Rngs(0))
  config = hstu.HstuConfig(**sizes, key_dim=4, value_dim=4)
  return hstu.Hstu(config, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("name", ["sasrec", "hstu"])
def test_a_place_reads_no_later_item_and_no_padding(name):
  model = _small(name)
  ids = jnp.array([[3, 7, 9, 2, 0, 0], [3, 7, 9, 5, 6, 1], [0] * 6])
  times = jnp.array([[0, 5, 9, 30, 99, 0], [0, 5, 9, 30, 70, 80], [0] * 6])
  outputs = run(model, ids, times)
  assert jnp.isfinite(outputs).all()
  # Row 2 of HSTU knows when item 3 came, and not which it was.
  np.testing.assert_allclose(outputs[0, :3], outputs[1, :3], atol=1e-6)
  assert abs(outputs[0, 3] - outputs[1, 3]).max() > 1e-4
  assert not outputs[2].any()
  assert not outputs[0, 4:].any()

  graphdef, state = nnx.split(model)

  @jax.jit
  @jax.grad
  def slope(state):
    return jnp.sum(nnx.merge(graphdef, state)(ids, times)[:, :, 0])

  gradient = slope(state)["embedding"]["table"][...]
  assert jnp.isfinite(gradient).all()  # Also of the empty history.
  assert not gradient[0].any()  # Padding learns nothing.


def test_dropout_is_a_function_of_its_key():
  for name in ("sasrec", "hstu"):
    graphdef, state = nnx.split(_small(name, dropout=0.5, num_blocks=1))
    ids = jnp.array([[3, 7, 9, 2, 4, 1]])

    @jax.jit
    def call(state, key, graphdef=graphdef, ids=ids):
      model = nnx.merge(graphdef, state)
      return model(ids, key=key), model(ids)

    (one, plain), (again, _), (other, _) = (
      call(state, jax.random.key(seed)) for seed in (0, 0, 1)
    )
    assert (one == again).all()
    assert (one != other).any()
    assert (one != plain).any()


def test_hstu_reads_time_and_sasrec_does_not():
  ids = jnp.array([[3, 7, 9, 2, 4, 1]])
  slow, fast = jnp.arange(6)[None] * 86_400, jnp.arange(6)[None]
  model = _small("hstu")
  assert (run(model, ids, slow) != run(model, ids, fast)).any()
  # Only differences of time matter: any base may be subtracted.
  np.testing.assert_array_equal(
    run(model, ids, slow), run(model, ids, slow + 12_345)
  )
  model = _small("sasrec")
  np.testing.assert_array_equal(run(model, ids, slow), run(model, ids))


def test_time_buckets_by_hand():
  times = jnp.array([[0, 1, 3, 2**31 - 1]])
  buckets = hstu.time_buckets(times)[0]
  # Row 1's clock is t_2 = 3: |3 - 0|, |3 - 1|; ln(3) / .301 = 3.65.
  assert buckets[1, :2].tolist() == [3, 2]
  assert buckets[0, 0] == 0  # One second.
  assert buckets[3].tolist() == [71, 71, 71, 0]  # The last row's own time.


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"num_items": 0}, "num_items must be at least 1"),
    ({"dropout": 1.0}, r"dropout must be in \[0, 1\)"),
    ({"output": "none"}, "output must be one of l2, layer_norm"),
    ({"num_heads": 3}, "num_heads must divide dim"),
  ],
)
def test_bad_settings(changes, message):
  with pytest.raises(ValueError, match=message):
    _small("sasrec", **changes)


def test_bad_inputs():
  model = _small("hstu")
  with pytest.raises(ValueError, match="ids must have length 6"):
    model(jnp.zeros((1, 5), int))
  with pytest.raises(ValueError, match="integers"):
    model(jnp.zeros((1, 6)))
  with pytest.raises(ValueError, match="timestamps must have the shape"):
    model(jnp.zeros((1, 6), int), jnp.zeros((1, 5), int))


def test_item_vectors_leave_padding_out():
  embedding = _small("sasrec").embedding
  everything = embedding.item_vectors()
  assert everything.shape == (20, 8)
  np.testing.assert_array_equal(
    everything[jnp.array([0, 19])], embedding.item_vectors(jnp.array([1, 20]))
  )
  norms = jnp.linalg.norm(everything, axis=-1)
  np.testing.assert_allclose(norms, 1.0, atol=1e-5)
  assert not sequence.normalize(jnp.zeros(3), "l2").any()
  raw = _small("sasrec", output="layer_norm").embedding
  np.testing.assert_array_equal(raw.item_vectors(), raw.table[...][1:])
