"""The embedded default: API documentation of the installed numpy and scipy.

  python -m experiments.train --config=configs/api_docs.py --workdir=runs/demo

Runs in minutes on 2 CPU cores; `make demo` runs it with the evaluation.
"""

import ml_collections
from ml_collections import config_dict


def get_config():
  config = ml_collections.ConfigDict()
  config.dataset = "api_docs"
  config.data_dir = config_dict.placeholder(str)
  config.manual_dir = config_dict.placeholder(str)
  config.seed = 0
  config.batch_size = 64
  config.checkpoint_every = 50

  # A folder, a hub name, "minilm", "scratch", or "auto" (MiniLM if its
  # weights can be had, else scratch).
  config.encoder = "auto"
  config.query_length = 48
  config.document_length = 64
  config.scratch = ml_collections.ConfigDict(
    dict(
      vocab_size=8192,
      dim=128,
      num_layers=2,
      num_heads=4,
      mlp_dim=512,
      max_length=128,
    )
  )

  config.dense = ml_collections.ConfigDict(
    dict(
      num_epochs=1,
      learning_rate=5e-5,
      weight_decay=0.01,
      patience=3,
      temperature=0.05,
      mask_false_negatives=False,
    )
  )
  config.nnn_tr = ml_collections.ConfigDict(
    dict(
      num_epochs=1,
      learning_rate=5e-5,
      weight_decay=0.01,
      patience=3,
      gamma=1.5,
      temperature=0.1,
      adapter_hidden=768,
      num_steps=50,
      remat_every=config_dict.placeholder(int),
      # None: the penalties of NNN-Fix, chosen on validation.
      l1=config_dict.placeholder(float),
      l2=config_dict.placeholder(float),
    )
  )
  return config
