r"""What in dense training decides whether NNN gains over dense retrieval.

  python -m experiments.loss_or_decoder --config=configs/dense_training.py \
    --workdir=runs/dense_training

Adapters on a frozen encoder, trained by in-batch InfoNCE as the dense stage
does, in every combination of: other relevant documents masked or not, the
temperatures and the learning rates below.
"""

import ml_collections

from configs import loss_or_decoder


def get_config() -> ml_collections.ConfigDict:
  config = loss_or_decoder.get_config()
  config.trainings = "dense"
  config.seeds = (0,)
  config.temperatures = (0.02, 0.05, 0.1)
  config.learning_rates = (1e-4, 1e-3)
  return config
