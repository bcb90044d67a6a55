r"""Relevance against diversity with a frozen MiniLM.

  python -m experiments.diversity --config=configs/diversity.py \
    --workdir=runs/diversity

The embedded default alone. For others name them and where their files are:

  --config.datasets="('toollens','cranfield')" \
  --manual_dir=toollens=/path/to/toollens \
  --manual_dir=cranfield=/path/to/cranfield

`asqa:FILE` and `qampari:FILE` read files of the ALCE benchmark.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
  config = ml_collections.ConfigDict()
  config.datasets = ("api_docs",)
  config.encoder = "minilm"
  config.query_length = 64  # Tokens.
  config.document_length = 128
  config.num_queries = 100
  config.pool_size = 1_000
  config.ks = (25, 50, 100)
  config.trade_offs = tuple(i / 10 for i in range(1, 10))
  return config
