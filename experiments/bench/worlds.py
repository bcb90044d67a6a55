"""Synthetic corpora of unit embeddings, with queries that mix documents.

  anisotropic   normal noise around one shared mean (cosines of about .2), as
                sentence encoders give
  clustered     a document is a cluster centre plus noise of a stated norm; the
                centres are anisotropic

A query is the sum of three documents plus noise. numpy draws everything from
the seed, in float32 and in blocks, so every process that asks for a world gets
the same one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

KINDS = ("anisotropic", "clustered")
DTYPES = ("float32", "bfloat16")

_BLOCK = 65536  # Rows drawn at a time: 100 MB at dim 384.


@dataclasses.dataclass(frozen=True, kw_only=True)
class World:
  """What a benchmark decodes.

  Attributes:
    kind: One of `KINDS`.
    dim: Embedding size.
    shared: Norm of the shared mean, in units of the noise's.
    radius: Norm of a document's noise around its unit centre (clustered).
    cluster_size: Documents a cluster, on average (clustered).
    dtype: Storage dtype of the corpus. Peers that have no bfloat16 get the
      rounded values as float32.
    seed: Of everything that is drawn.
  """

  kind: str = "anisotropic"
  dim: int = 384
  shared: float = 0.5
  radius: float = 0.6
  cluster_size: int = 100
  dtype: str = "float32"
  seed: int = 0

  def __post_init__(self):
    if self.kind not in KINDS:
      raise ValueError(f"kind must be one of {KINDS}, got {self.kind!r}.")
    if self.dtype not in DTYPES:
      raise ValueError(f"dtype must be one of {DTYPES}, got {self.dtype!r}.")


def corpus(world: World, num_docs: int) -> np.ndarray:
  """Returns `[num_docs, dim]` float32 rows, of unit norm before rounding.

  >>> rows = corpus(World(dim=8, kind="clustered"), 5)
  >>> np.linalg.norm(rows, axis=1).round(3).tolist()
  [1.0, 1.0, 1.0, 1.0, 1.0]
  """
  rng = np.random.default_rng([world.seed, num_docs])
  mean = world.shared * rng.standard_normal(world.dim, np.float32)
  rows = np.empty((num_docs, world.dim), np.float32)
  if world.kind == "clustered":
    num_centres = max(1, num_docs // world.cluster_size)
    centres = rng.standard_normal((num_centres, world.dim), np.float32)
    centres = _normalize(centres + mean)
  for block in _blocks(rows):
    rng.standard_normal(dtype=np.float32, out=block)
    if world.kind == "anisotropic":
      block += mean
    else:
      block *= world.radius / np.linalg.norm(block, axis=1, keepdims=True)
      block += centres[rng.integers(num_centres, size=len(block))]
    block[:] = _normalize(block)
    if world.dtype == "bfloat16":
      block[:] = _round_to_bfloat16(block)
  return rows


def queries(world: World, rows: np.ndarray, batch: int) -> np.ndarray:
  """Returns `[batch, dim]` float32 unit queries; more begin with the fewer."""
  return mixtures(world, rows, batch)[0]


def mixtures(
  world: World, rows: np.ndarray, batch: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the queries, and the documents `[batch, 3]` that each mixes."""
  rng = np.random.default_rng([world.seed, len(rows), 1])
  out = np.empty((batch, world.dim), np.float32)
  chosen = np.empty((batch, 3), np.int32)
  for query, three in zip(out, chosen, strict=True):
    noise = rng.standard_normal(world.dim, np.float32) / world.dim**0.5
    three[:] = rng.choice(len(rows), 3, replace=False)
    query[:] = rows[three].sum(axis=0) + 0.5 * noise
  return _normalize(out), chosen


def _blocks(rows: np.ndarray) -> Iterator[np.ndarray]:
  for start in range(0, len(rows), _BLOCK):
    yield rows[start : start + _BLOCK]


def _normalize(rows: np.ndarray) -> np.ndarray:
  return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def _round_to_bfloat16(rows: np.ndarray) -> np.ndarray:
  """To the nearest, ties to even, by the bits of float32."""
  bits = rows.view(np.uint32)
  bits = bits + 0x7FFF + ((bits >> 16) & 1)
  return (bits & np.uint32(0xFFFF0000)).view(np.float32)
