"""Retrieval decoders in JAX: pure functions from embeddings to documents.

`nnn_jax.decoders` needs jax and numpy only. Everything that trains an
encoder (`models`, `data`, `training`) is installed by the `train` extra.
"""

__version__ = "0.1.0"
