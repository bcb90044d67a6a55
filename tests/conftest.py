"""Test-wide settings: strict ranks, eight virtual CPU devices."""

import os
import pathlib

# Before jax is imported: sharding is tested on eight virtual devices.
os.environ["XLA_FLAGS"] = (
  os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)

import hypothesis
import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")
hypothesis.settings.register_profile(
  "default", deadline=None, derandomize=True, max_examples=50
)
hypothesis.settings.load_profile("default")


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled_programs():
  """Frees compiled programs before they end the process.

  Each keeps a few memory maps, of which Linux allows a process 65,530: beyond
  them the next compilation is a segmentation fault.
  """
  yield
  maps = pathlib.Path("/proc/self/maps")
  if maps.exists() and maps.read_text().count("\n") > 30_000:
    jax.clear_caches()
