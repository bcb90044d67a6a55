"""The searches of `decoders.mol`: where to look for the largest phi.

phi of every item costs far more than a dot product. Except for `BruteForce`, a
search looks for candidates by dot products, and phi ranks those alone:

  PerEmbedding(N)   the top N of each s_p
  Average(N)        the top N of <sum_n f_n, mean_m g_m>, the mean of the s_p:
                    one product with one vector an item
  Combined(N1, N2)  both
  TwoPass(M)        the top M of u(x) = max_p s_p(x)

What is known of the rest. phi(x) <= u(x), since pi is on the simplex. So if S
bounds u of every item that was not scored, and T is the k-th best score, then

  the answer is exact if S < T,  and a score is missed by at most max(0, S - T).

S is the largest (N + 1)-th value of an s_p, or the (M + 1)-th value of u. (The
paper prints the error bound as S - T, which is negative, so false, where S < T;
and phi(x) >= S does put x among the exact top k, but only if it is among the k
best candidates.) Nothing of the kind is known for `Average`.

Reference: "Retrieval with Learned Similarities" (2025), arXiv 2407.15462,
algorithms 1 and 2, and section 4.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from nnn_jax.core import blocks, control, linalg, mixture, topk

# Items of which u is computed at a time.
_BLOCK_SIZE = 4096


@dataclasses.dataclass(frozen=True)
class Problem:
  """One query, as a search sees it; its arrays are constants.

  Attributes:
    params: Of the gate.
    query: One.
    exclude: `[num_excluded]` rows that may not be shown, -1 where fewer.
    index: The items.
    where: `[num_docs]` bool or None.
    k: Static.
  """

  params: mixture.MixtureParams
  query: mixture.QuerySide
  exclude: jax.Array | None
  index: mixture.CachedItems
  where: jax.Array | None
  k: int

  def allowed_top_k(self, scores, num):
    """The best items that may be shown, and whether all of theirs is finite."""
    num_docs = scores.shape[0]
    broken = ~jnp.isfinite(scores)
    if self.where is not None:
      broken &= self.where
    if self.exclude is not None:
      rows = jnp.where(self.exclude < 0, num_docs, self.exclude)
      scores = scores.at[rows].set(-jnp.inf, mode="drop")
      broken = broken.at[rows].set(False, mode="drop")
    best, indices = topk.top_k(scores, min(num, num_docs), where=self.where)
    return best, indices, ~broken.any()


class Found(NamedTuple):
  """The answer of a search; `rest` and the others as in `mol.MolAux`."""

  indices: jax.Array
  scores: jax.Array
  rest: jax.Array
  num_scored: jax.Array
  finite: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class BruteForce:
  """The similarity of every item.

  Attributes:
    block_size: Items scored at a time: memory, and speed, but not the answer.
  """

  block_size: int = 256

  def find(self, problem: Problem) -> Found:
    """Searches; see the module."""
    index = problem.index

    def score(shared, items):
      params, query = shared
      return mixture.similarity(params, query, mixture.ItemSide(*items))[0]

    scores = blocks.map_rows(
      score,
      (problem.params, problem.query),
      (index.components, index.gate),
      block_size=self.block_size,
    )
    best, indices, finite = problem.allowed_top_k(scores, problem.k)
    num_docs = jnp.asarray(index.components.shape[0], jnp.int32)
    return Found(
      indices, best, jnp.full((), -jnp.inf, best.dtype), num_docs, finite
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PerEmbedding:
  """Candidates are the best of each pair of components.

  Attributes:
    num: Items a pair; P times as many are scored, less those found twice.
  """

  num: int = 32

  def find(self, problem: Problem) -> Found:
    """Searches; see the module."""
    candidates, rest, finite = _best_of_each(problem, self.num)
    return _rescore(problem, candidates, rest, finite)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Average:
  """Candidates are the best by the mean logit.

  Attributes:
    num: Items to score.
  """

  num: int = 500

  def find(self, problem: Problem) -> Found:
    """Searches; see the module."""
    candidates, rest, finite = _best_by_mean(problem, self.num)
    return _rescore(problem, candidates, rest, finite)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Combined:
  """Candidates of both `PerEmbedding` and `Average`.

  Attributes:
    per_embedding: Items a pair of components.
    average: Items by the mean logit.
  """

  per_embedding: int = 5
  average: int = 500

  def find(self, problem: Problem) -> Found:
    """Searches; see the module."""
    each, rest_each, finite_each = _best_of_each(problem, self.per_embedding)
    mean, rest_mean, finite_mean = _best_by_mean(problem, self.average)
    return _rescore(
      problem,
      jnp.concatenate([each, mean]),
      jnp.minimum(rest_each, rest_mean),
      finite_each & finite_mean,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwoPass:
  """Candidates are the best by the largest logit: exact, if the rest is low.

  Attributes:
    num: Items to score. How many it takes depends on the gates: few if they
      follow the logits, all if they ignore them. Where `aux.exact` is False,
      call again with more.
    fallback: Instead, search by brute force where the certificate fails: for
      the whole of a batch if for one of it, so the batch should be small.
  """

  num: int = 500
  fallback: bool = False

  def find(self, problem: Problem) -> Found:
    """Searches; see the module."""

    def largest(shared, components):
      query, temperature = shared
      return jnp.max(
        mixture.pair_logits(query, components, temperature), axis=-1
      )

    highest = blocks.map_rows(
      largest,
      (problem.query.components, problem.params.temperature),
      _first_pass(problem.index),
      block_size=_BLOCK_SIZE,
    )
    best, indices, finite = problem.allowed_top_k(highest, self.num + 1)
    candidates, rest = _split(best, indices, self.num)
    found = _rescore(problem, candidates, rest, finite)
    if not self.fallback:
      return found
    return control.when(
      ~is_exact(problem, found),
      lambda _: BruteForce().find(problem),
      found,
    )


def _first_pass(index):
  return index.components if index.coarse is None else index.coarse


def _best_of_each(problem, num):
  """The num best of each pair of components, `[P * num]`."""
  components = _first_pass(problem.index)
  num_query, num_item = problem.query.components.shape[0], components.shape[1]

  def one(pair):
    query = problem.query.components[pair // num_item]
    items = jax.lax.dynamic_index_in_dim(
      components, pair % num_item, axis=1, keepdims=False
    )
    logits = linalg.products(items, query) / problem.params.temperature
    best, indices, finite = problem.allowed_top_k(logits, num + 1)
    return *_split(best, indices, num), finite

  # One pair at a time: [P, num_docs] logits would not fit.
  pairs = jnp.arange(num_query * num_item, dtype=jnp.int32)
  candidates, rest, finite = jax.lax.map(one, pairs)
  return candidates.ravel(), rest.max(), finite.all()


def _best_by_mean(problem, num):
  query = jnp.sum(problem.query.components, axis=0)
  scores = linalg.products(problem.index.mean, query)
  best, indices, finite = problem.allowed_top_k(scores, num + 1)
  candidates, left = _split(best, indices, num)
  # Nothing is known of phi of an item that is left.
  return candidates, jnp.where(left == -jnp.inf, left, jnp.inf), finite


def _split(best, indices, num):
  """The num best items, and the value of the next; -inf if there is none."""
  if best.shape[0] <= num:
    return indices, jnp.full((), -jnp.inf, best.dtype)
  return indices[:num], best[num]


def _rescore(problem, candidates, rest, finite):
  """Ranks the distinct candidates by phi."""
  num_docs, k = problem.index.components.shape[0], problem.k
  if candidates.shape[0] < k:
    raise ValueError(
      f"search finds {candidates.shape[0]} items at most, fewer than k = {k}: "
      "raise its num."
    )
  # In row order, so that equal scores keep the lowest index.
  rows = jnp.sort(jnp.where(candidates < 0, num_docs, candidates))
  if candidates.shape[0] > 1:
    again = jnp.concatenate([jnp.zeros(1, bool), rows[1:] == rows[:-1]])
    rows = jnp.where(again, num_docs, rows)
  listed = rows < num_docs
  items = mixture.ItemSide(problem.index.components, problem.index.gate)
  items = take(items, jnp.minimum(rows, num_docs - 1))
  scores, gates = mixture.similarity(problem.params, problem.query, items)
  finite &= jnp.all(jnp.isfinite(scores) | ~listed)
  # `rest` rests on this; NaN gates are off the simplex.
  total = jnp.sum(gates, axis=-1)
  simplex = (gates >= 0).all(axis=-1) & (jnp.abs(total - 1) < 1e-3)
  rest = jnp.where(jnp.all(simplex | ~listed), rest, jnp.inf)
  best, at = topk.top_k(scores, k, where=listed)
  return Found(
    indices=jnp.where(at >= 0, rows[at], -1),
    scores=best,
    rest=rest,
    num_scored=jnp.sum(listed, dtype=jnp.int32),
    finite=finite,
  )


def take(items: mixture.ItemSide, rows: jax.Array) -> mixture.ItemSide:
  """Some rows of both arrays."""
  return mixture.ItemSide(*(linalg.rows(x, rows) for x in items))


def is_exact(problem, found):
  """Nothing that was not scored can be in the answer, rounding included.

  A logit is a sum of dim products, and phi one of P: each is within its number
  of terms times eps of the exact one, relative to `scale`, and so is what they
  are compared with. A component in bfloat16 is within 2^-9 of itself, relative
  to its norm, and so is a logit; twice that is taken.
  """
  query, index = problem.query, problem.index
  dtype = query.components.dtype
  longest = jnp.sqrt(jnp.max(jnp.sum(query.components**2, axis=-1)))
  scale = longest * index.longest / jnp.abs(problem.params.temperature)
  terms = index.components.shape[-1] + index.gate.shape[-1] + 8
  relative = 4 * terms * float(jnp.finfo(dtype).eps)
  if index.coarse is not None:
    relative += 2.0**-8
  slack = relative * scale.astype(dtype)
  certain = found.rest < found.scores[-1] - slack
  return found.finite & (certain | (found.rest == -jnp.inf))
