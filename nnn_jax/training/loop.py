"""The training loop: epochs, validation, early stopping, resume.

A run is a pure function of its task: batches come from the step number alone,
so a killed run that is started again ends where an uninterrupted one ends.
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tqdm
from absl import logging
from jax.experimental import checkify

from nnn_jax.training import checkpoint, writers

Metrics = dict[str, Any]


class Task(NamedTuple):
  """What one stage trains.

  Attributes:
    params: The pytree that is trained.
    frozen: Arrays that `loss_fn` reads and nobody trains; an argument of the
      jitted step, so that they are not baked into it as constants.
    loss_fn: (params, frozen, batch) -> scalar loss.
    batch_fn: step -> dict of arrays; a pure function of the step. Its entry
      "query" holds the rows of the batch's queries, to name a bad batch.
    eval_fn: params -> metrics on the validation split.
    steps_per_epoch: Steps in one pass.
    monitor: The metric of `eval_fn` that picks the best epoch; more is better.
    stop_fn: metrics -> a reason to stop at once, or None.
  """

  params: Any
  frozen: Any
  loss_fn: Callable[[Any, Any, Any], jax.Array]
  batch_fn: Callable[[int], dict[str, np.ndarray]]
  eval_fn: Callable[[Any], Metrics]
  steps_per_epoch: int
  monitor: str
  stop_fn: Callable[[Metrics], str | None] = lambda metrics: None


class TrainState(NamedTuple):
  """What a step changes."""

  params: Any
  opt_state: Any


@dataclasses.dataclass(kw_only=True)
class Progress:
  """Where a run is; saved as JSON in every checkpoint.

  Attributes:
    step: Steps done; also the position in the data.
    epochs: Epochs validated; step 0 is validated as epoch 0.
    best_value: The best monitored value so far.
    best_step: Where it was reached.
    stale_epochs: Epochs since.
    stop_reason: Why the run ended early, or None.
    history: One record of validation metrics an epoch.
  """

  step: int = 0
  epochs: int = -1
  best_value: float = -float("inf")
  best_step: int = -1
  stale_epochs: int = 0
  stop_reason: str | None = None
  history: list[dict[str, Any]] = dataclasses.field(default_factory=list)


class NonFiniteError(RuntimeError):
  """A loss or gradient is NaN or infinite."""


def _make_step(
  task: Task, optimizer: optax.GradientTransformation, debug_checks: bool
):
  def step(state: TrainState, frozen, batch):
    loss, grads = jax.value_and_grad(task.loss_fn)(state.params, frozen, batch)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    metrics = {"loss": loss, "grad_norm": optax.global_norm(grads)}
    return TrainState(
      optax.apply_updates(state.params, updates), opt_state
    ), metrics

  if not debug_checks:
    return jax.jit(step, donate_argnums=0)
  checked = jax.jit(
    checkify.checkify(
      step, errors=checkify.float_checks | checkify.index_checks
    )
  )

  def step_and_throw(*args):
    error, result = checked(*args)
    error.throw()
    return result

  return step_and_throw


def fit(
  task: Task,
  optimizer: optax.GradientTransformation,
  *,
  folder: pathlib.Path,
  num_epochs: int,
  patience: int,
  checkpoint_every: int,
  debug_checks: bool = False,
) -> tuple[Any, Progress]:
  """Trains, or goes on where the folder's last checkpoint stands.

  Args:
    task: What to train.
    optimizer: An optax optimiser.
    folder: Checkpoints (`latest`, `best`) and metrics go here.
    num_epochs: At most so many passes.
    patience: Stop after so many epochs without a strict improvement.
    checkpoint_every: Steps between checkpoints; every epoch's end has one.
    debug_checks: Run the step under checkify, which names the operation that
      first made a NaN; slow.

  Returns:
    (the parameters of the best epoch, the final progress).

  Raises:
    NonFiniteError: The step and batch are named; the last good checkpoint
      stays.
  """
  if task.steps_per_epoch < 1:
    raise ValueError(
      "steps_per_epoch is 0: batch_size is larger than the train split; use "
      "a smaller batch_size."
    )
  # Arrays are copied: the step donates its state, the caller keeps the task.
  params = jax.tree.map(jnp.array, task.params)
  state = TrainState(params, optimizer.init(params))
  latest = checkpoint.Checkpoints(folder / "latest")
  best = checkpoint.Checkpoints(folder / "best")
  progress = Progress()
  if latest.latest_step is not None:
    state, meta = latest.restore(state)
    progress = Progress(**meta)
    logging.info("Resuming %s at step %d.", folder, progress.step)
  # Without a checkpoint step 0 is validated again: its record goes too.
  resume_step = progress.step if progress.epochs >= 0 else -1
  writer = writers.MetricsWriter(folder, resume_step=resume_step)

  def save():
    latest.save(progress.step, state, dataclasses.asdict(progress))

  def validate():
    metrics = task.eval_fn(state.params)
    progress.epochs += 1
    progress.history.append(
      {"step": progress.step, "epoch": progress.epochs, **metrics}
    )
    writer.write(
      progress.step, {f"validation/{k}": v for k, v in metrics.items()}
    )
    value = metrics[task.monitor]
    if value > progress.best_value:
      progress.best_value, progress.best_step = value, progress.step
      progress.stale_epochs = 0
      best.save(progress.step, state.params, {"step": progress.step, **metrics})
    else:
      progress.stale_epochs += 1
    progress.stop_reason = task.stop_fn(metrics)
    if progress.stop_reason is None and progress.stale_epochs >= patience:
      progress.stop_reason = f"no improvement for {patience} epochs"
    logging.info(
      "Epoch %d, step %d: %s%s",
      progress.epochs,
      progress.step,
      ", ".join(f"{k} {v:.4g}" for k, v in metrics.items()),
      f"; stopping: {progress.stop_reason}" if progress.stop_reason else "",
    )

  train_step = _make_step(task, optimizer, debug_checks)
  num_steps = num_epochs * task.steps_per_epoch
  bar = tqdm.tqdm(
    total=num_steps,
    initial=progress.step,
    desc=folder.name,
    unit="step",
    mininterval=1.0 if sys.stderr.isatty() else 30.0,
  )
  try:
    if progress.epochs < 0:
      validate()
      save()
    while progress.step < num_steps and progress.stop_reason is None:
      batch = task.batch_fn(progress.step)
      state, metrics = train_step(state, task.frozen, batch)
      metrics = {k: float(v) for k, v in metrics.items()}
      if not all(np.isfinite(list(metrics.values()))):
        raise NonFiniteError(
          f"{metrics} at step {progress.step}, query rows "
          f"{np.asarray(batch['query']).tolist()}; the last good checkpoint "
          f"is step {latest.latest_step} in {folder}. Lower the learning "
          "rate, or run with --debug_checks to name the operation."
        )
      progress.step += 1
      bar.update()
      bar.set_postfix(loss=f"{metrics['loss']:.4f}", refresh=False)
      writer.write(progress.step, {f"train/{k}": v for k, v in metrics.items()})
      at_epoch_end = progress.step % task.steps_per_epoch == 0
      if at_epoch_end:
        validate()
      if at_epoch_end or progress.step % checkpoint_every == 0:
        save()
    best_params, _ = best.restore(state.params)
  finally:
    bar.close()
    writer.close()
    latest.close()
    best.close()
  return best_params, progress
