"""Test-wide settings: strict ranks, eight virtual CPU devices."""

import os
import pathlib

# Before jax is imported. Sharding is tested on eight virtual devices. Tests
# spend their time on compiling: unoptimised, and by XLA's older emitters, it
# takes a third of it. (Experiments that tests start compile as users do.) What
# the caller sets comes last, and wins.
os.environ["XLA_FLAGS"] = " ".join(
  (
    "--xla_force_host_platform_device_count=8",
    "--xla_backend_optimization_level=0",
    "--xla_cpu_use_fusion_emitters=false",
    os.environ.get("XLA_FLAGS", ""),
  )
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
