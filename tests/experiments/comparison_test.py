"""How decoders are chosen and measured."""

import numpy as np

from experiments import comparison
from experiments import embeddings as embeddings_lib


def test_diversity_is_chosen_and_measured_like_the_others():
  rng = np.random.default_rng(0)
  corpus = rng.normal(size=(15, 4)).astype(np.float32)
  corpus /= np.linalg.norm(corpus, axis=1, keepdims=True)
  labels = rng.random((3, 15)) < 0.2
  embeddings = embeddings_lib.Embeddings(corpus[:3], corpus, labels)

  class Encoded:
    def split(self, dataset, name):
      return embeddings

  method = comparison.METHODS["diversity"]
  chosen = comparison.choose(method, Encoded(), None)
  assert len(chosen.values) == len(method.candidates) == 11
  row, indices, _ = comparison.measure(chosen, embeddings)
  assert row["decoder"] == "diversity"
  assert row["parameters"].startswith("trade_off=")
  assert indices.shape == (3, 10)
