"""Settings that the experiments share; each config says what it changes.

The stages' settings and their published defaults are documented in
`nnn_jax.training.stages`, `mol_stage`, `sparse_stage`, `hypencoder_stage` and
`colt_stage`.
"""

import dataclasses

import ml_collections
from ml_collections import config_dict

from nnn_jax.training import (
  colt_stage,
  hypencoder_stage,
  mol_stage,
  sparse_stage,
  stages,
)


def get_config() -> ml_collections.ConfigDict:
  config = ml_collections.ConfigDict()
  config.dataset = "api_docs"
  config.data_dir = config_dict.placeholder(str)  # None: TFDS's own.
  config.manual_dir = config_dict.placeholder(str)  # None: download.
  # Whether a data set that lacks a split has all its queries drawn into 80, 10
  # and 10 %.
  config.own_splits = False
  config.seed = 0
  config.batch_size = 64
  config.checkpoint_every = 50  # Steps.

  # A folder, a hub name, "minilm", "scratch", or "auto" (MiniLM if its
  # weights can be had, else scratch).
  config.encoder = "auto"
  config.query_length = 64  # Tokens.
  config.document_length = 64
  config.scratch = ml_collections.ConfigDict()
  config.scratch.vocab_size = 8192
  config.scratch.dim = 128
  config.scratch.num_layers = 2
  config.scratch.num_heads = 4
  config.scratch.mlp_dim = 512
  config.scratch.max_length = 128

  config.dense = ml_collections.ConfigDict(
    dataclasses.asdict(stages.DenseStage())
  )
  config.nnn_tr = ml_collections.ConfigDict(
    dataclasses.asdict(stages.NnnStage())
  )
  config.mol = ml_collections.ConfigDict(
    dataclasses.asdict(mol_stage.MolStage())
  )
  config.sparse = ml_collections.ConfigDict(
    dataclasses.asdict(sparse_stage.SparseStage())
  )
  config.colt = ml_collections.ConfigDict(
    dataclasses.asdict(colt_stage.ColtStage())
  )
  config.hypencoder = ml_collections.ConfigDict(
    dataclasses.asdict(hypencoder_stage.HypencoderStage())
  )
  config.hypencoder.validation_docs = config_dict.placeholder(int)
  # "dense" or "mol" of the same work directory, a file of scores (see
  # `nnn_jax.data.teacher_scores`), or none.
  config.hypencoder.teacher = config_dict.placeholder(str)
  config.hypencoder.num_candidates = 50  # Of a stage, a query.
  config.nnn_tr.remat_every = config_dict.placeholder(int)
  # None: what suits the solver.
  config.nnn_tr.relevant_scores = config_dict.placeholder(str)
  # None: chosen on validation, for the dense stage's encoder.
  config.nnn_tr.l1 = config_dict.placeholder(float)
  config.nnn_tr.l2 = config_dict.placeholder(float)
  return config
