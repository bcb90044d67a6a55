"""The q-net's two demonstrations: exclusive-or, and Radon's partition."""

import jax
import numpy as np
import pytest
import scipy.optimize

from experiments import hypencoder_xor, radon
from nnn_jax.core import qnet


@pytest.mark.parametrize("dim", [2, 8, 64])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_radon(dim, seed):
  points = np.random.default_rng(seed).normal(size=(dim + 2, dim))
  relevant = radon.partition(points)
  # No query vector q and threshold t: relevant q.x >= t + 1, others q.x <= t.
  signs = np.where(relevant, -1.0, 1.0)
  extended = np.column_stack([points, -np.ones(len(points))])
  result = scipy.optimize.linprog(
    np.zeros(dim + 1),
    A_ub=signs[:, None] * extended,
    b_ub=np.where(relevant, -1.0, 0.0),
    bounds=(None, None),
  )
  assert result.status == 2  # Proven infeasible.
  with jax.enable_x64(True):
    scores = np.asarray(
      qnet.scores(radon.network(points), points, layer_norm=False)
    )
  assert scores[relevant].min() > scores[~relevant].max() + 1e-3


def test_relevance_is_of_the_attributes():
  world, test = hypencoder_xor.make_worlds(0, num_docs=50)
  for one in (world, test):
    by_kind = [one.relevant[one.queries[:, 0] == i] for i in range(3)]
    single, both, either = by_kind
    assert (single >= both).all()
    assert not (both & either).any()
  pairs = [{tuple(sorted(q)) for q in w.queries[:, 1:]} for w in (world, test)]
  assert not pairs[0] & pairs[1]


@pytest.mark.slow
def test_the_network_wins_where_it_should():
  """Both seeds, with fewer parameters; pairs that were not trained together."""
  for seed in (0, 1):
    rows = [
      hypencoder_xor.run(name, seed=seed, num_steps=1_000)
      for name in ("q-net 64-32-32-1", "bi-encoder, 256")
    ]
    ours, theirs = rows
    assert ours["parameters"] < theirs["parameters"]
    assert ours["XOR"] > 0.9
    assert theirs["XOR"] < 0.3  # Some .42 of the documents are relevant.
    for kind in ("SINGLE", "AND"):
      assert min(ours[kind], theirs[kind]) > 0.9
