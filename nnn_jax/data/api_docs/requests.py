"""Turns summary lines into clauses, and clauses into one request."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from nnn_jax.data.api_docs import docstrings

_VERB_LIST = """
  add append apply approximate assemble assert assign assume block break
  broadcast build calculate cast change check choose clip combine compare
  compress compute concatenate construct convert convolve copy correct
  correlate count create cross-correlate cut decompose deconvolve delete
  describe design detect determine differentiate divide downsample draw
  estimate evaluate expand extract factorize fill filter find fit flatten flip
  force format generate get give identify initialize insert integrate
  interchange interpolate interpret invert iterate join label load map mask
  maximize measure merge minimize move multiply normalize open optimize pack
  pad partition perform permute plot predict process produce project put raise
  read rearrange rechunk reconstruct reduce remove rename reorder repeat
  replace represent resample reshape return reverse roll rotate round sample
  save scale search select separate set shift show shuffle simplify simulate
  slice smooth solve sort split squeeze stack standardize store subtract sum
  swap take test tile transform translate transpose trim truncate unpack
  unwrap update upsample use view whiten write zoom
"""
_VERBS = frozenset(_VERB_LIST.split())
_UNUSABLE = re.compile(
  r"^(abstract|base|this|these|for|if|like|given|it|see|legacy|deprecated|is|"
  r"bitgenerator|subclass|convenience|context|called|class|container|wrapper|"
  r"implement|simple|internal|helper|configuration|calls?)\b"
  r"|[\\${}>:;=]|\bself\b|\bvs\b|deprecated|docstring|\bsame as\b",
  re.IGNORECASE,
)
_TRUTH = re.compile(
  r"^returns? (?:a |an )?(?:element-wise |boolean )?"
  r"(?:true|boolean|bool)(?: array)? (?:if|where|when|whether) ",
  re.IGNORECASE,
)
_OBJECT = re.compile(r"random variable| class\b| type\b")
_APPLIED = ("filter", "transform", "transformation", "window")

_TEMPLATES = (
  "I want to {}.",
  "How can I {}?",
  "Please {}.",
  "I need to {}.",
  "My script should {}.",
  "Given some data, {}.",
  "What do I call to {}?",
  "Help me {}.",
)
# Before the clauses in the middle, and before the last one.
_JOINTS_OF_TWO = (" and then ", ", then ", " and also ", "; after that, ")
_JOINTS = (
  ("; then ", "; finally, "),
  (", then ", ", and then "),
  ("; ", "; and "),
  (", ", ", and "),
)


def to_clause(
  function: docstrings.Function, proper: frozenset[str]
) -> str | None:
  """A summary line as a clause that follows "I want to"; None if it cannot.

  Args:
    function: whose summary line is used.
    proper: capitalised words that keep their capital ("Bessel", not "Inverse").

  >>> f = docstrings.Function("numpy.f", "", "Returns the sum", "", "", (), ())
  >>> to_clause(f, frozenset())
  'get the sum'
  """
  summary = function.summary.replace(" (legacy function)", "")
  words = summary.split()
  if not 2 <= len(words) <= 18 or _UNUSABLE.search(summary):
    return None
  if _TRUTH.match(summary):
    return _TRUTH.sub("check whether ", summary)
  first = words[0].lower()
  rest = " ".join(words[1:])
  verb = _imperative(first)
  if verb in _VERBS and words[1] != "of":  # "Sum of" starts a noun phrase.
    return f"{'get' if verb == 'return' else verb} {rest}"
  if first.endswith("ly") and _imperative(words[1]) in _VERBS:
    return " ".join([first, _imperative(words[1]), *words[2:]])
  if first in ("a", "an", "the"):
    return f"use {first} {rest}"
  if words[0] not in proper and re.fullmatch("[A-Z][a-z-]+", words[0]):
    phrase = f"{first} {rest}"
  else:
    phrase = f"{words[0]} {rest}"
  bare_name = function.name.rpartition(".")[2]
  if bare_name[0].isupper() or _OBJECT.search(phrase):  # Not an action.
    return f"use the {phrase}"
  head = re.split(r" (?:of|for|from|in|with|by|to|using|on)\b|,", phrase)[0]
  if head.split()[-1].lower() in _APPLIED:
    return f"apply the {phrase}"
  return f"compute the {phrase}"


def _imperative(word: str) -> str:
  """The verb of which `word` may be the third person: "Applies" -> "apply"."""
  if word in _VERBS:
    return word
  if word.endswith("ies"):
    return word[:-3] + "y"
  if word.endswith("es") and word[:-2] in _VERBS:
    return word[:-2]
  return word.removesuffix("s")


def compose(clauses: Sequence[str], rng: random.Random) -> str:
  """Joins clauses into one request, in a wording that `rng` chooses."""
  if len(clauses) == 2:
    text = rng.choice(_JOINTS_OF_TWO).join(clauses)
  else:
    middle, final = rng.choice(_JOINTS)
    text = middle.join(clauses[:-1]) + final + clauses[-1]
  return rng.choice(_TEMPLATES).format(text)
