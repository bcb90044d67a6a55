"""Benchmarks: peers measured in one run, ratios printed, nothing asserted."""
