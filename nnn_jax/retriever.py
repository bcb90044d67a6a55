"""Encode, decode, lose: pure functions; the decoder is passed in.

`queries` and `corpus` are embeddings from any encoder. `decode` is a function
of `nnn_jax.decoders` and `config` its static choices.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp

from nnn_jax import losses, types
from nnn_jax.core import gradients
from nnn_jax.decoders import nnn

RelevantScores = Literal["weights", "extended"]


def retrieve(
  decode: Callable[..., types.DecodeResult],
  params: Any,
  queries: Any,
  corpus: Any,
  *,
  k: int,
  config: Any,
  where: types.Array | None = None,
  batch_size: int = 256,
) -> types.DecodeResult:
  """Decodes many queries in chunks, so that memory stays bounded.

  Args:
    decode: A decoder.
    params: Its traced parameters, shared by all queries.
    queries: `[num_queries, dim]`, or a pytree of `[num_queries, ...]` for a
      decoder whose query is one.
    corpus: `[num_docs, dim]`, or what else the decoder takes.
    k: Documents a query.
    config: The decoder's static choices.
    where: `[num_docs]` bool; False leaves a document out.
    batch_size: Queries decoded at a time.

  Returns:
    DecodeResult with a leading `[num_queries]` axis.

  >>> from nnn_jax.decoders import dense
  >>> config = dense.DenseConfig()
  >>> result = retrieve(
  ...   dense.decode, (), jnp.eye(2), jnp.eye(2), k=1, config=config
  ... )
  >>> result.indices.tolist()
  [[0], [1]]
  """
  decode_one = partial(decode, k=k, config=config, where=where)
  return jax.lax.map(
    lambda query: decode_one(params, query, corpus),
    jax.tree.map(jnp.asarray, queries),
    batch_size=batch_size,
  )


@partial(jax.jit, static_argnames=("decode", "k", "config", "support_only"))
def rank(
  decode: Callable[..., types.DecodeResult],
  params: Any,
  queries: Any,
  corpus: Any,
  *,
  k: int,
  config: Any,
  support_only: bool = False,
) -> jax.Array:
  """The retrieved rows alone, `[num_queries, k]`: `retrieve` without aux.

  Args:
    decode: A decoder.
    params: Its traced parameters.
    queries: `[num_queries, dim]`.
    corpus: `[num_docs, dim]`.
    k: Documents a query.
    config: The decoder's static choices.
    support_only: Leave out, as -1, documents with a score <= 0: the rule of
      the NNN paper, which retrieves the support and nothing else.
  """
  result = retrieve(decode, params, queries, corpus, k=k, config=config)
  if not support_only:
    return result.indices
  return jnp.where(result.scores > 0, result.indices, -1)


def weights_loss(
  decode: Callable[..., types.DecodeResult],
  params: Any,
  queries: types.Array,
  corpus: types.Array,
  relevant: types.Array,
  *,
  config: nnn.NnnConfig,
  relevant_scores: RelevantScores | None = None,
  loss: Callable[..., jax.Array] = losses.nnn_ranking_loss,
) -> jax.Array:
  """The mean loss over a batch, through the decoder's weights.

  Differentiable in queries and corpus, so in the encoders behind them. The
  loss sees the solver's candidates, the relevant documents and the number of
  the rest, whose weight is zero: no array of the loss grows with num_docs
  unless the solver's candidates do.

  Irrelevant documents are scored by their weights. So are the relevant ones in
  the published loss, where one that is off the support has no gradient of its
  own; scored by its extended weight it has, and is drawn into the support (see
  `losses.nnn_ranking_loss` for why irrelevant documents must not be).

  Args:
    decode: A decoder whose aux is a `nnn.NnnAux`.
    params: Its traced parameters; differentiable too.
    queries: `[batch, dim]`.
    corpus: `[num_docs, dim]`, shared by the batch.
    relevant: `[batch, max_relevant]` int32, distinct corpus rows; -1 where
      fewer.
    config: The decoder's static choices.
    relevant_scores: "weights", "extended" (`nnn.extended_weights`), or None:
      "weights" for `Unroll`, as published, and "extended" for `Implicit`.
    loss: One of `losses`: (scores, labels, *, where, num_rest) -> scalar.

  Returns:
    A scalar.

  Raises:
    ValueError: While tracing, for another relevant_scores.

  >>> queries, relevant = jnp.asarray([[0.6, 0.8]]), jnp.asarray([[0, -1]])
  >>> loss = weights_loss(
  ...   nnn.decode,
  ...   nnn.NnnParams(0.1, 0.0),
  ...   queries,
  ...   jnp.eye(2),
  ...   relevant,
  ...   config=nnn.NnnConfig(),
  ... )
  >>> round(float(loss), 4)  # 1.5 * 0.7 - 0.5
  0.55
  """
  if relevant_scores is None:
    implicit = isinstance(config.gradient, gradients.Implicit)
    relevant_scores = "extended" if implicit else "weights"
  if relevant_scores not in get_args(RelevantScores):
    raise ValueError(
      "relevant_scores must be None or one of "
      f"{', '.join(get_args(RelevantScores))}, got {relevant_scores!r}."
    )

  def loss_of_one(query, relevant):
    aux = decode(params, query, corpus, k=1, config=config).aux
    weights = aux.weights
    if relevant_scores == "extended":
      scores = nnn.extended_weights(params, corpus, relevant, aux)
    else:
      scores = weights.at_rows(relevant)
    exists = relevant >= 0
    irrelevant = weights.indices >= 0
    irrelevant = irrelevant.at[weights.find(relevant)].set(False, mode="drop")
    where = jnp.concatenate([irrelevant, exists])
    return loss(
      jnp.concatenate([weights.values, scores]),
      jnp.concatenate([jnp.zeros_like(irrelevant), exists]),
      where=where,
      num_rest=corpus.shape[0] - jnp.sum(where),
    )

  return jnp.mean(jax.vmap(loss_of_one)(queries, relevant))


def in_batch_loss(
  queries: types.Array,
  documents: types.Array,
  positive: types.Array,
  relevant: types.Array,
  *,
  temperature: types.Scalar,
  mask_false_negatives: bool,
) -> jax.Array:
  """Mean InfoNCE of a batch of (query, one positive document) pairs.

  Args:
    queries: `[batch, dim]`.
    documents: `[batch, dim]`; row i is the positive of query i.
    positive: `[batch]` corpus rows of `documents`.
    relevant: `[batch, max_relevant]` corpus rows; -1 where fewer.
    temperature: Of the softmax.
    mask_false_negatives: Leave other relevant documents out of the negatives.
  """
  labels, where = losses.in_batch_targets(
    positive, relevant, mask_false_negatives=mask_false_negatives
  )
  # The default precision: training tolerates it, a solver would not.
  scores = jnp.matmul(queries, documents.T)
  return jnp.mean(
    losses.info_nce(scores, labels, temperature=temperature, where=where)
  )
