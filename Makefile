# Set-up, checks and the demonstration. Only Python >= 3.10, make and the package index are needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH_STAMP := $(VENV)/.bench-installed
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo test lint docs bench bench-bounds install clean
.DEFAULT_GOAL := demo

demo: $(STAMP)
	$(BIN)/reconrisk demo --out demo-report

test: lint
	$(BIN)/python -m pytest -n 2

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(STAMP)
	$(BIN)/sphinx-build -W --keep-going -q docs docs/_build/html
	@echo "docs: docs/_build/html/index.html"

bench: $(BENCH_STAMP)
	$(BIN)/python -m benchmarks

bench-bounds: $(BENCH_STAMP)
	$(BIN)/python -m benchmarks bounds_success bounds_calibration bounds_epsilon

install: $(STAMP)

$(BENCH_STAMP): $(STAMP)
	$(PIP) install --progress-bar on --constraint constraints.txt --group bench
	@touch $(BENCH_STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Expected Python >= 3.10, $(PYTHON) is $$($(PYTHON) -V). Pass another: make PYTHON=python3.12"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade "pip>=25.1"
	@echo "Installing pinned dependencies into $(VENV), a few minutes the first time ..."
	$(PIP) install --progress-bar on --constraint constraints.txt --group dev --editable .
	@touch $(STAMP)

clean:
	rm -rf $(VENV) demo-report docs/_build build dist
