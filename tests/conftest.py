"""Test-wide settings: strict ranks, eight virtual CPU devices."""

import os

# Before jax is imported: sharding is tested on eight virtual devices.
os.environ["XLA_FLAGS"] = (
  os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)

import hypothesis
import jax

jax.config.update("jax_numpy_rank_promotion", "raise")
hypothesis.settings.register_profile(
  "default", deadline=None, derandomize=True, max_examples=50
)
hypothesis.settings.load_profile("default")
