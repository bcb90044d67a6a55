r"""Trains a recommender and ranks the test items, for one seed or several.

  python -m experiments.recommend --workdir=runs/recommend \
    --config=configs/recommend.py:sasrec,mol,synthetic_interests,reduced

`configs/recommend.py` says what stands after the colon. The best epoch is
chosen on validation; the test is ranked once, at the end: each user's last item
against every item but those seen before. The work directory holds, for each
seed, `seed-N/` with checkpoints, `metrics.jsonl` and TensorBoard files, and
once the seed is done `recommender/` (what `models.recommender.Recommender.load`
reads) and `results.json`. A killed run goes on when the same command is given
again. `experiments.recommend_report` makes the tables and figures of several
work directories.
"""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import ml_collections
from absl import app, flags, logging
from flax import nnx
from ml_collections import config_flags

from experiments import recommend_report, report
from nnn_jax import files
from nnn_jax.data import sequences
from nnn_jax.models import hstu, mol, sasrec
from nnn_jax.models import recommender as recommender_lib
from nnn_jax.training import loop, ranking, recommend

Recommender = recommender_lib.Recommender
_SEQUENCE: dict[str, Any] = {
  "sasrec": sasrec.SasrecConfig,
  "hstu": hstu.HstuConfig,
}
# Where files are does not change what is trained.
_PLACES = ("data_dir", "manual_dir")


def model_config(
  config: ml_collections.ConfigDict, dataset: sequences.SequenceDataset
) -> recommender_lib.RecommenderConfig:
  """The settings' model, for so many items and users."""
  dot = config.similarity == "dot"
  sequence = _SEQUENCE[config.model](
    num_items=dataset.num_items,
    length=config.length + 1,  # A place for the time of the request.
    output="l2" if dot else "layer_norm",
    **config.sequence,
  )
  similarity: Any
  if dot:
    similarity = recommender_lib.DotConfig(**config.dot)
  else:
    users = len(dataset.user_ids) if config.mol.num_user_components else 0
    similarity = mol.MolConfig(
      query_dim=config.sequence.dim,
      item_dim=config.sequence.dim,
      num_user_rows=users,
      **config.mol,
    )
  return recommender_lib.RecommenderConfig(
    sequence=sequence, similarity=similarity
  )


def run(
  config: ml_collections.ConfigDict,
  dataset: sequences.SequenceDataset,
  folder: pathlib.Path,
  seed: int,
) -> dict[str, Any]:
  """Trains and tests one seed, or reads the results of a finished one."""
  path = folder / "results.json"
  settings = json.loads(config.to_json_best_effort())
  for name in _PLACES:
    settings.pop(name)
  if path.exists():
    results = json.loads(path.read_text())
    if results["settings"] != settings:
      raise ValueError(f"{folder} holds a run with other settings: use another")
    logging.info("%s is done: reusing its results.", folder)
    return results
  check_settings(folder, settings)
  stage = recommend.RecommendStage(**config.stage)
  model = Recommender(model_config(config, dataset), rngs=nnx.Rngs(seed))
  start = time.time()
  params, progress = loop.fit(
    recommend.task(model, dataset, stage, seed=seed),
    stage.optimizer(),
    folder=folder,
    num_epochs=stage.num_epochs,
    patience=stage.patience,
    checkpoint_every=config.checkpoint_every,
    debug_checks=flags.FLAGS.debug_checks,
  )
  seconds = time.time() - start
  trained = nnx.merge(nnx.split(model)[0], params)
  test = sequences.leave_one_out(dataset, "test")
  ranks = ranking.rank_targets(trained, test)
  results = {
    "settings": settings,
    "seed": seed,
    "test": ranking.summarize(ranks),
    "num_users": len(test),
    "num_items": dataset.num_items,
    "timestamps": dataset.timestamps is not None,
    "targets_seen_before": int(
      sum(
        int(target in items)
        for target, items in zip(test.targets, test.items, strict=True)
      )
    ),
    "validation": progress.history[best_epoch(progress)],
    "history": progress.history,
    "num_steps": progress.step,
    "stop_reason": progress.stop_reason,
    "seconds_of_last_start": round(seconds, 1),
  }
  report.write_npy(folder / "test_ranks.npy", ranks)
  trained.save(folder / "recommender", {"settings": settings, "seed": seed})
  report.write_json(path, results)
  return results


def best_epoch(progress: loop.Progress) -> int:
  """The entry of the history whose parameters are tested."""
  steps = [entry["step"] for entry in progress.history]
  return steps.index(progress.best_step)


def check_settings(folder: pathlib.Path, settings: dict[str, Any]) -> None:
  """Records the settings; refuses to go on under other ones."""
  path = folder / "settings.json"
  if not path.exists():
    files.write(path, json.dumps(settings, indent=2))
  elif json.loads(path.read_text()) != settings:
    raise ValueError(
      f"{folder} holds a run with other settings: use another --workdir, or "
      "those of its settings.json."
    )


def main(argv: Sequence[str]) -> None:
  """Entry point."""
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {argv[1:]}")
  config, workdir = flags.FLAGS.config, pathlib.Path(flags.FLAGS.workdir)
  dataset = sequences.load(
    config.dataset, data_dir=config.data_dir, manual_dir=config.manual_dir
  )
  print(sequences.describe(dataset))
  seeds = [int(seed) for seed in flags.FLAGS.seeds]
  for seed in seeds:
    run(config, dataset, workdir / f"seed-{seed}", seed)
  print(recommend_report.write([workdir], workdir))


if __name__ == "__main__":
  config_flags.DEFINE_config_file("config", None, "Settings.")
  flags.DEFINE_string("workdir", None, "Where results go.", required=True)
  flags.DEFINE_list("seeds", ["0"], "One run for each.")
  flags.DEFINE_bool("debug_checks", False, "Name what makes a NaN; slow.")
  flags.mark_flag_as_required("config")
  app.run(main)
