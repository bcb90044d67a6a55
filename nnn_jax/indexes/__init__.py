"""Indexes: what a solver searches instead of the whole corpus."""
