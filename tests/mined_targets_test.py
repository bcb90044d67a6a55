"""Tests of nnn_jax.losses.mined_targets."""

import numpy as np
import pytest

from nnn_jax import losses


def test_a_negative_that_is_anothers_positive():
  # Query A's mined negative 3 is C's positive: it stays a negative of A, once,
  # and is none of C, in whichever column.
  labels, where = losses.mined_targets(
    np.asarray([7, 7, 3]),
    np.asarray([[3, 9], [8, -1], [7, 8]]),
    np.asarray([[7, -1], [7, 8], [3, -1]]),
  )
  np.testing.assert_array_equal(labels, np.eye(3, 9, dtype=bool))
  columns = [7, 7, 3, 3, 9, 8, -1, 7, 8]
  seen = [sorted(np.asarray(columns)[row]) for row in np.asarray(where)]
  assert seen == [[3, 7, 8, 9], [3, 7, 9], [3, 7, 8, 9]]


def test_the_same_text_under_another_id_is_the_same_document():
  texts = ["a", "b", "a", "c"]
  positive, negatives = np.asarray([0, 1]), np.asarray([[2], [3]])
  relevant = positive[:, None]
  by_row = losses.mined_targets(positive, negatives, relevant)[1]
  assert by_row.tolist() == [[True] * 4, [True] * 4]
  by_text = losses.mined_targets(
    positive, negatives, relevant, same_text=losses.first_of_text(texts)
  )[1]
  assert by_text.tolist() == [[True, True, False, True]] * 2


def test_padding_rows_have_no_label_and_are_nobodys_negative():
  labels, where = losses.mined_targets(
    np.asarray([4, -1]), np.asarray([[-1], [-1]]), np.asarray([[4], [-1]])
  )
  assert labels.tolist() == [[True, False, False, False], [False] * 4]
  assert where[0].tolist() == [True, False, False, False]
  assert where[1].tolist() == [True, False, False, False]


def test_shapes_are_named():
  with pytest.raises(ValueError, match="negatives must be"):
    losses.mined_targets(np.zeros(2, int), np.zeros(2, int), np.zeros((2, 1)))
