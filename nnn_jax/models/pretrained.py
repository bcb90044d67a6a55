"""Loads and saves text encoders in the Hugging Face folder format.

  load: folder | hub name | "minilm"  ->  (encoder, tokenizer)
  save: (encoder, tokenizer)          ->  folder

A folder holds config.json, model.safetensors and tokenizer files; modules.json
and 1_Pooling/config.json, as sentence-transformers writes them, say how token
vectors become one embedding.  BERT and DistilBERT are read.

References: Devlin et al. (2019), BERT; Sanh et al. (2019), DistilBERT; Reimers
and Gurevych (2019), Sentence-BERT.
"""

import json
import os
import pathlib
import re
import shutil

import jax.numpy as jnp
import ml_dtypes  # Also teaches safetensors to read bfloat16 into numpy.
import numpy as np
import safetensors
import safetensors.numpy
from flax import nnx

from nnn_jax import files
from nnn_jax.models import fetch, hugging_face, text_encoder, tokenization

_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_HUB_FILES = (
  "config.json",
  "model.safetensors",
  "modules.json",
  "tokenizer.json",
  "tokenizer_config.json",
  "vocab.txt",
  "1_Pooling/config.json",
)
_FLOATS = (np.float16, np.float32, np.float64, ml_dtypes.bfloat16)
# What `save` may replace: the names it writes itself.
_SAVED_NAMES = {
  "1_Pooling",
  "config.json",
  "model.safetensors",
  "modules.json",
  "sentence_bert_config.json",
  "tokenizer.json",
  "tokenizer_config.json",
}


def load(
  source: str | os.PathLike[str],
) -> tuple[text_encoder.TextEncoder, tokenization.Tokenizer]:
  """Loads a text encoder and its tokenizer.

  Without modules.json and 1_Pooling/config.json, the embedding is the mean over
  tokens, scaled to unit norm.  Weights of any float type become float32.

  Args:
    source: a folder; or a hub name such as "BAAI/bge-small-en-v1.5", which
      needs internet and `huggingface_hub`; or "minilm", all-MiniLM-L6-v2 from
      the package index (`nnn_jax.models.fetch`).  A folder that exists is taken
      first, and "./minilm" is always a folder.

  Returns:
    The encoder and the tokenizer.

  Raises:
    ValueError: the folder is not a model of a supported family, or tensors are
      missing, unexpected, or of a wrong shape or type.
    FileNotFoundError: there is no such folder.
    RuntimeError: a download failed, or `huggingface_hub` is not installed.
  """
  folder = _resolve(source)
  config, family = hugging_face.read_config(folder)
  tokenizer = tokenization.Tokenizer.from_folder(folder)
  if tokenizer.vocab_size > config.vocab_size:
    raise ValueError(
      f"The tokenizer in {folder} has {tokenizer.vocab_size} entries, but"
      f" config.json has vocab_size {config.vocab_size}: the files are not of"
      " one model."
    )
  tensors = _read_tensors(folder, family)
  # Shapes only: initialising weights that are replaced at once would be waste.
  abstract = nnx.eval_shape(
    lambda: text_encoder.TextEncoder(config, rngs=nnx.Rngs(0))
  )
  graphdef, state = nnx.split(abstract)
  parameters = dict(nnx.to_flat_state(state))
  names = hugging_face.tensor_names(config, family)
  shapes = {
    names[path]: parameter.shape[:: -1 if path[-1] == "kernel" else 1]
    for path, parameter in parameters.items()
  }
  _check_tensors(tensors, shapes, folder / "model.safetensors")
  loaded = [
    (
      path,
      parameter.replace(
        jnp.asarray(hugging_face.to_parameter(path, tensors[names[path]]))
      ),
    )
    for path, parameter in parameters.items()
  ]
  return nnx.merge(graphdef, nnx.from_flat_state(loaded)), tokenizer


def save(
  folder: str | os.PathLike[str],
  encoder: text_encoder.TextEncoder,
  tokenizer: tokenization.Tokenizer,
) -> None:
  """Writes a folder that `load`, transformers and sentence-transformers read.

  Everything is written beside `folder` first and renamed at the end: a failure
  leaves what was there before.  Weights are written in float32.

  Args:
    folder: where to write; a model saved there before is replaced.
    encoder: the encoder; without token types it is written as DistilBERT.
    tokenizer: its tokenizer.

  Raises:
    ValueError: the format cannot hold the encoder's settings, or `tokenizer`
      has more entries than the encoder.
    FileExistsError: `folder` is not a folder or holds other files than a saved
      model, which replacing it would delete.
  """
  target = pathlib.Path(folder).expanduser().resolve()
  _check_replaceable(target)
  config = encoder.config
  if tokenizer.vocab_size > config.vocab_size:
    raise ValueError(
      f"tokenizer has {tokenizer.vocab_size} entries, but the encoder's"
      f" vocab_size is {config.vocab_size}; save the tokenizer it was trained"
      " with."
    )
  contents = hugging_face.config_files(config, pad_id=tokenizer.pad_id)
  names = hugging_face.tensor_names(config, hugging_face.family_of(config))
  state = nnx.to_flat_state(nnx.state(encoder, nnx.Param))
  tensors = {
    names[path]: hugging_face.to_parameter(path, np.asarray(parameter[...]))
    for path, parameter in state
  }
  with files.new_folder(target) as temporary:
    for name, content in contents.items():
      path = temporary / name
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    tokenizer.save(temporary, max_length=config.max_length)
    safetensors.numpy.save_file(
      tensors,
      temporary / "model.safetensors",
      metadata={"format": "pt"},  # transformers refuses a file without it.
    )
    # safetensors makes it readable by its owner alone.
    shutil.copymode(temporary / "config.json", temporary / "model.safetensors")


def _resolve(source: str | os.PathLike[str]) -> pathlib.Path:
  """Returns the folder of a source, downloading it if need be."""
  folder = pathlib.Path(source).expanduser()
  if folder.is_dir():
    return folder
  if source == "minilm":
    return fetch.minilm()
  if isinstance(source, str) and _HUB_NAME.fullmatch(source):
    return _download(source)
  raise FileNotFoundError(
    f"There is no model folder {folder}. Pass a folder, a hub name such as"
    ' "BAAI/bge-small-en-v1.5", or "minilm".'
  )


def _download(name: str) -> pathlib.Path:
  """Downloads a model from the Hugging Face hub, or finds it in its cache."""
  try:
    import huggingface_hub  # Optional, and slow to import.
  except ImportError as error:
    raise RuntimeError(
      f"{name!r} is not a folder, and reading it from the hub needs"
      " huggingface_hub: run `pip install huggingface_hub`, or pass a folder or"
      ' "minilm".'
    ) from error
  try:
    return pathlib.Path(
      huggingface_hub.snapshot_download(name, allow_patterns=list(_HUB_FILES))
    )
  # Which errors come out differs with the version of the library and of its
  # network stack; all of them mean that the model could not be had.
  except Exception as error:
    raise RuntimeError(
      f"{name!r} is not a folder, and it could not be read from the hub"
      f" ({type(error).__name__}: {error}). Check the name and the network, or"
      ' pass a folder that was downloaded elsewhere, or "minilm", which comes'
      " from the package index."
    ) from error


def _read_tensors(
  folder: pathlib.Path, family: hugging_face.Family
) -> dict[str, np.ndarray]:
  """Reads the tensors, under names without prefix and of the current form."""
  path = folder / "model.safetensors"
  if not path.is_file():
    raise ValueError(
      f"There is no file {path}. If the folder has pytorch_model.bin, load it"
      " with transformers and write it with model.save_pretrained(folder)."
    )
  try:
    stored = safetensors.numpy.load_file(path)
  except safetensors.SafetensorError as error:
    raise ValueError(f"{path} cannot be read: {error}.") from error
  prefix = f"{family.model_type}."
  tensors = {}
  for name, tensor in stored.items():
    name = name.removeprefix(prefix)
    if name.startswith(family.ignored):
      continue
    # Names that checkpoints converted from TensorFlow still have.
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
    tensors[name] = tensor
  return tensors


def _check_tensors(
  tensors: dict[str, np.ndarray],
  shapes: dict[str, tuple[int, ...]],
  path: pathlib.Path,
) -> None:
  """Raises one ValueError that lists all that does not fit config.json."""
  problems = []
  if missing := sorted(shapes.keys() - tensors.keys()):
    problems.append(f"missing tensors: {', '.join(missing)}")
  if unexpected := sorted(tensors.keys() - shapes.keys()):
    problems.append(f"unexpected tensors: {', '.join(unexpected)}")
  for name in sorted(shapes.keys() & tensors.keys()):
    tensor = tensors[name]
    if tensor.shape != shapes[name]:
      problems.append(
        f"{name} has shape {tensor.shape}, config.json says {shapes[name]}"
      )
    elif tensor.dtype not in _FLOATS:
      problems.append(f"{name} is {tensor.dtype}, only floats are read")
  if problems:
    raise ValueError(f"{path} does not fit: {'; '.join(problems)}.")


def _check_replaceable(target: pathlib.Path) -> None:
  """Raises FileExistsError if replacing the folder would delete other files."""
  if not target.exists():
    return
  if not target.is_dir():
    raise FileExistsError(f"{target} is not a folder; choose another name.")
  foreign = sorted({path.name for path in target.iterdir()} - _SAVED_NAMES)
  if foreign:
    raise FileExistsError(
      f"{target} holds files that saving would delete: {', '.join(foreign)}."
      " Save to a new folder."
    )
