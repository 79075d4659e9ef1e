# The one door to everything a developer does here; `make` alone lists the targets.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
DEMO_VENV := .venv-demo
BIN := $(VENV)/bin
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
# Files or folders to test, such as TESTS=tests/cli; all of them unless given.
TESTS ?=
# Processes that share the tests.
JOBS ?= 2

# Exits with one line where python3 is missing or too old.
define CHECK_PYTHON
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "collsyn needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1 | tail -1)" \
	       "(name another one: make PYTHON=python3.12 ...)" >&2; exit 1; }
endef

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

.PHONY: setup
setup: $(VENV)/.stamp ## make .venv with the project (editable), its MPI and the development tools

# A venv that an interrupted or failed run left half made has no stamp, and is completed.
$(VENV)/.stamp: pyproject.toml
	$(CHECK_PYTHON)
	@$(PYTHON) -m venv $(VENV) || { echo "cannot make a venv (on Debian: apt install python3-venv)" >&2; exit 1; }
	$(BIN)/python $(PIP_INSTALL) --editable '.[mpi,dev]'
	@touch $@

$(DEMO_VENV)/.stamp: pyproject.toml
	$(CHECK_PYTHON)
	@$(PYTHON) -m venv $(DEMO_VENV) || { echo "cannot make a venv (on Debian: apt install python3-venv)" >&2; exit 1; }
	$(DEMO_VENV)/bin/python $(PIP_INSTALL) --editable '.[mpi]'
	@touch $@

.PHONY: demo
demo: $(DEMO_VENV)/.stamp ## measure this machine, synthesize for it, run against MPI (under 3 minutes)
	PATH="$(CURDIR)/$(DEMO_VENV)/bin:$$PATH" bash scripts/demo.sh

.PHONY: test
test: setup ## run the tests (all but the slow ones)
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal $(TESTS)

.PHONY: test-slow
test-slow: setup ## run the tests marked slow
	$(BIN)/python -m pytest -q -m slow $(TESTS)

# A torch that is there is taken, whichever build it is; pip's own choice may be one for GPUs, of gigabytes.
.PHONY: torch
torch: setup ## test the backend of torch.distributed, the slow tests too (installs torch)
	$(BIN)/python $(PIP_INSTALL) --editable '.[torch]'
	$(BIN)/python -m pytest -q -m "slow or not slow" tests/torch tests/bench/test_gloo.py

.PHONY: cuda
cuda: setup ## test the kernels on host threads, the slow tests too, and compile them (installs NVRTC)
	$(BIN)/python $(PIP_INSTALL) --editable '.[cuda-test]'
	$(BIN)/python -m pytest -q -m "slow or not slow" tests/cuda

.PHONY: lint
lint: setup ## ruff, formatting, types, layers: all of them, whatever fails
	@failed=0; for tool in "ruff check ." "ruff format --check ." mypy "lint-imports --no-cache"; do \
	  echo "$$tool"; $(BIN)/$$tool || failed=1; done; exit $$failed

.PHONY: type
type: setup ## mypy --strict over the library and the command line
	$(BIN)/mypy

.PHONY: format
format: setup ## format and fix what ruff can fix
	$(BIN)/ruff check --fix --exit-zero .
	$(BIN)/ruff format .

.PHONY: bench
bench: setup ## reproduce the numbers of the README
	PATH="$(CURDIR)/$(BIN):$$PATH" bash scripts/bench.sh

.PHONY: wheel
wheel: setup ## build dist/*.whl and dist/*.tar.gz
	$(BIN)/python -m build

.PHONY: clean
clean: ## remove what was built, the venvs included
	rm -rf $(VENV) $(DEMO_VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
