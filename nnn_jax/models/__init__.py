"""Flax models: arrays of tokens or embeddings in, arrays of embeddings out.

Models know nothing of decoders, solvers or losses; decoders never see a model.
Import the modules, not this package: `from nnn_jax.models import text_encoder`.
"""
