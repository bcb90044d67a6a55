"""Other libraries' decoders, as contestants.

scikit-learn, celer and skglm minimise, for a design X and a target y,

  1/(2 dim) ||y - X w||^2 + alpha rho ||w||_1 + alpha (1 - rho)/2 ||w||^2;

with X = corpus^T, y = query, alpha = (l1 + l2) / dim and rho = l1 / (l1 + l2)
this is our objective divided by dim. Tolerances are loose, for a KKT violation
of about 1e-5, as ours stops at: skglm's bounds that violation, divided by dim;
the others' bound the duality gap relative to ||y||^2 = 1. At 1e-7 celer no
longer ends in float32.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.bench import contestants, scoring, timing

_GAP_TOL = 1e-6
_NUM_STEPS = 50


def load_faiss(corpus: np.ndarray, *, dtype: str) -> contestants.Prepare:
  """`IndexFlatIP`, with and without BLAS: the faster one counts.

  From how many queries on faiss multiplies matrices is a global setting whose
  default differs between releases.
  """
  del dtype  # It has float32 only.
  import faiss

  index = faiss.IndexFlatIP(corpus.shape[1])
  index.add(corpus)
  default = faiss.cvar.distance_compute_blas_threshold

  def prepare(task: contestants.Task) -> contestants.Prepared:
    def call(threshold: int) -> Any:
      faiss.cvar.distance_compute_blas_threshold = threshold
      return index.search(task.queries, contestants.K)

    def seconds(threshold: int) -> float:
      call(threshold)
      return min(timing.timed(lambda: call(threshold))[0] for _ in range(2))

    fastest = min((default, 1), key=seconds)
    note = f"BLAS from {fastest} queries on"
    if fastest != default:
      note += f" (default: from {default})"
    return contestants.Prepared(
      call=lambda: call(fastest), indices=lambda found: found[1], note=note
    )

  return prepare


def load_scikit_learn(corpus: np.ndarray, *, dtype: str) -> contestants.Prepare:
  """Coordinate descent with gap-safe screening, query by query."""
  del dtype
  from sklearn.linear_model import ElasticNet

  return _coordinate_descent(
    ElasticNet, corpus, tol=_GAP_TOL, copy_X=False, max_iter=10_000
  )


def load_celer(corpus: np.ndarray, *, dtype: str) -> contestants.Prepare:
  """Coordinate descent on working sets with dual extrapolation."""
  del dtype
  from celer import ElasticNet

  return _coordinate_descent(ElasticNet, corpus, tol=_GAP_TOL)


def load_skglm(corpus: np.ndarray, *, dtype: str) -> contestants.Prepare:
  """Anderson-accelerated coordinate descent on working sets."""
  del dtype
  from skglm import ElasticNet

  return _coordinate_descent(
    ElasticNet, corpus, tol=contestants.KKT_TOL / corpus.shape[1]
  )


def _coordinate_descent(
  model: Callable[..., Any], corpus: np.ndarray, **settings: Any
) -> contestants.Prepare:
  design = corpus.T  # A view, in the column order that all three want.

  def solve(query: np.ndarray, l1: float, l2: float) -> np.ndarray:
    fitted = model(
      alpha=(l1 + l2) / corpus.shape[1],
      l1_ratio=l1 / (l1 + l2),
      positive=True,
      fit_intercept=False,
      **settings,
    )
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")  # The KKT violation is reported.
      return np.ravel(fitted.fit(design, query).coef_)

  # numba compiles on the first fit; on few documents that is all it does.
  compile_s, _ = timing.timed(lambda: _first_fit(model, settings))

  def prepare(task: contestants.Task) -> contestants.Prepared:
    def call() -> list[scoring.Sparse]:
      return [
        scoring.Sparse.of(solve(query, task.l1, task.l2))
        for query in task.queries
      ]

    return contestants.Prepared(
      call=call, weights=lambda found: found, compile_s=compile_s
    )

  return prepare


def _first_fit(model: Callable[..., Any], settings: dict[str, Any]) -> None:
  design = np.asfortranarray(np.eye(8, 16, dtype=np.float32))
  penalties = {"alpha": 0.01, "l1_ratio": 0.5}
  fixed = {"positive": True, "fit_intercept": False}
  model(**penalties, **fixed, **settings).fit(design, design[:, 0])


def load_torch(corpus: np.ndarray, *, dtype: str) -> contestants.Prepare:
  """Eager PyTorch FISTA over the batch, the same steps as ours.

  The Lipschitz constant is part of the call, as it is of ours: an eigenvalue
  of corpus^T corpus.
  """
  import torch

  rows = torch.from_numpy(corpus).to(getattr(torch, dtype))

  @torch.no_grad()
  def solve(queries: Any, l1: float, l2: float) -> Any:
    wide = rows.to(queries.dtype)
    step = 1 / (torch.linalg.eigvalsh(wide.T @ wide)[-1] + l2)
    z = w = queries.new_zeros(len(queries), len(wide))
    t = 1.0
    for _ in range(_NUM_STEPS):
      correlation = (queries - z @ wide) @ wide.T
      w_next = torch.relu(z + step * (correlation - l2 * z - l1))
      t_next = (1 + (1 + 4 * t * t) ** 0.5) / 2
      z = w_next + (t - 1) / t_next * (w_next - w)
      w, t = w_next, t_next
    return w, torch.topk(w, contestants.K)

  def prepare(task: contestants.Task) -> contestants.Prepared:
    queries = torch.from_numpy(task.queries)
    return contestants.Prepared(
      call=lambda: solve(queries, task.l1, task.l2),
      weights=lambda found: [scoring.Sparse.of(w) for w in found[0].numpy()],
    )

  return prepare
