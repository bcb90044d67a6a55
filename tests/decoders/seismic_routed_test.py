"""The steps of Routed."""

import jax
import jax.numpy as jnp
import numpy as np

from nnn_jax.decoders import seismic_routed


def test_distinct_documents_in_order():
  rng = np.random.default_rng(0)
  docs = rng.integers(0, 2_000_000, (50, 200))
  docs[:, 100:] = rng.permuted(docs[:, :100], axis=1)
  docs[0] = 7
  listed = rng.random(docs.shape) < 0.8
  kept, used, lost = jax.vmap(lambda d, m: seismic_routed._distinct(d, m, 90))(
    docs.astype(np.int32), listed
  )
  for i in range(len(docs)):
    expected = list(dict.fromkeys(docs[i][listed[i]].tolist()))
    assert kept[i][used[i]].tolist() == expected[:90]
    assert int(lost[i]) == max(0, len(expected) - 90)


def test_expand_and_cumsum():
  starts, sizes = jnp.asarray([5, 9, 0, 30]), jnp.asarray([2, 0, 3, 1])
  places, group, listed, lost = seismic_routed._expand(starts, sizes, 8)
  assert places[listed].tolist() == [5, 6, 0, 1, 2, 30]
  assert group[listed].tolist() == [0, 0, 2, 2, 2, 3]
  assert int(lost) == 0
  places, _, listed, lost = seismic_routed._expand(starts, sizes, 4)
  assert places[listed].tolist() == [5, 6, 0, 1]
  assert int(lost) == 2
  for size in (1, 32, 33, 1000):
    x = np.random.default_rng(size).integers(0, 9, size)
    np.testing.assert_array_equal(seismic_routed._cumsum(x), np.cumsum(x))
