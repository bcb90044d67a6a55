"""Errors name the argument and the fix."""

import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnn_jax.core import checks


def raises(message):
  return pytest.raises(ValueError, match="^" + re.escape(message) + "$")


def test_check_shapes_returns_sizes():
  sizes = checks.check_shapes(
    query=(np.ones(3), "dim"),
    corpus=(jnp.ones((5, 3)), "num_docs dim"),
    where=(None, "num_docs"),
    scalar=(1.0, ""),
  )
  assert sizes == {"dim": 3, "num_docs": 5}


def test_check_shapes_rank():
  with raises(
    "query must have shape [dim], got (2, 3); for a batch of `query`, use "
    "jax.vmap over its first axis."
  ):
    checks.check_shapes(query=(np.ones((2, 3)), "dim"))
  with raises("corpus must have shape [num_docs, dim], got (3,)."):
    checks.check_shapes(corpus=(np.ones(3), "num_docs dim"))
  with raises("query must have shape [dim], got (1, 2, 3)."):
    checks.check_shapes(query=(np.ones((1, 2, 3)), "dim"))


def test_check_shapes_size():
  with raises(
    "corpus must have shape [num_docs, dim], got (5, 4): dim is 3 in `query` "
    "and 4 here."
  ):
    checks.check_shapes(
      query=(np.ones(3), "dim"), corpus=(np.ones((5, 4)), "num_docs dim")
    )
  with raises(
    "x must have shape [n, n], got (2, 3): n is 2 in `x` and 3 here."
  ):
    checks.check_shapes(x=(np.ones((2, 3)), "n n"))


def test_check_k():
  for k in (1, 5, np.int64(3)):
    checks.check_k(k, 5)
  with raises("corpus is empty (num_docs = 0): nothing to retrieve."):
    checks.check_k(1, 0)
  for k in (0, 6):
    with raises(
      f"k must be between 1 and num_docs = 5, got k = {k}; "
      "use min(k, num_docs)."
    ):
      checks.check_k(k, 5)
  for k in (1.0, "3", None, True):
    with raises(f"k must be a Python int (it is static), got {k!r}."):
      checks.check_k(k, 5)


def test_check_inputs_casts():
  query, corpus, where = checks.check_inputs(
    [1, 2], np.ones((3, 2), np.float16), [True, False, True], k=2
  )
  assert query.dtype == jnp.float32
  assert corpus.dtype == jnp.float16
  assert where.dtype == jnp.bool_
  assert checks.check_inputs([1.0], [[1.0]], None, k=1)[2] is None


def test_check_inputs_where():
  with raises("where must be bool, got float32."):
    checks.check_inputs([1.0], [[1.0]], np.float32([1]), k=1)


def test_check_choice():
  checks.check_choice("gradient", 3, (int, str))
  with raises("gradient must be int or str, got 1.5."):
    checks.check_choice("gradient", 1.5, (int, str))


class Pair(NamedTuple):
  first: float
  second: float


def test_check_params():
  for values in ((1, 2.0), [1, 2.0], Pair(np.float64(1), jnp.asarray(2))):
    params = checks.check_params("params", values, Pair, jnp.float32)
    assert isinstance(params, Pair)
    assert params == (1.0, 2.0)
    for value in params:
      assert value.dtype == jnp.float32
      assert not value.weak_type


@pytest.mark.parametrize(
  "values",
  [
    (),
    (1.0,),
    1.0,
    (1.0, 2.0, 3.0),
    (np.ones(2), 1.0),
    ("a", 1.0),
    (None, 1.0),
    {"first": 1.0, "second": 2.0},
  ],
)
def test_check_params_refuses(values):
  with raises(
    f"params must be Pair(first, second) with scalars, got {values!r}; to "
    "sweep several values, use jax.vmap over params."
  ):
    checks.check_params("params", values, Pair, jnp.float32)


def test_check_params_accepts_tracers():
  def cast(a, b):
    return checks.check_params("p", Pair(a, b), Pair, jnp.float32)

  assert jax.jit(cast)(1, 2.5) == (1.0, 2.5)


def test_check_embeddings_accepts():
  checks.check_embeddings("corpus", np.ones((2, 3)), ids=["a", "b"])
  checks.check_embeddings("corpus", jnp.ones((2, 3), jnp.bfloat16))
  checks.check_embeddings("corpus", np.zeros((2, 3)))  # Zero rows are legal.


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_check_embeddings_names_the_row(bad):
  values = np.ones((4, 3))
  values[2, 1] = bad
  with raises(
    "corpus row 2 (id 'c') holds NaN or infinity (1 such row of 4): encode "
    "it again or drop it."
  ):
    checks.check_embeddings("corpus", values, ids=list("abcd"))
  values[3] = bad
  with raises(
    "corpus row 2 holds NaN or infinity (2 such rows of 4): encode it again "
    "or drop it."
  ):
    checks.check_embeddings("corpus", values)


def test_check_embeddings_shape_and_ids():
  with raises("query must have shape [rows, dim], got (3,)."):
    checks.check_embeddings("query", np.ones(3))
  with raises("corpus is empty: it has no rows."):
    checks.check_embeddings("corpus", np.ones((0, 3)))
  with raises("corpus has 2 rows but 1 ids."):
    checks.check_embeddings("corpus", np.ones((2, 3)), ids=["a"])
  with raises(
    "corpus id 'a' is on rows 0 and 2: ids must be distinct; drop one of the "
    "rows."
  ):
    checks.check_embeddings("corpus", np.ones((3, 3)), ids=["a", "b", "a"])


def test_all_finite():
  good, bad = jnp.ones(3), jnp.asarray([1.0, jnp.nan])
  assert bool(checks.all_finite(good, jnp.ones((2, 2))))
  assert not bool(checks.all_finite(good, bad))
  assert not bool(checks.all_finite(jnp.asarray(jnp.inf), good))
