"""Pure training losses over scores, one value a query.

Every loss has one signature,

  loss(scores, labels, *, ..., where=None, num_rest=0) -> [...]

with `scores`, `labels` and `where` of one shape `[..., num_docs]`. `labels`
says which documents are relevant (bool, or a grade above zero), `where` which
documents exist (None: all). The caller averages over queries.

The documents may be a short list out of a large corpus: `num_rest` (a number,
or `[...]`) more documents, irrelevant and of score 0, count as if listed.

A loss is computed in the dtype of `scores`, at least float32. A query for
which it is not defined (no relevant document left, say) has loss 0 and gradient
0, never NaN, so that such a query cannot spoil a batch. Documents outside
`where` have gradient 0, whatever their score, infinite or NaN included.

Losses of sampled items (`sampled_softmax`, `in_batch_softmax`) know documents
by id and take the positive apart; `load_balancing` is of a mixture's gates,
`flops` of sparse vectors.

References:
  Non-negative Elastic Net Decoding for Information Retrieval, arXiv 2606.17910
  (2026), section 3.2 and appendix B.
  van den Oord, Li and Vinyals (2018), Representation Learning with Contrastive
  Predictive Coding, arXiv 1807.03748.
"""

from nnn_jax.losses.completeness import completeness
from nnn_jax.losses.distillation import (
  TeacherScale,
  first_of_text,
  margin_mse,
  mined_targets,
)
from nnn_jax.losses.ranking import in_batch_targets, info_nce, nnn_ranking_loss
from nnn_jax.losses.sampled import (
  in_batch_softmax,
  load_balancing,
  sampled_softmax,
)
from nnn_jax.losses.selection import fenchel_young
from nnn_jax.losses.sparsity import flops

__all__ = [
  "TeacherScale",
  "completeness",
  "fenchel_young",
  "first_of_text",
  "flops",
  "in_batch_softmax",
  "in_batch_targets",
  "info_nce",
  "load_balancing",
  "margin_mse",
  "mined_targets",
  "nnn_ranking_loss",
  "sampled_softmax",
]
