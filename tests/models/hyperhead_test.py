"""The hyperhead: shapes, padding, what reaches the query's network."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnn_jax import losses
from nnn_jax.core import qnet
from nnn_jax.models import hyperhead


def make(seed=0, **changes):
  config = hyperhead.HyperheadConfig(
    **{"token_dim": 10, "dim": 6, "widths": (8, 8, 5)} | changes
  )
  return hyperhead.Hyperhead(config, rngs=nnx.Rngs(seed))


def states(seed=1, batch=3, length=7):
  return (
    np.random.default_rng(seed)
    .normal(size=(batch, length, 10))
    .astype(np.float32)
  )


def test_it_equals_the_formula_in_numpy():
  head, e = make(), states()
  mask = np.ones(e.shape[:2])
  mask[1, 4:] = 0
  net = head(e, mask)
  one = head.matrices[0]
  for row in range(3):
    tokens = np.float64(e[row][mask[row] > 0])
    keys = tokens @ np.asarray(one.key.kernel) + np.asarray(one.key.bias)
    values = tokens @ np.asarray(one.value.kernel) + np.asarray(one.value.bias)
    logits = np.asarray(one.queries) @ keys.T / np.sqrt(6)
    attention = np.exp(logits - logits.max(axis=1, keepdims=True))
    attention /= attention.sum(axis=1, keepdims=True)
    h = np.maximum(attention @ values, 0)
    h -= h.mean(axis=1, keepdims=True)
    h /= np.sqrt((h**2).mean(axis=1, keepdims=True) + 1e-5)
    theta = h @ np.asarray(one.project.kernel) + np.asarray(one.project.bias)
    expected = (theta + np.asarray(one.base)).T
    np.testing.assert_allclose(net.matrices[0][row], expected, atol=1e-4)


def test_padding_changes_nothing_and_nothing_is_no_nan():
  head, e = make(), states(batch=1, length=3)
  long = np.concatenate([e, 50 * states(2, 1, 72)], axis=1)
  short = head(e, np.ones((1, 3)))
  padded = head(long, np.arange(75)[None] < 3)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), short, padded
  )
  empty = head(long, np.zeros((1, 75)))
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(empty))


@pytest.mark.parametrize("scale", ["features", "outputs"])
def test_gradients_reach_every_parameter(scale):
  head = make(scale=scale)
  graphdef, params = nnx.split(head)
  documents = states(3, 1, 4)[0, :, :6]

  def loss(params):
    nets = nnx.merge(graphdef, params)(states(), np.ones((3, 7)))
    scores = jax.vmap(lambda net: qnet.scores(net, documents))(nets)
    labels = jnp.asarray(np.eye(3, 4), bool)
    return losses.info_nce(scores, labels, temperature=1.0).mean()

  grads = jax.grad(loss)(params)
  for path, value in jax.tree_util.tree_leaves_with_path(grads):
    assert np.isfinite(value).all(), path
    name = jax.tree_util.keystr(path)
    # A key's bias shifts the logits of all tokens alike: softmax is the same.
    if scale == "features" and not ("key" in name and "bias" in name):
      assert np.abs(value).max() > 0, path


def test_the_network_depends_on_the_query():
  nets = make()(states(), np.ones((3, 7)))
  for leaf in jax.tree.leaves(nets):
    assert np.abs(leaf[0] - leaf[1]).max() > 1e-5


def test_published_scale_is_one_hot_at_the_start():
  """The trap: attention of a tensor with one row has no gradient."""
  wide = {"token_dim": 10, "dim": 256, "widths": (256,)}
  ours, published = make(**wide), make(**wide, scale="outputs")
  e = states(batch=1)

  def largest(head):
    one = head.biases[0]
    logits = (one.queries[...] / one.scale) @ one.key(e)[0].T
    return float(jax.nn.softmax(logits).max())

  assert largest(published) > 0.95
  assert largest(ours) < largest(published)


def test_errors():
  with pytest.raises(ValueError, match=r"widths\[1\] must be at least 1"):
    make(widths=(4, 0))
  with pytest.raises(ValueError, match="scale must be"):
    make(scale="o")
  with pytest.raises(ValueError, match="with token_dim 10"):
    make()(states()[..., :4], np.ones((3, 7)))
  with pytest.raises(ValueError, match="mask must be"):
    make()(states(), np.ones((3, 6)))
