r"""A sparse encoder with the published vocabulary and rate.

  python -m experiments.train --config=configs/sparse.py --workdir=runs/sparse \
    --stages=sparse

All tokens of the tokenizer are terms, as published; `--config.sparse.terms=
corpus` takes those that the documents have, which is some ten times as cheap.
The published training (arXiv 2107.05720) is 150,000 steps of batch 124 on MS
MARCO at 2e-5; configs/hypencoder.py says how MS MARCO is read.
"""

import ml_collections

from configs import base


def get_config() -> ml_collections.ConfigDict:
  config = base.get_config()
  config.dataset = "api_docs"
  config.encoder = "minilm"
  return config
