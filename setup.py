"""Packaging. The core needs JAX and numpy only; the rest are extras."""

import pathlib
import re

import setuptools

ROOT = pathlib.Path(__file__).parent
VERSION = re.search(
  r'__version__ = "(.+)"', (ROOT / "nnn_jax/__init__.py").read_text()
).group(1)

TRAIN = [
  "absl-py>=2.1",
  "array_record>=0.8",
  "flatbuffers",  # jax.export needs it and does not declare it.
  "flax>=0.12",
  "grain>=0.2.15",
  "huggingface_hub>=0.30",
  "importlib_resources",  # tensorflow-datasets does not declare it.
  "matplotlib>=3.9",
  "ml_collections>=1.0",
  "optax>=0.2.5",
  "orbax-checkpoint>=0.11.20",
  "safetensors>=0.5",
  "scikit-learn>=1.6",
  "scipy>=1.14",  # Its documentation is half of the embedded data set.
  "tensorboardX>=2.6",
  "tensorflow-datasets>=4.9.9",
  "tokenizers>=0.21",
  "tqdm>=4.66",
]
TEST = [
  "chex>=0.1.90",
  "cvxpy>=1.6",
  "hypothesis>=6.100",
  "ipykernel",
  "ir_measures>=0.4",
  "jupytext>=1.16",
  "nbmake>=1.5",
  "pytest>=8",
  "pytest-xdist>=3.6",
]
# Peers that the benchmarks measure.
BENCH = [
  "celer>=0.7.4",
  "faiss-cpu>=1.9",
  "langchain-core>=0.3",
  "pyseismic-lsr>=0.5.4",
  "pyversity>=0.2",
  "skglm>=0.5",
  "threadpoolctl>=3.5",
  "torch>=2.5",
]
LINT = ["import-linter>=2.3", "mypy>=1.15", "nbstripout", "ruff>=0.11"]

setuptools.setup(
  name="nnn_jax",
  version=VERSION,
  description="Retrieval decoders in JAX, trained end to end",
  long_description=(ROOT / "README.md").read_text(),
  long_description_content_type="text/markdown",
  license="Apache-2.0",
  python_requires=">=3.11",
  packages=setuptools.find_packages(include=["nnn_jax", "nnn_jax.*"]),
  package_data={"nnn_jax": ["py.typed", "native/*.cc"]},
  install_requires=["jax>=0.8", "numpy>=2.0"],
  extras_require={
    "train": TRAIN,
    "test": TRAIN + TEST,
    "bench": TRAIN + BENCH,
    "dev": TRAIN + TEST + LINT + ["pre-commit"],
  },
)
