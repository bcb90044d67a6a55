"""Documents in clusters: a search that skips, provably, what cannot matter.

With r the residual, and documents u_j in a cluster of centre c and radius p,

  max_j u_j . r  <=  c . r + p ||r||,

so once that bound is at most a threshold for every cluster not yet visited, no
document in them exceeds it. Clusters are visited in the order of their bounds.

Reference: Ram and Gray (2012), Maximum inner-product search using cone trees
(the bound for a ball).
"""

from __future__ import annotations

import dataclasses
import io
import zipfile
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nnn_jax import files, types
from nnn_jax.core import checks, corpora, linalg, topk
from nnn_jax.indexes import kept, kmeans

_FORMAT = "nnn_jax clusters 1"
# Documents to score at a time.
_STEP_DOCS = 512


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Clusters:
  """A `corpora.Searchable` in cluster order; rows are those of the corpus.

  Attributes:
    embeddings: `[num_docs, dim]` in cluster order, as stored.
    ids: `[num_docs]` int32, the corpus row of each place.
    places: `[num_docs]` int32, the place of each corpus row.
    starts: `[num_clusters]` int32, the first place of each cluster.
    sizes: `[num_clusters]` int32.
    centres: `[num_clusters, dim]` in the compute dtype.
    radii: `[num_clusters]`, at least the largest distance of a member from its
      centre, by so much that rounding keeps `bounds` valid.
    longest: Upper bound on the norm of a row.
    max_size: Static; of a cluster.
  """

  embeddings: jax.Array
  ids: jax.Array
  places: jax.Array
  starts: jax.Array
  sizes: jax.Array
  centres: jax.Array
  radii: jax.Array
  longest: jax.Array
  max_size: int = dataclasses.field(metadata={"static": True})

  @property
  def shape(self) -> tuple[int, ...]:
    """(num_docs, dim)."""
    return self.embeddings.shape

  @property
  def dtype(self) -> jnp.dtype:
    """As the embeddings are stored."""
    return self.embeddings.dtype

  def rows(self, indices: types.Array) -> jax.Array:
    """The embeddings of some corpus rows; differentiable."""
    return linalg.rows(self.embeddings, self.places[indices])

  def max_norm(self) -> jax.Array:
    """A bound on the largest norm of a row, known since `build`."""
    return self.longest

  def bounds(self, residual: jax.Array) -> jax.Array:
    """`[num_clusters]`; no member's product with the residual is above."""
    centre = linalg.matmul(self.centres, residual)
    return centre + self.radii * jnp.linalg.norm(residual)

  def search(
    self,
    residual: jax.Array,
    *,
    num: int,
    keep: jax.Array,
    threshold: jax.Array,
    where: jax.Array | None,
  ) -> corpora.Found:
    """Visits clusters, the largest bound first; see `Searchable`.

    Until it has num documents, and either one above the threshold beside the
    kept, or no unvisited cluster whose bound is.
    """
    step = min(self.starts.shape[0], max(1, _STEP_DOCS // self.max_size))
    bounds = self.bounds(residual)
    # Empty clusters at the end, so that a step is never cut short.
    order = jnp.argsort(-bounds)
    order = jnp.pad(order, (0, step), constant_values=-1)
    bounds = jnp.where(order >= 0, bounds[order], -jnp.inf)

    def more(state: _Visited) -> jax.Array:
      bound = bounds[state.num_visited]
      short = state.products[-1] == -jnp.inf
      open_ = (bound > threshold) & (state.products[0] <= threshold)
      return (bound > -jnp.inf) & (short | open_)

    def visit(state: _Visited) -> _Visited:
      some = jax.lax.dynamic_slice_in_dim(order, state.num_visited, step)
      rows, products = self._score(some, residual)
      products = jnp.where(kept.is_kept(keep, rows), -jnp.inf, products)
      if where is not None:
        products = jnp.where(where[rows], products, -jnp.inf)
      rows = jnp.concatenate([state.rows, rows])
      products = jnp.concatenate([state.products, products])
      best, at = topk.top_k(products, num + 1)
      return _Visited(
        rows[at[:num]],
        best[:num],
        jnp.maximum(state.dropped, best[num]),
        state.num_visited + step,
        state.num_scored + self._num_members(some).sum(dtype=jnp.int32),
      )

    start = _Visited(
      jnp.zeros(num, jnp.int32),
      jnp.full(num, -jnp.inf, residual.dtype),
      jnp.full((), -jnp.inf, residual.dtype),
      jnp.zeros((), jnp.int32),
      jnp.zeros((), jnp.int32),
    )
    state = jax.lax.while_loop(more, visit, start)
    return kept.found(
      self,
      residual,
      keep=keep,
      rows=state.rows,
      products=state.products,
      rest=jnp.maximum(state.dropped, bounds[state.num_visited]),
      num_scored=state.num_scored,
      where=where,
    )

  def members(
    self, clusters: jax.Array
  ) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The documents of some clusters, flat; differentiable.

    Args:
      clusters: `[num]` int32, -1 where fewer.

    Returns:
      (embeddings `[num * max_size, dim]`, corpus rows, whether it is one: what
      fills up a smaller cluster is not).
    """
    member = jnp.arange(self.max_size)
    sizes = self._num_members(clusters)
    inside = (member[None, :] < sizes[:, None]).ravel()
    at = (self.starts[clusters][:, None] + member[None, :]).ravel()
    at = jnp.minimum(at, self.shape[0] - 1)
    return linalg.rows(self.embeddings, at), self.ids[at], inside

  def _score(
    self, clusters: jax.Array, residual: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Rows and products of the members; -inf where there is none."""
    embeddings, rows, inside = self.members(clusters)
    products = linalg.matmul(embeddings, residual)
    return rows, jnp.where(inside, products, -jnp.inf)

  def _num_members(self, clusters: jax.Array) -> jax.Array:
    return jnp.where(clusters >= 0, self.sizes[clusters], 0)

  def save(self, path: files.PathLike) -> None:
    """Writes one .npz file, which appears whole or not at all.

    Needs the memory of a second copy of the embeddings.
    """
    arrays: dict[str, Any] = {
      field.name: np.asarray(getattr(self, field.name))
      for field in dataclasses.fields(self)
    }
    # npz knows no bfloat16: the bytes are kept, and what they are.
    stored = arrays["embeddings"]
    arrays["embeddings"] = stored.view(np.uint8)
    arrays |= {"format": np.str_(_FORMAT), "dtype": np.str_(stored.dtype.name)}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    files.write(path, buffer.getvalue())


class _Visited(NamedTuple):
  """A search under way.

  Attributes:
    rows: `[num]` the best documents so far.
    products: `[num]`, -inf where there are fewer.
    dropped: The largest product that was scored and is not among them.
    num_visited: int32, clusters.
    num_scored: int32, documents.
  """

  rows: jax.Array
  products: jax.Array
  dropped: jax.Array
  num_visited: jax.Array
  num_scored: jax.Array


def load(path: files.PathLike) -> Clusters:
  """Reads what `Clusters.save` wrote.

  Raises:
    FileNotFoundError: If there is no such file.
    ValueError: If it is another kind of file, or damaged.
  """
  names = [field.name for field in dataclasses.fields(Clusters)]
  try:
    with np.load(path, allow_pickle=False) as file:
      if str(file["format"]) != _FORMAT:
        raise ValueError(f"its format is {file['format']!s}")
      arrays = {name: file[name] for name in names}
      dtype = jnp.dtype(str(file["dtype"]))
  except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
    raise ValueError(
      f"{path} is not a whole file of format {_FORMAT!r} ({error}): build the "
      "clusters again and save them with Clusters.save."
    ) from error
  arrays["embeddings"] = arrays["embeddings"].view(dtype)
  max_size = int(arrays.pop("max_size"))
  return Clusters(
    **{name: jnp.asarray(a) for name, a in arrays.items()}, max_size=max_size
  )


def build(
  corpus: types.Array,
  *,
  num_clusters: int | None = None,
  max_size: int = 64,
  num_steps: int = 10,
  seed: int = 0,
  progress: bool = False,
) -> Clusters:
  """Clusters a corpus; on the host, once.

  K-means, then halving of what is larger than max_size or holds two groups:
  smaller clusters have smaller radii, so a search skips more documents; their
  centres are what every search reads.

  Args:
    corpus: `[num_docs, dim]`, in any float dtype; need not be unit rows.
    num_clusters: Of k-means; None is the root of num_docs.
    max_size: Of a cluster.
    num_steps: Of k-means, at most.
    seed: The same seed gives the same clusters.
    progress: Show a progress bar, if tqdm is installed.

  Raises:
    ValueError: If the corpus is empty, has NaN or infinity (the row is named),
      or a number is out of range.

  >>> index = build(np.eye(4, dtype=np.float32), num_clusters=2)
  >>> index.shape, index.rows(np.asarray([3])).tolist()
  ((4, 4), [[0.0, 0.0, 0.0, 1.0]])
  """
  checks.check_embeddings("corpus", corpus)
  corpus = jnp.asarray(corpus)
  num_docs = corpus.shape[0]
  if num_clusters is None:
    num_clusters = round(num_docs**0.5)
  num_clusters = min(num_clusters, num_docs)
  for name, value in {
    "num_clusters": num_clusters,
    "max_size": max_size,
    "num_steps": num_steps,
  }.items():
    if value < 1:
      raise ValueError(f"{name} must be >= 1, got {value}.")

  labels = kmeans.lloyd(
    corpus,
    num_clusters=num_clusters,
    num_steps=num_steps,
    seed=seed,
    progress=progress,
  )
  host = np.asarray(corpus)
  order = np.argsort(labels, kind="stable")
  members, centres, radii, longest = [], [], [], 0.0
  for group in np.split(order, np.cumsum(np.bincount(labels))[:-1]):
    rows = host[group].astype(linalg.compute_dtype(corpus))
    for part in kmeans.split(rows, max_size=max_size):
      if part.size:
        ball = _ball(rows[part])
        members.append(group[part])
        centres.append(ball[0])
        radii.append(ball[1])
        longest = max(longest, ball[2])
  ids = np.concatenate(members).astype(np.int32)
  sizes = np.asarray([len(m) for m in members], np.int32)
  places = np.empty_like(ids)
  places[ids] = np.arange(num_docs, dtype=np.int32)
  dtype = linalg.compute_dtype(corpus)
  return Clusters(
    embeddings=corpus[ids],
    ids=jnp.asarray(ids),
    places=jnp.asarray(places),
    starts=jnp.asarray(np.cumsum(sizes, dtype=np.int32) - sizes),
    sizes=jnp.asarray(sizes),
    centres=jnp.asarray(np.stack(centres), dtype),
    radii=jnp.asarray(np.asarray(radii), dtype),
    longest=jnp.asarray(longest, dtype),
    max_size=int(sizes.max()),
  )


def _ball(rows: np.ndarray) -> tuple[np.ndarray, float, float]:
  """Centre, radius and longest norm of some rows, for `Clusters.bounds`.

  A float32 sum of dim products, and a norm, are within dim eps / 2 of the exact
  ones, relative to the product of the norms; twice that covers the bound, and
  the product of a member, which it is compared with.
  """
  exact = rows.astype(np.float64)
  centre = exact.mean(axis=0).astype(rows.dtype)
  radius = np.linalg.norm(exact - centre.astype(np.float64), axis=1).max()
  longest = np.linalg.norm(exact, axis=1).max()
  rounding = 2 * (rows.shape[1] + 2) * float(np.finfo(rows.dtype).eps)
  size = longest + radius  # At least the centre's norm too.
  return centre, radius + rounding * size, longest * (1 + rounding)
