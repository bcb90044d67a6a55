"""The decoders that the paper compares, and how each is chosen and measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments import embeddings as embeddings_lib
from nnn_jax import metrics, retriever
from nnn_jax.data import pipeline
from nnn_jax.decoders import (
  dense,
  diversity,
  hypencoder,
  mmr,
  mol,
  nnn,
  seismic,
)
from nnn_jax.solvers import fista, working_set
from nnn_jax.training import selection, stages


class Method(NamedTuple):
  """One row of a comparison.

  Attributes:
    label: As printed.
    stage: The trained bi-encoder that it decodes.
    decode: The decoder.
    config: Its static choices.
    candidates: Parameters to choose from, on validation; None where they are
      the trained model's own.
  """

  label: str
  stage: str
  decode: Callable[..., Any]
  config: Any
  candidates: Sequence[Any] | None


_DENSE = (dense.decode, dense.DenseConfig(), [()])
# As published: 50 steps, not the optimum.
_NNN = (nnn.decode, nnn.NnnConfig(solver=fista.Fista()))
METHODS = {
  "dense": Method("dense", "dense", *_DENSE),
  "mmr": Method(
    "MMR", "dense", mmr.decode, mmr.MmrConfig(), selection.trade_off_grid()
  ),
  "diversity": Method(
    "diversity",
    "dense",
    diversity.decode,
    # A prefix of this order is a diverse list too: measured at several k.
    diversity.DiversityConfig(order="marginal"),
    [diversity.DiversityParams(value) for value in selection.TRADE_OFFS],
  ),
  "l1_fix": Method("L1-Fix", "dense", *_NNN, selection.penalty_grid(l2=[0.0])),
  "l2_fix": Method("L2-Fix", "dense", *_NNN, selection.penalty_grid(l1=[0.0])),
  "nnn_fix": Method("NNN-Fix", "dense", *_NNN, selection.penalty_grid()),
  # What of NNN-Tr's gain is the encoder's, and what the decoder's.
  "dense_tr": Method("dense, NNN-Tr encoder", "nnn_tr", *_DENSE),
  "nnn_tr": Method("NNN-Tr", "nnn_tr", *_NNN, selection.penalty_grid()),
  "l1_tr": Method("L1-Tr", "l1_tr", *_NNN, selection.penalty_grid(l2=[0.0])),
  "l2_tr": Method("L2-Tr", "l2_tr", *_NNN, selection.penalty_grid(l1=[0.0])),
  # Through the optimum, with implicit gradients.
  "dense_exact": Method("dense, exact NNN-Tr encoder", "nnn_exact", *_DENSE),
  "nnn_exact": Method(
    "NNN-Tr, exact",
    "nnn_exact",
    nnn.decode,
    nnn.NnnConfig(solver=working_set.WorkingSet()),
    selection.penalty_grid(),
  ),
  # A query that was not trained on is its encoder's output: see models.colt.
  "colt": Method("COLT", "colt", *_DENSE),
  # Every item is scored: the corpora of the comparison are small.
  "mol": Method(
    "MoL", "mol", mol.decode, mol.MolConfig(search=mol.BruteForce()), None
  ),
  "sparse": Method(
    "sparse",
    "sparse",
    seismic.decode,
    seismic.SeismicConfig(search=seismic.Exact()),
    [()],
  ),
  "hypencoder": Method(
    "Hypencoder",
    "hypencoder",
    hypencoder.decode,
    hypencoder.HypencoderConfig(search=hypencoder.Exhaustive()),
    [()],
  ),
}

# Of stages that are trained on request.
OPTIONAL = (
  "l1_tr",
  "l2_tr",
  "dense_exact",
  "nnn_exact",
  "colt",
  "mol",
  "sparse",
  "hypencoder",
)


def exact_methods(num_docs: int, capacity: int = 256) -> list[Method]:
  """Dense, MMR, and NNN by the exact solver, of one encoder.

  The solver takes in all documents if they are at most twice its capacity.
  """
  stage = stages.NnnStage(solver="working_set", capacity=capacity)
  # Decoded only: no gradient to keep anything for.
  config = nnn.NnnConfig(solver=stage.decoder_config(num_docs).solver)
  return [
    METHODS["dense"],
    METHODS["mmr"],
    Method("NNN, exact", "dense", nnn.decode, config, selection.penalty_grid()),
  ]


class Chosen(NamedTuple):
  """A method with its parameters chosen.

  Attributes:
    method: The method.
    params: What validation chose.
    values: Validation metrics of every candidate, in order.
  """

  method: Method
  params: Any
  values: list[dict[str, float]]


def choose(
  method: Method,
  encoded: embeddings_lib.Encoded,
  dataset: pipeline.RetrievalDataset,
) -> Chosen:
  """Chooses a method's parameters by Comp@5 on validation."""
  if method.candidates is None:
    return Chosen(method, encoded.params(), [])
  if len(method.candidates) == 1:
    return Chosen(method, method.candidates[0], [])
  validation = encoded.split(dataset, "validation")
  best, values = selection.select(
    method.decode,
    method.candidates,
    validation.queries,
    validation.corpus,
    validation.labels,
    config=method.config,
    description=f"{method.label} on validation",
  )
  return Chosen(method, best, values)


def measure(
  chosen: Chosen,
  embeddings: embeddings_lib.Embeddings,
  ks: Sequence[int] = (3, 5),
  depth: int = 10,
) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
  """Measures a method on a split.

  Returns:
    (the table's row, indices `[num_queries, depth]`, Comp@5 of each query).
    The interval is a 95 % bootstrap over queries.
  """
  _, corpus = embeddings_lib.both_vectors(embeddings)
  depth = min(depth, len(corpus))
  ks = [k for k in ks if k <= depth]
  indices = retriever.rank(
    chosen.method.decode,
    chosen.params,
    embeddings.queries,
    embeddings.corpus,
    k=depth,
    config=chosen.method.config,
  )
  means = metrics.evaluate(indices, embeddings.labels, ks=ks)
  per_query = metrics.per_query(indices, embeddings.labels, ks=ks[-1:])
  comp = np.asarray(per_query[f"comp@{ks[-1]}"])
  interval = metrics.bootstrap_interval(comp[embeddings.labels.any(axis=1)])
  row = {
    "decoder": chosen.method.label,
    "parameters": describe_params(chosen.params),
    **{f"R@{k}": 100 * float(means[f"recall@{k}"]) for k in ks},
    **{f"Comp@{k}": 100 * float(means[f"comp@{k}"]) for k in ks},
    f"Comp@{ks[-1]} 95 %": f"{100 * interval.low:.1f} to "
    f"{100 * interval.high:.1f}",
    "nDCG@5": 100 * float(means[f"ndcg@{ks[-1]}"]),
    "ILAD@5": float(np.mean(metrics.ilad(indices, corpus, k=ks[-1]))),
  }
  return row, np.asarray(indices), comp


def describe_params(params: Any) -> str:
  """Such as "l1=0.1 l2=0.03"; empty for a decoder without parameters."""
  if not params:
    return ""
  return " ".join(f"{k}={v:g}" for k, v in scalars(params).items())


def scalars(params: Any) -> dict[str, float]:
  """The parameters that are numbers: not the weights of a model."""
  values = params._asdict().items()
  return {k: float(v) for k, v in values if np.ndim(v) == 0}


def by_num_relevant(
  comp: np.ndarray, labels: np.ndarray
) -> dict[int, tuple[float, float, float, int]]:
  """Number of relevant documents -> (mean Comp, low, high, queries)."""
  counts = labels.sum(axis=1)
  table = {}
  for n in np.unique(counts[counts > 0]):
    values = comp[counts == n]
    table[int(n)] = (*metrics.bootstrap_interval(values), len(values))
  return table


def steps_curve(
  chosen: Chosen,
  embeddings: embeddings_lib.Embeddings,
  steps: Sequence[int],
  k: int = 5,
) -> tuple[list[int], list[float]]:
  """Comp@k against the number of solver steps, parameters fixed."""
  values = []
  config = chosen.method.config
  for num_steps in steps:
    solver = dataclasses.replace(config.solver, num_steps=num_steps)
    indices = retriever.rank(
      chosen.method.decode,
      chosen.params,
      embeddings.queries,
      embeddings.corpus,
      k=k,
      config=dataclasses.replace(config, solver=solver),
    )
    means = metrics.evaluate(indices, embeddings.labels, ks=(k,))
    values.append(float(means[f"comp@{k}"]))
  return list(steps), values
