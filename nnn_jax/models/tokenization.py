"""Text to token ids, with the `tokenizers` library.

A `Tokenizer` reads the tokenizer of a Hugging Face-format folder, or is trained
from scratch as a WordPiece vocabulary with BERT's normaliser.  Every batch is
padded to one fixed length, so that a jitted encoder compiles once.

Reference: Devlin et al. (2019), BERT; Schuster and Nakajima (2012), WordPiece.
"""

import collections
import copy
import json
import logging
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import tokenizers
from tokenizers import (
  decoders,
  models,
  normalizers,
  pre_tokenizers,
  processors,
  trainers,
)

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_TOKENS = (PAD, UNK, CLS, SEP, MASK)

_PREFIX = "##"
_MIN_LENGTH = 3  # [CLS], one token, [SEP].
_LENGTH_STEP = 16
_MANY = 20  # Texts: fewer are a request, not a collection.
_LOG = logging.getLogger(__name__)
_VOCAB_TXT_CLASSES = (
  None,
  "BertTokenizer",
  "BertTokenizerFast",
  "DistilBertTokenizer",
  "DistilBertTokenizerFast",
)


class Tokens(NamedTuple):
  """A batch of tokenised texts, in the encoder's argument order.

  Attributes:
    ids: int32 `[batch, length]`.
    mask: int32 `[batch, length]`, 1 at tokens and 0 at padding.
  """

  ids: np.ndarray
  mask: np.ndarray

  def trimmed(self) -> "Tokens":
    """Without trailing columns that are padding in every row.

    A multiple of 16 columns stays: few shapes to compile, and little padding to
    compute.
    """
    longest = int(self.mask.sum(axis=1).max(initial=1))
    length = -(-longest // _LENGTH_STEP) * _LENGTH_STEP
    return Tokens(self.ids[:, :length], self.mask[:, :length])


class Tokenizer:
  """Texts to fixed-length token arrays.

  Can be pickled and copied.  One object may serve several threads: what it
  wraps is never changed after construction.

  >>> texts = ["graph search", "search the graph", "graph graph"]
  >>> tokenizer = Tokenizer.train(texts, vocab_size=60)
  >>> tokens = tokenizer(["Graph search", ""], max_length=6)
  >>> tokens.mask
  array([[1, 1, 1, 1, 0, 0],
         [1, 1, 0, 0, 0, 0]], dtype=int32)
  """

  def __init__(self, backend: tokenizers.Tokenizer) -> None:
    """Wraps a copy of a tokenizer of the `tokenizers` library.

    Args:
      backend: a tokenizer with a [PAD] token.

    Raises:
      ValueError: there is no [PAD] token.
    """
    pad_id = backend.token_to_id(PAD)
    if pad_id is None:
      raise ValueError(
        f"The tokenizer has no {PAD} token: it is not of the BERT family. Add"
        f" {PAD} to its vocabulary."
      )
    self._pad_id = int(pad_id)
    # Files often have padding and truncation to some length baked in.
    self._backend = copy.deepcopy(backend)
    self._backend.no_padding()
    self._backend.no_truncation()
    # The library keeps the length as mutable state, so each length has its own
    # copy: setting it in place would race between data-loading threads.
    self._truncating: dict[int, tokenizers.Tokenizer] = {}

  @classmethod
  def from_folder(cls, folder: str | os.PathLike[str]) -> "Tokenizer":
    """Reads `tokenizer.json`, or `vocab.txt` as a BERT WordPiece vocabulary.

    Args:
      folder: a Hugging Face-format folder.

    Raises:
      ValueError: neither file is there, or it cannot be read, or `vocab.txt`
        stands alone and belongs to a tokenizer that is not BERT's.
    """
    folder = pathlib.Path(folder)
    if (folder / "tokenizer.json").is_file():
      path = folder / "tokenizer.json"
      try:
        return cls(tokenizers.Tokenizer.from_file(str(path)))
      except ValueError:
        raise
      except Exception as error:  # The library raises plain Exception.
        raise ValueError(f"Cannot read {path}: {error}.") from error
    path = folder / "vocab.txt"
    if not path.is_file():
      raise ValueError(
        f"There is no tokenizer.json and no vocab.txt in {folder}: copy one of"
        " them next to the weights."
      )
    settings = {}
    if (folder / "tokenizer_config.json").is_file():
      settings = json.loads(
        (folder / "tokenizer_config.json").read_text(encoding="utf-8")
      )
    name = settings.get("tokenizer_class")
    if name not in _VOCAB_TXT_CLASSES:
      raise ValueError(
        f"vocab.txt alone does not describe a {name}: save tokenizer.json next"
        f" to it in {folder}."
      )
    model = models.WordPiece.from_file(str(path), unk_token=UNK)
    return cls(
      _bert_tokenizer(
        model,
        lowercase=settings.get("do_lower_case", True),
        strip_accents=settings.get("strip_accents"),
        split_chinese=settings.get("tokenize_chinese_chars", True),
      )
    )

  @classmethod
  def train(cls, texts: Iterable[str], *, vocab_size: int) -> "Tokenizer":
    """Trains a lower-case WordPiece vocabulary; same texts, same vocabulary.

    Args:
      texts: training texts.
      vocab_size: most entries the vocabulary may have, at least 16; small
        corpora give fewer (see `vocab_size` of the result).

    Raises:
      ValueError: `vocab_size` is below 16, or the texts have no characters.
    """
    if vocab_size < 16:
      raise ValueError(f"vocab_size must be at least 16, got {vocab_size}.")
    texts = list(texts)
    _check_texts(texts)
    backend = _bert_tokenizer(models.WordPiece(unk_token=UNK))
    alphabet = _alphabet(backend, texts, size=(vocab_size - 5) // 2)
    if not alphabet:
      raise ValueError("texts have no characters to train a vocabulary on.")
    # The library numbers the continuation characters in the order of a hash
    # map that is seeded anew in each process, and ties between merges follow
    # those numbers.  Declared up front, they have fixed numbers, and training
    # is deterministic.
    fixed = [*SPECIAL_TOKENS, *alphabet, *(_PREFIX + c for c in alphabet)]
    trainer = trainers.WordPieceTrainer(
      vocab_size=vocab_size,
      min_frequency=2,
      special_tokens=fixed,
      initial_alphabet=alphabet,
      limit_alphabet=len(alphabet),
      continuing_subword_prefix=_PREFIX,
      show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    # A new tokenizer from the vocabulary: in the trained one, every entry of
    # `fixed` is marked as a special token.
    vocab = backend.get_vocab(with_added_tokens=True)
    return cls(_bert_tokenizer(models.WordPiece(vocab, unk_token=UNK)))

  @property
  def vocab_size(self) -> int:
    """Number of entries, special tokens included; ids are below it."""
    return int(self._backend.get_vocab_size(with_added_tokens=True))

  @property
  def pad_id(self) -> int:
    """Id of the padding token."""
    return self._pad_id

  def __call__(self, texts: Sequence[str], *, max_length: int) -> Tokens:
    """Tokenises texts; every row is padded or truncated to `max_length`.

    Where more than a tenth of many texts are cut, the log warns: what an
    encoder does not see, it cannot retrieve by.

    Args:
      texts: `batch` strings.
      max_length: tokens a row, [CLS] and [SEP] included; at least 3.

    Returns:
      `Tokens`, int32 arrays `[batch, max_length]`.

    Raises:
      ValueError: `max_length` is too small.
      TypeError: `texts` is one string, or an entry is not a string.
    """
    _check_texts(texts)
    backend = self._truncated_to(max_length)
    encodings = backend.encode_batch_fast(list(texts))
    ids = np.full((len(texts), max_length), self._pad_id, np.int32)
    mask = np.zeros((len(texts), max_length), np.int32)
    for row, encoding in enumerate(encodings):
      token_ids = encoding.ids
      ids[row, : len(token_ids)] = token_ids
      mask[row, : len(token_ids)] = 1
    cut = sum(bool(encoding.overflowing) for encoding in encodings)
    if len(texts) >= _MANY and cut > 0.1 * len(texts):
      _LOG.warning(
        "%d of %d texts are longer than %d tokens and are cut: raise the "
        "length if the encoder takes more.",
        cut,
        len(texts),
        max_length,
      )
    return Tokens(ids, mask)

  def truncated_share(self, texts: Sequence[str], max_length: int) -> float:
    """Returns the share of texts that `max_length` cuts short, 0 to 1."""
    _check_texts(texts)
    encodings = self._backend.encode_batch_fast(list(texts))
    cut = sum(len(encoding.ids) > max_length for encoding in encodings)
    return cut / max(len(texts), 1)

  def save(
    self, folder: str | os.PathLike[str], *, max_length: int | None = None
  ) -> None:
    """Writes tokenizer.json and tokenizer_config.json into `folder`.

    Args:
      folder: made if it does not exist.
      max_length: the length at which other libraries truncate, if given.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    self._backend.save(str(folder / "tokenizer.json"))
    settings: dict[str, object] = {
      "tokenizer_class": "PreTrainedTokenizerFast",
      # Not the token types: DistilBERT has none, and BERT's default to 0.
      "model_input_names": ["input_ids", "attention_mask"],
    }
    for token in SPECIAL_TOKENS:
      if self._backend.token_to_id(token) is not None:
        settings[f"{token.strip('[]').lower()}_token"] = token
    if max_length is not None:
      settings["model_max_length"] = max_length
    (folder / "tokenizer_config.json").write_text(
      json.dumps(settings, indent=2) + "\n", encoding="utf-8"
    )

  def _truncated_to(self, max_length: int) -> tokenizers.Tokenizer:
    if max_length < _MIN_LENGTH:
      raise ValueError(
        f"max_length must be at least {_MIN_LENGTH} ({CLS}, one token, {SEP}),"
        f" got {max_length}."
      )
    if max_length not in self._truncating:
      backend = copy.deepcopy(self._backend)
      backend.enable_truncation(max_length)
      self._truncating[max_length] = backend
    return self._truncating[max_length]


def _bert_tokenizer(
  model: models.WordPiece,
  *,
  lowercase: bool = True,
  strip_accents: bool | None = None,
  split_chinese: bool = True,
) -> tokenizers.Tokenizer:
  """Returns BERT's pipeline around a WordPiece vocabulary."""
  backend = tokenizers.Tokenizer(model)
  backend.normalizer = normalizers.BertNormalizer(
    clean_text=True,
    handle_chinese_chars=split_chinese,
    strip_accents=strip_accents,
    lowercase=lowercase,
  )
  backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  backend.decoder = decoders.WordPiece(prefix=_PREFIX)
  vocab = backend.get_vocab()
  if CLS in vocab and SEP in vocab:  # Not so before training.
    backend.add_special_tokens([t for t in SPECIAL_TOKENS if t in vocab])
    backend.post_processor = processors.TemplateProcessing(
      single=f"{CLS} $A {SEP}",
      pair=f"{CLS} $A {SEP} $B:1 {SEP}:1",
      special_tokens=[(CLS, vocab[CLS]), (SEP, vocab[SEP])],
    )
  return backend


def _alphabet(
  backend: tokenizers.Tokenizer, texts: Sequence[str], *, size: int
) -> list[str]:
  """Returns the most frequent characters after normalisation, sorted."""
  counts: collections.Counter[str] = collections.Counter()
  for text in texts:
    counts.update(backend.normalizer.normalize_str(text))
  for character in [c for c in counts if c.isspace()]:
    del counts[character]
  ranked = sorted(counts, key=lambda c: (-counts[c], c))
  return sorted(ranked[:size])


def _check_texts(texts: Sequence[str]) -> None:
  if isinstance(texts, str):
    raise TypeError("texts must be a sequence of strings; write [text].")
  for row, text in enumerate(texts):
    if not isinstance(text, str):
      raise TypeError(
        f"texts[{row}] must be a string, got {type(text).__name__}; decode"
        " bytes with .decode('utf-8')."
      )
