"""The recommendation experiment: presets, one command, report, searches."""

import json

import numpy as np
import pytest

from configs import recommend as config_lib
from experiments import recommend as experiment
from experiments import recommend_report, recommend_search
from nnn_jax.data import sequences
from nnn_jax.models import recommender as recommender_lib
from nnn_jax.training import loop, ranking, recommend

CONFIG = "--config=configs/recommend.py:"
TINY = {
  "length": 8,
  "sequence.dim": 8,
  "mol.num_query_components": 2,
  "mol.num_item_components": 2,
  "mol.component_dim": 4,
  "mol.query_hidden": 8,
  "mol.query_gate_hidden": 8,
  "mol.item_gate_hidden": 8,
  "mol.pair_gate_hidden": 8,
  "stage.num_epochs": 1,
  "stage.passes": 1,
  "stage.num_negatives": 4,
  "stage.batch_size": 250,
  "stage.num_validation_users": 64,
}


def _preset(choice, **changes):
  config = config_lib.get_config(choice)
  with config.unlocked():
    config.update_from_flattened_dict(changes)
  return config


@pytest.mark.parametrize("model", ["sasrec", "hstu"])
@pytest.mark.parametrize("similarity", config_lib.SIMILARITIES)
def test_every_preset_names_a_model(model, similarity):
  for dataset in sequences.NAMES:
    for reduced in ("", ",reduced"):
      config = _preset(f"{model},{similarity},{dataset}{reduced}")
      recommend.RecommendStage(**config.stage)
      assert config.similarity == similarity
  assert config_lib.get_config(f"{model},mol,movielens/1m").length == 200


def test_reduced_budgets_are_the_same_for_dot_and_mol():
  dot, mixture, unbalanced = (
    config_lib.get_config(f"hstu,{name},movielens/1m,reduced")
    for name in config_lib.SIMILARITIES
  )
  for name in ("sequence", "length"):
    assert dot[name] == mixture[name]
  assert dot.stage == mixture.stage
  assert (mixture.stage.balance, unbalanced.stage.balance) == (1e-3, 0.0)


@pytest.mark.parametrize("choice", ["", "sasrec,mol", "a,mol,movielens/1m",
                                    "sasrec,mol,movielens/1m,big"])  # fmt: skip
def test_a_preset_that_does_not_exist(choice):
  with pytest.raises(ValueError, match="expected sasrec or hstu"):
    config_lib.get_config(choice)


def test_the_sizes_of_the_published_models():
  dataset = sequences.SequenceDataset(
    "x", list("abc"), [""] * 3, list("uvwx"), [np.int32([1, 2])] * 4, None, {}
  )
  config = _preset("hstu,mol,movielens/1m")
  model = experiment.model_config(config, dataset)
  sequence, similarity = model.sequence, model.similarity
  assert (sequence.num_blocks, sequence.num_heads) == (8, 2)
  assert (sequence.length, sequence.dim, sequence.key_dim) == (201, 50, 25)
  assert (similarity.num_pairs, similarity.component_dim) == (32, 64)
  assert (similarity.num_user_components, similarity.num_user_rows) == (1, 4)
  assert sequence.output == "layer_norm"
  config = _preset("sasrec,dot,amazon/books")
  sequence = experiment.model_config(config, dataset).sequence
  assert (sequence.num_blocks, sequence.mlp_dim, sequence.length) == (4, 64, 51)
  assert sequence.output == "l2"


def test_the_best_epoch_is_found_by_its_step():
  progress = loop.Progress(
    best_step=9, history=[{"step": 0}, {"step": 9}, {"step": 18}]
  )
  assert experiment.best_epoch(progress) == 1


def _results(seed, similarity, hr, gates=True):
  entry = {"step": 0, "epoch": 0, "hr@10": 0.1}
  if gates:
    entry |= {"gates_used": 3.0, "gates_per_pair": 2.0}
  return {
    "settings": {
      "dataset": "x", "model": "sasrec", "similarity": similarity,
      "stage": {"num_epochs": 1},
    },
    "seed": seed,
    "validation": entry,
    "test": dict.fromkeys(recommend_report.METRICS, hr),
    "history": [entry, entry | {"step": 5, "epoch": 1}],
  }  # fmt: skip


def test_the_report_by_hand(tmp_path):
  for name, seed, hr in (("mol", 0, 0.2), ("mol", 1, 0.4), ("dot", 0, 0.1)):
    folder = tmp_path / name / f"seed-{seed}"
    folder.mkdir(parents=True)
    results = _results(seed, name, hr, gates=name == "mol")
    (folder / "results.json").write_text(json.dumps(results))
  table = recommend_report.write(
    [tmp_path / "dot", tmp_path / "mol"], tmp_path / "report"
  )
  assert "0.3000 ± 0.1414" in table
  assert "0.1000 " in table
  lines = (tmp_path / "report" / "results.csv").read_text().splitlines()
  assert (
    lines[0] == "data set,model,similarity,seed,hr@1,hr@10,hr@50,hr@200,mrr"
  )
  assert lines[3] == "x,sasrec,mol,1,0.4,0.4,0.4,0.4,0.4"
  assert (tmp_path / "report" / "gates.png").stat().st_size > 1000
  assert (
    len(json.loads((tmp_path / "report" / "results.json").read_text())) == 3
  )
  with pytest.raises(FileNotFoundError, match="has no seed"):
    recommend_report.read(tmp_path)


@pytest.mark.slow
def test_the_command_from_nothing_to_figures(commands, tmp_path):
  workdir = tmp_path / "run"
  arguments = [
    f"{CONFIG}sasrec,mol,synthetic_interests,reduced",
    f"--workdir={workdir}",
    f"--config.data_dir={tmp_path / 'data'}",
    *(f"--config.{name}={value}" for name, value in TINY.items()),
  ]
  out, _ = commands.run("recommend", *arguments, "--seeds=0,1")
  assert "| synthetic_interests | sasrec | mol" in out
  results = json.loads((workdir / "seed-0" / "results.json").read_text())
  assert (results["num_users"], results["targets_seen_before"]) == (1000, 0)
  ranks = np.load(workdir / "seed-0" / "test_ranks.npy")
  assert ranking.summarize(ranks) == results["test"]
  again, _ = commands.run("recommend", *arguments, "--seeds=0,1")
  # Finished seeds are read, not trained again.
  assert again == out[out.index("| data set") :]
  (error,) = commands.fail(
    "recommend", [*arguments, "--config.stage.learning_rate=0.1"]
  )
  assert "other settings" in error

  model, metadata = recommender_lib.Recommender.load(
    workdir / "seed-1" / "recommender"
  )
  assert metadata["seed"] == 1
  dataset = sequences.load("synthetic_interests", data_dir=tmp_path / "data")
  test = sequences.leave_one_out(dataset, "test")
  np.testing.assert_array_equal(
    ranking.rank_targets(model, test),
    np.load(workdir / "seed-1" / "test_ranks.npy"),
  )
  out, _ = commands.run(
    "recommend_search",
    f"--model={workdir / 'seed-1' / 'recommender'}",
    f"--output={tmp_path / 'search'}",
    f"--data_dir={tmp_path / 'data'}",
    "--num_users=64",
  )
  rows = json.loads((tmp_path / "search" / "search.json").read_text())
  assert rows[0]["search"] == "brute force"
  assert rows[0]["recall"] == rows[0]["certified"] == 1.0
  for row in rows:
    assert row["recall"] == 1.0 or row["certified"] < 1.0
  # The hit rate of a search over all unseen items is that of the ranks.
  asked = recommend_search.requests(model, test)
  items = ranking.item_index(model)
  brute = recommend_search.measure(model, items, asked, batch_size=500)[0]
  hits = ranking.summarize(ranking.rank_targets(model, test))["hr@10"]
  assert brute["hit rate"] == pytest.approx(hits, abs=2e-3)
  assert (tmp_path / "search" / "world" / "items.npz").exists()
