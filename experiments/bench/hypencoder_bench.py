r"""Hypencoder: what scoring costs, and what each search finds for how much.

  XLA_FLAGS=--xla_cpu_multi_thread_eigen=false taskset -c 0 \
    python -m experiments.bench.hypencoder_bench --json=hypencoder_bench.json

First table: documents scored per second by random networks of several sizes,
and the share of a plain matrix product's rate (of the first layer's shape, same
run) that their multiplications reach. Second table: the network of
`experiments.hypencoder_xor`, trained for --train_steps, on --num_docs new
documents: recall of the exhaustive ten, the share of documents that was scored
(centres of clusters count as documents), and time. A graph of documents in
random order and one of random edges are controls: what they reach is not owed
to the neighbourhood.

Third table, with --tables=texts and --workdir of a run of `experiments.train
--stages=hypencoder`: likewise
with the networks of that data set's queries, whose documents are enlarged to
--num_docs as vectors: a further document is a real one moved half the way to
one of its ten nearest, with noise of a third of that distance. (Their texts
would not do: there are not so many.)
"""

from __future__ import annotations

import itertools
import json
import pathlib
import platform
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from flax import nnx

from experiments import hypencoder_xor, report
from experiments.bench import timing
from nnn_jax.core import linalg
from nnn_jax.data import pipeline
from nnn_jax.decoders import hypencoder
from nnn_jax.indexes import clusters, neighbours
from nnn_jax.models import text_hypencoder

_NUM_DOCS = flags.DEFINE_integer("num_docs", 50_000, "Documents searched.")
_BATCH = flags.DEFINE_integer("batch", 16, "Queries a call.")
_TRAIN_STEPS = flags.DEFINE_integer("train_steps", 1_000, "Of the network.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Timed calls; median.")
_NETS = flags.DEFINE_list(
  "nets", ["64-32-32", "384-32-32", "384-384-384", "768-768-768"], "Sizes."
)
_JSON = flags.DEFINE_string("json", None, "Where to write the rows.")
_WORKDIR = flags.DEFINE_string("workdir", None, "With a trained Hypencoder.")
_MANUAL_DIR = flags.DEFINE_string("manual_dir", None, "Of its data set.")
_TABLES = flags.DEFINE_list(
  "tables", ["throughput", "searches"], "Also texts, which needs --workdir."
)
_K = 10


def median_s(fn: Callable[..., Any], *args: Any) -> float:
  """The median time of a call."""
  measured = timing.measure(
    lambda: jax.block_until_ready(fn(*args)),
    repeats=_REPEATS.value,
    limit_s=60.0,
  )
  return measured.median_s


def random_nets(widths: Sequence[int], batch: int) -> hypencoder.QNet:
  """A batch of networks."""
  rng = np.random.default_rng(0)
  draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
  layers = list(itertools.pairwise(widths))
  return hypencoder.QNet(
    tuple(draw(batch, i, o) / i**0.5 for i, o in layers),
    tuple(draw(batch, o) for _, o in layers),
    draw(batch, widths[-1]),
  )


def decoder(search: hypencoder.Search) -> Callable[..., Any]:
  """(nets, corpus) -> results of a batch, compiled once."""
  config = hypencoder.HypencoderConfig(search=search)
  one = partial(hypencoder.decode, (), k=_K, config=config)
  return jax.jit(jax.vmap(one, in_axes=(0, None)))


def throughput(name: str) -> dict[str, Any]:
  """One row of the first table."""
  widths = [int(width) for width in name.split("-")]
  batch, num_docs = _BATCH.value, 20_000
  corpus = jax.random.normal(jax.random.key(0), (num_docs, widths[0]))
  nets = random_nets(widths, batch)
  seconds = median_s(decoder(hypencoder.Exhaustive()), nets, corpus)
  flops = 2 * sum(i * o for i, o in zip(widths, [*widths[1:], 1], strict=True))
  wide = jax.random.normal(jax.random.key(1), (widths[0], batch * widths[1]))
  product = jax.jit(linalg.matmul)
  product_s = median_s(product, corpus, wide)
  product_rate = 2 * num_docs * wide.size / product_s
  rate = flops * batch * num_docs / seconds
  return {
    "q-net": f"{name}-1",
    "documents/s": batch * num_docs / seconds,
    "GFLOP/s": rate / 1e9,
    "product GFLOP/s": product_rate / 1e9,
    "share of product": rate / product_rate,
  }


def searches(
  corpus: np.ndarray, probes: Sequence[int], beams: Sequence[int]
) -> list[tuple[str, hypencoder.Search, Any]]:
  """(name, search, the index it searches)."""
  rows: list[tuple[str, hypencoder.Search, Any]] = [
    ("exhaustive", hypencoder.Exhaustive(), jnp.asarray(corpus))
  ]
  index = clusters.build(corpus)
  rows += [
    (f"clusters {n}", hypencoder.Clusters(num_probes=n), index) for n in probes
  ]
  kinds: dict[str, dict[str, Any]] = {
    "graph": {},
    "graph as published": {"reverse": False, "connect": False},
    "graph, shuffled": {"kind": "shuffled"},
    "graph, random": {"kind": "random"},
  }
  for name, options in kinds.items():
    graph = neighbours.build(corpus, **options)
    rows += [
      (
        f"{name}, beam {beam}",
        hypencoder.Graph(beam=beam, max_steps=16),
        graph,
      )
      for beam in beams
    ]
  return rows


def search_rows() -> list[dict[str, Any]]:
  """The second table."""
  world, _ = hypencoder_xor.make_worlds(0)
  model = hypencoder_xor.MODELS["q-net 64-32-32-1"](nnx.Rngs(0))
  model = hypencoder_xor.train(
    model, world, num_steps=_TRAIN_STEPS.value, seed=0
  )
  # The same rotation, as the seed is; more documents.
  _, test = hypencoder_xor.make_worlds(0, num_docs=_NUM_DOCS.value)
  batch = _BATCH.value
  rng = np.random.default_rng(0)
  chosen = rng.permutation(len(test.queries))[: 4 * batch]
  nets = model.queries(jnp.asarray(test.queries[chosen]))
  settings = searches(test.documents, (32, 64, 128, 256, 512), (16, 64))
  return measured(nets, settings)


def enlarged(real: np.ndarray, num: int, seed: int = 0) -> np.ndarray:
  """So many unit vectors: the real ones, then between them; see the module.

  >>> enlarged(np.eye(20, dtype=np.float32), 50).shape
  (50, 20)
  """
  rng = np.random.default_rng(seed)
  similar = real @ real.T
  np.fill_diagonal(similar, -np.inf)
  near = np.argsort(-similar, axis=1)[:, :10]
  one = rng.integers(len(real), size=max(num - len(real), 0))
  other = near[one, rng.integers(near.shape[1], size=len(one))]
  step = real[other] - real[one]
  noise = rng.normal(size=step.shape).astype(np.float32)
  noise *= np.linalg.norm(step, axis=1, keepdims=True) / (
    3 * step.shape[1] ** 0.5
  )
  rows = np.concatenate([real[:num], real[one] + step / 2 + noise])
  return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def text_rows() -> list[dict[str, Any]]:
  """The third table."""
  if not _WORKDIR.value:
    raise ValueError("--tables=texts needs the --workdir of a training run.")
  workdir = pathlib.Path(_WORKDIR.value)
  name = json.loads((workdir / "config.json").read_text())["dataset"]
  dataset = pipeline.load(name, manual_dir=_MANUAL_DIR.value)
  retriever, _ = text_hypencoder.TextHypencoderRetriever.load(
    workdir / "hypencoder" / "retriever"
  )
  queries = dataset.splits["test"]
  rng = np.random.default_rng(0)
  chosen = rng.permutation(len(queries))[: 4 * _BATCH.value]
  nets = retriever.encode_queries([queries.texts[row] for row in chosen])
  documents = retriever.encode_documents(dataset.doc_texts)
  corpus = enlarged(documents, _NUM_DOCS.value)
  print(f"{name}: {len(documents)} documents enlarged to {len(corpus)}")
  settings = searches(corpus, (4, 8, 16, 32, 64, 128, 256), (4, 16, 64))
  return measured(jax.tree.map(jnp.asarray, nets), settings)


def measured(
  nets: hypencoder.QNet,
  settings: Sequence[tuple[str, hypencoder.Search, Any]],
) -> list[dict[str, Any]]:
  """Searches with every network; the first of the settings is exact."""
  batch = _BATCH.value
  parts = [
    jax.tree.map(lambda x, i=i: x[i * batch : (i + 1) * batch], nets)
    for i in range(4)
  ]
  rows: list[dict[str, Any]] = []
  exact = None
  for name, search, index in settings:
    decode = decoder(search)
    results = [decode(part, index) for part in parts]
    indices = np.concatenate([np.asarray(r.indices) for r in results])
    if exact is None:
      exact = indices
    found = (indices[:, :, None] == exact[:, None, :]).any(axis=2)
    scored = np.concatenate([np.asarray(r.aux.num_scored) for r in results])
    centres = 0
    if isinstance(search, hypencoder.Clusters):
      centres = index.centres.shape[0]
    share = (scored.mean() + centres) / index.shape[0]
    rows.append(
      {
        "search": name,
        "recall@10": found.mean(),
        "share scored": share,
        "recall / share": found.mean() / share,
        "ms a batch": 1e3 * median_s(decode, parts[0], index),
      }
    )
    print(rows[-1], flush=True)
  return rows


def main(argv: Sequence[str]) -> None:
  """Entry point."""
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {argv[1:]}")
  print(f"{jax.devices()}, {platform.platform()}, jax {jax.__version__}\n")
  makers: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "throughput": lambda: [throughput(name) for name in _NETS.value],
    "searches": search_rows,
    "texts": text_rows,
  }
  tables = {name: makers[name]() for name in _TABLES.value}
  for rows in tables.values():
    print(report.markdown_table(rows, list(rows[0])))
  if _JSON.value:
    report.write_json(_JSON.value, tables)


if __name__ == "__main__":
  app.run(main)
