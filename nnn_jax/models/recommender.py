"""A recommender: a sequence model, and the similarity that reads it.

  score(history, item) = similarity(sequence(history), E[item])

The similarity is `mol.Mol`, or `Dot`, the inner product divided by a
temperature (cosine where the sequence model's output is "l2"). Both have one
interface: `queries`, `items`, and a call that scores pairs. A `Recommender` is
what training produces and what evaluation, search and the benchmarks load.

Reference: arXiv 2407.15462 (Retrieval with Learned Similarities), section 5.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nnn_jax import files
from nnn_jax.models import hstu, mol, parameters, sasrec

_DESCRIPTION, _WEIGHTS = "recommender.json", "recommender.safetensors"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DotConfig:
  """Attributes: temperature divides the inner product."""

  temperature: float = 0.05

  def __post_init__(self) -> None:
    if not self.temperature > 0:
      raise ValueError(f"temperature must be positive, got {self.temperature}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecommenderConfig:
  """Static description.

  Attributes:
    sequence: Of the sequence model; its class names the model.
    similarity: Of the similarity; likewise.
  """

  sequence: sasrec.SasrecConfig | hstu.HstuConfig
  similarity: DotConfig | mol.MolConfig


_MODELS: dict[type, Any] = {
  sasrec.SasrecConfig: sasrec.Sasrec,
  hstu.HstuConfig: hstu.Hstu,
}
_CONFIGS: dict[str, Any] = {
  "sasrec": sasrec.SasrecConfig,
  "hstu": hstu.HstuConfig,
  "dot": DotConfig,
  "mol": mol.MolConfig,
}
_NAMES = {config: name for name, config in _CONFIGS.items()}


class Dot(nnx.Module):
  """The inner product, with the interface of `mol.Mol`.

  >>> dot = Dot(DotConfig(temperature=0.5))
  >>> print(dot(jnp.ones((2, 1, 3)), jnp.ones((4, 3)))[0])
  [[6. 6. 6. 6.]
   [6. 6. 6. 6.]]
  """

  def __init__(self, config: DotConfig):
    self.config = config

  def queries(self, query, user_ids=None, *, rngs=None):
    """The query itself."""
    del user_ids, rngs
    return query

  def items(self, items, *, rngs=None):
    """The items themselves."""
    del rngs
    return items

  def __call__(self, queries, items, *, rngs=None):
    """(scores, None): leading axes of `[..., dim]` broadcast."""
    del rngs
    scores = jnp.einsum("...d,...d->...", queries, items, precision="highest")
    return scores / self.config.temperature, None


class Recommender(nnx.Module):
  """A sequence model and a similarity; see the module's docstring.

  >>> config = RecommenderConfig(
  ...   sequence=sasrec.SasrecConfig(num_items=9, length=4, dim=8,
  ...                                num_blocks=1, num_heads=2, mlp_dim=8),
  ...   similarity=DotConfig(),
  ... )
  >>> model = Recommender(config, rngs=nnx.Rngs(0))
  >>> query = model.queries(
  ...   jnp.array([[3, 7, 0, 0]]), last=jnp.array([1]), users=jnp.array([0]))
  >>> model.similarity(query[:, None], model.items())[0].shape
  (1, 9)
  """

  def __init__(self, config: RecommenderConfig, *, rngs: nnx.Rngs):
    self.config = config
    self.sequence = _MODELS[type(config.sequence)](config.sequence, rngs=rngs)
    self.similarity: Any
    if isinstance(config.similarity, DotConfig):
      self.similarity = Dot(config.similarity)
    else:
      self.similarity = mol.Mol(config.similarity, rngs=rngs)

  def queries(
    self,
    ids: jax.Array,
    timestamps: jax.Array | None = None,
    *,
    last: jax.Array,
    users: jax.Array,
  ) -> Any:
    """The query sides of histories, in evaluation.

    Args:
      ids: `[batch, length]`, see the sequence models.
      timestamps: Likewise.
      last: `[batch]`, the place of the newest item.
      users: `[batch]` integer rows, for similarities with user embeddings.
    """
    outputs = self.sequence(ids, timestamps)
    newest = outputs[jnp.arange(outputs.shape[0]), last]
    return self.query_sides(newest, users)

  def query_sides(
    self,
    outputs: jax.Array,
    users: jax.Array,
    *,
    rngs: nnx.Rngs | None = None,
  ) -> Any:
    """Outputs `[..., dim]` of the sequence model as the similarity reads them.

    Args:
      outputs: Of the sequence model.
      users: `[...]` rows; read if the similarity has user components.
      rngs: Of dropout, see `mol.Mol`.
    """
    config = self.config.similarity
    with_users = getattr(config, "num_user_components", 0) > 0
    return self.similarity.queries(
      outputs, users if with_users else None, rngs=rngs
    )

  def items(self) -> Any:
    """The item side of all items in order, id 1 first."""
    return self.similarity.items(self.sequence.embedding.item_vectors())

  def save(self, folder: pathlib.Path, metadata: dict[str, Any]) -> None:
    """Writes a folder that `load` reads; it appears whole or not at all."""
    description = {
      part: {
        "kind": _NAMES[type(config)],
        "config": dataclasses.asdict(config),
      }
      for part in ("sequence", "similarity")
      for config in (getattr(self.config, part),)
    }
    with files.new_folder(folder) as temporary:
      parameters.write(temporary / _WEIGHTS, self)
      files.write(
        temporary / _DESCRIPTION,
        json.dumps(description | {"metadata": metadata}, indent=2),
      )

  @classmethod
  def load(cls, folder: pathlib.Path) -> tuple[Recommender, dict[str, Any]]:
    """Reads what `save` wrote.

    Returns:
      (recommender, metadata).

    Raises:
      ValueError: If the folder does not hold one.
    """
    path = pathlib.Path(folder) / _DESCRIPTION
    if not path.exists():
      raise ValueError(
        f"{folder} holds no recommender ({_DESCRIPTION} is missing): train one "
        "with `python -m experiments.recommend`."
      )
    description = json.loads(path.read_text())
    parts = {
      part: _CONFIGS[description[part]["kind"]](**description[part]["config"])
      for part in ("sequence", "similarity")
    }
    recommender = cls(RecommenderConfig(**parts), rngs=nnx.Rngs(0))
    parameters.read(path.with_name(_WEIGHTS), recommender)
    return recommender, description["metadata"]
