"""The item side of a mixture of logits, computed once and kept.

Reference: "Retrieval with Learned Similarities" (2025), arXiv 2407.15462.
"""

from __future__ import annotations

import io
import zipfile
from typing import Any

import jax.numpy as jnp
import numpy as np

from nnn_jax import files
from nnn_jax.core import checks, linalg, mixture

_FORMAT = "nnn_jax mixture 1"


def build(
  items: mixture.ItemSide,
  *,
  dtype: Any = None,
  coarse: bool = False,
) -> mixture.CachedItems:
  """Prepares items for `decoders.mol`; on the host, once.

  Args:
    items: `models.mol.Mol.items(...)`, of shape `[num_docs, ...]`.
    dtype: To store in, such as jnp.bfloat16, which halves the memory and the
      traffic of a search; None keeps that of the items. Scores, and what
      `aux.exact` says, are of the items as stored.
    coarse: Keep a bfloat16 copy of the components for the first pass, beside
      the components that scores are computed from: half the traffic of that
      pass, for half as much memory again. `aux.exact` allows for its rounding.

  Returns:
    CachedItems.

  Raises:
    ValueError: If shapes do not fit, or an item has NaN or infinity (the row is
      named).

  >>> side = mixture.ItemSide(np.ones((3, 2, 4)), np.zeros((3, 6)))
  >>> index = build(side, dtype=jnp.bfloat16)
  >>> index.components.dtype, index.mean.shape, float(index.longest)
  (dtype(bfloat16), (3, 4), 2.0)
  """
  sizes = checks.check_shapes(
    **{
      "items.components": (items.components, "num_docs num_components dim"),
      "items.gate": (items.gate, "num_docs num_pairs"),
    }
  )
  num_docs = sizes["num_docs"]
  for name in ("components", "gate"):
    rows = np.asarray(getattr(items, name))
    checks.check_embeddings(f"items.{name}", rows.reshape(num_docs, -1))
  dtype = linalg.compute_dtype(*items) if dtype is None else jnp.dtype(dtype)
  if not jnp.issubdtype(dtype, jnp.floating):
    raise ValueError(f"dtype must be a float dtype, got {dtype}.")
  stored = mixture.ItemSide(*(jnp.asarray(x).astype(dtype) for x in items))
  cached = mixture.cache(stored)
  low = jnp.bfloat16
  return mixture.CachedItems(
    components=stored.components,
    gate=stored.gate,
    mean=cached.mean.astype(dtype),
    # Up to rounding, of which the certificate's slack has enough.
    longest=cached.longest,
    coarse=stored.components.astype(low) if coarse and dtype != low else None,
  )


def save(index: mixture.CachedItems, path: files.PathLike) -> None:
  """Writes one .npz file, which appears whole or not at all.

  Needs the memory of a second copy of the index.
  """
  arrays: dict[str, Any] = {"format": np.str_(_FORMAT)}
  for name, value in index._asdict().items():
    if value is not None:
      stored = np.asarray(value)
      # npz knows no bfloat16: the bytes are kept, and what they are.
      arrays[name] = stored if stored.ndim == 0 else stored.view(np.uint8)
      arrays[f"{name} dtype"] = np.str_(stored.dtype.name)
  buffer = io.BytesIO()
  np.savez(buffer, **arrays)
  files.write(path, buffer.getvalue())


def load(path: files.PathLike) -> mixture.CachedItems:
  """Reads what `save` wrote.

  Raises:
    FileNotFoundError: If there is no such file.
    ValueError: If it is another kind of file, or damaged.
  """
  arrays = {}
  try:
    with np.load(path, allow_pickle=False) as file:
      if str(file["format"]) != _FORMAT:
        raise ValueError(f"its format is {file['format']!s}")
      for name in mixture.CachedItems._fields:
        if name in file or name != "coarse":
          dtype = jnp.dtype(str(file[f"{name} dtype"]))
          arrays[name] = jnp.asarray(file[name].view(dtype))
  except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
    raise ValueError(
      f"{path} is not a whole file of format {_FORMAT!r} ({error}): build the "
      "index again and save it with indexes.mixture.save."
    ) from error
  return mixture.CachedItems(**arrays)
