"""Where compiled kernels are kept."""

import shutil

import pytest

from nnn_jax import native


@pytest.mark.skipif(shutil.which("c++") is None, reason="takes a compiler")
def test_a_kernel_is_compiled_once_for_each_kind_of_processor(
  tmp_path, monkeypatch
):
  monkeypatch.setenv("NNN_JAX_CACHE", str(tmp_path))
  first = native._compiled("sparse_blocks.cc", ())
  written = first.stat().st_mtime_ns
  assert native._compiled("sparse_blocks.cc", ()) == first
  assert first.stat().st_mtime_ns == written
  # Another machine with the same home folder.
  monkeypatch.setattr(native, "_processor", lambda: "another")
  assert native._compiled("sparse_blocks.cc", ()) != first
  assert len(list((tmp_path / "native").iterdir())) == 2
