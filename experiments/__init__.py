"""Experiments: short absl mains, their reports and their figures.

The library never imports this package. `report` writes what an experiment
measured (TREC runs, Markdown tables, JSON), `figures` draws it.
"""
