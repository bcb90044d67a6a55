"""Types that every decoder shares."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

Array = jax.Array | np.ndarray
Scalar = jax.Array | np.ndarray | float


class DecodeResult(NamedTuple):
  """The retrieved documents of one query, best first.

  Under `jax.vmap` every field gains a leading `[batch]` axis.

  Attributes:
    indices: `[k]` int32 corpus rows. Missing places (fewer than k documents
      pass `where`) are -1.
    scores: `[k]` what the documents were ranked by; -inf where missing.
    aux: The decoder's own NamedTuple of diagnostics. Each has `exact` (bool:
      the answer is certified to be what the decoder defines) and `finite`
      (bool: no NaN or infinity reached the answer).
  """

  indices: jax.Array
  scores: jax.Array
  aux: Any


class DecodeFn(Protocol):
  """`decode(params, query, corpus, *, k, config, where=None)`.

  `params` are traced (sweep or differentiate them), `config` is a frozen
  dataclass and static (one compilation per distinct value).
  """

  def __call__(
    self,
    params: Any,
    query: Any,
    corpus: Any,
    *,
    k: int,
    config: Any = ...,
    where: Array | None = None,
  ) -> DecodeResult:
    """Decodes one query; batch with `jax.vmap`."""
    ...
