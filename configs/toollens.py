r"""ToolLens, the paper's split, on a budget that 2 CPU cores can pay.

  python -m experiments.train --config=configs/toollens.py \
    --workdir=runs/toollens --config.manual_dir=/path/to/toollens

Without `manual_dir` the files are downloaded. The published schedule is
20 epochs a stage at learning rate 2e-5:

  --config.dense.num_epochs=20 --config.dense.learning_rate=2e-5 \
  --config.nnn_tr.num_epochs=20 --config.nnn_tr.learning_rate=2e-5

With a mixture of logits, a sparse encoder, COLT and a Hypencoder as well:
--stages=dense,nnn_tr,mol,sparse,colt,hypencoder.

Through the exact solver instead of 50 unrolled steps of FISTA:

  --config.nnn_tr.solver=working_set
"""

import ml_collections

from configs import base


def get_config() -> ml_collections.ConfigDict:
  config = base.get_config()
  config.dataset = "toollens"
  config.encoder = "minilm"
  names = "dense", "nnn_tr", "mol", "sparse", "hypencoder"
  for stage in (config[name] for name in names):
    stage.num_epochs = 2
    stage.learning_rate = 1e-4
  config.sparse.terms = "corpus"
  return config
