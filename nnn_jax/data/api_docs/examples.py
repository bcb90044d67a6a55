"""Which public functions the example code of a docstring calls together."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator


def calls_by_segment(
  section: str, aliases: dict[str, str]
) -> Iterator[tuple[str, ...]]:
  r"""Canonical names called in each run of example code, in order of use.

  Prose between two blocks of code starts a new segment; names imported stay.

  >>> code = ">>> x = np.sin(1)\n>>> np.cos(x)\n\nProse.\n\n>>> np.sin(2)"
  >>> names = {"numpy.sin": "numpy.sin", "numpy.cos": "numpy.cos"}
  >>> list(calls_by_segment(code, names))
  [('numpy.sin', 'numpy.cos'), ('numpy.sin',)]
  """
  scope = {"np": "numpy", "numpy": "numpy", "scipy": "scipy"}
  calls: dict[str, None] = {}
  for paragraph in re.split(r"\n\s*\n", section):
    if not paragraph.lstrip().startswith(">>>"):
      if calls:
        yield tuple(calls)
      calls = {}
      continue
    for tree in _statements(paragraph):
      _bind_imports(tree, scope)
      for dotted in _called_names(tree):
        head, _, rest = dotted.partition(".")
        full = ".".join(filter(None, (scope.get(head, ""), rest)))
        if head in scope and full in aliases:
          calls[aliases[full]] = None
  if calls:
    yield tuple(calls)


def _statements(paragraph: str) -> Iterator[ast.AST]:
  """Parses each ">>>" statement alone: one bad line must not spoil the rest."""
  blocks: list[list[str]] = []
  for line in paragraph.split("\n"):
    line = line.strip()
    if line.startswith(">>>"):
      blocks.append([line[4:]])
    elif line.startswith("...") and blocks:
      blocks[-1].append(line[4:])
  for block in blocks:
    try:
      with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Odd escapes in example strings.
        yield ast.parse("\n".join(block))
    except SyntaxError:
      continue


def _bind_imports(tree: ast.AST, scope: dict[str, str]) -> None:
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      for alias in node.names:
        target = alias.name if alias.asname else alias.name.split(".")[0]
        scope[alias.asname or target] = target
    elif isinstance(node, ast.ImportFrom):
      for alias in node.names:
        scope[alias.asname or alias.name] = f"{node.module}.{alias.name}"


def _called_names(tree: ast.AST) -> list[str]:
  """Dotted names of the calls in a statement, in the order written."""
  calls = []
  for node in ast.walk(tree):
    if isinstance(node, ast.Call):
      dotted = ast.unparse(node.func)
      if re.fullmatch(r"[\w.]+", dotted):
        calls.append((node.lineno, node.col_offset, dotted))
  return [dotted for *_, dotted in sorted(calls)]
