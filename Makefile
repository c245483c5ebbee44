# Two commands on a fresh machine (git, Python 3.11 with venv and pip, a C compiler):
#   make demo   trains a private model on embedded data, and writes its report
#   make test   checks style and types, and runs the tests
#   make test-slow   the tests that take many seconds each: notebooks, the wheel, scikit-learn's checks of automatic estimators
#   make docs   executes the notebooks and builds the site, in site/
# Both make .venv first. Installing is repeated only when pyproject.toml changes.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test test-slow docs

demo: .venv/installed
	@out=runs/demo-$$(date +%Y%m%d-%H%M%S) && $(BIN)/clipwise train --effort quick --out $$out && $(BIN)/clipwise report $$out

test: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2 -m "not slow"

test-slow: .venv/installed-dev
	$(BIN)/pytest -n 2 -m slow

docs: .venv/installed
	$(PIP) -e '.[docs]'
	$(BIN)/python docs/make_site.py

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml | .venv/bin/python
	$(PIP) -e .
	@touch $@

.venv/installed-dev: pyproject.toml | .venv/bin/python
	$(PIP) -e '.[dev]'
	@touch $@ .venv/installed
