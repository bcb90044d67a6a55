"""Encode, decode, lose: pure functions; the decoder is passed in.

`queries` and `corpus` are embeddings from any encoder. `decode` is a function
of `nnn_jax.decoders` and `config` its static choices.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from nnn_jax import losses, types


def retrieve(
  decode: Callable[..., types.DecodeResult],
  params: Any,
  queries: types.Array,
  corpus: types.Array,
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
    queries: `[num_queries, dim]`.
    corpus: `[num_docs, dim]`.
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
    jnp.asarray(queries),
    batch_size=batch_size,
  )


@partial(jax.jit, static_argnames=("decode", "k", "config", "support_only"))
def rank(
  decode: Callable[..., types.DecodeResult],
  params: Any,
  queries: types.Array,
  corpus: types.Array,
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
  labels: types.Array,
  *,
  config: Any,
  k: int = 1,
  loss: Callable[..., jax.Array] = losses.nnn_ranking_loss,
) -> jax.Array:
  """The mean loss over a batch, through the decoder's weights.

  Differentiable in queries and corpus, so in the encoders behind them.

  Args:
    decode: A decoder whose aux has `weights`.
    params: Its traced parameters; differentiable too.
    queries: `[batch, dim]`.
    corpus: `[num_docs, dim]`, shared by the batch.
    labels: `[batch, num_docs]` bool.
    config: The decoder's static choices.
    k: Documents to retrieve, where the weights depend on it: those of
      `decoders.diversity` do, those of `decoders.nnn` do not.
    loss: (scores, labels) -> `[batch]`.

  Returns:
    A scalar.
  """
  decode_one = partial(decode, k=k, config=config)
  result = jax.vmap(decode_one, in_axes=(None, 0, None))(
    params, queries, corpus
  )
  return jnp.mean(loss(result.aux.weights.dense(corpus.shape[0]), labels))


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
    relevant: `[batch, num_docs]` bool.
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
