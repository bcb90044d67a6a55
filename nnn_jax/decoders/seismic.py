"""Seismic: the k documents with the largest inner product of sparse vectors.

  score(x) = sum_c query_c x_c over the coordinates c that both have

A document that shares no coordinate with the query is never returned.
`SeismicConfig.search` says which documents are scored (`seismic_search`,
`seismic_routed`).

Reference: Bruch et al. (2024), Efficient Inverted Indexes for Approximate
Retrieval over Learned Sparse Representations, arXiv 2404.18812.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nnn_jax import native, types
from nnn_jax.core import checks, linalg, sparse
from nnn_jax.decoders import seismic_parts, seismic_routed, seismic_search

# The query, the index and the searches are part of this module's interface.
SparseVector = sparse.SparseVector
SparseBlocks = sparse.SparseBlocks
Exact = seismic_search.Exact
Sequential = seismic_search.Sequential
Routed = seismic_routed.Routed
Search = Exact | Sequential | Routed


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeismicConfig:
  """Static choices: one compilation per distinct value.

  Attributes:
    search: Which documents are scored.
    backend: Of Sequential: "native" is a kernel in C++ for CPU that is compiled
      at first use and returns what "xla" does, up to rounding; it scores a
      document that two lists name once. "auto" is native where it runs. It
      cannot be exported.
  """

  search: Search = Sequential()
  backend: Literal["auto", "xla", "native"] = "auto"

  def __post_init__(self):
    checks.check_choice("search", self.search, (Exact, Sequential, Routed))
    if self.backend not in ("auto", "xla", "native"):
      raise ValueError(
        f'backend must be "auto", "xla" or "native", got {self.backend!r}.'
      )
    for name, value in dataclasses.asdict(self.search).items():
      if name == "heap_factor":
        if not value > 0:
          raise ValueError(f"search.heap_factor must be > 0, got {value}.")
      elif value < 1:
        raise ValueError(f"search.{name} must be at least 1, got {value}.")


class SeismicAux(NamedTuple):
  """Diagnostics of one search.

  Attributes:
    num_scored: int32, documents scored; again, if a list names one again.
    overflow: int32, blocks and documents that Routed's budgets left out.
    exact: bool, the answer is that of Exact; only Exact certifies it.
    finite: bool, no NaN or infinity in what was computed.
  """

  num_scored: jax.Array
  overflow: jax.Array
  exact: jax.Array
  finite: jax.Array


def decode(
  params: tuple[()],
  query: SparseVector,
  corpus: SparseBlocks,
  *,
  k: int,
  config: SeismicConfig = SeismicConfig(),
  where: types.Array | None = None,
) -> types.DecodeResult:
  """Ranks documents by their inner product with the query.

  Under `jax.vmap` queries are searched one after another, which is faster than
  together on CPU.

  Args:
    params: `()`.
    query: SparseVector; coordinates that are listed twice are summed.
    corpus: `indexes.sparse_blocks.build(...)`.
    k: How many documents to return, at most num_docs.
    config: Static choices.
    where: `[num_docs]` bool; False leaves a document out.

  Returns:
    DecodeResult, ties by lowest index; scores are differentiable in
    `query.values` and `corpus.values`. Fewer than k may be found.

  Raises:
    ValueError: While tracing, for shapes that do not fit or k out of range.
  """
  if not (isinstance(params, tuple) and len(params) == 0):
    raise ValueError(f"seismic has no params: pass (), got {params!r}.")
  checks.check_choice("query", query, (SparseVector,))
  checks.check_choice("corpus", corpus, (SparseBlocks,))
  checks.check_choice("config", config, (SeismicConfig,))
  sizes = checks.check_shapes(
    **{
      "query.indices": (query.indices, "num_entries"),
      "query.values": (query.values, "num_entries"),
      "corpus.indices": (corpus.indices, "num_docs width"),
      "corpus.values": (corpus.values, "num_docs width"),
      "where": (where, "num_docs"),
    }
  )
  checks.check_k(k, sizes["num_docs"])
  where = checks.check_where(where)
  indices = jnp.asarray(query.indices)
  if sizes["num_entries"] and not jnp.issubdtype(indices.dtype, jnp.integer):
    raise ValueError(f"query.indices must be integers, got {indices.dtype}.")
  values = jnp.asarray(query.values)
  values = values.astype(linalg.compute_dtype(values, corpus.values))
  if not sizes["num_entries"]:  # As one that is missing.
    indices, values = jnp.full(1, -1), jnp.zeros(1, values.dtype)
  query = SparseVector(indices.astype(jnp.int32), values)
  if config.backend != "xla":
    backend = _backend(config, query, corpus)
    config = dataclasses.replace(config, backend=backend)
  return _decode(query, corpus, where, k=k, config=config)


def _backend(config, query, corpus):
  """What runs: "native" if asked for, or "auto" and possible."""
  fits = (
    isinstance(config.search, Sequential)
    and query.values.dtype == jnp.float32
    and corpus.values.dtype in (jnp.float16, jnp.float32)
  )
  if fits and jax.default_backend() == "cpu" and native.seismic():
    return "native"
  if config.backend == "native":
    raise ValueError(
      'backend = "native" takes Sequential, float32 queries, values in float16 '
      'or float32, a CPU and a C++ compiler: use "auto" or "xla".'
    )
  return "xla"


@partial(jax.jit, static_argnames=("k", "config"))
def _decode(query, corpus, where, *, k, config):
  found = _find(config, k, query, corpus, where)
  used = (query.indices >= 0) & (query.indices < corpus.vocab)
  finite = found.finite & jnp.all(jnp.isfinite(query.values) | ~used)
  aux = SeismicAux(
    found.num_scored,
    found.overflow,
    exact=finite & isinstance(config.search, Exact),
    finite=finite,
  )
  return types.DecodeResult(found.indices, found.scores, aux)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _find(config, k, query, corpus, where):
  """The search; only scores have derivatives. In vmap a query at a time."""

  @jax.custom_batching.custom_vmap
  def find(query, corpus, where):
    if config.backend == "native":
      one = jax.tree.map(lambda x: x[None], query)
      found = _native(config.search, k, one, corpus, where)
      return jax.tree.map(lambda x: x[0], found)
    panel = sparse.dense(query, corpus.vocab)
    return config.search.find(query, panel, corpus, where, k)

  @find.def_vmap
  def in_turn(size, batched, query, corpus, where):
    del size
    if config.backend == "native" and jax.tree.leaves(batched) == [
      True,
      True,
      *[False] * len(jax.tree.leaves((corpus, where))),
    ]:
      found = _native(config.search, k, query, corpus, where)
      return found, jax.tree.map(lambda _: True, found)
    args, tree = jax.tree.flatten((query, corpus, where))
    flags = jax.tree.leaves(batched)
    turns = [arg for arg, flag in zip(args, flags, strict=True) if flag]

    def one(turn):
      turn = iter(turn)
      own = [
        next(turn) if flag else arg
        for arg, flag in zip(args, flags, strict=True)
      ]
      return find(*jax.tree.unflatten(tree, own))

    found = jax.lax.map(one, turns)
    return found, jax.tree.map(lambda _: True, found)

  return find(query, corpus, where)


@_find.defjvp
def _find_jvp(config, k, primals, tangents):
  query, corpus, _ = primals
  found = _find(config, k, *primals)
  shown = jnp.maximum(found.indices, 0)

  def score(query_values, corpus_values):
    panel = sparse.dense(query._replace(values=query_values), corpus.vocab)
    rows = corpus.indices[shown], corpus_values[shown]
    scores = sparse.products(panel, *rows)
    return jnp.where(found.indices >= 0, scores, 0.0)

  _, scores = jax.jvp(
    score,
    (query.values, corpus.values),
    (tangents[0].values, tangents[1].values),
  )

  def zero(x):
    if jnp.issubdtype(x.dtype, jnp.floating):
      return jnp.zeros_like(x)
    return np.zeros(x.shape, jax.dtypes.float0)

  return found, jax.tree.map(zero, found)._replace(scores=scores)


def _native(search, k, query, index, where):
  """Sequential on a batch of queries, in one call."""
  num, kind = query.indices.shape[0], jax.ShapeDtypeStruct
  call = jax.ffi.ffi_call(
    native.SEISMIC,
    (
      kind((num, k), jnp.int32),
      kind((num, k), jnp.float32),
      kind((num,), jnp.int32),
      kind((num,), jnp.bool_),
    ),
  )
  indices, scores, num_scored, finite = call(
    query.indices,
    query.values,
    index.indices,
    index.values,
    index.list_starts,
    index.block_starts,
    index.postings,
    index.bucket_starts,
    index.entry_coords,
    index.entry_blocks,
    index.entry_codes,
    index.summary_least,
    index.summary_step,
    jnp.zeros(0, bool) if where is None else where,
    cut=np.int64(search.cut),
    heap_factor=np.float32(search.heap_factor),
    bucket_bits=np.int64(index.bucket_bits),
  )
  return seismic_parts.Found(
    indices, scores, num_scored, jnp.zeros_like(num_scored), finite
  )
