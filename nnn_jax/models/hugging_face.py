"""The Hugging Face folder format: settings and tensor names of two families.

  config.json            sizes                 -> `TextEncoderConfig`
  modules.json, */Pooling  pooling, normalise  -> `TextEncoderConfig`
  model.safetensors      tensors by name       -> parameters by path

BERT and DistilBERT are one architecture under two sets of names; DistilBERT has
no token types.  Reading and writing whole folders is `pretrained`'s work.
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from nnn_jax.models import text_encoder

# Of parts str and int; Any, because Flax types them only as sortable.
ParamPath = tuple[Any, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
  """Names of one model family.

  Attributes:
    model_type: "bert" or "distilbert", as config.json says.
    architecture: class that other libraries load the folder with.
    sizes: field of `TextEncoderConfig` to key of config.json.
    activation: key of config.json that names the activation.
    layers: prefix of the layers' tensors.
    modules: module path inside a layer to tensor prefix.
    ignored: prefixes of tensors that the encoder does not use: poolers and
      heads of the pretraining tasks.
  """

  model_type: str
  architecture: str
  sizes: Mapping[str, str]
  activation: str
  layers: str
  modules: Mapping[ParamPath, str]
  ignored: tuple[str, ...]


BERT = Family(
  model_type="bert",
  architecture="BertModel",
  sizes={
    "vocab_size": "vocab_size",
    "dim": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "mlp_dim": "intermediate_size",
    "max_length": "max_position_embeddings",
  },
  activation="hidden_act",
  layers="encoder.layer",
  modules={
    ("attention", "query"): "attention.self.query",
    ("attention", "key"): "attention.self.key",
    ("attention", "value"): "attention.self.value",
    ("attention", "output"): "attention.output.dense",
    ("attention_norm",): "attention.output.LayerNorm",
    ("mlp_in",): "intermediate.dense",
    ("mlp_out",): "output.dense",
    ("mlp_norm",): "output.LayerNorm",
  },
  ignored=("pooler.", "cls.", "embeddings.position_ids"),
)

DISTILBERT = Family(
  model_type="distilbert",
  architecture="DistilBertModel",
  sizes={
    "vocab_size": "vocab_size",
    "dim": "dim",
    "num_layers": "n_layers",
    "num_heads": "n_heads",
    "mlp_dim": "hidden_dim",
    "max_length": "max_position_embeddings",
  },
  activation="activation",
  layers="transformer.layer",
  modules={
    ("attention", "query"): "attention.q_lin",
    ("attention", "key"): "attention.k_lin",
    ("attention", "value"): "attention.v_lin",
    ("attention", "output"): "attention.out_lin",
    ("attention_norm",): "sa_layer_norm",
    ("mlp_in",): "ffn.lin1",
    ("mlp_out",): "ffn.lin2",
    ("mlp_norm",): "output_layer_norm",
  },
  ignored=(
    "vocab_transform.",
    "vocab_layer_norm.",
    "vocab_projector.",
    "embeddings.position_ids",
  ),
)

FAMILIES = {family.model_type: family for family in (BERT, DISTILBERT)}

_DISTILBERT_EPS = 1e-12  # Fixed in that architecture, not in its config.json.
_LEAVES = {
  "linear": {"kernel": "weight", "bias": "bias"},
  "norm": {"scale": "weight", "bias": "bias"},
}


def family_of(config: text_encoder.TextEncoderConfig) -> Family:
  """Returns the family that an encoder is written as."""
  return BERT if config.type_vocab_size else DISTILBERT


def tensor_names(
  config: text_encoder.TextEncoderConfig, family: Family
) -> dict[ParamPath, str]:
  """Returns the tensor name of each parameter, by its path in the encoder."""
  names: dict[ParamPath, str] = {}

  def add(path: ParamPath, kind: str, prefix: str) -> None:
    for ours, theirs in _LEAVES[kind].items():
      names[(*path, ours)] = f"{prefix}.{theirs}"

  tables = {"word_embedding": "word", "position_embedding": "position"}
  if config.type_vocab_size:
    tables["type_embedding"] = "token_type"
  for ours, theirs in tables.items():
    names[(ours,)] = f"embeddings.{theirs}_embeddings.weight"
  add(("embedding_norm",), "norm", "embeddings.LayerNorm")
  for i in range(config.num_layers):
    for path, prefix in family.modules.items():
      kind = "norm" if str(path[-1]).endswith("norm") else "linear"
      add(("layers", i, *path), kind, f"{family.layers}.{i}.{prefix}")
  return names


def to_parameter(path: ParamPath, tensor: np.ndarray) -> np.ndarray:
  """Converts a stored tensor to a float32 parameter, or back (an involution).

  Their linear weights are `[out, in]`, ours `[in, out]`.
  """
  tensor = tensor.T if path[-1] == "kernel" else tensor
  return np.ascontiguousarray(tensor, np.float32)


def read_config(
  folder: pathlib.Path,
) -> tuple[text_encoder.TextEncoderConfig, Family]:
  """Reads the sizes, the pooling and the family of a folder.

  Raises:
    ValueError: config.json is missing, or asks for what is not supported.
  """
  raw = _read_json(folder / "config.json")
  family = FAMILIES.get(raw.get("model_type", ""))
  if family is None:
    raise ValueError(
      f"model_type {raw.get('model_type')!r} in {folder / 'config.json'} is not"
      f" supported; supported are {', '.join(sorted(FAMILIES))}."
    )
  _check_supported(raw, family, folder)
  missing = [key for key in family.sizes.values() if key not in raw]
  if missing:
    raise ValueError(
      f"{folder / 'config.json'} does not say {', '.join(missing)}."
    )
  sizes = {field: raw[key] for field, key in family.sizes.items()}
  pooling, normalize = _read_pooling(folder)
  is_bert = family is BERT
  eps = raw.get("layer_norm_eps", 1e-12) if is_bert else _DISTILBERT_EPS
  config = text_encoder.TextEncoderConfig(
    **sizes,
    type_vocab_size=raw.get("type_vocab_size", 2) if is_bert else 0,
    layer_norm_eps=eps,
    pooling=pooling,
    normalize=normalize,
  )
  return config, family


def config_files(
  config: text_encoder.TextEncoderConfig, *, pad_id: int = 0
) -> dict[str, dict[str, Any] | list[dict[str, Any]]]:
  """Returns the JSON files that describe an encoder, by relative path.

  Args:
    config: the encoder's settings.
    pad_id: id of the padding token.

  Raises:
    ValueError: the settings cannot be written in the format.
  """
  family = family_of(config)
  raw: dict[str, Any] = {
    "architectures": [family.architecture],
    "model_type": family.model_type,
    family.activation: "gelu",
    "initializer_range": 0.02,
    "pad_token_id": pad_id,
  }
  for field, key in family.sizes.items():
    raw[key] = getattr(config, field)
  if family is BERT:
    raw["type_vocab_size"] = config.type_vocab_size
    raw["layer_norm_eps"] = config.layer_norm_eps
    raw["position_embedding_type"] = "absolute"
  elif config.layer_norm_eps != _DISTILBERT_EPS:
    raise ValueError(
      "An encoder without token types is written as DistilBERT, whose"
      f" layer_norm_eps is {_DISTILBERT_EPS}, got {config.layer_norm_eps}; use"
      " that value, or type_vocab_size=1."
    )
  steps = ["Transformer", "Pooling", *["Normalize"] * config.normalize]
  paths = ["", "1_Pooling", "2_Normalize"]
  modules = [
    {
      "idx": i,
      "name": str(i),
      "path": path,
      "type": f"sentence_transformers.models.{step}",
    }
    for i, (step, path) in enumerate(zip(steps, paths, strict=False))
  ]
  pooling = {
    "word_embedding_dimension": config.dim,
    "pooling_mode_cls_token": config.pooling == "cls",
    "pooling_mode_mean_tokens": config.pooling == "mean",
    "pooling_mode_max_tokens": False,
    "pooling_mode_mean_sqrt_len_tokens": False,
  }
  return {
    "config.json": raw,
    "modules.json": modules,
    "1_Pooling/config.json": pooling,
    "sentence_bert_config.json": {
      "max_seq_length": config.max_length,
      "do_lower_case": False,
    },
  }


def _check_supported(
  raw: Mapping[str, Any], family: Family, folder: pathlib.Path
) -> None:
  """Raises ValueError on settings that would change the result silently."""
  required = {
    family.activation: "gelu",
    "position_embedding_type": "absolute",
    "is_decoder": False,
  }
  for key, value in required.items():
    if raw.get(key, value) != value:
      raise ValueError(
        f"{key} {raw[key]!r} in {folder / 'config.json'} is not supported; only"
        f" {value!r} is."
      )


def _read_pooling(folder: pathlib.Path) -> tuple[text_encoder.Pooling, bool]:
  """Reads how token vectors become one; the default is mean, normalised."""
  pooling_folder, normalize = folder / "1_Pooling", True
  if (folder / "modules.json").is_file():
    modules = _read_json(folder / "modules.json")
    steps = [str(module["type"]).rsplit(".", 1)[-1] for module in modules]
    if steps not in (
      ["Transformer", "Pooling"],
      ["Transformer", "Pooling", "Normalize"],
    ):
      raise ValueError(
        f"The modules {', '.join(steps)} in {folder / 'modules.json'} are not"
        " supported; supported are Transformer, Pooling and then, optionally,"
        " Normalize."
      )
    pooling_folder = folder / modules[1]["path"]
    normalize = len(steps) == 3
  elif not (pooling_folder / "config.json").is_file():
    return "mean", True
  raw = _read_json(pooling_folder / "config.json")
  modes = [
    key.removeprefix("pooling_mode_")
    for key, value in raw.items()
    if key.startswith("pooling_mode_") and value
  ]
  if isinstance(raw.get("pooling_mode"), str):  # Written by newer versions.
    modes = [raw["pooling_mode"]]
  if modes in (["cls_token"], ["cls"]):
    return "cls", normalize
  if modes in (["mean_tokens"], ["mean"]):
    return "mean", normalize
  raise ValueError(
    f"The pooling {', '.join(modes) or 'none'} in"
    f" {pooling_folder / 'config.json'} is not supported; supported are mean"
    " and cls."
  )


def _read_json(path: pathlib.Path) -> Any:
  if not path.is_file():
    raise ValueError(f"There is no file {path}: this is not a model folder.")
  try:
    return json.loads(path.read_text(encoding="utf-8"))
  except ValueError as error:
    raise ValueError(f"{path} is not JSON: {error}.") from error
