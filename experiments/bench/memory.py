"""How much memory a call takes beyond what is loaded when it starts."""

from __future__ import annotations

import ctypes
import gc
import pathlib
import re
from collections.abc import Callable
from typing import Any

_SELF = pathlib.Path("/proc/self")

# mallopt's parameters, from malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def peak_mib(call: Callable[[], Any]) -> tuple[float | None, Any]:
  """Calls, and measures by how many MiB resident memory rose at its peak.

  The kernel's high-water mark (VmHWM) is set back to the resident size before
  the call, so a corpus that is loaded already does not count. For the call
  glibc takes blocks of 64 KiB and more from the kernel each time: from its own
  free memory, which is resident, they would not be seen. What else a library
  keeps between calls is not seen either: warm up first.

  Afterwards blocks up to 32 MiB are kept when freed; glibc comes to that by
  itself once it has freed one of that size.

  Returns:
    (MiB, what `call` returned). None for MiB where there is no such mark to
    set back: it is Linux's.
  """
  gc.collect()
  try:
    libc = ctypes.CDLL(None)
    libc.mallopt(_MMAP_THRESHOLD, 64 * 2**10)
    libc.malloc_trim(0)
    (_SELF / "clear_refs").write_text("5")
    before = _status("VmRSS")
  except (AttributeError, OSError):
    return None, call()
  result = call()
  peak = _status("VmHWM")
  libc.mallopt(_MMAP_THRESHOLD, 32 * 2**20)
  libc.mallopt(_TRIM_THRESHOLD, 64 * 2**20)
  return max(0, peak - before) / 1024, result


def _status(name: str) -> int:
  text = (_SELF / "status").read_text()
  found = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
  if found is None:
    raise OSError(f"no {name} in {_SELF / 'status'}")
  return int(found.group(1))
