"""Builds the api_docs corpus, labels and splits from documentation."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nnn_jax.data import records
from nnn_jax.data.api_docs import docstrings, requests

MIN_RELEVANT, MAX_RELEVANT = 2, 4
# Share of the queries of a split by the number of relevant functions.
SIZE_SHARES = {2: 0.3, 3: 0.4, 4: 0.3}
# Sets drawn for each function from the See Also links around it, by size.
DRAWS = {2: 12, 3: 30, 4: 60}
TRAIN_SIZE, VALIDATION_SIZE, TEST_SIZE = 5500, 600, 800
# An example that calls one of these does so in passing: to make or to print
# the data that it is about.
_HELPER_LIST = """
  allclose arange array asanyarray asarray dtype empty eye full isclose
  linspace meshgrid ndarray ones ones_like print set_printoptions zeros
  zeros_like random.default_rng random.seed ma.array ma.masked_array
  ma.MaskedArray ma.arange
"""
HELPERS = frozenset(f"numpy.{name}" for name in _HELPER_LIST.split())
# So are functions that this many docstrings call, unless it is their own.
UBIQUITOUS = 30
# Variants for special input of functions that other namespaces have: a request
# that does not ask for them means the general one.
SPECIAL = ("numpy.ma.", "numpy.lib.scimath.", "scipy.stats.mstats.")


def build(*, seed: int) -> records.Source:
  """Documents, composed requests and See Also queries, all seeded."""
  functions = docstrings.read_functions()
  corpus = [records.Document(f.name, to_text(f)) for f in functions.values()]
  clauses = _clauses(functions)
  distinct: dict[frozenset[str], tuple[str, ...]] = {}
  for names in _relevant_sets(functions, clauses, seed):
    distinct.setdefault(frozenset(names), names)  # In the order met first.
  sets = records.seeded_order(distinct.values(), seed, key="+".join)
  lists = [
    (f.name, *relatives)
    for f in functions.values()
    if f.name in clauses
    and len(relatives := [n for n in f.see_also if n not in HELPERS]) >= 2
  ]
  reserved = {frozenset(names) for names in lists}
  chosen = {
    "see_also": lists,
    "test": _claim(sets, TEST_SIZE, reserved),
    "validation": _claim(sets, VALIDATION_SIZE, reserved),
    "train": _claim(sets, TRAIN_SIZE, reserved),
  }
  rng = random.Random(seed)
  splits = {
    split: [
      records.Query(
        f"{split}-{row}",
        requests.compose([clauses[name] for name in names], rng),
        names,
      )
      for row, names in enumerate(chosen[split])
    ]
    for split in records.SPLIT_ORDER
  }
  splits["see_also"] = [
    records.Query(names[0], functions[names[0]].summary + ".", names)
    for names in chosen["see_also"]
  ]
  metadata = {"seed": seed, **_overlap(chosen)}
  return records.Source(corpus, splits, metadata)


def to_text(function: docstrings.Function) -> str:
  """A document: all but the summary line, which is what queries are made of."""
  parts = [function.name + function.signature, function.extended]
  if function.parameters:
    parts.append(f"Parameters: {function.parameters}")
  return "\n".join(filter(None, parts))


def _clauses(functions: Mapping[str, docstrings.Function]) -> dict[str, str]:
  """Clauses of the functions that a request can single out.

  Left out: helpers, special variants, and functions whose summary line says
  nothing that another's does not. Where numpy and scipy both have the
  function, the clause names the library.
  """
  proper = _proper_words(functions)
  clauses = {}
  for name, function in functions.items():
    clause = requests.to_clause(function, proper)
    if clause is None or name in HELPERS or name.startswith(SPECIAL):
      continue
    library, _, rest = name.partition(".")
    other = {"numpy": "scipy", "scipy": "numpy"}[library]
    if f"{other}.{rest}" in functions:
      clause += {"numpy": " with NumPy", "scipy": " with SciPy"}[library]
    clauses[name] = clause
  count = Counter(clause.lower() for clause in clauses.values())
  return {n: c for n, c in clauses.items() if count[c.lower()] == 1}


def _proper_words(functions: Mapping[str, docstrings.Function]) -> frozenset:
  """Words more often capitalised within a sentence than not."""
  text = " ".join(f"{f.summary} {f.extended}" for f in functions.values())
  count = Counter(re.findall(r"(?<=[a-z,] )[A-Za-z][a-z-]+", text))
  return frozenset(
    w for w in count if w[0].isupper() and count[w] > count[w.lower()]
  )


def _relevant_sets(
  functions: Mapping[str, docstrings.Function],
  clauses: Mapping[str, str],
  seed: int,
) -> Iterator[tuple[str, ...]]:
  """Sets of functions used together, in the order in which they are used.

  Those that one run of example code calls, and a seeded choice of functions
  that See Also links connect.
  """
  uses = Counter(
    name
    for function in functions.values()
    for name in set(itertools.chain(*function.examples))
  )
  for function in functions.values():
    for segment in function.examples:
      names = tuple(
        n
        for n in segment
        if n in clauses and (n == function.name or uses[n] < UBIQUITOUS)
      )
      size = min(len(names), MAX_RELEVANT)
      if size >= MIN_RELEVANT:
        for start in range(len(names) - size + 1):
          yield names[start : start + size]

  links = {
    name: [n for n in functions[name].see_also if n in clauses]
    for name in clauses
  }
  rng = random.Random(seed)
  for name in clauses:
    for size, draws in DRAWS.items():
      for _ in range(draws):
        names = _grow(name, links, size, rng)
        if len(names) == size:
          yield names


def _grow(
  start: str, links: Mapping[str, list[str]], size: int, rng: random.Random
) -> tuple[str, ...]:
  """A random connected set of functions; smaller where links run out."""
  names = [start]
  while len(names) < size:
    near = [n for name in names for n in links[name] if n not in names]
    if not near:
      break
    names.append(rng.choice(near))
  return tuple(names)


def _claim(
  sets: Iterable[tuple[str, ...]],
  size: int,
  reserved: set[frozenset[str]],
) -> list[tuple[str, ...]]:
  """Takes up to `size` sets that contain no reserved one, then reserves them.

  So a test set never is, nor is part of, a relevant set of training: its
  functions were not wanted together before. Parts of it may have been.
  """
  taken: list[tuple[str, ...]] = []
  for length, share in SIZE_SHARES.items():
    free = (
      names
      for names in sets
      if len(names) == length and reserved.isdisjoint(_subsets(names))
    )
    taken += itertools.islice(free, round(share * size))
  reserved.update(map(frozenset, taken))
  return taken


def _subsets(names: tuple[str, ...]) -> Iterator[frozenset[str]]:
  for size in range(MIN_RELEVANT, len(names) + 1):
    yield from map(frozenset, itertools.combinations(names, size))


def _pairs(sets: Iterable[tuple[str, ...]]) -> set[frozenset[str]]:
  return {
    frozenset(pair)
    for names in sets
    for pair in itertools.combinations(names, 2)
  }


def _overlap(chosen: Mapping[str, list[tuple[str, ...]]]) -> dict[str, Any]:
  """What the other splits share with train: documents, pairs of documents."""
  train_docs = set(itertools.chain(*chosen["train"]))
  train_pairs = _pairs(chosen["train"])
  overlap = {}
  for split, sets in chosen.items():
    if split != "train":
      docs, pairs = set(itertools.chain(*sets)), _pairs(sets)
      overlap[f"{split}_docs"] = len(docs)
      overlap[f"{split}_docs_also_in_train"] = len(docs & train_docs)
      overlap[f"{split}_pairs"] = len(pairs)
      overlap[f"{split}_pairs_also_in_train"] = len(pairs & train_pairs)
  return overlap
