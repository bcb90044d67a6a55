"""The embedded default: API documentation of the installed numpy and scipy.

  python -m experiments.train --config=configs/api_docs.py --workdir=runs/demo

With a mixture of logits, a sparse encoder, COLT and a Hypencoder as well:
--stages=dense,nnn_tr,mol,sparse,colt,hypencoder.

Runs in minutes on 2 CPU cores; `make demo` runs it with the evaluation.
"""

import ml_collections

from configs import base


def get_config() -> ml_collections.ConfigDict:
  config = base.get_config()
  config.dataset = "api_docs"
  config.query_length = 48
  names = "dense", "nnn_tr", "mol", "sparse", "hypencoder"
  for stage in (config[name] for name in names):
    stage.num_epochs = 1
    stage.learning_rate = 5e-5
  config.sparse.terms = "corpus"
  return config
