"""The decoders that the benchmark knows."""

from __future__ import annotations

from experiments.bench import contestants, ours, peers

DENSE, FISTA_50, WORKING_SET = "dense", "FISTA 50", "working set"
FAISS = "faiss flat"

# By the name of a row; in the order of the tables.
CONTESTANTS = {
  DENSE: contestants.Contestant(load=ours.load_dense, has_penalties=False),
  WORKING_SET: contestants.Contestant(
    load=ours.load_working_set, all_penalties=True
  ),
  FISTA_50: contestants.Contestant(load=ours.load_fista, all_penalties=True),
  "FISTA converged": contestants.Contestant(load=ours.load_converged_fista),
  FAISS: contestants.Contestant(
    load=peers.load_faiss, package="faiss", has_penalties=False
  ),
  "torch FISTA 50": contestants.Contestant(
    load=peers.load_torch, package="torch"
  ),
  "scikit-learn": contestants.Contestant(
    load=peers.load_scikit_learn, package="sklearn", is_batched=False
  ),
  "celer": contestants.Contestant(
    load=peers.load_celer, package="celer", is_batched=False
  ),
  "skglm": contestants.Contestant(
    load=peers.load_skglm, package="skglm", is_batched=False
  ),
}
