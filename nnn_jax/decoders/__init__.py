"""Retrieval problems, one module each, behind one signature.

  decode(params, query, corpus, *, k, config, where=None) -> DecodeResult

One query a call: batch with `jax.vmap(..., in_axes=(None, 0, None))`.
"""

from nnn_jax.decoders import dense, diversity, dpp, max_sum, mmr, nnn, seismic
from nnn_jax.types import DecodeFn, DecodeResult

__all__ = [
  "DecodeFn",
  "DecodeResult",
  "dense",
  "diversity",
  "dpp",
  "max_sum",
  "mmr",
  "nnn",
  "seismic",
]
