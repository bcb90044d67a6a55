"""Tests of nnn_jax.models.pretrained and nnn_jax.models.hugging_face.

Two oracles: numbers computed by PyTorch 2.13.0 and transformers 5.24.0 from
all-MiniLM-L6-v2 (AutoTokenizer, AutoModel, masked mean, L2), and a forward pass
in numpy that reads the stored tensors by their own names.
"""

import hashlib
import json
import math
import sys

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx

from nnn_jax.models import pretrained, text_encoder, tokenization

MINILM_TEXTS = (
  "graph search",
  "The quick brown fox jumps over the lazy dog near the river bank. " * 20,
  "Zürich café: 検索 документов — naïve résumé ✓ 🚀",
  "",
  "def top_k(scores, k):\n  return np.argsort(-scores)[:k]  # O(n log n)",
  "How do I book a flight to Paris, then convert 300 USD to EUR?",
)
# fmt: off
_FIRST_8 = (
  (
    -0.0208097, 0.0321246, -0.0364299, -0.0216967,
    0.0119617, -0.0084196, -0.0251975, -0.0022615,
  ),
  (
    0.0904155, 0.0248612, 0.0593450, 0.0058066,
    0.0095776, -0.0141868, -0.0015966, -0.0669735,
  ),
  (
    -0.0278331, 0.0214552, 0.0526333, 0.0099041,
    0.0653165, 0.0299157, 0.0373161, 0.0207167,
  ),
  (
    -0.1188384, 0.0482988, -0.0025480, -0.0110112,
    0.0519507, 0.0102918, 0.1154333, 0.0007008,
  ),
  (
    0.0370418, -0.0106495, -0.0358257, -0.0279046,
    0.0422801, -0.0138151, 0.0421564, 0.0428576,
  ),
  (
    0.0886045, -0.0153484, -0.0553739, -0.0681963,
    -0.0130117, -0.0388890, -0.0860058, 0.0322599,
  ),
)
_PROJECTIONS = (-0.045460, -0.259326, 0.684392, 0.348395, 1.387206, 0.148501)
# Of the int32 rows of ids, padded to 128.
_ID_DIGESTS = (
  "86cbfd80cff611b3", "8cc2f144f3996fbf", "af3030cf1d716c08",
  "ff3c1118a76b3e69", "42ccd08139621d78", "3fd4c3f0979e1e11",
)
_LENGTHS = [4, 128, 21, 2, 33, 19]
# fmt: on

VOCAB = [*tokenization.SPECIAL_TOKENS, *(f"w{i}" for i in range(25))]
DIM, HEADS, MLP, LAYERS, LENGTH = 16, 4, 32, 2, 24
ERF = np.vectorize(math.erf)

SHARED = {"vocab_size": 30, "max_position_embeddings": LENGTH}
CONFIGS = {
  "bert": {
    "model_type": "bert",
    "hidden_size": DIM,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": MLP,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-6,
    "hidden_act": "gelu",
    **SHARED,
  },
  "distilbert": {
    "model_type": "distilbert",
    "dim": DIM,
    "n_layers": LAYERS,
    "n_heads": HEADS,
    "hidden_dim": MLP,
    "activation": "gelu",
    **SHARED,
  },
}
# Names inside a layer: query, key, value, attention output, its norm, the two
# feed-forward layers, their norm.
LAYER_NAMES = {
  "bert": (
    "encoder.layer.{}.attention.self.query",
    "encoder.layer.{}.attention.self.key",
    "encoder.layer.{}.attention.self.value",
    "encoder.layer.{}.attention.output.dense",
    "encoder.layer.{}.attention.output.LayerNorm",
    "encoder.layer.{}.intermediate.dense",
    "encoder.layer.{}.output.dense",
    "encoder.layer.{}.output.LayerNorm",
  ),
  "distilbert": (
    "transformer.layer.{}.attention.q_lin",
    "transformer.layer.{}.attention.k_lin",
    "transformer.layer.{}.attention.v_lin",
    "transformer.layer.{}.attention.out_lin",
    "transformer.layer.{}.sa_layer_norm",
    "transformer.layer.{}.ffn.lin1",
    "transformer.layer.{}.ffn.lin2",
    "transformer.layer.{}.output_layer_norm",
  ),
}


def random_tensors(model_type, seed=0):
  """Weights large enough for every part of the model to matter."""
  rng = np.random.default_rng(seed)
  tensors = {}

  def add(name, *shape, mean=0.0):
    value = mean + 0.3 * rng.normal(size=shape)
    tensors[name] = value.astype(np.float32)

  def add_norm(name):
    add(f"{name}.weight", DIM, mean=1.0)
    add(f"{name}.bias", DIM)

  def add_linear(name, out_dim, in_dim):
    add(f"{name}.weight", out_dim, in_dim)
    add(f"{name}.bias", out_dim)

  tables = {"word": 30, "position": LENGTH}
  if model_type == "bert":
    tables["token_type"] = 2
  for name, rows in tables.items():
    add(f"embeddings.{name}_embeddings.weight", rows, DIM)
  add_norm("embeddings.LayerNorm")
  for layer in range(LAYERS):
    names = [name.format(layer) for name in LAYER_NAMES[model_type]]
    for name in names[:4]:
      add_linear(name, DIM, DIM)
    add_norm(names[4])
    add_linear(names[5], MLP, DIM)
    add_linear(names[6], DIM, MLP)
    add_norm(names[7])
  return tensors


def reference(model_type, tensors, ids, mask, pooling, normalize):
  """Float64 forward pass, one text and one head at a time."""
  eps = CONFIGS[model_type].get("layer_norm_eps", 1e-12)
  get = {name: np.asarray(t, np.float64) for name, t in tensors.items()}

  def linear(x, name):
    return x @ get[f"{name}.weight"].T + get[f"{name}.bias"]

  def norm(x, name):
    centred = x - x.mean(axis=-1, keepdims=True)
    x = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)
    return x * get[f"{name}.weight"] + get[f"{name}.bias"]

  rows = []
  for row_ids, row_mask in zip(ids, mask, strict=True):
    row_ids = row_ids[row_mask == 1]
    x = get["embeddings.word_embeddings.weight"][row_ids]
    x = x + get["embeddings.position_embeddings.weight"][: len(row_ids)]
    if model_type == "bert":
      x = x + get["embeddings.token_type_embeddings.weight"][0]
    x = norm(x, "embeddings.LayerNorm")
    for layer in range(LAYERS):
      q, k, v, out, norm_1, mlp_1, mlp_2, norm_2 = (
        name.format(layer) for name in LAYER_NAMES[model_type]
      )
      heads = []
      for h in range(HEADS):
        part = slice(h * DIM // HEADS, (h + 1) * DIM // HEADS)
        logits = linear(x, q)[:, part] @ linear(x, k)[:, part].T
        weights = np.exp(logits / math.sqrt(DIM // HEADS))
        weights /= weights.sum(axis=1, keepdims=True)
        heads.append(weights @ linear(x, v)[:, part])
      x = norm(x + linear(np.concatenate(heads, axis=1), out), norm_1)
      hidden = linear(x, mlp_1)
      hidden = hidden * 0.5 * (1 + ERF(hidden / math.sqrt(2)))
      x = norm(x + linear(hidden, mlp_2), norm_2)
    pooled = x[0] if pooling == "cls" else x.mean(axis=0)
    rows.append(pooled / np.linalg.norm(pooled) if normalize else pooled)
  return np.stack(rows)


def write_json(path, content):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(json.dumps(content))


def write_folder(folder, model_type, tensors, pooling=None, normalize=True):
  """Writes a folder as transformers and sentence-transformers do."""
  write_json(folder / "config.json", CONFIGS[model_type])
  (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
  safetensors.numpy.save_file(tensors, folder / "model.safetensors")
  if pooling is not None:
    write_modules(
      folder, ["Transformer", "Pooling", *["Normalize"] * normalize]
    )
    flags = {
      "word_embedding_dimension": DIM,
      "pooling_mode_cls_token": pooling == "cls",
      "pooling_mode_mean_tokens": pooling == "mean",
      "pooling_mode_max_tokens": pooling == "max",
    }
    write_json(folder / "1_Pooling" / "config.json", flags)


def write_modules(folder, steps):
  modules = [
    {
      "idx": i,
      "name": str(i),
      "path": "" if i == 0 else f"{i}_{step}",
      "type": f"sentence_transformers.models.{step}",
    }
    for i, step in enumerate(steps)
  ]
  write_json(folder / "modules.json", modules)


def make_batch(seed=0):
  rng = np.random.default_rng(seed)
  mask = (np.arange(10)[None] < np.array([[10], [4], [1]])).astype(np.int32)
  return (rng.integers(5, 30, (3, 10)) * mask).astype(np.int32), mask


def embed(encoder, ids, mask):
  graphdef, params = nnx.split(encoder)
  return np.asarray(
    jax.jit(lambda p, i, m: nnx.merge(graphdef, p)(i, m))(params, ids, mask)
  )


def test_minilm_matches_the_reference(minilm_folder):
  encoder, tokenizer = pretrained.load(minilm_folder)
  tokens = tokenizer(MINILM_TEXTS, max_length=128)
  digests = tuple(
    hashlib.sha256(row.astype("<i4").tobytes()).hexdigest()[:16]
    for row in tokens.ids
  )
  assert digests == _ID_DIGESTS
  assert tokens.mask.sum(axis=1).tolist() == _LENGTHS
  assert tokenizer.truncated_share(MINILM_TEXTS, 128) == 1 / 6
  embeddings = embed(encoder, *tokens)
  np.testing.assert_allclose(embeddings[:, :8], _FIRST_8, atol=1e-5)
  projections = embeddings.astype(np.float64) @ np.cos(np.arange(384))
  np.testing.assert_allclose(projections, _PROJECTIONS, atol=1e-4)


@pytest.mark.parametrize("model_type", ["bert", "distilbert"])
@pytest.mark.parametrize(
  ("pooling", "normalize"),
  [("mean", True), ("cls", False), (None, True)],
)
def test_matches_numpy(tmp_path, model_type, pooling, normalize):
  tensors = random_tensors(model_type)
  write_folder(tmp_path, model_type, tensors, pooling, normalize)
  encoder, tokenizer = pretrained.load(tmp_path)
  assert tokenizer.vocab_size == 30
  ids, mask = make_batch()
  expected = reference(
    model_type, tensors, ids, mask, pooling or "mean", normalize
  )
  np.testing.assert_allclose(embed(encoder, ids, mask), expected, atol=2e-6)


@pytest.mark.parametrize("model_type", ["bert", "distilbert"])
def test_names_of_pretraining_checkpoints(tmp_path, model_type):
  """The prefix, the heads of the pretraining task, and gamma and beta."""
  plain = random_tensors(model_type)
  renamed = {}
  for name, tensor in plain.items():
    name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
    name = name.replace("LayerNorm.bias", "LayerNorm.beta")
    renamed[f"{model_type}.{name}"] = tensor
  head = "cls.predictions.bias" if model_type == "bert" else "vocab_projector.b"
  renamed[head] = np.zeros(3, np.float32)
  if model_type == "bert":
    renamed["bert.pooler.dense.bias"] = np.zeros(DIM, np.float32)
    renamed["bert.embeddings.position_ids"] = np.arange(LENGTH)[None]
  for name, tensors in (("plain", plain), ("renamed", renamed)):
    (tmp_path / name).mkdir()
    write_folder(tmp_path / name, model_type, tensors)
  assert_same(
    pretrained.load(tmp_path / "plain")[0],
    pretrained.load(tmp_path / "renamed")[0],
  )


def assert_same(encoder, other):
  assert encoder.config == other.config
  before, after = (
    dict(nnx.to_flat_state(nnx.state(e))) for e in (encoder, other)
  )
  assert before.keys() == after.keys()
  for path, value in before.items():
    np.testing.assert_array_equal(value[...], after[path][...])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_other_float_types_become_float32(tmp_path, dtype):
  tensors = {n: t.astype(dtype) for n, t in random_tensors("bert").items()}
  write_folder(tmp_path, "bert", tensors)
  encoder, _ = pretrained.load(tmp_path)
  name = "encoder.layer.1.intermediate.dense.weight"
  kernel = encoder.layers[1].mlp_in.kernel[...]
  assert kernel.dtype == np.float32
  np.testing.assert_array_equal(kernel, tensors[name].T.astype(np.float32))


@pytest.mark.parametrize(
  "changes",
  [
    {},
    {"pooling": "cls", "normalize": False, "layer_norm_eps": 1e-5},
    {"type_vocab_size": 0},
  ],
)
def test_save_load_round_trip_is_exact(tmp_path, changes):
  texts = ["sort an array", "return the array"] * 2
  tokenizer = tokenization.Tokenizer.train(texts, vocab_size=64)
  config = text_encoder.TextEncoderConfig(
    **{
      "vocab_size": tokenizer.vocab_size,
      "dim": DIM,
      "num_layers": 1,
      "num_heads": HEADS,
      "mlp_dim": MLP,
      "max_length": LENGTH,
      **changes,
    }
  )
  for seed in range(2):  # The second one replaces the first.
    encoder = text_encoder.TextEncoder(config, rngs=nnx.Rngs(seed))
    pretrained.save(tmp_path / "model", encoder, tokenizer)
    loaded, loaded_tokenizer = pretrained.load(tmp_path / "model")
    assert_same(encoder, loaded)
  np.testing.assert_array_equal(
    tokenizer(texts, max_length=9).ids,
    loaded_tokenizer(texts, max_length=9).ids,
  )
  assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_saved_tensors_have_the_stored_names(tmp_path):
  for model_type in CONFIGS:
    tensors = random_tensors(model_type)
    source, target = tmp_path / model_type, tmp_path / f"{model_type}_saved"
    source.mkdir()
    write_folder(source, model_type, tensors, "cls", False)
    pretrained.save(target, *pretrained.load(source))
    saved = safetensors.numpy.load_file(target / "model.safetensors")
    assert saved.keys() == tensors.keys()
    for name, tensor in tensors.items():
      np.testing.assert_array_equal(saved[name], tensor)
    config = json.loads((target / "config.json").read_text())
    assert CONFIGS[model_type].items() <= config.items()


@pytest.fixture
def model(tmp_path):
  """A folder and what it loads as."""
  folder = tmp_path / "source"
  folder.mkdir()
  write_folder(folder, "bert", random_tensors("bert"), "mean")
  return folder, *pretrained.load(folder)


def test_a_failed_save_leaves_the_old_folder(tmp_path, model, monkeypatch):
  _, encoder, tokenizer = model
  target = tmp_path / "model"
  pretrained.save(target, encoder, tokenizer)

  def fail(*unused_args, **unused_kwargs):
    raise OSError("No space left on device")

  before = sorted(p.name for p in tmp_path.iterdir())
  with monkeypatch.context() as patch:
    patch.setattr(pretrained.safetensors.numpy, "save_file", fail)
    with pytest.raises(OSError, match="No space"):
      pretrained.save(target, encoder, tokenizer)
  replace, calls = pretrained.os.replace, []

  def fail_the_second_time(source, destination):
    calls.append(source)
    if len(calls) == 2:
      raise OSError("Input/output error")
    replace(source, destination)

  monkeypatch.setattr(pretrained.os, "replace", fail_the_second_time)
  with pytest.raises(OSError, match="Input/output"):
    pretrained.save(target, encoder, tokenizer)
  assert sorted(p.name for p in tmp_path.iterdir()) == before
  assert_same(pretrained.load(target)[0], encoder)


def test_save_does_not_delete_other_files(tmp_path, model):
  _, encoder, tokenizer = model
  target = tmp_path / "notes"
  target.mkdir()
  (target / "thesis.tex").write_text("years of work")
  with pytest.raises(FileExistsError, match=r"would delete: thesis.tex"):
    pretrained.save(target, encoder, tokenizer)
  assert (target / "thesis.tex").read_text() == "years of work"
  with pytest.raises(FileExistsError, match="is not a folder"):
    pretrained.save(target / "thesis.tex", encoder, tokenizer)


def test_save_errors(tmp_path, model):
  _, encoder, tokenizer = model
  texts = ["".join(map(chr, range(0x61, 0x7B)))]
  larger = tokenization.Tokenizer.train(texts, vocab_size=99)
  with pytest.raises(ValueError, match="encoder's vocab_size is 30"):
    pretrained.save(tmp_path / "model", encoder, larger)
  config = text_encoder.TextEncoderConfig(
    vocab_size=30,
    dim=4,
    num_layers=1,
    num_heads=1,
    mlp_dim=4,
    max_length=8,
    type_vocab_size=0,
    layer_norm_eps=1e-5,
  )
  encoder = text_encoder.TextEncoder(config, rngs=nnx.Rngs(0))
  with pytest.raises(ValueError, match="written as DistilBERT"):
    pretrained.save(tmp_path / "model", encoder, tokenizer)
  assert not (tmp_path / "model").exists()


def change_config(folder, **changes):
  config = json.loads((folder / "config.json").read_text())
  config.update(changes)
  write_json(folder / "config.json", config)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    (
      {"model_type": "mpnet"},
      "model_type 'mpnet' in .* not supported; supported are bert, distilbert",
    ),
    ({"hidden_act": "relu"}, "hidden_act 'relu' .* only 'gelu' is"),
    (
      {"position_embedding_type": "relative_key"},
      "position_embedding_type 'relative_key' .* only 'absolute' is",
    ),
    ({"is_decoder": True}, "is_decoder True .* only False is"),
    ({"num_attention_heads": 3}, "num_heads must divide dim"),
    ({"vocab_size": 29}, "tokenizer in .* has 30 entries.* vocab_size 29"),
    (
      {"intermediate_size": 31},
      r"intermediate.dense.weight has shape \(32, 16\), .* \(31, 16\)",
    ),
  ],
)
def test_config_errors(model, changes, message):
  folder = model[0]
  change_config(folder, **changes)
  with pytest.raises(ValueError, match=message):
    pretrained.load(folder)


def test_a_size_that_is_not_stated(model):
  config = {k: v for k, v in CONFIGS["bert"].items() if k != "hidden_size"}
  write_json(model[0] / "config.json", config)
  with pytest.raises(ValueError, match="does not say hidden_size"):
    pretrained.load(model[0])


def test_tensor_errors_list_every_name(model):
  tensors = random_tensors("bert")
  missing = ["embeddings.LayerNorm.bias", "encoder.layer.1.output.dense.weight"]
  for name in missing:
    del tensors[name]
  tensors["classifier.bias"] = np.zeros(2, np.float32)
  whole = "encoder.layer.0.output.dense.bias"
  tensors[whole] = tensors[whole].astype(np.int8)
  path = model[0] / "model.safetensors"
  safetensors.numpy.save_file(tensors, path)
  with pytest.raises(ValueError, match="does not fit") as caught:
    pretrained.load(model[0])
  error = str(caught.value)
  assert f"missing tensors: {', '.join(missing)};" in error
  assert "unexpected tensors: classifier.bias" in error
  assert f"{whole} is int8, only floats are read" in error
  path.write_bytes(b"not tensors")
  with pytest.raises(ValueError, match=r"model.safetensors cannot be read"):
    pretrained.load(model[0])
  path.unlink()
  with pytest.raises(ValueError, match=r"If the folder has pytorch_model.bin"):
    pretrained.load(model[0])


def test_pooling_of_newer_versions_and_errors(model):
  folder = model[0]
  path = folder / "1_Pooling" / "config.json"
  write_json(path, {"embedding_dimension": DIM, "pooling_mode": "cls"})
  assert pretrained.load(folder)[0].config.pooling == "cls"
  write_json(path, {"pooling_mode_max_tokens": True})
  with pytest.raises(ValueError, match=r"pooling max_tokens .* mean and cls"):
    pretrained.load(folder)
  write_modules(folder, ["Transformer", "Pooling", "Dense", "Normalize"])
  with pytest.raises(
    ValueError, match="Transformer, Pooling, Dense, Normalize"
  ):
    pretrained.load(folder)


def test_source_errors(tmp_path, monkeypatch):
  with pytest.raises(FileNotFoundError, match=r"no model folder .*absent"):
    pretrained.load(tmp_path / "absent")
  with pytest.raises(ValueError, match=r"no file .*config.json"):
    pretrained.load(tmp_path)
  huggingface_hub = pytest.importorskip("huggingface_hub")

  def fail(name, **unused_options):
    raise ConnectionError(f"offline, no {name}")

  monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
  with pytest.raises(RuntimeError, match=r"offline, no some/model.*minilm"):
    pretrained.load("some/model")
  monkeypatch.setitem(sys.modules, "huggingface_hub", None)
  with pytest.raises(RuntimeError, match="pip install huggingface_hub"):
    pretrained.load("some/model")


def test_a_hub_name_and_minilm_are_resolved(model, monkeypatch):
  folder = model[0]
  huggingface_hub = pytest.importorskip("huggingface_hub")
  monkeypatch.setattr(
    huggingface_hub, "snapshot_download", lambda name, **options: str(folder)
  )
  monkeypatch.setattr(pretrained.fetch, "minilm", lambda: folder)
  for source in ("some/model", "minilm", str(folder)):
    assert_same(pretrained.load(source)[0], model[1])
