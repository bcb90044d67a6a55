"""Tests of nnn_jax.metrics, against ir_measures and by brute force."""

from __future__ import annotations

import functools
import pathlib

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import ir_measures
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import report
from nnn_jax import metrics

METRICS = [
  metrics.recall,
  metrics.completeness,
  metrics.hit_rate,
  metrics.precision,
  metrics.mrr,
  metrics.ndcg,
]
KS = (1, 3, 5, 10)
NUM_DOCS = 7

# Whole functions compile faster than their operations one by one.
_evaluate = jax.jit(metrics.evaluate, static_argnames="ks")
_per_query = jax.jit(metrics.per_query, static_argnames="ks")

rankings = st.permutations(range(NUM_DOCS)).map(np.array)
grades = hnp.arrays(np.int32, NUM_DOCS, elements=st.integers(0, 3))


def _random_runs(seed, *, graded, num_queries=40, num_docs=60):
  """Rankings of tied scores by (score, row), with missing places."""
  rng = np.random.default_rng(seed)
  scores = rng.integers(0, 6, (num_queries, num_docs))  # Many ties.
  labels = rng.random((num_queries, num_docs)) < 0.06
  labels[:3] = False
  labels = labels * rng.integers(1, 4, labels.shape) if graded else labels
  indices = np.argsort(-scores, axis=1, kind="stable")[:, :12]
  indices = indices.astype(np.int32)
  for row, kept in enumerate(rng.integers(0, 13, num_queries)):
    if row % 3 == 0:
      indices[row, kept:] = -1
  indices[5] = -1  # Nothing retrieved at all.
  labels[5, 0] = 1
  return indices, labels


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
def test_agrees_with_ir_measures(tmp_path: pathlib.Path, seed, graded):
  indices, labels = _random_runs(seed, graded=graded)
  query_ids = [f"query {i}" for i in range(len(indices))]
  # Ids in an order of their own: tools break ties by id, decoders by row.
  doc_ids = [f"{(37 * j) % 60} é%" for j in range(labels.shape[1])]
  run, qrels = tmp_path / "run.txt", tmp_path / "qrels.txt"
  report.write_run(run, query_ids, doc_ids, indices, tag="random ties")
  report.write_qrels(qrels, query_ids, doc_ids, labels)

  theirs = {
    f"{ours}@{k}": measure @ k
    for k in KS
    for ours, measure in {
      "recall": ir_measures.R,
      "ndcg": ir_measures.nDCG,
      "precision": ir_measures.P,
      "hit": ir_measures.Success,
    }.items()
  } | {"mrr": ir_measures.RR}
  read_qrels = list(ir_measures.read_trec_qrels(str(qrels)))
  read_run = list(ir_measures.read_trec_run(str(run)))
  want = ir_measures.calc_aggregate(theirs.values(), read_qrels, read_run)
  got = _evaluate(indices, labels, ks=KS)
  for name, measure in theirs.items():
    np.testing.assert_allclose(got[name], want[measure], atol=1e-5)
  assert got["num_without_relevant"] == (~labels.any(axis=1)).sum() >= 3
  assert got["num_queries"] == labels.any(axis=1).sum()

  # And query by query.
  values = {
    name: np.asarray(value)
    for name, value in _per_query(indices, labels, ks=KS).items()
  }
  rows = {report.encode_id(name): i for i, name in enumerate(query_ids)}
  names = {measure: name for name, measure in theirs.items()}
  for one in ir_measures.iter_calc(theirs.values(), read_qrels, read_run):
    np.testing.assert_allclose(
      values[names[one.measure]][rows[one.query_id]], one.value, atol=1e-5
    )


@pytest.mark.parametrize("seed", range(3))
def test_completeness_by_brute_force(seed):
  indices, labels = _random_runs(seed, graded=False, num_docs=20)
  for k in (1, 3, 5, 10, 12):
    want = [
      bool(s) and s <= set(ranking[:k].tolist())
      for ranking, s in zip(
        indices,
        (set(np.flatnonzero(row).tolist()) for row in labels),
        strict=True,
      )
    ]
    got = metrics.completeness(indices, labels, k=k)
    np.testing.assert_array_equal(got, np.array(want, np.float32))
  assert metrics.completeness(indices, labels, k=12).sum() > 0


def test_by_hand():
  indices = jnp.array([3, 0, -1, 2, 1])
  labels = jnp.array([3, 0, 1, 0, 2])  # S = {0, 2, 4}; 4 is not retrieved.
  values = _per_query(indices, labels, ks=(1, 2, 5))
  log3, log5 = np.log2(3), np.log2(5)
  want = {
    "recall@1": 0,
    "recall@2": 1 / 3,
    "recall@5": 2 / 3,
    "comp@5": 0,
    "hit@1": 0,
    "hit@2": 1,
    "precision@2": 1 / 2,
    "precision@5": 2 / 5,
    "ndcg@1": 0,
    "ndcg@2": (3 / log3) / (3 + 2 / log3),
    "ndcg@5": (3 / log3 + 1 / log5) / (3 + 2 / log3 + 1 / 2),
    "mrr": 1 / 2,
  }
  for name, value in want.items():
    np.testing.assert_allclose(values[name], value, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("metric", METRICS)
def test_no_relevant_documents_is_zero(metric):
  assert metric(jnp.arange(3), jnp.zeros(4, bool), k=3) == 0.0
  no_docs = metric(jnp.full(3, -1), jnp.zeros(0, bool), k=3)
  assert no_docs == 0.0


@pytest.mark.parametrize("metric", METRICS)
def test_rows_out_of_range_are_misses(metric):
  labels = jnp.array([False, False, True])
  for row in (-1, -2, 3, 1000):
    assert metric(jnp.array([row, 0]), labels, k=2) == 0.0


def test_repeated_rows_count_once():
  indices, labels = jnp.array([1, 1, 1]), jnp.array([True, True, False])
  assert metrics.recall(indices, labels, k=3) == 0.5
  assert metrics.completeness(indices, labels, k=3) == 0.0
  np.testing.assert_allclose(metrics.precision(indices, labels, k=3), 1 / 3)
  assert metrics.ndcg(indices, labels, k=3) < 1.0


def test_row_outside_where_is_a_miss_that_takes_its_place():
  indices, labels = jnp.array([0, 1]), jnp.array([True, True, False])
  where = jnp.array([False, True, True])
  assert metrics.recall(indices, labels, k=1, where=where) == 0.0
  assert metrics.recall(indices, labels, k=2, where=where) == 1.0
  assert metrics.mrr(indices, labels, where=where) == 0.5


@functools.cache
def _jitted(metric):
  return jax.jit(metric, static_argnames="k")


@pytest.mark.parametrize("metric", METRICS)
@hypothesis.given(rankings, grades)
def test_between_zero_and_one(metric, ranking, labels):
  for k in (1, 4, NUM_DOCS):
    assert 0.0 <= _jitted(metric)(ranking, labels, k=k) <= 1.0 + 1e-6


@pytest.mark.parametrize("metric", METRICS)
@hypothesis.given(rankings, grades, st.permutations(range(NUM_DOCS)))
def test_renaming_documents_changes_nothing(metric, ranking, labels, order):
  order = np.array(order)  # New row order[i] is old row i.
  renamed = np.zeros_like(labels)
  renamed[order] = labels
  np.testing.assert_allclose(
    _jitted(metric)(ranking, labels, k=4),
    _jitted(metric)(order[ranking], renamed, k=4),
    rtol=1e-6,
  )


@pytest.mark.parametrize("metric", METRICS)
@hypothesis.given(rankings, grades, hnp.arrays(bool, NUM_DOCS))
def test_where_is_the_same_as_removing_columns(metric, ranking, labels, where):
  k = 3
  hypothesis.assume(where.sum() >= k)
  ranking = ranking[where[ranking]][:k]  # Decoders rank what exists.
  new_row = np.cumsum(where) - 1
  np.testing.assert_allclose(
    _jitted(metric)(ranking, labels, k=k, where=where),
    _jitted(metric)(new_row[ranking], labels[where], k=k),
    rtol=1e-6,
  )


@pytest.mark.parametrize("metric", METRICS)
def test_jit_vmap_and_leading_axes_agree(metric):
  indices, labels = _random_runs(3, graded=True)
  got = metric(indices, labels, k=5)
  assert got.shape == (40,)
  vmapped = jax.jit(jax.vmap(functools.partial(metric, k=5)))(indices, labels)
  np.testing.assert_allclose(got, vmapped, rtol=1e-6)
  split = metric(
    indices.reshape(4, 10, -1), labels.reshape(4, 10, -1), k=5
  ).reshape(-1)
  np.testing.assert_allclose(got, split, rtol=1e-6)


def test_ilad_by_brute_force():
  rng = np.random.default_rng(0)
  corpus = rng.normal(size=(9, 4)) * 10
  indices = np.array([[0, 4, 8, 2], [1, 3, -1, 5], [7, -1, -1, 0]])
  want = []
  for ranking in indices:
    rows = [corpus[i] for i in ranking[:3] if i >= 0]
    pairs = [
      1 - a @ b / (np.linalg.norm(a) * np.linalg.norm(b))
      for n, a in enumerate(rows)
      for b in rows[:n]
    ]
    want.append(np.mean(pairs) if pairs else 0.0)
  got = jax.jit(metrics.ilad, static_argnames="k")(indices, corpus, k=3)
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_ilad_of_duplicates_zero_rows_and_opposites():
  corpus = jnp.array([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0], [-3.0, 0.0]])
  got = metrics.ilad(jnp.array([[0, 1], [0, 2], [0, 3]]), corpus, k=2)
  np.testing.assert_allclose(got, [0.0, 1.0, 2.0], atol=1e-6)
  assert metrics.ilad(jnp.array([0, 1]), corpus, k=1) == 0.0
  assert metrics.ilad(jnp.array([-1, -1]), jnp.zeros((0, 2)), k=2) == 0.0


def test_overlap():
  a = jnp.array([[1, 2, 3], [1, -1, -1], [5, 5, 6]])
  b = jnp.array([[3, 2, 9, 0], [1, -1, -1, 0], [5, 6, 7, 0]])
  got = jax.jit(metrics.overlap, static_argnames="k")(a, b, k=3)
  np.testing.assert_allclose(got, [2 / 3, 1 / 3, 2 / 3], rtol=1e-6)
  np.testing.assert_allclose(metrics.overlap(b, a, k=3), got)


def test_evaluate_leaves_out_and_counts():
  indices = jnp.array([[0, 1], [0, 1], [1, 2]])
  labels = jnp.array([[1, 0, 0], [0, 0, 0], [1, 0, 1]], bool)
  got = _evaluate(indices, labels, ks=(1, 2))
  np.testing.assert_allclose(got["recall@2"], (1 + 0.5) / 2)
  np.testing.assert_allclose(got["comp@2"], 0.5)
  assert (got["num_queries"], got["num_without_relevant"]) == (2, 1)
  # A query whose only relevant document does not exist has none.
  where = jnp.array([[0, 1, 1], [1, 1, 1], [1, 1, 1]], bool)
  got = _evaluate(indices, labels, ks=(1, 2), where=where)
  assert (got["num_queries"], got["num_without_relevant"]) == (1, 2)
  np.testing.assert_allclose(got["recall@2"], 0.5)


def test_evaluate_with_nothing_to_average_has_no_nan():
  got = _evaluate(jnp.array([[0]]), jnp.zeros((1, 3), bool), ks=(1,))
  assert all(np.isfinite(value) for value in got.values())
  assert got["num_queries"] == 0


def test_evaluate_names_and_jit():
  indices, labels = _random_runs(0, graded=False)
  got = _evaluate(indices, labels, ks=KS)
  names = ("recall", "comp", "hit", "precision", "ndcg")
  want = {f"{name}@{k}" for name in names for k in KS}
  assert set(got) == want | {"mrr", "num_queries", "num_without_relevant"}


@pytest.mark.parametrize("metric", METRICS)
def test_errors_name_the_argument_while_tracing(metric):
  indices, labels = jnp.zeros((2, 5), int), jnp.zeros((2, 9), bool)
  for k in (0, 6):
    with pytest.raises(ValueError, match=f"k={k} must be between 1 and num_r"):
      jax.eval_shape(functools.partial(metric, k=k), indices, labels)
  with pytest.raises(
    ValueError, match=r"labels has shape \(9,\) but indices has shape \(2, 5\)"
  ):
    metric(indices, labels[0], k=1)
  with pytest.raises(ValueError, match=r"where has shape \(9,\) and dtype"):
    metric(indices, labels, k=1, where=jnp.ones(9, bool))
  with pytest.raises(ValueError, match="where must be bool"):
    metric(indices, labels, k=1, where=jnp.ones((2, 9)))
  with pytest.raises(ValueError, match=r"ranked corpus rows \(not scores\)"):
    metric(indices.astype(float), labels, k=1)
  with pytest.raises(ValueError, match=r"labels must be .*got a scalar"):
    metric(indices, jnp.zeros(()), k=1)


def test_errors_of_ilad_and_overlap():
  with pytest.raises(ValueError, match=r"corpus must be \[num_docs, dim\]"):
    metrics.ilad(jnp.arange(3), jnp.ones(4), k=2)
  with pytest.raises(ValueError, match="k=4 must be between 1"):
    metrics.ilad(jnp.arange(3), jnp.ones((4, 2)), k=4)
  with pytest.raises(ValueError, match="last axis of other"):
    metrics.overlap(jnp.arange(3), jnp.arange(2), k=3)
  with pytest.raises(ValueError, match="other has shape"):
    metrics.overlap(jnp.arange(3), jnp.zeros((1, 3), int), k=3)


def test_bootstrap_interval_covers_as_the_normal_approximation():
  values = np.random.default_rng(0).random(400)
  got = metrics.bootstrap_interval(values, seed=1)
  half = 1.96 * values.std() / np.sqrt(len(values))
  np.testing.assert_allclose(got.mean, values.mean())
  np.testing.assert_allclose(got.low, values.mean() - half, atol=0.15 * half)
  np.testing.assert_allclose(got.high, values.mean() + half, atol=0.15 * half)
  assert got == metrics.bootstrap_interval(values, seed=1)
  assert got != metrics.bootstrap_interval(values, seed=2)
  narrow = metrics.bootstrap_interval(values, level=0.5)
  assert narrow.high - narrow.low < got.high - got.low


def test_bootstrap_interval_takes_jax_values_in_pieces():
  values = jnp.arange(3000) % 2  # Larger than one piece holds of samples.
  got = metrics.bootstrap_interval(values, num_samples=700)
  assert got.low < 0.5 < got.high


def test_bootstrap_interval_errors():
  with pytest.raises(ValueError, match=r"values must be \[num_queries\]"):
    metrics.bootstrap_interval([])
  with pytest.raises(ValueError, match=r"values\[1\] is nan"):
    metrics.bootstrap_interval([0.0, np.nan])
  with pytest.raises(ValueError, match="level in"):
    metrics.bootstrap_interval([0.0], level=95)


def test_p_mrr_by_brute_force():
  rng = np.random.default_rng(0)
  before, after = (
    np.stack([rng.permutation(8)[:5] for _ in range(6)]) for _ in range(2)
  )
  after[0, 3:] = -1
  changed = rng.random((6, 8)) < 0.4
  changed[5] = False
  expected = []
  for one, two, documents in zip(before, after, changed, strict=True):
    values = [0.0]
    if documents.any():
      values = []
    for document in np.flatnonzero(documents):
      r, s = (
        [*run].index(document) + 1 if document in run else 6
        for run in (one, two)
      )
      values.append(1 - r / s if s > r else s / r - 1)
    expected.append(np.mean(values))
  ours = metrics.p_mrr(before, after, changed)
  np.testing.assert_allclose(ours, expected, atol=1e-6)
  again = metrics.p_mrr(before[1], after[1], changed[1])
  np.testing.assert_allclose(again, ours[1], atol=1e-6)
  np.testing.assert_array_equal(metrics.p_mrr(before, before, changed), 0)
