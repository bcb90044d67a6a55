"""Files and folders appear whole or not at all."""

import os

import pytest

from nnn_jax import files


def fail(*_):
  raise OSError("disk full")


def test_write_makes_folders_and_replaces(tmp_path):
  path = tmp_path / "new" / "a.txt"
  files.write(path, "old")
  files.write(path, b"new")
  assert path.read_bytes() == b"new"
  assert os.listdir(path.parent) == ["a.txt"]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
  path = tmp_path / "a.txt"
  files.write(path, b"old")
  monkeypatch.setattr(os, "replace", fail)
  with pytest.raises(OSError, match="disk full"):
    files.write(path, b"new")
  assert path.read_bytes() == b"old"
  assert os.listdir(tmp_path) == ["a.txt"]


def test_a_new_folder_replaces_an_old_one(tmp_path):
  target = tmp_path / "model"
  for content in ("old", "new"):
    with files.new_folder(target) as folder:
      (folder / content).write_text(content)
  assert os.listdir(target) == ["new"]
  assert os.listdir(tmp_path) == ["model"]


def test_a_failed_block_leaves_the_old_folder(tmp_path):
  target = tmp_path / "model"
  with files.new_folder(target) as folder:
    (folder / "a").write_text("old")

  def write_half():
    with files.new_folder(target) as folder:
      (folder / "b").write_text("new")
      raise RuntimeError("killed")

  with pytest.raises(RuntimeError, match="killed"):
    write_half()
  assert os.listdir(target) == ["a"]
  assert os.listdir(tmp_path) == ["model"]


def test_a_failed_rename_puts_the_old_folder_back(tmp_path, monkeypatch):
  target = tmp_path / "model"
  with files.new_folder(target) as folder:
    (folder / "a").write_text("old")
  replace, calls = os.replace, []

  def fail_second(source, destination):
    calls.append(destination)
    if len(calls) == 2:
      raise OSError("disk full")
    replace(source, destination)

  monkeypatch.setattr(os, "replace", fail_second)
  with (
    pytest.raises(OSError, match="disk full"),
    files.new_folder(target) as folder,
  ):
    (folder / "b").write_text("new")
  assert os.listdir(target) == ["a"]
  assert os.listdir(tmp_path) == ["model"]
