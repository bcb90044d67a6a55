r"""Learning an encoder through selection, against pointwise training: a toy.

  python -m experiments.learn_to_select --seeds=5

Documents are unit vectors in clusters of likes. A teacher scores them for a
query by a hidden linear map, and what is observed is the set that a diverse
selection by those scores holds: of several likes one, though all are as
relevant. A student map is trained on such sets,

  fenchel_young  through the concave relaxation of the selection;
  bce            pointwise: a document is in the set or is not.

Both students then select with the same decoder, each at the trade-off that is
best on the training queries, since pointwise scores have their own scale.
Printed: the share of test queries whose set is found exactly, and the mean
overlap, one row a seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags

from experiments import report
from nnn_jax import losses, types
from nnn_jax.core import candidates, linalg
from nnn_jax.decoders import diversity

_SEEDS = flags.DEFINE_integer("seeds", 5, "Repetitions.")

K, TRADE_OFF = 5, 0.7
NUM_DOCS, NUM_CLUSTERS, DIM, QUERY_DIM = 40, 12, 12, 8
NUM_TRAIN, NUM_TEST, NUM_STEPS = 256, 256, 300


class Task(NamedTuple):
  """Attributes: queries `[n, query_dim]`, labels `[n, num_docs]` bool."""

  corpus: jax.Array
  train_queries: jax.Array
  train_labels: jax.Array
  test_queries: jax.Array
  test_labels: jax.Array


@jax.jit
def sets(
  scores: jax.Array, corpus: jax.Array, trade_off: types.Scalar = TRADE_OFF
) -> jax.Array:
  """The selected sets as indicators, `[n, num_docs]` bool."""
  params = diversity.DiversityParams(trade_off)

  def one(c):
    scored = candidates.Scores(c)
    rows = diversity.decode(params, scored, corpus, k=K).indices
    return jnp.zeros(c.shape, bool).at[rows].set(True)

  return jax.lax.map(one, scores)


def task(seed: int) -> Task:
  """A teacher's sets on random queries."""
  keys = jax.random.split(jax.random.key(seed), 5)
  centres = jax.random.normal(keys[0], (NUM_CLUSTERS, DIM))
  places = jax.random.randint(keys[1], (NUM_DOCS,), 0, NUM_CLUSTERS)
  noise = jax.random.normal(keys[2], (NUM_DOCS, DIM))
  corpus = linalg.normalize(centres[places] + 0.4 * noise)
  teacher = jax.random.normal(keys[3], (QUERY_DIM, DIM)) / QUERY_DIM**0.5
  queries = jax.random.normal(keys[4], (NUM_TRAIN + NUM_TEST, QUERY_DIM))
  labels = sets(queries @ teacher @ corpus.T, corpus)
  return Task(
    corpus,
    queries[:NUM_TRAIN],
    labels[:NUM_TRAIN],
    queries[NUM_TRAIN:],
    labels[NUM_TRAIN:],
  )


def fenchel_young(scores, labels, corpus):
  """The loss through selection."""
  return losses.fenchel_young(scores, labels, corpus, trade_off=TRADE_OFF)


def bce(scores, labels, corpus):
  """The pointwise loss, with a temperature that suits logits."""
  del corpus
  loss = optax.sigmoid_binary_cross_entropy(scores, labels.astype(scores.dtype))
  return loss.sum(axis=-1)


@partial(jax.jit, static_argnames="loss")
def train(data: Task, key: jax.Array, *, loss: Any) -> dict[str, jax.Array]:
  """Fits a student map and a bias by Adam, on all of the training queries."""
  start = {
    "map": 0.1 * jax.random.normal(key, (QUERY_DIM, DIM)),
    "bias": jnp.zeros(()),
  }
  optimizer = optax.adam(0.03)

  def mean_loss(student):
    scores = scores_of(student, data.train_queries, data.corpus)
    scores = scores + student["bias"]
    return loss(scores, data.train_labels, data.corpus).mean()

  def step(carry, _):
    student, state = carry
    updates, state = optimizer.update(jax.grad(mean_loss)(student), state)
    return (optax.apply_updates(student, updates), state), None

  (student, _), _ = jax.lax.scan(
    step, (start, optimizer.init(start)), None, length=NUM_STEPS
  )
  return student


def scores_of(student, queries, corpus) -> jax.Array:
  """`[n, num_docs]`."""
  return queries @ student["map"] @ corpus.T


def evaluate(student, data: Task) -> tuple[float, float]:
  """(share of sets found exactly, mean overlap) on test queries."""

  def measure(trade_off, queries, labels):
    scores = scores_of(student, queries, data.corpus)
    found = sets(scores, data.corpus, jnp.float32(trade_off))
    common = np.asarray(found & labels).sum(axis=1)
    return float((common == K).mean()), float(common.mean() / K)

  best = max(
    np.arange(1, 10) / 10,
    key=lambda t: measure(t, data.train_queries, data.train_labels),
  )
  return measure(best, data.test_queries, data.test_labels)


def rows_of(num_seeds: int) -> list[dict[str, Any]]:
  """One row a seed."""
  rows = []
  for seed in range(num_seeds):
    data = task(seed)
    row: dict[str, Any] = {"seed": seed}
    for loss in (fenchel_young, bce):
      student = train(data, jax.random.key(seed), loss=loss)
      exact, overlap = evaluate(student, data)
      row |= {f"{loss.__name__} exact": exact, f"{loss.__name__} mean": overlap}
    rows.append(row)
  return rows


def main(argv: Sequence[str]) -> None:
  """Entry point."""
  if len(argv) > 1:
    raise app.UsageError(f"Unknown arguments: {argv[1:]}")
  rows = rows_of(_SEEDS.value)
  mean: dict[str, Any] = {
    name: float(np.mean([row[name] for row in rows]))
    for name in rows[0]
    if name != "seed"
  }
  rows.append({"seed": "mean"} | mean)
  print(report.markdown_table(rows, list(rows[0]), digits=3))


if __name__ == "__main__":
  app.run(main)
