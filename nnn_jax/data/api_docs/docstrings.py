"""Reads the documentation of numpy's and scipy's public functions.

Everything is ordered by name, never by hash or identity, so that the result
depends on the installed versions only.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import warnings
from collections.abc import Iterator

from nnn_jax.data.api_docs import examples

# Current public namespaces; an object found in two belongs to the first.
# Legacy (fftpack, odr, misc, numpy.char) and testing helpers are left out.
_NUMPY = """
  linalg fft random strings ma polynomial polynomial.polynomial
  polynomial.chebyshev polynomial.hermite polynomial.hermite_e
  polynomial.laguerre polynomial.legendre lib lib.scimath lib.stride_tricks
  lib.recfunctions
"""
_SCIPY = """
  cluster.hierarchy cluster.vq constants datasets differentiate fft integrate
  interpolate io io.arff io.matlab io.wavfile linalg linalg.interpolative
  ndimage optimize signal signal.windows sparse sparse.linalg sparse.csgraph
  spatial spatial.distance spatial.transform special stats stats.contingency
  stats.mstats stats.qmc stats.sampling
"""
NAMESPACES = (
  "numpy",
  *(f"numpy.{name}" for name in _NUMPY.split()),
  *(f"scipy.{name}" for name in _SCIPY.split()),
)
_UNDERLINE = re.compile(r"^[-=~]{3,}\s*$")
_ROLE = re.compile(r":[a-z:]+:`~?([^`<]+?)(?:\s*<[^`]*>)?`")
_ALIAS = re.compile(r"alias (?:of|for) `?~?([\w.]+\w)")
_SENTENCE_END = re.compile(r"(?<!e\.g)(?<!i\.e)(?<!vs)\.\s+(?=[A-Z])")
_REFERENCE = re.compile(r"\s*\[\w+\]_")


@dataclasses.dataclass(frozen=True)
class Function:
  """One documented callable."""

  name: str  # Qualified: "numpy.linalg.norm".
  signature: str
  summary: str
  extended: str
  parameters: str
  see_also: tuple[str, ...]  # Qualified names, in the order written.
  examples: tuple[tuple[str, ...], ...]  # Names called, one tuple a segment.


def read_functions() -> dict[str, Function]:
  """All documented callables of `NAMESPACES`, by qualified name, sorted."""
  objects, aliases = _public_objects()
  functions = {}
  for name in sorted(objects):
    sections = split_sections(_docstring(objects[name]))
    namespace = name.rpartition(".")[0]
    summary, extended = split_summary(sections[""], name.rpartition(".")[2])
    functions[name] = Function(
      name=name,
      signature=_signature(objects[name]),
      summary=summary,
      extended=extended,
      parameters=plain_text(sections.get("Parameters", "")),
      see_also=tuple(
        dict.fromkeys(
          found
          for reference in see_also_names(sections.get("See Also", ""))
          if (found := _resolve(reference, namespace, aliases))
          and found != name
        )
      ),
      examples=tuple(
        examples.calls_by_segment(sections.get("Examples", ""), aliases)
      ),
    )
  return functions


def _public_objects() -> tuple[dict[str, object], dict[str, str]]:
  """({canonical name: object}, {any public name: canonical name})."""
  canonical: dict[int, str] = {}
  objects: dict[str, object] = {}
  aliases: dict[str, str] = {}
  for namespace in NAMESPACES:
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")  # Deprecation of what we do not use.
      try:
        module = importlib.import_module(namespace)
      except ModuleNotFoundError:  # Of another version.
        continue
      names = getattr(module, "__all__", None) or dir(module)
      members = {
        n: getattr(module, n, None) for n in names if not n.startswith("_")
      }
    # An object's own name comes first: numpy.absolute before numpy.abs.
    for name in sorted(
      members,
      key=lambda n: (getattr(members[n], "__name__", n) != n, n),
    ):
      member = members[name]
      if not _is_documented_callable(member):
        continue
      own = canonical.setdefault(id(member), f"{namespace}.{name}")
      objects[own] = member
      aliases[f"{namespace}.{name}"] = own
  # numpy.amax is a function of its own, but says "an alias of `~numpy.max`".
  for name in sorted(objects):
    told = _ALIAS.search(_docstring(objects[name]))
    target = told and _resolve(told[1], name.rpartition(".")[0], aliases)
    if target and target != name:
      del objects[name]
      aliases.update({a: target for a, own in aliases.items() if own == name})
  return objects, aliases


def _is_documented_callable(member: object) -> bool:
  if not callable(member) or inspect.ismodule(member):
    return False
  if isinstance(member, type) and issubclass(member, BaseException):
    return False
  # Plain Python classes that a namespace happens to export have no place here.
  module = getattr(member, "__module__", None) or "numpy"
  return bool(_docstring(member)) and module.startswith(("numpy", "scipy"))


def _docstring(member: object) -> str:
  return inspect.getdoc(member) or ""


def _signature(member: object) -> str:
  try:
    signature = str(inspect.signature(member))  # type: ignore[arg-type]
    signature = re.sub(r" at 0x[0-9a-f]+", "", signature)  # Differs each run.
    # What every ufunc takes tells nothing about this one.
    return re.sub(r", /, out=None, \*, where=True, casting=.*", ")", signature)
  except (ValueError, TypeError):  # Some compiled functions have none.
    return "(...)"


def split_sections(docstring: str) -> dict[str, str]:
  r"""Splits a numpydoc docstring by its underlined headings; "" is the top.

  >>> split_sections("Sum.\n\nNotes\n-----\nFast.")
  {'': 'Sum.', 'Notes': 'Fast.'}
  """
  sections: dict[str, list[str]] = {"": []}
  current = sections[""]
  for line in docstring.split("\n"):
    if _UNDERLINE.match(line) and current and current[-1].strip():
      current = sections.setdefault(current.pop().strip(), [])
    else:
      current.append(line)
  return {title: "\n".join(rows).strip() for title, rows in sections.items()}


def split_summary(top: str, name: str) -> tuple[str, str]:
  """Splits the top of a docstring: (summary as one line, extended text).

  Signature lines that compiled functions put first are dropped.
  """
  paragraphs = re.split(r"\n\s*\n", top)
  signature = re.compile(rf"^(\w+ *= *|[\w, ]+ = )?{re.escape(name)}\(")
  while paragraphs and (
    signature.match(paragraphs[0]) or not paragraphs[0].strip()
  ):
    paragraphs.pop(0)
  if not paragraphs:
    return "", ""
  summary, *rest = _SENTENCE_END.split(plain_text(paragraphs[0]), maxsplit=1)
  rest += [p for p in paragraphs[1:] if not p.lstrip().startswith(".. ")]
  return summary.rstrip("."), plain_text("\n".join(rest))


def plain_text(markup: str) -> str:
  r"""Removes reStructuredText marks and line breaks.

  >>> plain_text("See :func:`numpy.sum` for ``x``\n  and `y` [1]_.")
  'See numpy.sum for x and y.'
  """
  text = _ROLE.sub(r"\1", markup)
  text = _REFERENCE.sub("", text)
  text = re.sub(r"(?<![\w*])\*{1,2}([^*\s][^*\n]*)\*{1,2}(?!\w)", r"\1", text)
  return " ".join(text.replace("`", "").split())


def see_also_names(section: str) -> Iterator[str]:
  r"""Names that a See Also section lists, without their descriptions.

  >>> list(see_also_names("sin, cos : Others.\n    Text\n:func:`tan`"))
  ['sin', 'cos', 'tan']
  """
  for line in section.split("\n"):
    if line[:1].isspace():
      continue  # A description that continues.
    names = re.split(r"\s+:|:\s", _ROLE.sub(r"\1", line))[0]
    for name in names.replace("`", "").split(","):
      if re.fullmatch(r"[A-Za-z_][\w.]*", name.strip()):
        yield name.strip()


def _resolve(reference: str, namespace: str, aliases: dict[str, str]):
  """The canonical name that `reference` means in `namespace`, or None."""
  places = [namespace]
  while "." in places[-1]:
    places.append(places[-1].rpartition(".")[0])
  for place in (*places, "numpy", "scipy"):
    if f"{place}.{reference}" in aliases:
      return aliases[f"{place}.{reference}"]
  return aliases.get(reference)
