r"""The published training of the Hypencoder: MS MARCO, six layers of 768.

  python -m experiments.train --config=configs/hypencoder.py \
    --stages=hypencoder --workdir=runs/hypencoder \
    --config.manual_dir=/path/to/msmarco \
    --config.hypencoder.teacher=/path/to/train.jsonl
  python -m experiments.evaluate --workdir=runs/hypencoder \
    --decoders=hypencoder --splits=test,trec_dl_2019,trec_dl_2020

The folder holds the files that `nnn_jax.data.msmarco` names; the teacher's
scores are those of jfkback/hypencoder-msmarco-training-dataset, or another file
of `nnn_jax.data.teacher_scores`. On ToolLens or the embedded default the stage
is part of their configs: --stages=dense,hypencoder.

Published: six layers, no skip, one encoder, 7 negatives of the teacher, MSE of
margins and cross-entropy 1:1, AdamW with 6,000 steps of warm-up to 2e-5, batch
128, a million steps at most, lengths 32 and 196; DL 2019 and 2020 nDCG@10 .736.
The stage computes in float32, not bfloat16. It wants an accelerator, and 40 GB
of memory for the passages and their tokens; the evaluation of 8.8 million
passages wants the searches of `decoders.hypencoder` on an index (`Clusters`,
`Graph`) rather than tables of all pairs.
"""

import ml_collections

from configs import base


def get_config() -> ml_collections.ConfigDict:
  config = base.get_config()
  config.dataset = "msmarco"
  config.encoder = "google-bert/bert-base-uncased"
  config.query_length = 32
  config.document_length = 196
  config.batch_size = 128
  config.checkpoint_every = 2_500
  config.hypencoder.update(
    num_epochs=250,  # Of 3,900 steps.
    patience=250,
    learning_rate=2e-5,
    warmup_steps=6_000,
    weight_decay=0.0,
    widths=(768,) * 6,
    skip=False,
    share_encoder=True,
    pooling="cls",
    num_negatives=7,
    distillation=1.0,
    teacher_scale="logit",
    validation_docs=100_000,
  )
  return config
