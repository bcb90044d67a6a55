"""Data sets: TFDS builders, one folder each, read through `pipeline`."""
