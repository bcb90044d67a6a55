"""Prepared data goes to one temporary folder a session, never to the home."""

import pathlib

import pytest

SHARED = pathlib.Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
  return tmp_path_factory.mktemp("tfds")


@pytest.fixture(scope="session")
def shared():
  if not SHARED.is_dir():
    pytest.skip(f"no original data in {SHARED}")
  return SHARED
