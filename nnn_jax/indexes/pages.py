"""Large pages of memory for arrays that are read at random.

A search of an inverted index reads some hundred places that are far from each
other, and with pages of 4 KiB most of them miss the address cache as well.
"""

from __future__ import annotations

import ctypes
import platform
from typing import TypeVar

import jax
import numpy as np

T = TypeVar("T")
_HUGE = 2**21  # Bytes of a page on x86 and most of ARM.
_COLLAPSE = 25  # MADV_COLLAPSE: at once, whatever the pages are now.


def on_huge_pages(tree: T) -> T:
  """Asks Linux (6.1 or later) to put arrays of the host on huge pages.

  Where it cannot, and on other systems and devices, nothing happens: no value
  and no address changes. Arrays below 2 MiB, and the ends of the others, stay.

  Args:
    tree: of `jax.Array`.

  Returns:
    The same tree.
  """
  if platform.system() != "Linux":
    return tree
  madvise = ctypes.CDLL(None).madvise
  for array in jax.tree.leaves(jax.block_until_ready(tree)):
    if {device.platform for device in array.devices()} != {"cpu"}:
      continue
    for shard in array.addressable_shards:
      view = np.asarray(shard.data)  # The same memory.
      first = -(-view.ctypes.data // _HUGE) * _HUGE
      size = (view.ctypes.data + view.nbytes) // _HUGE * _HUGE - first
      if size > 0:
        madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), _COLLAPSE)
  return tree
