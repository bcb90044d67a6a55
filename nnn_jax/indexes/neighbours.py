"""A graph of neighbouring documents, to be walked by a search.

Each document has edges to its nearest others by Euclidean distance, exactly.
Options mend what stops a walk: edges in both directions, and edges between the
parts of a graph that falls apart. `kind` gives controls, which show what the
neighbourhood itself is worth: the same graph between documents in random order
("shuffled"), and random edges ("random").

Reference: "Hypencoder: Hypernetworks for Information Retrieval" (2025), arXiv
2502.05364, section 3.5.
"""

from __future__ import annotations

import dataclasses
import io
import zipfile
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse.csgraph

from nnn_jax import files, types
from nnn_jax.core import checks, corpora, linalg

_FORMAT = "nnn_jax neighbours 1"
# Entries of a block of distances.
_BLOCK_ENTRIES = 1 << 25
Kind = Literal["nearest", "shuffled", "random"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Neighbours(corpora.Stored):
  """Documents and their edges; `build` makes it.

  Attributes:
    embeddings: `[num_docs, dim]`, in any float dtype.
    neighbours: `[num_docs, degree]` int32, -1 where fewer.
    entries: `[num_entries]` int32, where a walk begins.
  """

  embeddings: jax.Array
  neighbours: jax.Array
  entries: jax.Array

  def save(self, path: files.PathLike) -> None:
    """Writes one .npz file, which appears whole or not at all."""
    stored = np.asarray(self.embeddings)
    buffer = io.BytesIO()
    # npz knows no bfloat16: the bytes are kept, and what they are.
    np.savez(
      buffer,
      embeddings=stored.view(np.uint8),
      neighbours=np.asarray(self.neighbours),
      entries=np.asarray(self.entries),
      dtype=np.str_(stored.dtype.name),
      format=np.str_(_FORMAT),
    )
    files.write(path, buffer.getvalue())


def load(path: files.PathLike) -> Neighbours:
  """Reads what `Neighbours.save` wrote.

  Raises:
    FileNotFoundError: If there is no such file.
    ValueError: If it is another kind of file, or damaged.
  """
  try:
    with np.load(path, allow_pickle=False) as file:
      if str(file["format"]) != _FORMAT:
        raise ValueError(f"its format is {file['format']!s}")
      embeddings = file["embeddings"].view(jnp.dtype(str(file["dtype"])))
      neighbours, entries = file["neighbours"], file["entries"]
  except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
    raise ValueError(
      f"{path} is not a whole file of format {_FORMAT!r} ({error}): build the "
      "graph again and save it with Neighbours.save."
    ) from error
  return Neighbours(
    *(jnp.asarray(x) for x in (embeddings, neighbours, entries))
  )


def build(
  corpus: types.Array,
  *,
  degree: int = 32,
  num_entries: int = 512,
  reverse: bool = True,
  connect: bool = True,
  kind: Kind = "nearest",
  seed: int = 0,
) -> Neighbours:
  """Builds the graph; on the host, once, by blocks of matrix products.

  Args:
    corpus: `[num_docs, dim]`.
    degree: Edges out of a document to its nearest, at most num_docs - 1.
    num_entries: Documents where a walk begins, drawn at random.
    reverse: Whether an edge leads back too. A document keeps as many of these
      as again `degree`, those of its nearest.
    connect: Whether parts of the graph without an edge between them get one
      to the next one, in a ring.
    kind: "nearest", or a control: "shuffled" or "random".
    seed: Of what is random.

  Raises:
    ValueError: If the corpus is empty, has NaN or infinity, or a number is out
      of range.

  >>> corpus = np.asarray([[0.0], [1.0], [5.0], [7.0]], np.float32)
  >>> graph = build(corpus, degree=1, num_entries=1, connect=False)
  >>> graph.neighbours.tolist()
  [[1, -1], [0, -1], [3, -1], [2, -1]]
  """
  checks.check_embeddings("corpus", corpus)
  corpus = jnp.asarray(corpus)
  num_docs = corpus.shape[0]
  if kind not in ("nearest", "shuffled", "random"):
    raise ValueError(
      f'kind must be "nearest", "shuffled" or "random", got {kind!r}.'
    )
  for name, value in {"degree": degree, "num_entries": num_entries}.items():
    if value < 1:
      raise ValueError(f"{name} must be >= 1, got {value}.")
  degree = min(degree, num_docs - 1)
  rng = np.random.default_rng(seed)
  if kind == "random":
    # Of the others: an offset from a document is never 0.
    offsets = rng.integers(1, max(num_docs, 2), (num_docs, degree))
    edges = (np.arange(num_docs)[:, None] + offsets) % num_docs
  else:
    edges = _nearest(corpus, degree)
  if kind == "shuffled":
    order = rng.permutation(num_docs)
    shuffled = np.empty_like(edges)
    shuffled[order] = order[edges]
    edges = shuffled
  columns = [edges.astype(np.int32)]
  if reverse:
    columns.append(_reversed(columns[0]))
  if connect:
    columns.append(_bridges(np.concatenate(columns, axis=1)))
  entries = rng.permutation(num_docs)[: min(num_entries, num_docs)]
  return Neighbours(
    corpus,
    jnp.asarray(np.concatenate(columns, axis=1), jnp.int32),
    jnp.asarray(np.sort(entries), jnp.int32),
  )


@jax.jit
def _similarities(rows, corpus, half_squares):
  """|x - y|^2 = |x|^2 - 2 (x . y - |y|^2 / 2): larger is nearer."""
  return linalg.matmul(rows, corpus.T) - half_squares[None, :]


def _nearest(corpus: jax.Array, degree: int) -> np.ndarray:
  """`[num_docs, degree]`, the nearest others, ties by lowest row."""
  corpus = corpus.astype(linalg.compute_dtype(corpus))
  num_docs = corpus.shape[0]
  half_squares = 0.5 * jnp.sum(corpus**2, axis=1)
  size = max(1, _BLOCK_ENTRIES // num_docs)
  chunks = []
  for start in range(0, num_docs, size):
    rows = np.arange(start, min(start + size, num_docs))
    near = np.array(_similarities(corpus[rows], corpus, half_squares))
    near[np.arange(len(rows)), rows] = -np.inf
    best = np.argpartition(-near, degree - 1, axis=1)[:, :degree]
    best.sort(axis=1)
    order = np.argsort(
      -np.take_along_axis(near, best, axis=1), axis=1, kind="stable"
    )
    chunks.append(np.take_along_axis(best, order, axis=1))
  return np.concatenate(chunks)


def _reversed(edges: np.ndarray) -> np.ndarray:
  """Edges back, `[num_docs, degree]`, that are not there; -1 where fewer."""
  num_docs, degree = edges.shape
  source = np.repeat(np.arange(num_docs), degree)
  target, rank = edges.ravel(), np.tile(np.arange(degree), num_docs)
  new = ~(edges[target] == source[:, None]).any(axis=1)
  source, target, rank = source[new], target[new], rank[new]
  order = np.lexsort((source, rank, target))
  source, target = source[order], target[order]
  place = np.arange(len(target)) - np.searchsorted(target, target)
  back = np.full((num_docs, degree), -1, np.int32)
  kept = place < degree
  back[target[kept], place[kept]] = source[kept]
  return back


def _bridges(edges: np.ndarray) -> np.ndarray:
  """Edges `[num_docs, 2]` that join all parts in a ring; -1 where none."""
  source = np.repeat(np.arange(len(edges)), edges.shape[1])[edges.ravel() >= 0]
  target = edges[edges >= 0]
  graph = scipy.sparse.coo_array(
    (np.ones(len(target), bool), (source, target)), (len(edges),) * 2
  )
  _, parts = scipy.sparse.csgraph.connected_components(graph, directed=False)
  _, first = np.unique(parts, return_index=True)
  bridges = np.full((len(edges), 2), -1, np.int32)
  if len(first) > 1:
    bridges[first, 0] = np.roll(first, -1)
    bridges[first, 1] = np.roll(first, 1)
  return bridges
