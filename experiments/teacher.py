"""The candidates of a teacher, for the stage "hypencoder"."""

from __future__ import annotations

import pathlib
from typing import Any

from experiments import comparison
from experiments import embeddings as embeddings_lib
from nnn_jax.data import pipeline, teacher_scores
from nnn_jax.models import text_mol
from nnn_jax.training import teachers

STAGES = ("dense", "mol")


def candidates(
  teacher: str | None,
  dataset: pipeline.RetrievalDataset,
  workdir: pathlib.Path,
  *,
  num: int,
  temperature: float,
) -> teachers.Candidates | None:
  """What a teacher proposes for the queries of "train".

  Args:
    teacher: "dense" or "mol", trained in the same work directory; a file of
      `nnn_jax.data.teacher_scores`; or None.
    dataset: Of the queries and documents.
    workdir: Of experiments.train.
    num: Documents a query, of a stage.
    temperature: Of the dense stage, whose cosines become logits.

  Raises:
    ValueError: If the stage was not trained.
  """
  if teacher is None:
    return None
  queries = dataset.splits["train"]
  if teacher not in STAGES:
    scores = teacher_scores.read(teacher)
    return teachers.from_scores(scores, queries, dataset.doc_ids)
  folder = workdir / teacher / "retriever"
  if not folder.exists():
    raise ValueError(
      f"the teacher {teacher} is not trained in {workdir}: add it to --stages, "
      "before hypencoder."
    )
  method = comparison.METHODS[teacher]
  retriever = embeddings_lib.load_retriever(folder)
  params: Any = ()
  if isinstance(retriever, text_mol.TextMolRetriever):
    params, temperature = retriever.params(), 1.0  # Its scores are logits.
  found = teachers.from_decoder(
    method.decode,
    params,
    retriever.encode_queries(queries.texts, description="teacher's queries"),
    retriever.encode_documents(dataset.doc_texts),
    num=min(num, len(dataset.doc_ids)),
    config=method.config,
  )
  return found._replace(scores=found.scores / temperature)
