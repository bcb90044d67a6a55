"""How much memory a call takes beyond what is loaded when it starts."""

from __future__ import annotations

import ctypes
import gc
import pathlib
import re
from collections.abc import Callable
from typing import Any

_SELF = pathlib.Path("/proc/self")


def peak_mib(call: Callable[[], Any]) -> tuple[float | None, Any]:
  """Calls, and measures by how many MiB resident memory rose at its peak.

  The kernel's high-water mark (VmHWM) is set back to the resident size before
  the call, so a corpus that is loaded already does not count, after glibc gave
  its free memory back to the kernel. It gives back all of it only in its main
  arena: start the process with MALLOC_ARENA_MAX=1. What libraries keep in pools
  of their own between calls is not seen: warm up first.

  Returns:
    (MiB, what `call` returned). None for MiB where there is no such mark to
    set back: it is Linux's.
  """
  gc.collect()
  try:
    ctypes.CDLL(None).malloc_trim(0)  # glibc's; other libraries have none.
    (_SELF / "clear_refs").write_text("5")
    before = _status("VmRSS")
  except (AttributeError, OSError):
    return None, call()
  result = call()
  return max(0, _status("VmHWM") - before) / 1024, result


def _status(name: str) -> int:
  text = (_SELF / "status").read_text()
  found = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
  if found is None:
    raise OSError(f"no {name} in {_SELF / 'status'}")
  return int(found.group(1))
