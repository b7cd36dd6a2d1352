# make demo: from the rows of four hospitals to a decision.  make test: the facts of every room, in about two minutes.  make test-all: all that CI checks.  make test-slow: hours.  make durations: which tests are dear.  make docs: the site.  make package: wheel and source archive, tried in an empty environment.  Each sets itself up.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATA := $(wildcard ../shared/data)
ifneq ($(DATA),)
export FEDSKEW_DATA ?= $(abspath $(DATA))
endif
# Compiled modules are kept even where the environment says not to: collecting takes twice as long without them.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
# Each test has its own limit. One that hangs outside Python, where pytest-timeout cannot end it, prints its stacks and costs its worker.
ON_TWO_CORES := -n 2 --dist worksteal -o faulthandler_timeout=330 -o faulthandler_exit_on_timeout=true

.PHONY: demo test test-all test-slow durations bench docs package format clean

demo: $(VENV)/installed
	$(BIN)/fedskew study --dataset heart --minutes 1

test: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(BIN)/mypy & types=$$!; $(PYTEST) $(ON_TWO_CORES) -m "not thorough and not slow"; tests=$$?; \
	  wait $$types || { echo "make test: mypy found errors, see above"; exit 1; }; exit $$tests

test-all: test
	$(PYTEST) $(ON_TWO_CORES) -m "thorough and not slow"

durations: $(VENV)/installed-dev
	$(PYTEST) $(ON_TWO_CORES) -p tests.durations

test-slow: $(VENV)/installed-dev $(VENV)/installed-docs
	$(BIN)/python -m pytest -m slow -v --durations=0

bench: $(VENV)/installed
	$(BIN)/python -m benchmarks.rounds

docs: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "the site is in build/site: open build/site/index.html, or serve it with $(BIN)/mkdocs serve"

package: $(VENV)/installed-dev
	$(BIN)/python -m pytest -m slow -v tests/project/test_archives.py
	$(BIN)/python -m build --outdir dist .

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info src/*.egg-info .pytest_cache .mypy_cache .ruff_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fedskew needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) --version 2>&1); try: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(VENV)/bin/python requirements/run.txt pyproject.toml
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -r requirements/run.txt
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --editable .
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed requirements/dev.txt
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -r requirements/dev.txt
	@touch $@

$(VENV)/installed-docs: $(VENV)/installed requirements/docs.txt
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -r requirements/docs.txt
	@touch $@
