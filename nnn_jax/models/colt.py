"""COLT: tool embeddings learned on graphs of queries, scenes and tools.

A scene is a set of tools that some training query needs. With A_qt and A_qs the
binary graphs query-tool and query-scene, R the mean over a scene's tools, and

  G(A) = D^-1/2 [[0, A], [A^T, 0]] D^-1/2
  X_0 = [left; right],  X_{l+1} = G X_l / (l + 2)
  propagate(A; left, right) = X_0 + sum_{l=1..L} X_l / ||X_l|| (row by row)

there are two views of the trained embeddings E_q and E_t:

  tools   (Q_T, T) = propagate(A_qt; E_q, E_t),   scenes R T
  scenes  (Q_S, S) = propagate(A_qs; E_q, R E_t)

A query and a tool score cos(Q_T[q], T[t]) + cos(Q_S[q], T[t]). A query that was
not trained on has no edges: both of its rows are its encoder's output, and the
score is twice its cosine with T[t]. So COLT is decoded as dense retrieval with
T in the place of the document embeddings.

Reference: "Towards Completeness-Oriented Tool Retrieval for Large Language
Models" (CIKM 2024), arXiv 2405.16089.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nnn_jax.core import linalg

# As published, so that a node without edges has no infinite weight.
_EPS = 1e-8


class Edges(NamedTuple):
  """A bipartite graph.

  Attributes:
    left: `[num_edges]` int32.
    right: `[num_edges]` int32.
  """

  left: jax.Array | np.ndarray
  right: jax.Array | np.ndarray


class Graphs(NamedTuple):
  """The training pairs.

  Attributes:
    query_tool: Edges of A_qt, each once.
    query_scene: Edges of A_qs: one a query.
    scene_tool: Edges of A_st.
    scenes: `[num_scenes, max_relevant]` int32 tools of a scene, -1 where fewer.
  """

  query_tool: Edges
  query_scene: Edges
  scene_tool: Edges
  scenes: jax.Array | np.ndarray


class ColtParams(NamedTuple):
  """What is trained; starts from the encoder's outputs.

  Attributes:
    queries: `[num_queries, dim]`, E_q.
    tools: `[num_docs, dim]`, E_t.
  """

  queries: jax.Array | np.ndarray
  tools: jax.Array | np.ndarray


class Views(NamedTuple):
  """The propagated embeddings of the view of tools and of that of scenes.

  Attributes:
    tool_queries: `[num_queries, dim]`, Q_T.
    tools: `[num_docs, dim]`, T.
    tool_scenes: `[num_scenes, dim]`, R T.
    scene_queries: `[num_queries, dim]`, Q_S.
    scenes: `[num_scenes, dim]`, S.
  """

  tool_queries: jax.Array
  tools: jax.Array
  tool_scenes: jax.Array
  scene_queries: jax.Array
  scenes: jax.Array


def build(relevant: Sequence[np.ndarray]) -> Graphs:
  """The graphs of training queries; repeated pairs count once.

  Args:
    relevant: Each query's relevant documents.

  >>> graphs = build([np.array([2, 0]), np.array([1]), np.array([0, 2, 2])])
  >>> graphs.scenes.tolist(), graphs.query_scene.right.tolist()
  ([[0, 2], [1, -1]], [0, 1, 0])
  """
  sets = [tuple(np.unique(rows).tolist()) for rows in relevant]
  place = {scene: i for i, scene in enumerate(dict.fromkeys(sets))}
  scenes = np.full((len(place), max(map(len, sets))), -1, np.int32)
  for scene, i in place.items():
    scenes[i, : len(scene)] = scene
  own = np.array([place[scene] for scene in sets], np.int32)
  queries = np.arange(len(sets), dtype=np.int32)
  return Graphs(
    _edges(queries, scenes[own]),
    Edges(queries, own),
    _edges(np.arange(len(place), dtype=np.int32), scenes),
    scenes,
  )


def _edges(left: np.ndarray, right: np.ndarray) -> Edges:
  """Edges of `left` `[n]` with `right` `[n, most]`, -1 where fewer."""
  return Edges(
    np.broadcast_to(left[:, None], right.shape)[right >= 0], right[right >= 0]
  )


class Kept(NamedTuple):
  """Weights of the edges, 1 or 0: `[num_edges]` of each graph."""

  query_tool: jax.Array
  query_scene: jax.Array
  scene_tool: jax.Array


def keep_edges(graphs: Graphs, rate: float, *, key: jax.Array) -> Kept:
  """Drops each edge with probability `rate`."""
  edges = (graphs.query_tool, graphs.query_scene, graphs.scene_tool)
  return Kept(
    *(
      jax.random.bernoulli(key, 1.0 - rate, e.left.shape).astype(jnp.float32)
      for key, e in zip(jax.random.split(key, len(edges)), edges, strict=True)
    )
  )


def all_edges(graphs: Graphs) -> Kept:
  """Every edge, as in evaluation."""
  edges = (graphs.query_tool, graphs.query_scene, graphs.scene_tool)
  return Kept(*(jnp.ones(e.left.shape) for e in edges))


def propagate(
  edges: Edges,
  kept: jax.Array,
  left: jax.Array,
  right: jax.Array,
  *,
  num_layers: int,
) -> tuple[jax.Array, jax.Array]:
  """The formula above; rows of both sides.

  Args:
    edges: The graph.
    kept: `[num_edges]` weights.
    left: `[num_left, dim]`.
    right: `[num_right, dim]`.
    num_layers: L, static.

  >>> edges = Edges(jnp.asarray([0]), jnp.asarray([0]))
  >>> left, right = jnp.asarray([[1.0, 0.0]]), jnp.asarray([[0.0, 3.0]])
  >>> rows = propagate(edges, jnp.ones(1), left, right, num_layers=1)
  >>> [x.tolist() for x in rows]
  [[[1.0, 1.0]], [[1.0, 3.0]]]
  """
  sizes = left.shape[0], right.shape[0]
  degrees = [
    jax.ops.segment_sum(kept, at, size)
    for at, size in zip(edges, sizes, strict=True)
  ]
  scale = [1.0 / (jnp.sqrt(degree) + _EPS) for degree in degrees]
  weight = (kept * scale[0][edges.left] * scale[1][edges.right])[:, None]
  total = left, right
  for layer in range(num_layers):
    left, right = (
      jax.ops.segment_sum(weight * right[edges.right], edges.left, sizes[0]),
      jax.ops.segment_sum(weight * left[edges.left], edges.right, sizes[1]),
    )
    left, right = left / (layer + 2), right / (layer + 2)
    total = (
      total[0] + linalg.normalize(left),
      total[1] + linalg.normalize(right),
    )
  return total


def views(
  params: ColtParams, graphs: Graphs, kept: Kept, *, num_layers: int
) -> Views:
  """Both views; memory is that of an embedding an edge."""
  dtype = linalg.compute_dtype(*params)
  queries, tools = (jnp.asarray(x, dtype) for x in params)
  num_scenes = graphs.scenes.shape[0]
  edges = graphs.scene_tool
  size = jax.ops.segment_sum(kept.scene_tool, edges.left, num_scenes)

  def mean_of_tools(tools):
    rows = kept.scene_tool[:, None] * tools[edges.right]
    total = jax.ops.segment_sum(rows, edges.left, num_scenes)
    return total / (size + _EPS)[:, None]

  tool_queries, tool_rows = propagate(
    graphs.query_tool, kept.query_tool, queries, tools, num_layers=num_layers
  )
  scene_queries, scenes = propagate(
    graphs.query_scene,
    kept.query_scene,
    queries,
    mean_of_tools(tools),
    num_layers=num_layers,
  )
  return Views(
    tool_queries, tool_rows, mean_of_tools(tool_rows), scene_queries, scenes
  )


def scores(
  views: Views, queries: jax.Array, candidates: jax.Array
) -> jax.Array:
  """`[batch, num]`: the sum of the two cosines.

  Args:
    views: Of the graphs.
    queries: `[batch]` rows.
    candidates: `[batch, num]` tools.
  """
  tools = linalg.normalize(views.tools[candidates])
  both = linalg.normalize(views.tool_queries[queries]) + linalg.normalize(
    views.scene_queries[queries]
  )
  return linalg.matmul(tools, both[..., None])[..., 0]
