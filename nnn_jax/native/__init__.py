"""Kernels in C++, compiled at first use and kept in the cache folder.

`seismic` and `frank_wolfe` are targets of `jax.ffi`; `sparse_blocks` works on
arrays of the host.

The folder is that of `NNN_JAX_CACHE`, or `~/.cache/nnn_jax`. It takes a C++20
compiler: `CXX`, or c++. `-march=native` suits the machine that compiles.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import pathlib
import platform
import shlex
import shutil
import subprocess
import tempfile

import jax
import numpy as np

from nnn_jax import files

_FLAGS = ("-std=c++20", "-O3", "-march=native", "-shared", "-fPIC")
_SUMS = ("-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math")
_AS_NUMPY = ("-ffp-contract=off",)
SEISMIC, FRANK_WOLFE = "nnn_jax_seismic", "nnn_jax_frank_wolfe"
_LOG = logging.getLogger(__name__)


@functools.cache
def seismic() -> bool:
  """Whether the target SEISMIC is there; else one line in the log says why."""
  return _registered(SEISMIC, "seismic", "NnnSeismic")


@functools.cache
def frank_wolfe() -> bool:
  """Whether the target FRANK_WOLFE is there; else the log says why."""
  return _registered(FRANK_WOLFE, "frank_wolfe", "NnnFrankWolfe")


@functools.cache
def sparse_blocks() -> ctypes.CDLL | None:
  """The functions of sparse_blocks.cc; else one line in the log says why."""
  try:
    return ctypes.CDLL(str(_compiled("sparse_blocks.cc", _AS_NUMPY)))
  except (OSError, subprocess.SubprocessError) as error:
    output = getattr(error, "stderr", None) or error
    _LOG.warning("sparse_blocks: not compiled, numpy is used (%s)", output)
    return None


def arguments(*args: np.ndarray | float) -> list[object]:
  """Arrays as pointers, integers in 64 bits, other numbers in double."""

  def argument(arg):
    if isinstance(arg, np.ndarray):
      if not arg.flags.c_contiguous:
        raise ValueError("arrays must be contiguous.")
      return arg.ctypes.data_as(ctypes.c_void_p)
    kind = ctypes.c_int64 if isinstance(arg, int) else ctypes.c_double
    return kind(arg)

  return [argument(arg) for arg in args]


def _registered(target: str, name: str, symbol: str) -> bool:
  try:
    library = ctypes.CDLL(str(_compiled(f"{name}.cc", _SUMS)))
    function = jax.ffi.pycapsule(getattr(library, symbol))
    jax.ffi.register_ffi_target(target, function, platform="cpu")
  except (OSError, subprocess.SubprocessError) as error:
    output = getattr(error, "stderr", None) or error
    _LOG.warning("%s: no native kernel, XLA is used (%s)", name, output)
    return False
  return True


def _processor() -> str:
  """What -march=native compiles for: a home folder may be on many machines."""
  try:
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
  except OSError:
    return platform.node()
  told = ("model name", "flags", "Features", "CPU implementer", "CPU part")
  return "\n".join(sorted({x for x in lines if x.startswith(told)}))


def _compiled(name: str, flags: tuple[str, ...]) -> pathlib.Path:
  source = pathlib.Path(__file__).with_name(name)
  compiler = shlex.split(os.environ.get("CXX", "c++"))
  if shutil.which(compiler[0]) is None:
    raise FileNotFoundError(f"there is no C++ compiler {compiler[0]}; set CXX")
  command = [*compiler, *_FLAGS, *flags, f"-I{jax.ffi.include_dir()}"]
  made_of = [source.read_text(), *command, jax.__version__, _processor()]
  key = hashlib.sha256("\0".join(made_of).encode()).hexdigest()[:16]
  cache = os.environ.get("NNN_JAX_CACHE", "~/.cache/nnn_jax")
  target = pathlib.Path(cache).expanduser() / "native"
  target /= f"{source.stem}-{key}.so"
  if not target.exists():
    with tempfile.TemporaryDirectory() as folder:
      made = pathlib.Path(folder, "made.so")
      subprocess.run(
        [*command, str(source), "-o", str(made)],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
      )
      files.write(target, made.read_bytes())
  return target
