"""Optimisation only: solvers return numbers and know nothing of ranking."""
