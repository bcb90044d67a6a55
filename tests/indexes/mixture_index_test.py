"""The item side of a mixture of logits, as it is kept."""

import jax.numpy as jnp
import numpy as np
import pytest

from nnn_jax.core import mixture
from nnn_jax.indexes import mixture as mixture_index


def side(seed=0, num_docs=7):
  rng = np.random.default_rng(seed)
  components = rng.normal(size=(num_docs, 3, 4)).astype(np.float32)
  return mixture.ItemSide(
    components, np.float32(rng.normal(size=(num_docs, 6)))
  )


@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
@pytest.mark.parametrize("coarse", [False, True])
def test_build_save_load(tmp_path, dtype, coarse):
  items = side()
  index = mixture_index.build(items, dtype=dtype, coarse=coarse)
  expected = jnp.float32 if dtype is None else dtype
  for name in ("components", "gate", "mean"):
    assert getattr(index, name).dtype == expected
  stored = np.asarray(index.components, np.float32)
  np.testing.assert_allclose(stored, items.components, rtol=2**-8)
  np.testing.assert_allclose(
    np.asarray(index.mean, np.float32), stored.mean(axis=1), atol=1e-2
  )
  longest = np.linalg.norm(stored, axis=-1).max()
  np.testing.assert_allclose(index.longest, longest, rtol=1e-6)
  assert (index.coarse is not None) == (coarse and dtype is None)

  path = tmp_path / "items.npz"
  mixture_index.save(index, path)
  loaded = mixture_index.load(path)
  for name in mixture.CachedItems._fields:
    a, b = getattr(index, name), getattr(loaded, name)
    if a is None:
      assert b is None
      continue
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(a, b)


def test_errors(tmp_path):
  items = side()
  broken = items.components.copy()
  broken[4, 1, 2] = np.nan
  with pytest.raises(ValueError, match=r"items.components row 4 holds NaN"):
    mixture_index.build(items._replace(components=broken))
  with pytest.raises(ValueError, match=r"items.gate must have shape"):
    mixture_index.build(items._replace(gate=items.gate[:-1]))
  with pytest.raises(ValueError, match="dtype must be a float dtype"):
    mixture_index.build(items, dtype=np.int32)
  path = tmp_path / "items.npz"
  np.savez(path, a=np.ones(3))
  with pytest.raises(ValueError, match="not a whole file of format"):
    mixture_index.load(path)
  mixture_index.save(mixture_index.build(items), path)
  path.write_bytes(path.read_bytes()[:-40])
  with pytest.raises(ValueError, match="build the index again"):
    mixture_index.load(path)
  with pytest.raises(FileNotFoundError):
    mixture_index.load(tmp_path / "none.npz")
