r"""Recall against latency: the searches of a trained mixture of logits.

  python -m experiments.recommend_search --output=runs/search \
    --model=runs/recommend/seed-0/recommender

Test users of the data set that the model was trained on ask for 10 items.
Recall is the share of the exact answer that a search finds, "hit rate" how
often it holds the test item; the time is one call's, for a batch. Seen items
are left out in each search. Written: `search.md`, `search.json`,
`search.png`, and `world/`, which the benchmark of the searches reads:

  python -m experiments.bench.mol_bench --worlds=runs/search/world
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import matplotlib
import numpy as np
from absl import app, flags
from flax import nnx

from experiments import drawing, report
from experiments.bench import mol_worlds, timing
from nnn_jax import files
from nnn_jax.core import mixture
from nnn_jax.data import sequences
from nnn_jax.decoders import mol
from nnn_jax.models import recommender as recommender_lib
from nnn_jax.training import ranking

K = 10
SEARCHES: dict[str, mol.Search] = {
  "brute force": mol.BruteForce(),
  **{f"average {n}": mol.Average(num=n) for n in (50, 100, 200, 500, 1_000)},
  **{f"per embedding {n}": mol.PerEmbedding(num=n) for n in (5, 10, 20, 50)},
  **{
    f"combined {n}, {m}": mol.Combined(per_embedding=n, average=m)
    for n, m in ((5, 100), (5, 200), (10, 500))
  },
  **{f"two pass {n}": mol.TwoPass(num=n) for n in (200, 500, 1_000)},
}


class Requests(NamedTuple):
  """Attributes: of the users, with the seen items to leave out, `[num, ...]`.

  The fields are those of `mol.MolQuery`, and the test item's row.
  """

  components: np.ndarray
  gate: np.ndarray
  exclude: np.ndarray
  targets: np.ndarray


def requests(
  model: recommender_lib.Recommender,
  histories: sequences.Histories,
) -> Requests:
  """Encodes histories; the items that each holds are excluded."""
  graphdef, state = nnx.split(model)

  @jax.jit
  def encode(state, batch):
    return nnx.merge(graphdef, state).queries(
      batch["ids"],
      batch.get("timestamps"),
      last=batch["last"],
      users=batch["query"],
    )

  batch = histories.padded(model.config.sequence.length - 1)
  sides = encode(state, batch)
  longest = max(len(items) for items in histories.items)
  exclude = np.full((len(histories), longest), -1, np.int32)
  for row, items in zip(exclude, histories.items, strict=True):
    row[: len(items)] = items - 1
  return Requests(
    np.asarray(sides.components),
    np.asarray(sides.gate),
    exclude,
    histories.targets - 1,
  )


def measure(
  model: recommender_lib.Recommender,
  items: mixture.CachedItems,
  asked: Requests,
  *,
  batch_size: int,
) -> list[dict[str, Any]]:
  """One row a search that the catalogue is large enough for."""
  num_items = items.components.shape[0]
  params = model.similarity.params()
  exact: np.ndarray | None = None
  rows = []
  for name, search in SEARCHES.items():
    sizes = [getattr(search, f, 0) for f in ("num", "average", "per_embedding")]
    if max(sizes) > num_items:
      continue
    decode = partial(mol.decode, k=K, config=mol.MolConfig(search=search))

    @jax.jit
    def run(params, queries, items, decode=decode):
      result = jax.vmap(lambda query: decode(params, query, items))(queries)
      return result.indices, result.aux.num_scored, result.aux.exact

    def call(start, run=run):
      part = slice(start, start + batch_size)
      queries = mol.MolQuery(*(field[part] for field in asked[:3]))
      return jax.block_until_ready(run(params, queries, items))

    whole = len(asked.targets) // batch_size * batch_size
    answers = [call(start) for start in range(0, whole, batch_size)]
    found, scored, certain = (
      np.concatenate([np.asarray(column) for column in columns])
      for columns in zip(*answers, strict=True)
    )
    spent = timing.measure(partial(call, 0), repeats=5, limit_s=20.0)
    if exact is None:
      exact = found
    shared = (exact[:, :, None] == found[:, None, :]).any(axis=2)
    targets = asked.targets[:whole, None]
    rows.append(
      {
        "search": name,
        "ms": 1e3 * spent.median_s,
        "recall": float(shared.mean()),
        "hit rate": float((found == targets).any(axis=1).mean()),
        "scored": float(scored.mean()),
        "certified": float(certain.mean()),
      }
    )
  return rows


def draw(rows: list[dict[str, Any]], path: pathlib.Path) -> None:
  """Recall against the time of a call, one curve a kind of search."""
  kinds: dict[str, list[dict[str, Any]]] = {}
  for row in rows:
    kinds.setdefault(row["search"].rstrip("0123456789, "), []).append(row)
  with matplotlib.rc_context(drawing.STYLE):
    figure = drawing.figure(6.0, 4.2)
    ax = figure.subplots()
    for n, (kind, points) in enumerate(kinds.items()):
      ax.plot(
        [row["ms"] for row in points],
        [100 * row["recall"] for row in points],
        label=kind,
        **drawing.look(n),
      )
    ax.set_xscale("log")
    ax.set_xlabel("time of one call (ms)")
    ax.set_ylabel(f"recall of the exact top {K} (%)")
    drawing.legend(figure, ax)
    drawing.save(figure, path)


def main(argv: Sequence[str]) -> None:
  """Entry point."""
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {argv[1:]}")
  values, output = flags.FLAGS, pathlib.Path(flags.FLAGS.output)
  model, metadata = recommender_lib.Recommender.load(pathlib.Path(values.model))
  if isinstance(model.similarity, recommender_lib.Dot):
    raise app.UsageError("the model's similarity is dot: it has one search")
  dataset = sequences.load(
    metadata["settings"]["dataset"],
    data_dir=values.data_dir,
    manual_dir=values.manual_dir,
  )
  test = sequences.leave_one_out(dataset, "test")
  rng = np.random.default_rng(0)
  size = min(values.num_users, len(test))
  chosen = np.sort(rng.choice(len(test), size=size, replace=False))
  asked = requests(model, test.take(chosen))
  items = ranking.item_index(model)
  sides = mixture.QuerySide(asked.components, asked.gate)
  mol_worlds.save(
    output / "world",
    mol_worlds.World(model.similarity.params(), sides, items, asked.targets),
  )
  rows = measure(model, items, asked, batch_size=values.batch)
  table = report.markdown_table(rows, list(rows[0]), digits=3)
  files.write(output / "search.md", table)
  report.write_json(output / "search.json", rows)
  draw(rows, output / "search.png")
  print(f"{dataset.num_items} items, {size} users, batch {values.batch}\n")
  print(table)


if __name__ == "__main__":
  flags.DEFINE_string("model", None, "A saved recommender.", required=True)
  flags.DEFINE_string("output", None, "Where results go.", required=True)
  flags.DEFINE_string("data_dir", None, "Where prepared data is kept.")
  flags.DEFINE_string("manual_dir", None, "Files of its data set.")
  flags.DEFINE_integer("num_users", 512, "Users asked for.")
  flags.DEFINE_integer("batch", 32, "Users a call.")
  app.run(main)
