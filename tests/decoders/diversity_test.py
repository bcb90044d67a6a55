"""Diversity against enumeration and mixed-integer programming."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quadratic_worlds as worlds

from nnn_jax import metrics
from nnn_jax.decoders import dense, diversity, dpp, max_sum, mmr
from nnn_jax.solvers import kernels, relaxation, selection

N, K, DIM = 20, 5, 8
SETS = worlds.subsets(N, K)
PUBLISHED = diversity.DiversityConfig(
  method=selection.Published(), certificate=True
)
POLISHED = diversity.DiversityConfig(certificate=True)


def decode(trade_off, query, corpus, *, k=K, where=None, **config):
  return diversity.decode(
    diversity.DiversityParams(trade_off),
    query,
    corpus,
    k=k,
    config=diversity.DiversityConfig(**config),
    where=where,
  )


def world(seed, num_docs=N, lean=0.7):
  rng = np.random.default_rng(seed)
  rows = worlds.unit_rows(rng, num_docs, DIM, clusters=7, lean=lean)
  return worlds.query_of(rng, rows), rows


@pytest.fixture(scope="module")
def five_hundred():
  """500 instances: trade-offs, queries, corpora, best J, J of every set."""
  trade_offs = np.tile([0.1, 0.3, 0.5, 0.7, 0.9], 100)
  queries, corpora = map(
    np.stack, zip(*(world(s) for s in range(500)), strict=True)
  )
  values = [
    worlds.objectives(t, rows @ query, rows @ rows.T, SETS)
    for t, query, rows in zip(trade_offs, queries, corpora, strict=True)
  ]
  return trade_offs, queries, corpora, np.asarray(values)


def run(config, decoder, params, trade_offs, queries, corpora):
  @jax.jit
  def all_of_them(*inputs):
    return jax.lax.map(
      lambda x: decoder(params(x[0]), x[1], x[2], k=K, config=config), inputs
    )

  with jax.enable_x64(True):
    return all_of_them(trade_offs, queries, corpora)


def achieved(indices, values):
  """J of the sets found, looked up in the enumeration."""
  found = np.zeros((len(indices), N))
  np.put_along_axis(found, np.asarray(indices), 1.0, axis=1)
  assert (found.sum(axis=1) == K).all()
  code = 2 ** np.arange(N)
  place = {c: i for i, c in enumerate((SETS @ code).tolist())}
  rows = [place[c] for c in (found @ code).tolist()]
  return values[np.arange(len(rows)), rows]


def test_certificates_and_optimality_on_500_instances(five_hundred):
  *inputs, values = five_hundred
  best = values.max(axis=1)
  gaps = {}
  for name, config in {"published": PUBLISHED, "polished": POLISHED}.items():
    result = run(config, diversity.decode, diversity.DiversityParams, *inputs)
    j = achieved(result.indices, values)
    np.testing.assert_allclose(result.aux.objective, j, atol=1e-12)
    assert (np.asarray(result.aux.upper_bound) >= best - 1e-12).all()
    assert bool(result.aux.exact.all())
    gaps[name] = best - j
  # The specification found 17 to 23, and .25, in 1e-3.
  assert 15e-3 < gaps["published"].mean() < 25e-3
  assert gaps["polished"].mean() <= 0.5e-3
  assert (gaps["polished"] < 1e-9).mean() > 0.85
  # T7, at every instance.
  bound = 2 * (1 - inputs[0]) / (K - 1)
  assert (gaps["polished"] <= bound).all()


def test_polished_beats_every_baseline_on_500_instances(five_hundred):
  *inputs, values = five_hundred
  rows = {
    "polished": (POLISHED, diversity.decode, diversity.DiversityParams),
    "mmr": (mmr.MmrConfig(), mmr.decode, mmr.MmrParams),
    "dpp": (dpp.DppConfig(), dpp.decode, dpp.DppParams),
    "max_sum": (max_sum.MaxSumConfig(), max_sum.decode, max_sum.MaxSumParams),
  }
  mean = {
    name: achieved(run(*row, *inputs).indices, values)
    .reshape(100, 5)
    .mean(axis=0)
    for name, row in rows.items()
  }
  for name in ("mmr", "dpp", "max_sum"):
    assert (mean["polished"] >= mean[name]).all()


def test_several_starts_find_the_optimum_of_all(five_hundred):
  *inputs, values = five_hundred
  config = diversity.DiversityConfig(method=selection.Polished(starts=8))
  result = run(config, diversity.decode, diversity.DiversityParams, *inputs)
  gaps = values.max(axis=1) - achieved(result.indices, values)
  assert (gaps < 1e-9).mean() >= 0.995


def test_continuation_does_not_lose(five_hundred):
  *inputs, values = five_hundred
  config = diversity.DiversityConfig(method=selection.Polished(stages=4))
  result = run(config, diversity.decode, diversity.DiversityParams, *inputs)
  gaps = values.max(axis=1) - achieved(result.indices, values)
  assert gaps.mean() <= 0.5e-3
  assert bool(result.aux.exact.all())


@pytest.mark.parametrize("seed", range(3))
def test_enumeration_agrees_with_integer_programming(five_hundred, seed):
  trade_offs, queries, corpora, values = (x[seed] for x in five_hundred)
  gain = trade_offs * (K - 1) * corpora @ queries
  gram = corpora @ corpora.T
  best, indicator = worlds.milp_optimum(gain, 1 - trade_offs, gram, K)
  j = best / (K * (K - 1)) + 1 - trade_offs
  assert j == pytest.approx(values.max(), abs=1e-6)
  assert (SETS[values.argmax()] == indicator).all()


@pytest.mark.parametrize(
  "kernel", [kernels.Power(power=4), kernels.Power(power=3), kernels.Rbf()]
)
def test_kernels_by_enumeration(kernel):
  method = selection.Polished(kernel=kernel)
  config = diversity.DiversityConfig(method=method, certificate=True)
  gaps = []
  for seed in range(10):
    query, rows = world(seed)
    gram = rows @ rows.T
    if isinstance(kernel, kernels.Power):
      gram = gram**kernel.power
    else:
      square = ((rows[:, None] - rows[None]) ** 2).sum(axis=-1)
      gram = np.exp(-square / (2 * kernel.bandwidth**2))
    values = worlds.objectives(0.4, rows @ query, gram, SETS)
    with jax.enable_x64(True):
      result = diversity.decode((0.4,), query, rows, k=K, config=config)
    (j,) = achieved(result.indices[None], values[None])
    assert float(result.aux.objective) == pytest.approx(j, abs=1e-12)
    assert float(result.aux.upper_bound) >= values.max() - 1e-12
    gaps.append(values.max() - j)
  assert np.mean(gaps) <= 0.5e-3


def test_a_power_kernel_drops_near_duplicates():
  rng = np.random.default_rng(0)
  rows = worlds.unit_rows(rng, 60, 16, lean=1.0)
  # Outliers, each with a copy: few cosines suffer when both are taken.
  outliers = rows[np.argsort(rows @ rows.mean(axis=0))[:8]]
  rows = np.concatenate([rows, outliers])
  query = worlds.query_of(rng, rows)

  def near_duplicates(kernel):
    method = selection.Polished(kernel=kernel)
    rows_of = decode(0.3, query, rows, k=25, method=method).indices
    cosines = rows[rows_of] @ rows[rows_of].T
    return int((np.triu(cosines, 1) > 0.95).sum())

  assert near_duplicates(kernels.Power(power=4)) < near_duplicates(
    kernels.Linear()
  )


def test_the_saddle_of_duplicate_pairs():
  """Six orthogonal pairs of copies: the published method keeps three pairs."""
  corpus = np.repeat(np.eye(6, dtype=np.float32), 2, axis=0)
  given = diversity.Scores(np.full(12, 0.5, np.float32))
  published = decode(0.5, given, corpus, k=6, method=selection.Published())
  assert metrics.ilad(published.indices, corpus, k=6) == pytest.approx(0.8)
  assert int(published.aux.num_steps) == 0  # The centre is a saddle.
  assert bool(published.aux.exact)  # Stationary all the same.
  result = decode(0.5, given, corpus, k=6, certificate=True)
  assert metrics.ilad(result.indices, corpus, k=6) == pytest.approx(1.0)
  assert float(result.aux.objective) == pytest.approx(0.75)
  assert float(result.aux.upper_bound) == pytest.approx(0.75, abs=1e-6)


@pytest.mark.parametrize("order", ["relevance", "marginal"])
def test_ends_of_the_trade_off(order):
  query, rows = world(3)
  dense_rows = dense.decode((), query, rows, k=K)
  result = decode(1.0, query, rows, order=order)
  np.testing.assert_array_equal(result.indices, dense_rows.indices)
  np.testing.assert_allclose(result.scores, dense_rows.scores, atol=1e-6)
  # At the other end relevance does not count, and the optimum is enumerated.
  spread = decode(0.0, query, rows, order=order)
  values = worlds.objectives(0.0, rows @ query, rows @ rows.T, SETS)
  (j,) = achieved(spread.indices[None], values[None])
  assert j == pytest.approx(values.max(), abs=1e-3)


@pytest.mark.parametrize("trade_off", [0.0, 0.5, 1.0])
def test_one_document_is_the_most_relevant(trade_off):
  query, rows = world(4)
  for order in ("relevance", "marginal"):
    result = decode(trade_off, query, rows, k=1, order=order)
    assert result.indices.tolist() == [int(np.argmax(rows @ query))]


@pytest.mark.parametrize("bad", [-0.1, 1.1, np.nan, np.inf, np.float32(2)])
def test_trade_off_out_of_range(bad):
  query, rows = world(0)
  for module, kind in (
    (diversity, diversity.DiversityParams),
    (mmr, mmr.MmrParams),
    (dpp, dpp.DppParams),
    (max_sum, max_sum.MaxSumParams),
  ):
    with pytest.raises(ValueError, match="trade_off must be between 0 and 1"):
      module.decode(kind(bad), query, rows, k=K)
  traced = jax.jit(lambda t: decode(t, query, rows))(jnp.float32(bad))
  assert not bool(traced.aux.exact)
  assert bool(traced.aux.finite) == bool(np.isfinite(bad))


def test_rows_of_any_length_by_enumeration():
  rng = np.random.default_rng(0)
  gaps = []
  for seed in range(10):
    query, rows = world(seed)
    rows = rows * rng.uniform(0.2, 2.0, size=(N, 1))
    rows[seed] = 0.0
    values = worlds.objectives(0.6, rows @ query, rows @ rows.T, SETS)
    with jax.enable_x64(True):
      result = diversity.decode((0.6,), query, rows, k=K, config=POLISHED)
    (j,) = achieved(result.indices[None], values[None])
    assert float(result.aux.objective) == pytest.approx(j, abs=1e-12)
    assert float(result.aux.upper_bound) >= values.max() - 1e-12
    gaps.append(values.max() - j)
  assert np.mean(gaps) <= 1e-3


def test_nothing_else_than_distinct_rows_under_ties_and_zeros():
  query = np.zeros(4, np.float32)
  for corpus in (np.zeros((9, 4)), np.ones((9, 4)), np.eye(9, 4)):
    for method in (selection.Polished(), selection.Published()):
      corpus = np.float32(corpus)
      result = decode(0.5, query, corpus, k=4, method=method)
      assert len(set(result.indices.tolist())) == 4
      assert min(result.indices.tolist()) >= 0
  tied = decode(0.5, query, np.ones((9, 4), np.float32), k=4)
  assert tied.indices.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("num_valid", [0, 1, 3, K])
def test_all_valid_documents_where_they_are_few(num_valid):
  query, rows = world(5)
  where = np.arange(N) % 4 == 1
  where &= np.cumsum(where) <= num_valid
  result = decode(
    0.5, query, rows, where=where, order="marginal", certificate=True
  )
  assert set(result.indices.tolist()) - {-1} == set(np.flatnonzero(where))
  assert bool(result.aux.exact)
  if num_valid > 1:
    kept = rows[where]
    pairs = (kept @ kept.T)[~np.eye(num_valid, dtype=bool)]
    j = 0.5 * (kept @ query).mean() + 0.5 * (1 - pairs.mean())
    assert float(result.aux.objective) == pytest.approx(j, abs=1e-6)
    assert float(result.aux.upper_bound) == pytest.approx(j, abs=1e-5)


@pytest.mark.parametrize("given", [False, True])
def test_a_nan_row_is_never_selected(given):
  query, rows = world(6)
  for row in (0, 7):
    spoiled = np.float32(rows)
    spoiled[row, 2] = np.nan
    # The scores of a reranker do not show that the row is broken.
    source = diversity.Scores(np.arange(N, 0.0, -1)) if given else query
    for decoder, params in (
      (diversity.decode, (0.5,)),
      (mmr.decode, (0.5,)),
      (dpp.decode, (0.5,)),
      (max_sum.decode, (0.5,)),
    ):
      result = decoder(params, source, spoiled, k=N)
      assert row not in result.indices.tolist()
      assert sorted(result.indices.tolist())[0] == -1
      assert np.isfinite(np.asarray(result.scores)[:-1]).all()
      assert not bool(result.aux.finite)
      assert not bool(result.aux.exact)


def test_scores_in_place_of_a_query():
  query, rows = world(7)
  given = diversity.Scores(rows @ query)
  for module in (diversity, mmr, dpp, max_sum):
    expected = module.decode((0.5,), query, rows, k=K)
    result = module.decode((0.5,), given, rows, k=K)
    np.testing.assert_array_equal(result.indices, expected.indices)
    np.testing.assert_allclose(result.scores, expected.scores, atol=1e-6)
  # Scores of their own lead elsewhere, by enumeration.
  relevance = np.random.default_rng(0).uniform(size=N)
  values = worlds.objectives(0.8, relevance, rows @ rows.T, SETS)
  result = decode(0.8, diversity.Scores(relevance), rows)
  (j,) = achieved(result.indices[None], values[None])
  assert j == pytest.approx(values.max(), abs=1e-3)
  batched = jax.vmap(
    lambda scores: decode(0.8, scores, np.float32(rows)).indices
  )(diversity.Scores(np.float32([relevance, -relevance])))
  np.testing.assert_array_equal(batched[0], result.indices)
  with pytest.raises(ValueError, match=r"relevance must have shape \[num_docs"):
    decode(0.8, diversity.Scores(relevance[:3]), rows)


def test_the_pool_is_the_most_relevant():
  query, rows = world(8, num_docs=60)
  inside = dense.decode((), query, rows, k=N).indices
  where = np.isin(np.arange(60), inside)
  pooled = decode(0.2, query, rows, pool_size=N)
  np.testing.assert_array_equal(
    pooled.indices, decode(0.2, query, rows, where=where).indices
  )
  everywhere = decode(0.2, query, rows, pool_size=None)
  assert everywhere.aux.objective > pooled.aux.objective
  with pytest.raises(ValueError, match="k must be at most config"):
    decode(0.2, query, rows, pool_size=4)


def test_permuting_the_corpus_permutes_the_answer():
  query, rows = world(9)
  order = np.random.default_rng(0).permutation(N)
  for method in (selection.Polished(), selection.Published()):
    expected = decode(0.4, query, rows, method=method)
    result = decode(0.4, query, rows[order], method=method)
    np.testing.assert_array_equal(order[result.indices], expected.indices)


def test_orders():
  query, rows = world(10)
  by_relevance = decode(0.4, query, rows)
  np.testing.assert_allclose(
    by_relevance.scores, (rows @ query)[by_relevance.indices], atol=1e-6
  )
  assert (np.diff(by_relevance.scores) <= 0).all()

  marginal = decode(0.4, query, rows, order="marginal")
  indices = np.asarray(marginal.indices)
  assert set(indices) == set(by_relevance.indices.tolist())
  # The greedy definition, within the set.
  left, before, scores = list(indices), [], []
  while left:
    gains = [
      0.4 * rows[i] @ query - 2 * 0.6 / (K - 1) * sum(rows[before] @ rows[i])
      for i in left
    ]
    best = int(np.argmax(gains))
    scores.append(gains[best])
    before.append(left.pop(best))
  assert before == indices.tolist()
  np.testing.assert_allclose(marginal.scores, scores, atol=1e-6)
  j = np.sum(marginal.scores) / K + 0.6
  assert j == pytest.approx(float(marginal.aux.objective), abs=1e-6)


def test_the_set_of_a_large_pool_in_float32():
  """300 documents: swap-optimal by recomputing every exchange."""
  query, rows = world(11, num_docs=300)
  result = decode(0.3, query, rows, k=40, certificate=True)
  chosen = np.zeros(300)
  chosen[result.indices] = 1.0
  gain = 0.3 * 39 * rows @ query
  gains = worlds.swap_gains(gain, 0.7, rows @ rows.T, chosen)
  assert gains.max() <= 1e-4
  assert bool(result.aux.exact)
  assert 0 <= result.aux.upper_bound - result.aux.objective <= 2 * 0.7 / 39


@pytest.mark.parametrize(
  ("config", "message"),
  [
    (dict(pool_size=0), "pool_size must be >= 1, got 0"),
    (dict(order="random"), 'order must be "relevance" or "marginal"'),
    (dict(method="greedy"), "method must be Polished or Published"),
    (dict(gradient=True), "gradient must be Concave or Entropic"),
  ],
)
def test_wrong_choices(config, message):
  with pytest.raises(ValueError, match=message):
    diversity.DiversityConfig(**config)


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (functools.partial(selection.Polished, starts=0), "starts must be >= 1"),
    (functools.partial(selection.Polished, stages=0), "stages must be >= 1"),
    (functools.partial(selection.Polished, loading=-1), "loading must be >= 0"),
    (functools.partial(selection.Published, num_steps=0), "num_steps must be"),
    (functools.partial(selection.Polished, backend="tpu"), "backend must be"),
    (functools.partial(kernels.Power, power=0), "power must be an int >= 1"),
    (functools.partial(kernels.Power, power=0.5), "power must be an int >= 1"),
    (functools.partial(kernels.Rbf, bandwidth=0), "bandwidth must be > 0"),
    (functools.partial(relaxation.Concave, strength=0), "strength must be > 0"),
    (
      functools.partial(relaxation.Entropic, temperature=0.1, loading=1),
      "loading must be in 0 to 2 temperature = 0.2",
    ),
  ],
)
def test_wrong_static_values(make, message):
  with pytest.raises(ValueError, match=message):
    make()


def algorithm_1(trade_off, query, rows, k, loading=2.0):
  """The published algorithm, as printed, in numpy."""
  n, b = len(rows), 1.0 - trade_off
  c = rows @ query
  x = np.full(n, k / n)
  z = rows.T @ x
  for _ in range(200):
    g = trade_off * (k - 1) * c + 2 * b * (loading * x - rows @ z)
    s = np.zeros(n)
    s[np.argsort(-g, kind="stable")[:k]] = 1.0
    d = s - x
    gap = g @ d
    if gap <= 1e-9:
      break
    dz = rows.T @ d
    bend = 2 * b * (loading * d @ d - dz @ dz)
    step = 1.0 if bend >= 0 else min(1.0, gap / -bend)
    x, z = x + step * d, z + step * dz
  return set(np.argsort(-x, kind="stable")[:k].tolist())


def test_published_is_algorithm_1(five_hundred):
  trade_offs, queries, corpora, _ = (x[:100] for x in five_hundred)
  result = run(
    PUBLISHED,
    diversity.decode,
    diversity.DiversityParams,
    trade_offs,
    queries,
    corpora,
  )
  for i, found in enumerate(np.asarray(result.indices)):
    expected = algorithm_1(trade_offs[i], queries[i], corpora[i], K)
    assert set(found.tolist()) == expected


@pytest.mark.parametrize(
  "gradient", [relaxation.Concave(), relaxation.Entropic()]
)
def test_weights_are_differentiable(gradient):
  query, rows = world(12)
  target = np.random.default_rng(0).normal(size=N)
  config = diversity.DiversityConfig(pool_size=15, gradient=gradient)

  @jax.jit
  def loss(trade_off, query, rows):
    aux = diversity.decode((trade_off,), query, rows, k=K, config=config).aux
    return aux.weights @ target, aux.weights

  with jax.enable_x64(True):
    inputs = (np.float64(0.6), query, rows)
    grads, weights = jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(*inputs)
    assert float(weights.sum()) == pytest.approx(K, abs=1e-9)
    assert ((weights >= 0) & (weights <= 1)).all()
    assert int((weights > 0).sum()) <= 15  # The pool.
    for place, grad in enumerate(grads):
      direction = np.random.default_rng(place).normal(
        size=np.shape(inputs[place])
      )
      ends = []
      for eps in (1e-5, -1e-5):
        moved = list(inputs)
        moved[place] = inputs[place] + eps * direction
        ends.append(float(loss(*moved)[0]))
      numeric = (ends[0] - ends[1]) / 2e-5
      exact = float(np.vdot(grad, direction))
      assert exact == pytest.approx(numeric, rel=1e-5)


def test_without_a_relaxation_there_are_no_weights():
  query, rows = world(0)
  assert decode(0.5, query, rows).aux.weights is None
  assert decode(0.5, query, rows).aux.upper_bound is None
