"""Choosing a decoder's parameters on a validation split, never on test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tqdm

from nnn_jax import metrics, retriever, types
from nnn_jax.decoders import mmr, nnn

# The published grids.
PENALTIES = (0.01, 0.03, 0.06, 0.1, 0.3, 0.6, 1.0)
TRADE_OFFS = tuple(i / 10 for i in range(11))


def penalty_grid(
  l1: Sequence[float] = PENALTIES, l2: Sequence[float] = PENALTIES
) -> list[nnn.NnnParams]:
  """Every pair, l1 outermost."""
  return [nnn.NnnParams(*pair) for pair in itertools.product(l1, l2)]


def trade_off_grid(
  trade_offs: Sequence[float] = TRADE_OFFS,
) -> list[mmr.MmrParams]:
  """Every MMR trade-off."""
  return [mmr.MmrParams(value) for value in trade_offs]


def select(
  decode: Callable[..., types.DecodeResult],
  candidates: Sequence[Any],
  queries: types.Array,
  corpus: types.Array,
  labels: types.Array,
  *,
  config: Any,
  k: int = 5,
  support_only: bool = False,
  description: str | None = None,
) -> tuple[Any, list[dict[str, float]]]:
  """Evaluates every candidate and picks the best Comp@k.

  Ties go to the higher Recall@k, then to the earlier candidate. The decoder
  compiles once: its parameters are traced.

  Args:
    decode: A decoder.
    candidates: Its parameters, at least one.
    queries: `[num_queries, dim]`, of the validation split.
    corpus: `[num_docs, dim]`.
    labels: `[num_queries, num_docs]` bool.
    config: The decoder's static choices.
    k: Cut-off of the metrics.
    support_only: See `retriever.rank`.
    description: Label of a progress bar; None shows none.

  Returns:
    (the best candidate, metrics of each candidate in order).
  """
  if not candidates:
    raise ValueError("candidates is empty: name at least one to choose from.")
  values = []
  for params in tqdm.tqdm(
    candidates,
    desc=description,
    disable=description is None,
    mininterval=5.0,
  ):
    indices = retriever.rank(
      decode,
      params,
      queries,
      corpus,
      k=k,
      config=config,
      support_only=support_only,
    )
    result = metrics.evaluate(indices, labels, ks=(k,))
    values.append(
      {name: float(result[f"{name}@{k}"]) for name in ("comp", "recall")}
    )
  best = max(
    range(len(candidates)),
    key=lambda i: (values[i]["comp"], values[i]["recall"], -i),
  )
  return candidates[best], values
