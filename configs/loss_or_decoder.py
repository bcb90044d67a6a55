r"""Loss or decoder: three trainings of adapters, each decoded three ways.

  python -m experiments.loss_or_decoder --config=configs/loss_or_decoder.py \
    --workdir=runs/loss_or_decoder

The embedded default alone. For others name them and where their files are:

  --config.datasets="('api_docs','toollens')" \
  --manual_dir=toollens=/path/to/toollens
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
  config = ml_collections.ConfigDict()
  config.datasets = ("api_docs",)
  config.trainings = "losses"  # See experiments.adapted.TRAININGS.
  config.encoder = "minilm"
  config.query_length = 64  # Tokens.
  config.document_length = 128
  config.seeds = (0, 1, 2)
  config.batch_size = 64
  config.num_epochs = 20
  config.patience = 5
  config.learning_rate = 1e-3
  config.adapter_hidden = 768
  config.temperature = 0.05  # Of InfoNCE.
  # Of training through the solver; decoding chooses its own.
  config.l1 = 0.1
  config.l2 = (0.1, 1.0)
  config.capacity = 256  # Documents of the solver, of a large corpus.
  return config
