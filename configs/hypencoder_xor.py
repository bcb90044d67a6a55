r"""Exclusive-or: a q-net against bi-encoders of two widths.

  python -m experiments.hypencoder_xor --config=configs/hypencoder_xor.py \
    --workdir=runs/xor

Expected: see results/hypencoder.md.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
  config = ml_collections.ConfigDict()
  config.seeds = (0, 1)
  config.num_steps = 1_500
  return config
