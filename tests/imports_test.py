"""What `import nnn_jax.decoders` brings with it."""

import json
import subprocess
import sys

PROGRAM = """
import json, sys
import jax, jax.numpy, numpy
before = set(sys.modules)
import nnn_jax.decoders
import nnn_jax.solvers.fista
print(json.dumps([sorted(before), sorted(set(sys.modules) - before)]))
"""

HEAVY = (
  "absl",
  "flax",
  "grain",
  "huggingface_hub",
  "matplotlib",
  "ml_collections",
  "optax",
  "orbax",
  "safetensors",
  "sklearn",
  "tensorboardX",
  "tensorflow_datasets",
  "tokenizers",
)


def test_decoders_need_jax_and_numpy_only():
  done = subprocess.run(
    [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
  )
  before, added = json.loads(done.stdout)
  assert not {m.split(".")[0] for m in before + added} & set(HEAVY)
  # Nothing beyond our modules and what jax and numpy import lazily.
  roots = {name.split(".")[0] for name in added} - sys.stdlib_module_names
  assert roots <= {"nnn_jax", "jax", "jaxlib", "numpy", "scipy", "ml_dtypes"}
  rooms = {n.split(".")[1] for n in added if n.startswith("nnn_jax.")}
  # `native` keeps what it compiles, through `files`.
  assert rooms == {"core", "decoders", "files", "native", "solvers", "types"}


def test_importing_starts_no_backend_and_changes_no_setting():
  program = """
import jax
before = dict(jax.config.values)
import nnn_jax.decoders
from jax._src import xla_bridge
assert dict(jax.config.values) == before
assert not xla_bridge.backends_are_initialized()
"""
  subprocess.run([sys.executable, "-c", program], check=True)
