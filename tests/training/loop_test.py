"""Tests of nnn_jax.training.loop, on tasks small enough to know by heart."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nnn_jax.training import checkpoint, loop, writers

NUM_ROWS, BATCH, DIM = 12, 3, 4


class Crash(Exception):
  """What interrupts a run in these tests."""


def climb(peak, **changes):
  """Params count the steps: loss -w, sgd at rate 1. Best at w == peak."""
  task = loop.Task(
    params={"w": jnp.zeros(())},
    frozen=(),
    loss_fn=lambda params, frozen, batch: -params["w"],
    batch_fn=lambda step: {"query": np.array([step])},
    eval_fn=lambda params: {"score": -abs(float(params["w"]) - peak)},
    steps_per_epoch=2,
    monitor="score",
  )
  return task._replace(**changes)


def least_squares(**changes):
  """A convex task with batches; as a run of the real stages, in small."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=(NUM_ROWS, DIM)).astype(np.float32)
  y = x @ rng.normal(size=DIM).astype(np.float32)

  def batch_fn(step):
    order = np.random.default_rng(step).permutation(NUM_ROWS)[:BATCH]
    return {"query": order, "y": y[order]}

  def loss_fn(params, frozen, batch):
    fit = frozen[batch["query"]] @ params["w"] + params["b"]
    return jnp.mean((fit - batch["y"]) ** 2)

  def eval_fn(params):
    error = x @ np.asarray(params["w"]) + np.asarray(params["b"]) - y
    return {"score": -float(np.mean(error**2))}

  task = loop.Task(
    params={"w": jnp.zeros(DIM), "b": jnp.zeros(1)},
    frozen=x,
    loss_fn=loss_fn,
    batch_fn=batch_fn,
    eval_fn=eval_fn,
    steps_per_epoch=NUM_ROWS // BATCH,
    monitor="score",
  )
  return task._replace(**changes)


def fit(task, folder, optimizer=None, **changes):
  settings = {"num_epochs": 4, "patience": 2, "checkpoint_every": 3, **changes}
  return loop.fit(
    task, optimizer or optax.adamw(0.1), folder=folder, **settings
  )


def fit_sgd(task, folder, **changes):
  return fit(task, folder, optax.sgd(1.0), num_epochs=20, **changes)


def bytes_of(tree):
  return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def metrics_text(folder):
  return (folder / "metrics.jsonl").read_text()


def test_the_best_epoch_is_returned(tmp_path):
  params, progress = fit_sgd(climb(peak=6), tmp_path)
  assert float(params["w"]) == 6.0
  assert (progress.best_step, progress.best_value) == (6, 0.0)
  # Two epochs without improvement, then it stops.
  assert (progress.step, progress.epochs) == (10, 5)
  assert progress.stale_epochs == 2
  assert progress.stop_reason == "no improvement for 2 epochs"


def test_history_and_metrics_file(tmp_path):
  _, progress = fit_sgd(climb(peak=2), tmp_path)
  assert progress.history == [
    {"step": 0, "epoch": 0, "score": -2.0},
    {"step": 2, "epoch": 1, "score": 0.0},
    {"step": 4, "epoch": 2, "score": -2.0},
    {"step": 6, "epoch": 3, "score": -4.0},
  ]
  records = writers.read_metrics(tmp_path)
  train = [r for r in records if "train/loss" in r]
  assert [r["step"] for r in train] == [1, 2, 3, 4, 5, 6]
  assert [r["train/loss"] for r in train] == [-0.0, -1, -2, -3, -4, -5]
  assert {r["train/grad_norm"] for r in train} == {1.0}
  validation = [r for r in records if "validation/score" in r]
  assert [(r["step"], r["validation/score"]) for r in validation] == [
    (h["step"], h["score"]) for h in progress.history
  ]


def test_the_start_can_be_the_best(tmp_path):
  params, progress = fit_sgd(climb(peak=0), tmp_path)
  assert float(params["w"]) == 0.0
  assert (progress.best_step, progress.step) == (0, 4)


def test_an_equal_epoch_is_no_improvement(tmp_path):
  task = climb(peak=0, eval_fn=lambda params: {"score": 0.5})
  params, progress = fit_sgd(task, tmp_path, patience=3)
  assert float(params["w"]) == 0.0
  assert (progress.best_step, progress.step) == (0, 6)


def test_patience_starts_anew_at_an_improvement(tmp_path):
  scores = iter([0.0, -1.0, 1.0, 0.5, 2.0, 1.0, 1.0, 3.0])
  task = climb(peak=0, eval_fn=lambda params: {"score": next(scores)})
  params, progress = fit_sgd(task, tmp_path)
  assert float(params["w"]) == progress.best_step == 8
  assert progress.step == 12


def test_num_epochs_ends_a_run_that_improves(tmp_path):
  params, progress = fit(climb(peak=99), tmp_path, optax.sgd(1.0), num_epochs=3)
  assert float(params["w"]) == progress.step == 6
  assert progress.stop_reason is None


def test_no_epoch_returns_the_start(tmp_path):
  params, progress = fit(climb(peak=9), tmp_path, num_epochs=0)
  assert float(params["w"]) == 0.0
  assert (progress.step, progress.epochs) == (0, 0)


@pytest.mark.parametrize("stop_at", [0, 4])
def test_stop_fn_stops_at_once(tmp_path, stop_at):
  def stop_fn(metrics):
    return "far enough" if metrics["score"] == stop_at - 99 else None

  params, progress = fit_sgd(climb(peak=99, stop_fn=stop_fn), tmp_path)
  assert float(params["w"]) == progress.step == stop_at
  assert progress.stop_reason == "far enough"


def test_a_convex_task_is_solved(tmp_path):
  task = least_squares()
  _, progress = fit(task, tmp_path, optax.adam(0.3), num_epochs=10)
  assert progress.best_value > 0.05 * progress.history[0]["score"]
  # The state is donated to the step, the caller's arrays are not.
  assert np.asarray(task.params["w"]).tolist() == [0.0] * DIM


def test_a_finished_run_is_not_trained_again(tmp_path):
  params, progress = fit(least_squares(), tmp_path)
  text = metrics_text(tmp_path)

  def never(*args):
    raise AssertionError("called")

  again, same = fit(least_squares(batch_fn=never, eval_fn=never), tmp_path)
  assert bytes_of(again) == bytes_of(params)
  assert same == progress
  assert metrics_text(tmp_path) == text


def test_more_epochs_continue_a_finished_run(tmp_path):
  whole, _ = fit(least_squares(), tmp_path / "whole", num_epochs=4)
  fit(least_squares(), tmp_path / "parts", num_epochs=2)
  parts, progress = fit(least_squares(), tmp_path / "parts", num_epochs=4)
  assert bytes_of(parts) == bytes_of(whole)
  assert progress.step == 16
  assert metrics_text(tmp_path / "parts") == metrics_text(tmp_path / "whole")


def crash_in(name, call):
  """A task one of whose functions raises when it is called that often."""
  task = least_squares()
  function, calls = getattr(task, name), 0

  def crashing(*args):
    nonlocal calls
    calls += 1
    if calls == call:
      raise Crash
    return function(*args)

  return task._replace(**{name: crashing})


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
  folder = tmp_path_factory.mktemp("uninterrupted")
  params, progress = fit(least_squares(), folder)
  return params, progress, metrics_text(folder)


@pytest.mark.parametrize(
  "crashes",
  [
    [("batch_fn", 1)],  # Nothing but the first validation is saved.
    [("batch_fn", 2)],
    [("batch_fn", 4)],  # At a checkpoint.
    [("batch_fn", 6)],  # Between two.
    [("eval_fn", 1)],
    [("eval_fn", 3)],
    [("stop_fn", 1)],  # After the metrics are written, before the checkpoint.
    [("stop_fn", 3)],
    [("batch_fn", 5), ("stop_fn", 1), ("batch_fn", 6), ("eval_fn", 1)],
  ],
)
def test_an_interrupted_run_ends_where_another_ends(
  tmp_path, uninterrupted, crashes
):
  for name, call in crashes:
    with pytest.raises(Crash):
      fit(crash_in(name, call), tmp_path)
  params, progress = fit(least_squares(), tmp_path)
  expected_params, expected_progress, expected_text = uninterrupted
  assert bytes_of(params) == bytes_of(expected_params)
  assert progress == expected_progress
  assert metrics_text(tmp_path) == expected_text


def spoil(step_to_spoil):
  task = least_squares()

  def batch_fn(step):
    batch = task.batch_fn(step)
    if step == step_to_spoil:
      batch = {"query": np.array([7, 8, 2]), "y": np.full(BATCH, np.nan, "f4")}
    return batch

  return task._replace(batch_fn=batch_fn)


def test_a_non_finite_loss_names_its_batch_and_keeps_the_checkpoint(
  tmp_path, uninterrupted
):
  match = r"nan.* at step 5, query rows \[7, 8, 2\]; .* step 4 in "
  with pytest.raises(loop.NonFiniteError, match=match):
    fit(spoil(5), tmp_path)
  latest = checkpoint.Checkpoints(tmp_path / "latest")
  like = loop.TrainState(
    least_squares().params, optax.adamw(0.1).init(least_squares().params)
  )
  state, meta = latest.restore(like)
  latest.close()
  assert (latest.latest_step, meta["step"]) == (4, 4)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))
  # What came before the bad batch is on record, and the run can go on.
  assert writers.read_metrics(tmp_path)[-1]["step"] == 5
  params, _ = fit(least_squares(), tmp_path)
  assert bytes_of(params) == bytes_of(uninterrupted[0])
  assert metrics_text(tmp_path) == uninterrupted[2]


def test_a_non_finite_gradient_of_a_finite_loss_stops(tmp_path):
  def loss_fn(params, frozen, batch):
    return jnp.sqrt(jnp.abs(params["w"]))  # 0 at the start, its slope is not.

  with pytest.raises(loop.NonFiniteError, match=r"'loss': 0.0.* at step 0"):
    fit(climb(peak=1, loss_fn=loss_fn), tmp_path)


def test_debug_checks_name_the_operation(tmp_path):
  def loss_fn(params, frozen, batch):
    return jnp.log(params["w"] - 1.0)

  with pytest.raises(Exception, match=r"nan generated by primitive: log"):
    fit(climb(peak=1, loss_fn=loss_fn), tmp_path, debug_checks=True)


def test_debug_checks_change_no_result(tmp_path, uninterrupted):
  params, _ = fit(least_squares(), tmp_path, debug_checks=True)
  for got, expected in zip(
    jax.tree.leaves(params), jax.tree.leaves(uninterrupted[0]), strict=True
  ):
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_a_batch_larger_than_the_split_is_an_error(tmp_path):
  with pytest.raises(ValueError, match="steps_per_epoch is 0: batch_size"):
    fit(climb(peak=1, steps_per_epoch=0), tmp_path / "run")
  assert not (tmp_path / "run").exists()


def test_the_frozen_arrays_are_no_constants(tmp_path):
  traces = 0
  task = least_squares()

  def loss_fn(*args):
    nonlocal traces
    traces += 1
    return task.loss_fn(*args)

  fit(task._replace(loss_fn=loss_fn), tmp_path)
  assert traces == 1
