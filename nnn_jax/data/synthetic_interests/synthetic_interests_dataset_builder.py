"""A synthetic log of users with several interests: the embedded default."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import tensorflow_datasets as tfds

from nnn_jax.data import base, interactions
from nnn_jax.data.synthetic_interests import world

_SEED = 0


class Builder(base.SequenceBuilder):
  """SYNTHETIC, not real data: 1,000 users, 1,000 items, 20 to 60 choices each.

  Generated from a seed, so that recommenders can be tried without any file;
  `world` says how. No result on it says how good a recommender is for people.
  """

  VERSION = tfds.core.Version("1.0.0")
  RELEASE_NOTES: ClassVar[dict[str, str]] = {"1.0.0": "First release."}
  BUILDER_CONFIGS: ClassVar[list[tfds.core.BuilderConfig]] = [
    # Streams of numpy's generators may change between its versions.
    tfds.core.BuilderConfig(
      name=f"numpy-{np.__version__}", description="Generated."
    )
  ]
  LICENSE = "Apache-2.0, as this package."

  def read_log(
    self, dl_manager: tfds.download.DownloadManager
  ) -> interactions.Log:
    """See the base class."""
    del dl_manager  # Nothing to download.
    log = world.build(_SEED)
    log.metadata["source"] = f"generated, seed {_SEED}"
    return log
