"""The Pareto experiment on a tiny world, and the toy of learning to select."""

import types

import numpy as np
import pytest

from experiments import diversity, learn_to_select
from nnn_jax.decoders import mmr


def test_measure_by_hand():
  corpus = np.float32([[1, 0], [1, 0], [0.6, 0.8], [0, 1]])
  covers = np.zeros((4, 2), bool)
  covers[0, 0] = covers[2, 1] = True
  case = diversity.Case(np.float32([[1, 0]]), corpus, [covers])
  run = diversity.measure(case, mmr.decode, mmr.MmrConfig(), k=2, size=3)
  assert run(1.0) == {
    "relevance": [1.0],
    "ILAD": [0.0],
    "J": [1.0],
    "aspect recall": [0.5],
    "near-duplicates": [1.0],
  }
  values = run(0.25)  # Of the pool of three, the copy is passed over.
  assert values["relevance"] == pytest.approx([0.8])
  assert values["ILAD"] == pytest.approx([0.4])
  assert values["J"] == pytest.approx([0.25 * 0.8 + 0.75 * 0.4])
  assert values["aspect recall"] == [1.0]


def test_questions_bring_their_own_passages(tmp_path):
  path = tmp_path / "qampari.json"
  path.write_text(
    '[{"id": "q", "question": "?", "answers": [["a1"], ["b2"]], "docs": '
    '[{"title": "", "text": "a1"}, {"title": "", "text": "b2"}]}]'
  )

  class Encoded:
    def texts(self, texts, kind):
      assert kind in ("queries", "documents")
      return np.eye(2, dtype=np.float32)[: len(texts)]

  config = types.SimpleNamespace(num_queries=5)
  (case,) = diversity.cases(f"qampari:{path}", Encoded(), config)
  assert case.queries.shape == (1, 2)
  np.testing.assert_array_equal(case.covers[0], np.eye(2, dtype=bool))


@pytest.mark.slow
def test_learning_through_selection_beats_pointwise_over_five_seeds():
  rows = learn_to_select.rows_of(5)
  ours, theirs = (
    np.asarray([row[f"{name} exact"] for row in rows])
    for name in ("fenchel_young", "bce")
  )
  assert (ours > theirs).all()
