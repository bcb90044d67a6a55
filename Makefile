# Every target sets up what it needs; PYTHON must be 3.11 or newer.
PYTHON ?= python3
VENV ?= .venv
WORKDIR ?= runs/demo
RUN = $(VENV)/bin/python

.PHONY: demo test test-slow lint format clean

# Train dense, then through the NNN solver, and compare on held-out queries.
demo: $(VENV)/train.stamp
	$(RUN) -m experiments.train --config=configs/api_docs.py --workdir=$(WORKDIR)
	$(RUN) -m experiments.evaluate --workdir=$(WORKDIR)

# The default tier. It spends its time on compiling: unoptimised, and by XLA's
# older emitters, it needs 60 % of the CPU time, the experiments that it starts
# included. The slow tier compiles as users do.
test: export XLA_FLAGS = \
  --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false
test: $(VENV)/test.stamp
	$(RUN) -m pytest -q -n 2 --dist loadfile

# What takes minutes: real training, kill -9 and resume, the notebooks.
test-slow: $(VENV)/test.stamp
	$(RUN) -m pytest -q -m slow

lint: $(VENV)/dev.stamp
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

format: $(VENV)/dev.stamp
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info

$(VENV)/%.stamp: setup.py pyproject.toml
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install -q --disable-pip-version-check -e ".[$*]"
	touch $@
