"""Tests of nnn_jax.training.selection."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnn_jax import metrics, types
from nnn_jax.decoders import dense, mmr, nnn
from nnn_jax.solvers import fista
from nnn_jax.training import selection


def problem(seed=0, num_queries=20, num_docs=30, dim=8):
  rng = np.random.default_rng(seed)
  corpus = rng.normal(size=(num_docs, dim)).astype(np.float32)
  corpus /= np.linalg.norm(corpus, axis=1, keepdims=True)
  labels = np.zeros((num_queries, num_docs), bool)
  for row in labels:
    row[rng.choice(num_docs, 3, replace=False)] = True
  queries = labels.astype(np.float32) @ corpus
  queries += 0.3 * rng.normal(size=queries.shape).astype(np.float32)
  queries /= np.linalg.norm(queries, axis=1, keepdims=True)
  return queries, corpus, labels


class Row(NamedTuple):
  """The only parameter of `from_list`."""

  row: int


# Rankings for one query whose relevant documents are 0, 1 and 2.
RANKINGS = jnp.asarray(
  [
    [5, 6, 7],  # Nothing.
    [0, 6, 7],
    [6, 1, 0],
    [0, 6, 2],  # Comp 0, as the one above, and the same recall.
  ]
)


def from_list(params, query, corpus, *, k, config=None, where=None):
  """A decoder that returns a ranking by number."""
  indices = RANKINGS[params.row, :k].astype(jnp.int32)
  return types.DecodeResult(indices, -jnp.arange(k, dtype=jnp.float32), ())


def select_rows(rows, labels):
  best, values = selection.select(
    from_list,
    [Row(row) for row in rows],
    np.zeros((1, 2), np.float32),
    np.zeros((9, 2), np.float32),
    np.isin(np.arange(9), labels)[None],
    config=None,
    k=3,
  )
  return best.row, values


def test_the_higher_comp_wins_over_the_higher_place():
  # Relevant {0, 1}: row 2 has both.
  best, values = select_rows([0, 1, 3, 2], [0, 1])
  assert best == 2
  assert [v["comp"] for v in values] == [0, 0, 0, 1]
  np.testing.assert_allclose([v["recall"] for v in values], [0, 0.5, 0.5, 1])


def test_equal_comp_goes_to_the_higher_recall():
  assert select_rows([0, 1, 2, 3], [0, 1, 2, 8])[0] == 2


@pytest.mark.parametrize("rows", [[0, 2, 3], [0, 3, 2], [3, 2, 0]])
def test_equal_recall_goes_to_the_earlier(rows):
  earlier = next(row for row in rows if row != 0)
  assert select_rows(rows, [0, 1, 2])[0] == earlier


def test_all_equal_goes_to_the_first():
  assert select_rows([2, 0, 1], [8])[0] == 2


@pytest.mark.parametrize(
  ("decode", "candidates", "config"),
  [
    (dense.decode, [()], dense.DenseConfig()),
    (mmr.decode, selection.trade_off_grid([0.2, 0.9]), mmr.MmrConfig()),
    (
      nnn.decode,
      selection.penalty_grid([0.01, 0.3], [0.0, 1.0]),
      nnn.NnnConfig(solver=fista.Fista(num_steps=20)),
    ),
  ],
)
def test_values_are_those_of_decoding(decode, candidates, config):
  queries, corpus, labels = problem()
  best, values = selection.select(
    decode, candidates, queries, corpus, labels, config=config
  )
  assert len(values) == len(candidates)
  for params, value in zip(candidates, values, strict=True):
    indices = jax.vmap(
      lambda query, params=params: (
        decode(params, query, corpus, k=5, config=config).indices
      )
    )(queries)
    expected = metrics.evaluate(indices, labels, ks=(5,))
    assert value["comp"] == pytest.approx(float(expected["comp@5"]))
    assert value["recall"] == pytest.approx(float(expected["recall@5"]))
  chosen = values[candidates.index(best)]
  assert chosen["comp"] == max(v["comp"] for v in values)


def test_the_published_grids():
  grid = selection.penalty_grid()
  assert len(set(grid)) == 49
  assert grid[0] == nnn.NnnParams(0.01, 0.01)
  assert grid[1] == nnn.NnnParams(0.01, 0.03)
  assert grid[-1] == nnn.NnnParams(1.0, 1.0)
  trade_offs = [params.trade_off for params in selection.trade_off_grid()]
  np.testing.assert_allclose(trade_offs, np.linspace(0, 1, 11))


def test_the_grid_compiles_once():
  traces = 0

  def counted(*args, **kwargs):
    nonlocal traces
    traces += 1
    return nnn.decode(*args, **kwargs)

  config = nnn.NnnConfig(solver=fista.Fista(num_steps=3))
  inputs = problem(num_queries=4)

  def run(candidates):
    selection.select(counted, candidates, *inputs, config=config)
    return traces

  assert run(selection.penalty_grid()[:1]) == run(selection.penalty_grid()) > 0


def test_no_candidate_is_an_error():
  with pytest.raises(ValueError, match="candidates"):
    selection.select(
      dense.decode, [], *problem(num_queries=1), config=dense.DenseConfig()
    )
