r"""Penalties chosen per query, against one pair for all of them.

  python -m experiments.penalties --workdir=runs/penalties
  python -m experiments.penalties --workdir=runs/penalties \
    --datasets=toolbank/numpy,toollens \
    --manual_dir=toolbank/numpy=FOLDER --manual_dir=toollens=FOLDER

Decoding is exact, the encoder frozen. Compared are one pair (l1, l2); one pair
with l1 = rho max(corpus query), relative to the query's best score; two rules
that read each query's own path over rho, and a trained head. Everything is
chosen on validation queries by Comp@5; the last row is not a method but what
choosing rho and l2 with the test labels in hand would give.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from absl import app, flags, logging
from flax import nnx

from experiments import embeddings as embeddings_lib
from experiments import manual, penalty_head, penalty_sweep, report
from nnn_jax import metrics
from nnn_jax.data import pipeline
from nnn_jax.decoders import nnn
from nnn_jax.solvers import working_set

CONFIG = nnn.NnnConfig(solver=working_set.WorkingSet(capacity=128))

Columns = dict[str, Any]


def splits(
  dataset: pipeline.RetrievalDataset, max_queries: int
) -> tuple[pipeline.RetrievalDataset, bool]:
  """The data set with a "validation" and a "test" split of bounded size.

  Validation queries are filled up with training queries: the encoder is frozen.
  Where there is no test split a half of validation, drawn at random, becomes
  it.

  Returns:
    (data set, whether validation was halved).
  """

  def shuffled(name):
    queries = dataset.splits.get(name, pipeline.Queries([], [], []))
    order = np.random.default_rng(0).permutation(len(queries))
    return [
      (queries.ids[i], queries.texts[i], queries.relevant[i])
      for i in order
      if len(queries.relevant[i])
    ]

  choose, test = shuffled("validation"), shuffled("test")
  halved = not test
  if halved:
    middle = len(choose) // 2
    choose, test = choose[:middle], choose[middle:]
  choose += shuffled("train")
  parts = {"validation": choose[:max_queries], "test": test[:max_queries]}
  return (
    pipeline.RetrievalDataset(
      dataset.name,
      dataset.doc_ids,
      dataset.doc_texts,
      {
        name: pipeline.Queries(*map(list, zip(*rows, strict=True)))
        for name, rows in parts.items()
      },
      dataset.metadata,
    ),
    halved,
  )


def methods(
  choose: embeddings_lib.Embeddings,
  test: embeddings_lib.Embeddings,
  *,
  num_steps: int,
  name: str | None = None,
) -> Iterator[tuple[str, str, np.ndarray]]:
  """Yields (method, parameters, values `[num_queries, 2]` on test)."""

  def label(text):
    return None if name is None else f"{name}: {text}"

  order = np.argsort(-(test.queries @ test.corpus.T), axis=1, kind="stable")
  yield (
    "dense",
    "",
    penalty_sweep.values_of(order[:, : penalty_sweep.K], test.labels),
  )

  chosen_on, tested = (
    penalty_sweep.sweep(part, description=label(f"paths of {what} queries"))
    for part, what in ((choose, "validation"), (test, "test"))
  )
  i, j = penalty_sweep.pick(chosen_on[0].values)
  yield (
    "one pair",
    f"l1={penalty_sweep.L1[i]} l2={penalty_sweep.L2[j]}",
    tested[0].values[:, i, j],
  )

  swept = (chosen_on[1], tested[1])
  i, j = penalty_sweep.pick(swept[0].values)
  rho, l2 = penalty_sweep.RHO[i], penalty_sweep.L2[j]
  yield "one relative pair", f"rho={rho} l2={l2}", swept[1].values[:, i, j]

  rules: tuple[tuple[str, Any, Sequence[Any], str], ...] = (
    (
      "rule: support size",
      penalty_sweep.by_support_size,
      penalty_sweep.SUPPORT_SIZES,
      "m",
    ),
    (
      "rule: information criterion",
      penalty_sweep.by_criterion,
      penalty_sweep.PRICES,
      "price",
    ),
  )
  for title, rule, options, symbol in rules:
    chosen = [
      np.stack([penalty_sweep.read(one, rule(one, o)) for o in options], axis=1)
      for one in swept
    ]
    i, j = penalty_sweep.pick(chosen[0])
    yield (
      title,
      f"{symbol}={options[i]} l2={penalty_sweep.L2[j]}",
      chosen[1][:, i, j],
    )

  head = penalty_head.PenaltyHead(
    penalty_head.HeadConfig(rho=rho, l2=l2, profile=min(32, len(test.corpus))),
    rngs=nnx.Rngs(0),
  )
  fit_size = 2 * len(choose.queries) // 3
  fit, held_out = (
    embeddings_lib.Embeddings(
      choose.queries[part], choose.corpus, choose.labels[part]
    )
    for part in (slice(fit_size), slice(fit_size, None))
  )
  head, history = penalty_head.train(
    head,
    fit,
    held_out,
    config=CONFIG,
    num_steps=num_steps,
    description=label("head"),
  )
  gain = 100 * (max(history) - history[0])
  indices = penalty_head.rank(head, test, config=CONFIG)
  yield (
    "head",
    f"held out {gain:+.2f}",
    penalty_sweep.values_of(indices, test.labels),
  )

  flat = swept[1].values.reshape(len(test.queries), -1, 2)
  best = (flat[..., 0] + 0.5 * flat[..., 1]).argmax(axis=1)
  yield "oracle, sees test labels", "", flat[np.arange(len(flat)), best]


def table(rows: Iterator[tuple[str, str, np.ndarray]]) -> list[Columns]:
  """Means and 95 % bootstrap intervals over queries, in %."""

  def between(values):
    interval = metrics.bootstrap_interval(values)
    return f"{interval.low:.1f} to {interval.high:.1f}"

  results = list(rows)
  reference = next(v for title, _, v in results if title == "one pair")
  lines = []
  for title, parameters, values in results:
    comp, recall = 100.0 * np.asarray(values, np.float64).T
    gain = comp - 100.0 * reference[:, 0]
    lines.append(
      {
        "penalties": title,
        "chosen": parameters,
        "R@5": recall.mean(),
        "Comp@5": comp.mean(),
        "Comp@5 95 %": between(comp),
        "less one pair": f"{gain.mean():+.2f}",
        "95 %": "" if title == "one pair" else between(gain),
      }
    )
  return lines


def main(argv: Sequence[str]) -> None:
  """Entry point."""
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {argv[1:]}")
  logging.set_verbosity(logging.INFO)
  workdir = pathlib.Path(flags.FLAGS.workdir)
  folders = manual.folders()
  encoded = embeddings_lib.Encoded.of_frozen(
    flags.FLAGS.encoder,
    workdir / "embeddings",
    query_length=64,
    document_length=flags.FLAGS.document_length,
  )
  results = {}
  for name in flags.FLAGS.datasets:
    dataset = pipeline.load(name, manual_dir=folders.get(name))
    dataset, halved = splits(dataset, flags.FLAGS.max_queries)
    choose = encoded.split(dataset, "validation")
    test = encoded.split(dataset, "test")
    rows = table(
      methods(choose, test, num_steps=flags.FLAGS.num_steps, name=name)
    )
    split = "the other half of validation" if halved else "test"
    print(
      f"\n### {name}, {split}: {len(test.queries):,} queries, chosen on "
      f"{len(choose.queries):,}, {len(test.corpus):,} documents\n"
    )
    print(report.markdown_table(rows, list(rows[0]), digits=2), flush=True)
    results[name] = {"rows": rows, "metadata": dataset.metadata}
    report.write_json(workdir / "penalties.json", results)


if __name__ == "__main__":
  flags.DEFINE_string(
    "workdir", None, "For embeddings and results.", required=True
  )
  flags.DEFINE_list("datasets", ["api_docs"], "Data sets.")
  manual.define()
  flags.DEFINE_string("encoder", "minilm", "Pretrained, frozen.")
  flags.DEFINE_integer("document_length", 128, "Tokens a document.")
  flags.DEFINE_integer(
    "max_queries", 1000, "At most so many to choose on, and to test.", 6
  )
  flags.DEFINE_integer("num_steps", 200, "Of the head's training.")
  app.run(main)
