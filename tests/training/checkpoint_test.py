"""Tests of nnn_jax.training.checkpoint."""

import pathlib
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nnn_jax.training import checkpoint


def make_state(value=0.0, size=3):
  params = {
    "layers": [jnp.full((2, size), value), jnp.full(size, value, jnp.bfloat16)],
    "gate": jnp.asarray(value),
  }
  optimizer = optax.chain(
    optax.clip_by_global_norm(1.0), optax.adamw(1e-3, weight_decay=0.1)
  )
  return {"params": params, "opt_state": optimizer.init(params)}


def opened(folder):
  return checkpoint.Checkpoints(folder)


def assert_same(got, expected):
  assert jax.tree.structure(got) == jax.tree.structure(expected)
  for one, other in zip(
    jax.tree.leaves(got), jax.tree.leaves(expected), strict=True
  ):
    assert one.dtype == other.dtype
    np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_round_trip_keeps_the_optimizers_structure(tmp_path):
  state = make_state(1.5)
  meta = {"step": 7, "best_value": 0.1 + 0.2, "stop_reason": None, "h": [{}]}
  first = opened(tmp_path / "new" / "latest")
  first.save(7, state, meta)
  first.close()
  second = opened(tmp_path / "new" / "latest")
  assert second.latest_step == 7
  got, got_meta = second.restore(make_state())
  second.close()
  assert_same(got, state)
  assert got_meta == meta


def test_the_newest_alone_is_kept(tmp_path):
  checkpoints = opened(tmp_path)
  for step in (0, 3, 12):
    checkpoints.save(step, make_state(float(step)), {"step": step})
    assert checkpoints.latest_step == step
  checkpoints.close()
  assert [path.name for path in tmp_path.iterdir()] == ["12"]
  again = opened(tmp_path)
  got, meta = again.restore(make_state())
  again.close()
  assert_same(got, make_state(12.0))
  assert meta == {"step": 12}


def test_a_step_saved_again_is_kept(tmp_path):
  checkpoints = opened(tmp_path)
  checkpoints.save(1, make_state(1), {"step": 1})
  checkpoints.save(1, make_state(1), {"step": 1})
  assert checkpoints.latest_step == 1
  checkpoints.close()


def test_no_checkpoint(tmp_path):
  checkpoints = opened(tmp_path / "missing")
  assert checkpoints.latest_step is None
  with pytest.raises(FileNotFoundError):
    checkpoints.restore(make_state())
  checkpoints.close()


def start(program, folder):
  """Runs a program that saves, in another process."""
  command = [sys.executable, "-c", program, str(folder)]
  here = pathlib.Path(__file__).parent
  return subprocess.Popen(
    command,
    cwd=here.parents[1],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


_HEAD = """
import pathlib, resource, sys
import jax
import numpy as np
from nnn_jax.training import checkpoint
checkpoints = checkpoint.Checkpoints(pathlib.Path(sys.argv[1]))
def state(step):  # A constant would be compressed to nothing.
  rng = np.random.default_rng(step)
  return {"w": rng.normal(size=(256, 1024)).astype(np.float32)}
"""


def state_of(step):
  rng = np.random.default_rng(step)
  return {"w": rng.normal(size=(256, 1024)).astype(np.float32)}


def read(folder):
  checkpoints = opened(folder)
  state, meta = checkpoints.restore(state_of(0))
  step = checkpoints.latest_step
  checkpoints.close()
  assert meta == {"step": step}
  np.testing.assert_array_equal(state["w"], state_of(step)["w"])
  return step


def test_a_save_that_fails_leaves_the_old_checkpoint(tmp_path):
  # The operating system refuses to write more, as it does on a full disk.
  program = (
    _HEAD
    + """
checkpoints.save(1, state(1), {"step": 1})
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
try:
  checkpoints.save(2, state(2), {"step": 2})
except Exception as error:
  print("refused", type(error).__name__)
"""
  )
  process = start(program, tmp_path)
  out, err = process.communicate(timeout=120)
  assert "refused" in out, err
  assert read(tmp_path) == 1


def test_a_state_of_other_shapes_is_an_error(tmp_path):
  # In another process: Orbax leaves coroutines behind that nobody awaits.
  program = (
    _HEAD
    + """
checkpoints.save(1, jax.tree.map(jax.numpy.asarray, state(1)), {"step": 1})
try:
  checkpoints.restore({"w": np.zeros((256, 512), np.float32)})
except Exception as error:
  print("refused", error, flush=True)
"""
  )
  out, err = start(program, tmp_path).communicate(timeout=120)
  assert "refused" in out, err
  assert "shape" in out
  assert read(tmp_path) == 1


@pytest.mark.parametrize("delay", [0.0, 0.03])
def test_a_kill_in_the_middle_of_saves_leaves_a_whole_one(tmp_path, delay):
  program = (
    _HEAD
    + """
for step in range(1, 10_000):
  checkpoints.save(step, state(step), {"step": step})
  print(step, flush=True)
"""
  )
  process = start(program, tmp_path)
  for _ in range(3):
    done = int(process.stdout.readline())
  time.sleep(delay)
  process.send_signal(signal.SIGKILL)
  out, _ = process.communicate()
  assert process.returncode == -signal.SIGKILL
  done = max([done, *map(int, out.split())])
  # The one reported last, or the one that was complete but not yet reported.
  assert read(tmp_path) in (done, done + 1)
  # And the folder can be saved to again.
  checkpoints = opened(tmp_path)
  checkpoints.save(done + 2, state_of(done + 2), {"step": done + 2})
  checkpoints.close()
  assert read(tmp_path) == done + 2
