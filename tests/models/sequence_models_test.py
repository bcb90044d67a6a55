"""SASRec and HSTU: parity with golden vectors, causality, padding."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnn_jax.models import hstu, sasrec, sequence

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
OUTPUT = {"l2": "l2", "ln": "layer_norm"}
SIZES = {"num_items": 30, "length": 11, "dim": 12, "num_blocks": 2}


def _set(linear, weight, bias=None):
  linear.kernel[...] = jnp.asarray(weight.T, jnp.float32)
  if bias is not None:
    linear.bias[...] = jnp.asarray(bias, jnp.float32)


def _set_embedding(model, golden):
  items = golden["p/_embedding_module._item_emb.weight"]
  places = golden["p/_input_features_preproc._pos_emb.weight"]
  model.embedding.items[...] = jnp.asarray(items, jnp.float32)
  model.embedding.positions[...] = jnp.asarray(places, jnp.float32)


def golden_sasrec(golden, output):
  config = sasrec.SasrecConfig(**SIZES, num_heads=4, mlp_dim=7, output=output)
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
    _set(block.output, golden[p + "out_proj.weight"], golden[p + "out_proj.bias"])
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


MAKE = {"sasrec": golden_sasrec, "hstu": golden_hstu}


@pytest.mark.parametrize("output", ["l2", "ln"])
@pytest.mark.parametrize("name", ["sasrec", "hstu"])
def test_parity(name, output):
  golden = np.load(GOLDEN / f"{name}_{output}.npz")
  model = MAKE[name](golden, OUTPUT[output])
  ids = jnp.asarray(golden["ids"], jnp.int32)
  timestamps = golden["ts"] - golden["ts"].min()
  got = np.asarray(model(ids, jnp.asarray(timestamps, jnp.int32)))
  np.testing.assert_allclose(got, golden["y"], atol=1e-5)
