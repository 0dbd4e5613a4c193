# Set-up, checks and the demonstration. Only Python >= 3.10, make and a package index are needed.
# Three environments: .venv for development, .venv-demo with the package alone, .venv-bench with the benchmarks' peers.
PYTHON ?= python3
DEV := .venv
BENCH := .venv-bench
# A development environment has all that the demonstration needs, so `make demo` uses it if there is one.
DEMO := $(if $(wildcard $(DEV)/.installed),$(DEV),.venv-demo)

.PHONY: demo test lint docs bench bench-bounds bench-install install clean
.DEFAULT_GOAL := demo

demo: $(DEMO)/.installed
	$(DEMO)/bin/reconrisk demo --out demo-report

test: lint
	$(DEV)/bin/python -m pytest -n 2

lint: $(DEV)/.installed
	$(DEV)/bin/ruff format --check .
	$(DEV)/bin/ruff check .
	$(DEV)/bin/pydoclint src
	$(DEV)/bin/mypy
	$(DEV)/bin/lint-imports

docs: $(DEV)/.installed
	$(DEV)/bin/sphinx-build -W --keep-going -q docs docs/_build/html
	@echo "docs: docs/_build/html/index.html"

bench: $(BENCH)/.installed
	$(BENCH)/bin/python -m benchmarks

bench-bounds: $(BENCH)/.installed
	$(BENCH)/bin/python -m benchmarks bounds_success bounds_calibration bounds_epsilon

install: $(DEV)/.installed
bench-install: $(BENCH)/.installed

# Dependency groups need pip 25.1. The demonstration has none, so it skips that upgrade; it also leaves bytecode to the
# first import, because compiling all of torch and SciPy takes longer than the demonstration.
INSTALL = $(@D)/bin/python -m pip --disable-pip-version-check install --progress-bar on --constraint constraints.txt

.venv-demo/.installed: pyproject.toml constraints.txt
	$(create)
	$(INSTALL) --no-compile --editable .
	@touch $@

$(DEV)/.installed: pyproject.toml constraints.txt
	$(create)
	$(upgrade)
	$(INSTALL) --group dev --editable .
	@touch $@

# breaching comes without its dependencies: one is torchvision, which does not fit every build of torch and which
# benchmarks/breaching_peer.py replaces by a stub. What breaching needs besides is in the group.
$(BENCH)/.installed: pyproject.toml constraints.txt
	$(create)
	$(upgrade)
	$(INSTALL) --group bench --editable .
	$(INSTALL) --no-deps breaching
	@touch $@

define create
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Expected Python >= 3.10, $(PYTHON) is $$($(PYTHON) -V). Pass another: make PYTHON=python3.12"; exit 1; }
test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
@echo "Installing pinned dependencies into $(@D), a minute or more the first time ..."
endef

define upgrade
$(@D)/bin/python -m pip --disable-pip-version-check install --quiet --upgrade "pip>=25.1"
endef

clean:
	rm -rf .venv .venv-demo .venv-bench demo-report docs/_build build dist
