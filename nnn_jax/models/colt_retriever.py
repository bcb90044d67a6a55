"""What COLT leaves: a query encoder, and a vector for each trained document."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import safetensors.numpy

from nnn_jax import files
from nnn_jax.models import bi_encoder

_DESCRIPTION = "colt.json"
_TENSORS = "documents.safetensors"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColtRetriever:
  """`bi_encoder.BiEncoder`'s counterpart for the stage "colt".

  Attributes:
    bi_encoder: Its queries are encoded as they were before COLT.
    doc_texts: The documents that were trained.
    documents: `[num_docs, dim]`, unit rows.
  """

  bi_encoder: bi_encoder.BiEncoder
  doc_texts: Sequence[str]
  documents: np.ndarray

  def knows(self, texts: Sequence[str]) -> bool:
    """Whether all of these documents were trained."""
    return set(texts) <= set(self.doc_texts)

  def encode_queries(
    self, texts: Sequence[str], *, description: str | None = None
  ) -> np.ndarray:
    """Returns unit rows `[num_texts, dim]`."""
    return self.bi_encoder.encode_queries(texts, description=description)

  def encode_documents(
    self, texts: Sequence[str], *, description: str | None = None
  ) -> np.ndarray:
    """Returns the documents' trained rows `[num_texts, dim]`.

    Raises:
      ValueError: For a document that was not trained.
    """
    del description  # Nothing takes time.
    if list(texts) == list(self.doc_texts):  # Of equal texts, each its own.
      return self.documents
    row_of = {text: row for row, text in enumerate(self.doc_texts)}
    for text in texts:
      if text not in row_of:
        raise ValueError(
          f"document {text[:60]!r} was not trained: COLT has vectors of its "
          "training corpus only; train it on this corpus."
        )
    return self.documents[[row_of[text] for text in texts]]

  def save(self, folder: pathlib.Path, metadata: dict[str, Any]) -> None:
    """Writes `encoder/` and the rest; the folder appears whole or not at all.

    Args:
      folder: Where to.
      metadata: JSON-able facts about how it was trained.
    """
    with files.new_folder(folder) as temporary:
      self.bi_encoder.save(temporary / "encoder", {})
      tensors = {"documents": np.ascontiguousarray(self.documents)}
      files.write(temporary / _TENSORS, safetensors.numpy.save(tensors))
      description = {"doc_texts": list(self.doc_texts), "metadata": metadata}
      files.write(temporary / _DESCRIPTION, json.dumps(description))

  @classmethod
  def load(cls, folder: pathlib.Path) -> tuple[ColtRetriever, dict[str, Any]]:
    """Reads what `save` wrote.

    Returns:
      (retriever, metadata).

    Raises:
      ValueError: If the folder does not hold one.
    """
    if not is_saved_in(folder):
      raise ValueError(
        f"{folder} holds no COLT ({_DESCRIPTION} is missing): train one with "
        "`python -m experiments.train --stages=dense,colt`."
      )
    description = json.loads((folder / _DESCRIPTION).read_text())
    encoder, _ = bi_encoder.BiEncoder.load(folder / "encoder")
    tensors = safetensors.numpy.load_file(folder / _TENSORS)
    retriever = cls(
      bi_encoder=encoder,
      doc_texts=description["doc_texts"],
      documents=tensors["documents"],
    )
    return retriever, description["metadata"]


def is_saved_in(folder: pathlib.Path) -> bool:
  """Whether a folder holds what `ColtRetriever.save` wrote."""
  return (folder / _DESCRIPTION).exists()
