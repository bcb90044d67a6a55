"""Pure retrieval metrics over rankings, one value a query.

Metrics read the rows a decoder returned, best first, and not its scores: MMR
scores are not monotone in rank, and decoders break ties by row, so sorting
scores again would rank other documents than the decoder did.

  metric(indices, labels, *, k, where=None) -> [...]

  indices  [..., num_retrieved] int, corpus rows, best first; -1 is a missing
           place, and a miss
  labels   [..., num_docs] bool, or grades >= 0; relevant means > 0
  where    [..., num_docs] bool, the documents that exist (None: all)
  returns  [...], float32 or the wider dtype of labels
  raises   ValueError while tracing: shapes that do not fit, or a k that is not
           in 1..num_retrieved

Below, S is the relevant set of a query. A row outside `where` is a miss that
takes its place in the ranking; a row listed twice counts once, at its first
place. A query without relevant documents has value 0 everywhere and must be
left out of a mean, as trec_eval does: `evaluate` does so, and counts them.

All functions can be jitted (with `k` and `ks` static), `bootstrap_interval`
excepted.

References:
  trec_eval 9 (recall, precision, nDCG, reciprocal rank: the values agree).
  Non-negative Elastic Net Decoding for Information Retrieval, arXiv 2606.17910
  (2026): Recall@k and Comp@k.
"""

from nnn_jax.metrics.lists import (
  ilad,
  overlap,
  p_mrr,
)
from nnn_jax.metrics.relevance import (
  completeness,
  hit_rate,
  mrr,
  ndcg,
  precision,
  recall,
)
from nnn_jax.metrics.summary import (
  Interval,
  bootstrap_interval,
  evaluate,
  per_query,
)

__all__ = [
  "Interval",
  "bootstrap_interval",
  "completeness",
  "evaluate",
  "hit_rate",
  "ilad",
  "mrr",
  "ndcg",
  "overlap",
  "p_mrr",
  "per_query",
  "precision",
  "recall",
]
