"""The exact solver on real embeddings, over the paper's whole grid."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnn_jax.data import pipeline
from nnn_jax.decoders import nnn
from nnn_jax.models import bi_encoder
from nnn_jax.solvers import fista, working_set
from nnn_jax.training import selection

_BATCH = 128


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "folder", "split", "lengths"),
  [
    ("toollens", "toollens", "test", (64, 64)),
    ("toolbank/numpy", "toolbank", "validation", (64, 128)),
    ("limit", "limit_small", "test", (32, 64)),
  ],
)
def test_kkt_over_the_published_grid(
  name, folder, split, lengths, shared, data_dir
):
  dataset = pipeline.load(name, data_dir=data_dir, manual_dir=shared / folder)
  try:
    encoder = bi_encoder.BiEncoder.from_pretrained(
      "minilm", query_length=lengths[0], document_length=lengths[1]
    )
  except RuntimeError as error:
    pytest.skip(str(error))
  corpus = jnp.asarray(encoder.encode_documents(dataset.doc_texts))
  queries = encoder.encode_queries(dataset.splits[split].texts)
  padding = -len(queries) % _BATCH
  batches = np.pad(queries, ((0, padding), (0, 0)), mode="edge")
  batches = batches.reshape(-1, _BATCH, queries.shape[1])

  @jax.jit
  def measure(penalties, batch, corpus):
    def one(query, solver):
      config = nnn.NnnConfig(solver=solver)
      aux = nnn.decode(penalties, query, corpus, k=5, config=config).aux
      weights = aux.weights.values
      objective = 0.5 * jnp.sum(aux.residual**2)
      objective += penalties.l1 * jnp.sum(weights)
      objective += 0.5 * penalties.l2 * jnp.sum(weights**2)
      return objective, aux.kkt_violation, aux.exact, aux.num_passes

    exact = working_set.WorkingSet(capacity=len(corpus))
    ours = jax.vmap(lambda query: one(query, exact))(batch)
    theirs = jax.vmap(lambda query: one(query, fista.Fista()))(batch)
    return ours[0] - theirs[0], *ours[1:]

  grid = itertools.product(selection.PENALTIES, selection.PENALTIES)
  above, violation, exact, passes = (
    np.concatenate(parts)
    for parts in zip(
      *(
        measure(nnn.NnnParams(*map(jnp.float32, pair)), batch, corpus)
        for pair in grid
        for batch in batches
      ),
      strict=True,
    )
  )
  print(
    f"{name}: {len(queries)} queries x {len(selection.PENALTIES)}^2, max KKT "
    f"{violation.max():.1e}, objective above FISTA's {above.max():.1e}, at "
    f"most {passes.max()} passes"
  )
  assert exact.all()
  assert violation.max() <= 1e-5
  assert above.max() <= 1e-6  # Float32 rounding of an objective below 1/2.
