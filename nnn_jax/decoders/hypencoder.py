"""Hypencoder: the k documents that a query's own network scores highest.

The query is the weights of a small network (`core.qnet.QNet`), which a
hypernetwork (`models.hyperhead`) has made of its text; a document's score is
the network's output on its embedding. `HypencoderConfig.search` says which
documents are scored, `aux` what is known of the others.

Reference: "Hypencoder: Hypernetworks for Information Retrieval" (2025), arXiv
2502.05364.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nnn_jax import types
from nnn_jax.core import checks, corpora, linalg, qnet, sharding
from nnn_jax.decoders import hypencoder_search, hypencoder_walk

# The weights, and the searches, are part of this module's interface.
QNet = qnet.QNet
Exhaustive = hypencoder_search.Exhaustive
Clusters = hypencoder_search.Clusters
Certified = hypencoder_search.Certified
Graph = hypencoder_walk.Graph
Search = Exhaustive | Clusters | Certified | Graph


@dataclasses.dataclass(frozen=True, kw_only=True)
class HypencoderConfig:
  """Static choices: one compilation per distinct value.

  Attributes:
    search: How documents are found.
    layer_norm: Whether the network normalises its layers, as published.
  """

  search: Search = Exhaustive()
  layer_norm: bool = True

  def __post_init__(self):
    checks.check_choice(
      "search", self.search, (Exhaustive, Clusters, Certified, Graph)
    )
    for name, value in dataclasses.asdict(self.search).items():
      if value is not None and value < 1:
        raise ValueError(f"search.{name} must be at least 1, got {value}.")
    if isinstance(self.search, Certified) and self.layer_norm:
      raise ValueError(
        "search is Certified, and nothing useful bounds a network with layer "
        "normalisation: train one with layer_norm=False, or use Clusters."
      )


class HypencoderAux(NamedTuple):
  """Diagnostics of one search.

  Attributes:
    num_scored: int32, documents that the network scored; a search of clusters
      scores or bounds their centres besides.
    rest: An upper bound on the scores of the others; -inf where there are none,
      inf where nothing is known of them.
    bound: max(0, rest - the k-th score): how much better than the last of the
      answer a document that is missing from it can be.
    exact: bool, the answer is certified to be that of Exhaustive.
    finite: bool, no NaN or infinity among the scores. Such a document is ranked
      last.
  """

  num_scored: jax.Array
  rest: jax.Array
  bound: jax.Array
  exact: jax.Array
  finite: jax.Array


def decode(
  params: tuple[()],
  query: QNet,
  corpus: Any,
  *,
  k: int,
  config: HypencoderConfig = HypencoderConfig(),
  where: types.Array | None = None,
) -> types.DecodeResult:
  """Ranks documents by the query's network; ties by lowest index.

  Args:
    params: `()`; what is learned is in the query.
    query: The weights of one query's network.
    corpus: `[num_docs, dim]`; `indexes.clusters.build(embeddings)` for Clusters
      and Certified, `indexes.neighbours.build(embeddings)` for Graph.
    k: How many documents to return, at most num_docs.
    config: Static choices.
    where: `[num_docs]` bool; False leaves a document out.

  Returns:
    DecodeResult with scores that are differentiable in the query and in the
    embeddings; `aux` is a HypencoderAux.

  Raises:
    ValueError: While tracing, for shapes that do not fit, k out of range, or a
      corpus that is not what the search needs.

  >>> query = QNet((jnp.eye(2),), (jnp.zeros(2),), jnp.asarray([1.0, -1.0]))
  >>> config = HypencoderConfig(layer_norm=False)
  >>> corpus = jnp.asarray([[0.0, 1.0], [2.0, 1.0]])
  >>> result = decode((), query, corpus, k=2, config=config)
  >>> result.indices.tolist(), result.scores.tolist()
  ([1, 0], [1.0, -1.0])
  """
  if not (isinstance(params, tuple) and len(params) == 0):
    raise ValueError(f"hypencoder has no params: pass (), got {params!r}.")
  checks.check_choice("config", config, (HypencoderConfig,))
  query = qnet.check(query)
  config.search.check_corpus(corpus)
  sizes = checks.check_shapes(
    corpus=(corpus, "num_docs dim"), where=(where, "num_docs")
  )
  checks.check_k(k, sizes["num_docs"])
  if query.widths[0] != sizes["dim"]:
    raise ValueError(
      f"corpus has dim {sizes['dim']}, and the query's network takes "
      f"{query.widths[0]}: both must come from one model."
    )
  where = checks.check_where(where)
  if not isinstance(corpus, corpora.Grouped | corpora.Neighboured):
    corpus = jnp.asarray(corpus)
    dtype = linalg.compute_dtype(query.output, corpus)
    query = jax.tree.map(lambda x: x.astype(dtype), query)
  return _decode(query, corpus, where, k=k, config=config)


@partial(jax.jit, static_argnames=("k", "config"))
def _decode(query, corpus, where, *, k, config):
  if isinstance(corpus, jax.Array):
    corpus = corpora.AllDocuments(sharding.keep_rows_placed(corpus))
  score = partial(qnet.scores, layer_norm=config.layer_norm)
  constants = jax.lax.stop_gradient((query, corpus, where))
  found = config.search.find(hypencoder_search.Problem(*constants, k, score))
  # Scores are those that were sorted; the rows add the derivative.
  rows = corpus.rows(jnp.maximum(found.indices, 0))
  scores = score(query, rows)
  scores = found.scores + (scores - jax.lax.stop_gradient(scores))
  threshold = found.scores[-1]
  aux = HypencoderAux(
    num_scored=found.num_scored,
    rest=found.rest,
    bound=jnp.where(
      found.rest > threshold, found.rest - threshold, jnp.zeros_like(threshold)
    ),
    exact=found.finite & ((found.rest < threshold) | (found.rest == -jnp.inf)),
    finite=found.finite,
  )
  scores = jnp.where(found.indices >= 0, scores, -jnp.inf)
  return types.DecodeResult(found.indices, scores, aux)
