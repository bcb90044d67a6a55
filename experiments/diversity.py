r"""Relevance against diversity: the Pareto curves of selecting decoders.

  python -m experiments.diversity --config=configs/diversity.py \
    --workdir=runs/diversity

For each data set, k and trade-off: mean relevance, ILAD, the objective J, and
the share of a query's aspects that the list covers. An aspect is a relevant
document, or for `asqa:FILE` and `qampari:FILE` (files of the ALCE benchmark) an
answer found in a passage. Written under the work directory: `results.md`,
`results.json` and one figure for each data set and k. The encoder is frozen.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags, logging
from ml_collections import config_flags

from experiments import embeddings as embeddings_lib
from experiments import figures, manual, report
from nnn_jax import files, metrics
from nnn_jax.data import multi_answer, pipeline
from nnn_jax.decoders import diversity, dpp, max_sum, mmr
from nnn_jax.solvers import kernels, selection

_diversity_config = diversity.DiversityConfig
DECODERS: dict[str, tuple[Callable[..., Any], Any]] = {
  "MMR": (mmr.decode, mmr.MmrConfig()),
  "DPP": (dpp.decode, dpp.DppConfig()),
  "max-sum": (max_sum.decode, max_sum.MaxSumConfig()),
  "published": (
    diversity.decode,
    _diversity_config(method=selection.Published()),
  ),
  "diversity": (diversity.decode, _diversity_config(certificate=True)),
  "diversity, power 4": (
    diversity.decode,
    _diversity_config(method=selection.Polished(kernel=kernels.Power())),
  ),
}
_READERS = {
  "asqa": multi_answer.read_asqa,
  "qampari": multi_answer.read_qampari,
}


class Case(NamedTuple):
  """Queries over one corpus.

  Attributes:
    queries: `[num_queries, dim]`.
    corpus: `[num_docs, dim]`, at most the pool of the first decoder.
    covers: `[num_queries, num_docs, num_aspects]` bool.
  """

  queries: np.ndarray
  corpus: np.ndarray
  covers: list[np.ndarray]


def cases(
  name: str, encoded: embeddings_lib.Encoded, config: Any
) -> Iterator[Case]:
  """One case for a data set; one for each question with its own passages."""
  kind, _, path = name.partition(":")
  if kind in _READERS:
    questions = [q for q in _READERS[kind](path) if q.documents and q.answers]
    for question in questions[: config.num_queries]:
      yield Case(
        encoded.texts([question.text], "queries"),
        encoded.texts([d.text for d in question.documents], "documents"),
        [multi_answer.found(question.documents, question.answers)],
      )
    return
  dataset = pipeline.load(name, manual_dir=manual.folders().get(name))
  embeddings = encoded.split(dataset, "test")
  covers = []
  for labels in embeddings.labels[: config.num_queries]:
    relevant = np.flatnonzero(labels)
    covers.append(np.eye(len(labels), dtype=bool)[:, relevant])
  queries = embeddings.queries[: config.num_queries]
  yield Case(queries, embeddings.corpus, covers)


def measure(
  case: Case, decode: Callable[..., Any], static: Any, k: int, size: int
) -> Callable[[float], dict[str, list[float]]]:
  """trade-off -> metric -> one value a query, over pools of `size` documents.

  Every decoder selects from the same pool, the `size` most relevant.
  """
  size = min(size, len(case.corpus))

  @jax.jit
  def select(trade_off, queries, corpus):
    def one(query):
      relevance, rows = jax.lax.top_k(corpus @ query, size)
      pool = corpus[rows]
      result = decode((trade_off,), query, pool, k=k, config=static)
      bound = getattr(result.aux, "upper_bound", None)
      ilad = metrics.ilad(result.indices, pool, k=k)
      mean = jnp.mean(relevance[result.indices])
      return rows[result.indices], mean, ilad, bound

    # One query after the other: a batched loop waits for its slowest.
    return jax.lax.map(one, queries)

  def values(trade_off: float) -> dict[str, list[float]]:
    rows, relevance, ilad, bound = select(
      jnp.float32(trade_off), case.queries, case.corpus
    )
    j = trade_off * relevance + (1 - trade_off) * ilad
    recall = [
      float(covers[np.asarray(r)].any(axis=0).mean())
      for covers, r in zip(case.covers, rows, strict=True)
      if covers.any()
    ]
    measured = {
      "relevance": relevance.tolist(),
      "ILAD": ilad.tolist(),
      "J": j.tolist(),
      "aspect recall": recall,
      "near-duplicates": [_near_duplicates(case.corpus[r]) for r in rows],
    }
    if bound is not None:
      measured["certified gap"] = (bound - j).tolist()
    return measured

  return values


def _near_duplicates(rows: np.ndarray) -> float:
  """Pairs of cosine above .9."""
  return float((np.triu(rows @ rows.T, 1) > 0.9).sum())


def table(
  name: str, encoded: embeddings_lib.Encoded, config: Any
) -> list[dict[str, Any]]:
  """One row a decoder, k and trade-off: means over the queries."""
  everything = list(cases(name, encoded, config))
  rows = []
  for k in config.ks:
    kept = [case for case in everything if len(case.corpus) > k]
    for decoder, (decode, static) in DECODERS.items():
      logging.info("%s: %s at k = %d", name, decoder, k)
      runs = [measure(c, decode, static, k, config.pool_size) for c in kept]
      for trade_off in config.trade_offs:
        values: dict[str, list[float]] = {}
        for run in runs:
          for metric, found in run(trade_off).items():
            values.setdefault(metric, []).extend(found)
        row = {"k": k, "trade_off": trade_off, "decoder": decoder}
        rows.append(row | {m: float(np.mean(v)) for m, v in values.items()})
  return rows


def draw(name: str, rows: list[dict[str, Any]], folder: pathlib.Path) -> None:
  """One figure a k: ILAD, and aspect recall, against relevance."""
  slug = "".join(c if c.isalnum() else "-" for c in pathlib.Path(name).name)
  for k in sorted({row["k"] for row in rows}):
    curves: dict[str, list[tuple[float, float, float]]] = {}
    for row in rows:
      if row["k"] == k:
        point = (row["relevance"], row["ILAD"], row["aspect recall"])
        curves.setdefault(row["decoder"], []).append(point)
    figures.pareto(curves, folder / f"{slug}-k{k}.png")


def main(argv: Sequence[str]) -> None:
  """Entry point."""
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {argv[1:]}")
  config, workdir = flags.FLAGS.config, pathlib.Path(flags.FLAGS.workdir)
  encoded = embeddings_lib.Encoded.of_frozen(
    config.encoder,
    workdir / "embeddings",
    query_length=config.query_length,
    document_length=config.document_length,
  )
  sections, results = [], {}
  for name in config.datasets:
    rows = table(name, encoded, config)
    results[name] = rows
    draw(name, rows, workdir / "figures")
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = report.markdown_table(rows, columns, digits=4)
    sections.append(f"### {name}\n\n{text}")
    print(sections[-1])
  report.write_json(workdir / "results.json", results)
  files.write(workdir / "results.md", "\n".join(sections))


if __name__ == "__main__":
  # Here, so that a program can import this beside another experiment.
  config_flags.DEFINE_config_file("config", "configs/diversity.py")
  flags.DEFINE_string("workdir", None, "Results.", required=True)
  manual.define()
  app.run(main)
