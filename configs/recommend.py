r"""Recommenders: {sasrec, hstu} x {dot, mol, mol_unbalanced} x data set.

  python -m experiments.recommend --workdir=runs/recommend \
    --config=configs/recommend.py:sasrec,mol,synthetic_interests

After the colon: sequence model, similarity, data set, and optionally `reduced`.
`mol_unbalanced` is `mol` without L_MI. The data set that is generated needs no
file; for the others see `nnn_jax.data.sequences.NAMES`, with their files in a
folder, or downloaded:

  ... --config=configs/recommend.py:hstu,mol,movielens/latest_small,reduced \
    --config.manual_dir=FOLDER --seeds=0,1,2

The sizes are those published for ML-1M, ML-20M and Amazon Books (arXiv
2407.15462); latest_small and the synthetic data take those of ML-1M, the
smaller Amazon sets those of Books. `reduced` is not published: histories of 50,
two blocks, 4 x 4 components, and negatives that a batch shares, for two CPU
cores. It is the same for dot and mol.

Expected: see results/recommend.md.
"""

import ml_collections
from ml_collections import config_dict

SIMILARITIES = ("dot", "mol", "mol_unbalanced")
# length, dim, (P_Q, P_X, dim of a component), HSTU (blocks, heads, dim of keys
# and values), SASRec (blocks, heads, feed-forward), dropout, negatives, epochs.
_ML_1M = (200, 50, (8, 4, 64), (8, 2, 25), (2, 1, 50), 0.2, 128, 101)
_ML_20M = (200, 256, (8, 4, 128), (16, 8, 32), (4, 4, 256), 0.2, 128, 151)
_BOOKS = (50, 64, (8, 8, 32), (16, 8, 8), (4, 4, 64), 0.5, 512, 201)
_PUBLISHED = {
  "synthetic_interests": _ML_1M,
  "movielens/latest_small": _ML_1M,
  "movielens/1m": _ML_1M,
  "movielens/20m": _ML_20M,
  "amazon/beauty": _BOOKS,
  "amazon/sports": _BOOKS,
  "amazon/toys": _BOOKS,
  "amazon/books": _BOOKS,
}
# Epochs, passes an epoch, and users a step, that suit the number of users.
_REDUCED = {
  "synthetic_interests": (10, 3, 32),
  "movielens/latest_small": (20, 6, 16),
  "movielens/1m": (60, 1, 32),
}
_REDUCED_DEFAULT = (20, 1, 128)


def get_config(choice: str) -> ml_collections.ConfigDict:
  parts = choice.split(",")
  if (
    not 3 <= len(parts) <= 4
    or parts[0] not in ("sasrec", "hstu")
    or parts[1] not in SIMILARITIES
    or parts[2] not in _PUBLISHED
    or parts[3:] not in ([], ["reduced"])
  ):
    raise ValueError(
      f"{choice!r}: expected sasrec or hstu, one of {', '.join(SIMILARITIES)}, "
      f"one of {', '.join(_PUBLISHED)}, and optionally reduced, with commas."
    )
  model, similarity, dataset = parts[:3]
  length, dim, mixture, hstu, sasrec, dropout, negatives, epochs = _PUBLISHED[
    dataset
  ]
  config = ml_collections.ConfigDict()
  config.dataset = dataset
  config.data_dir = config_dict.placeholder(str)  # None: TFDS's own.
  config.manual_dir = config_dict.placeholder(str)  # None: download.
  config.checkpoint_every = 500  # Steps; every epoch has one too.
  config.model = model
  config.similarity = similarity
  config.length = length  # Predictions a history.

  config.sequence = ml_collections.ConfigDict(
    {"dim": dim, "dropout": dropout, "num_blocks": (hstu, sasrec)[
      model == "sasrec"][0]}
  )  # fmt: skip
  if model == "sasrec":
    config.sequence.num_heads, config.sequence.mlp_dim = sasrec[1:]
  else:
    config.sequence.num_heads, config.sequence.key_dim = hstu[1:]
    config.sequence.value_dim = hstu[2]

  config.dot = ml_collections.ConfigDict({"temperature": 0.05})
  by_user = not dataset.startswith("amazon")  # MovieLens has user components.
  config.mol = ml_collections.ConfigDict(
    {
      "temperature": 0.05,
      "num_query_components": mixture[0],
      "num_item_components": mixture[1],
      "component_dim": mixture[2],
      "num_user_components": int(by_user),
      "query_hidden": 512,
      "query_gate_hidden": 128,
      "item_gate_hidden": 128,
      "pair_gate_hidden": 128,
      "query_dropout": 0.0,
      "item_dropout": 0.0,
      "user_dropout": 0.5 if by_user else 0.0,
      "gate_dropout": 0.2,
    }
  )
  config.stage = ml_collections.ConfigDict(
    {
      "num_epochs": epochs,
      "passes": 1,
      "batch_size": 128,
      "learning_rate": 1e-3,
      "weight_decay": 0.0,
      "patience": epochs,
      "num_negatives": negatives,
      "negatives": "each",
      "window": "last",
      "balance": 0.0 if similarity == "mol_unbalanced" else 1e-3,
      "user_penalty": 0.1 if by_user else 0.0,
      "num_validation_users": config_dict.placeholder(int),  # None: all.
    }
  )
  if parts[3:]:
    _reduce(config)
  return config


def _reduce(config: ml_collections.ConfigDict) -> None:
  epochs, passes, batch_size = _REDUCED.get(config.dataset, _REDUCED_DEFAULT)
  config.length = 50
  config.sequence.update(dim=50, num_blocks=2, num_heads=2)
  if config.model == "sasrec":
    config.sequence.update(num_heads=1, mlp_dim=50)
  else:
    config.sequence.update(key_dim=25, value_dim=25)
  config.mol.update(
    num_query_components=4,
    num_item_components=4,
    component_dim=32,
    query_hidden=128,
    query_gate_hidden=64,
    item_gate_hidden=64,
    pair_gate_hidden=64,
  )
  config.stage.update(
    num_epochs=epochs,
    passes=passes,
    patience=epochs,
    batch_size=batch_size,
    num_negatives=64,
    negatives="shared",
    window="random",
    num_validation_users=1_000,
  )
