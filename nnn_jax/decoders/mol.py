"""Mixture of logits: the k items with the largest learned similarity.

  phi(q, x) = sum_p pi_p(q, x) s_p(q, x),  p = (n, m),
  s_p = <f_n(q), g_m(x)> / tau,  pi on the simplex (see `core.mixture`)

phi of every item costs far more than a dot product: `MolConfig.search` says of
which items it is computed, `aux` what is known of the others (`mol_search`).

Reference: "Retrieval with Learned Similarities" (2025), arXiv 2407.15462,
algorithms 1 and 2, and section 4.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from nnn_jax import types
from nnn_jax.core import checks, linalg, mixture, sharding
from nnn_jax.decoders import mol_search

MolParams = mixture.MixtureParams

# The searches are part of this module's interface.
BruteForce = mol_search.BruteForce
PerEmbedding = mol_search.PerEmbedding
Average = mol_search.Average
Combined = mol_search.Combined
TwoPass = mol_search.TwoPass
Search = BruteForce | PerEmbedding | Average | Combined | TwoPass


class MolQuery(NamedTuple):
  """A query side, and items that its user must not be shown.

  Attributes:
    components: `[P_Q, dim]`.
    gate: `[P]`.
    exclude: `[num_excluded]` int32 rows, -1 where fewer; such as those already
      seen. `where` is the same for a batch; this is each query's own.
  """

  components: types.Array
  gate: types.Array
  exclude: types.Array | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class MolConfig:
  """Static choices: one compilation per distinct value.

  Attributes:
    search: How candidates are found.
  """

  search: Search = Average()

  def __post_init__(self):
    kinds = (BruteForce, PerEmbedding, Average, Combined, TwoPass)
    checks.check_choice("search", self.search, kinds)
    for name, value in dataclasses.asdict(self.search).items():
      if name != "fallback" and value < 1:
        raise ValueError(f"search.{name} must be at least 1, got {value}.")


class MolAux(NamedTuple):
  """Diagnostics of one search.

  Attributes:
    num_scored: int32, items whose phi was computed.
    rest: S, an upper bound on phi of the others; -inf where there are none,
      inf where nothing is known of them.
    bound: max(0, S - T): how much better than the last of the answer an item
      that is missing from it can be.
    exact: bool, the answer is certified to be that of BruteForce, beyond what
      rounding can do, on this index.
    finite: bool, no NaN or infinity in what was computed of the items that may
      be shown. Such an item is ranked last.
  """

  num_scored: jax.Array
  rest: jax.Array
  bound: jax.Array
  exact: jax.Array
  finite: jax.Array


def decode(
  params: MolParams,
  query: MolQuery | mixture.QuerySide,
  corpus: mixture.CachedItems | mixture.ItemSide,
  *,
  k: int,
  config: MolConfig = MolConfig(),
  where: types.Array | None = None,
) -> types.DecodeResult:
  """Ranks items by phi; ties by lowest index.

  Args:
    params: Of the gate, `models.mol.Mol.params()`.
    query: `models.mol.Mol.queries(...)` of one query; with items to leave out,
      `MolQuery(*queries, exclude=rows)`.
    corpus: `indexes.mixture.build(models.mol.Mol.items(...))`. An ItemSide is
      taken too, at the cost of preparing it in each call.
    k: How many items to return, at most num_docs.
    config: Static choices.
    where: `[num_docs]` bool; False leaves an item out.

  Returns:
    DecodeResult with phi as scores, differentiable in params, query and corpus;
    `aux` is a MolAux.

  Raises:
    ValueError: While tracing, for shapes that do not fit, k out of range, or a
      search that cannot find k items.

  >>> zeros = jnp.zeros((1, 1))
  >>> params = MolParams(zeros, zeros[0], zeros, zeros[0], 0.5)
  >>> query = mixture.QuerySide(jnp.asarray([[1.0, 0.0]]), jnp.zeros(1))
  >>> items = mixture.ItemSide(jnp.eye(2)[:, None], jnp.zeros((2, 1)))
  >>> result = decode(params, query, items, k=2)
  >>> result.indices.tolist(), result.scores.tolist()
  ([0, 1], [2.0, 0.0])
  """
  checks.check_choice("params", params, (MolParams,))
  checks.check_choice("query", query, (MolQuery, mixture.QuerySide))
  checks.check_choice("corpus", corpus, (mixture.CachedItems, mixture.ItemSide))
  checks.check_choice("config", config, (MolConfig,))
  query = MolQuery(*query)
  sizes = checks.check_shapes(
    **{
      "query.components": (query.components, "num_query_components dim"),
      "query.gate": (query.gate, "num_pairs"),
      "query.exclude": (query.exclude, "num_excluded"),
      "corpus.components": (
        corpus.components,
        "num_docs num_item_components dim",
      ),
      "corpus.gate": (corpus.gate, "num_docs num_pairs"),
      "where": (where, "num_docs"),
    }
  )
  checks.check_k(k, sizes["num_docs"])
  where = checks.check_where(where)
  exclude = query.exclude
  if exclude is not None:
    exclude = jnp.asarray(exclude)
    if not jnp.issubdtype(exclude.dtype, jnp.integer):
      raise ValueError(
        f"query.exclude must be integer rows, got {exclude.dtype}."
      )
  side = mixture.QuerySide(*query[:2])
  items = mixture.ItemSide(corpus.components, corpus.gate)
  mixture.check_sides(params, side, items)
  if isinstance(corpus, mixture.ItemSide):
    corpus = mixture.cache(corpus)
  dtype = linalg.compute_dtype(*side, *items)
  # Cast once: a Python float and a float32 scalar would compile separately.
  params, side = jax.tree.map(
    lambda x: jnp.asarray(x, dtype), (MolParams(*params), side)
  )
  corpus = jax.tree.map(jnp.asarray, corpus)
  return _decode(params, side, exclude, corpus, where, k=k, config=config)


@partial(jax.jit, static_argnames=("k", "config"))
def _decode(params, query, exclude, corpus, where, *, k, config):
  rows = (corpus.components, corpus.gate, corpus.mean, corpus.coarse)
  components, gate, mean, coarse = jax.tree.map(sharding.keep_rows_placed, rows)
  items = mixture.ItemSide(components, gate)
  index = corpus._replace(
    components=components, gate=gate, mean=mean, coarse=coarse
  )
  constants = jax.lax.stop_gradient((params, query, exclude, index, where))
  problem = mol_search.Problem(*constants, k)
  found = config.search.find(problem)

  # Scores are those that were sorted; the rows add the derivative.
  shown = jnp.maximum(found.indices, 0)
  scores, _ = mixture.similarity(params, query, mol_search.take(items, shown))
  scores = found.scores + (scores - jax.lax.stop_gradient(scores))
  scores = jnp.where(found.indices >= 0, scores, -jnp.inf)
  threshold = found.scores[-1]
  aux = MolAux(
    num_scored=found.num_scored,
    rest=found.rest,
    bound=jnp.where(
      found.rest > threshold, found.rest - threshold, jnp.zeros_like(threshold)
    ),
    exact=mol_search.is_exact(problem, found),
    finite=found.finite,
  )
  return types.DecodeResult(found.indices, scores, aux)
