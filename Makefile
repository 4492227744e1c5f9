# The two commands: `make experiment` and `make test`. Each does the set-up that it needs.

SHELL := /bin/bash
UV := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
PYTHON := .venv/bin/python
ARGS ?=
EXTRA ?=
# Test files that run at the same time; tests/conftest.py says which come first.
JOBS ?= 2
# What pytest makes of a test's assertions is kept for the next part, whatever the environment says.
PYTEST = env -u PYTHONDONTWRITEBYTECODE $(PYTHON) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations=10
# COVERAGE=1 measures which lines a run of the tests reaches, and writes docs/coverage.md.
COVERAGE ?=
MEASURED = $(if $(COVERAGE),--cov --cov-append --cov-report=)
# Of tests that ARGS choose there is no page.
REACHED = $(if $(filter-out --exhaustive,$(ARGS)),$(PYTHON) -m coverage report --skip-covered,$(PYTHON) -m tests.docs.coverage_page '$(1)')
RECIPE ?=
RUN ?=

.PHONY: experiment recipes reproduce claims test test-fast test-kills lint types lock-check scan setup benchmark gpu-evidence self-check help \
  docs docs-check pictures wheel wheel-check coverage notebooks lock

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

experiment: .venv/.ready  ## Train a private personalised federation on real data (ARGS='--flag=value ...')
	@$(PYTHON) run_experiment.py --flagfile=recipes/quickstart.flags $(ARGS)

recipes: .venv/.ready  ## List the papers' tables and figures that can be reproduced
	@$(PYTHON) -m experiments.recipes --list $(ARGS)

reproduce: .venv/.ready  ## Run a recipe and compare it with the paper (RECIPE=name)
	@$(PYTHON) -m experiments.recipes $(RECIPE) $(ARGS)

claims: .venv/.ready  ## Print every claim of the papers with its verdict (RUN=name,... runs and judges, ARGS=--judge judges stored evidence)
	@$(PYTHON) -m experiments.recipes.claims $(if $(RUN),--run=$(RUN)) $(ARGS)

# In three parts, each with fresh workers: TensorFlow keeps every program that it has compiled for as long as
# a process lives. A part in which ARGS choose nothing (5) has not failed.
test: .venv/.ready-for-tests  ## Run the tests, and say which took longest (ARGS='-k name' chooses some, ARGS=--exhaustive has all)
	@rm -f .coverage; status=0; for part in 'slow and runtime' 'slow and not runtime' 'not slow'; do \
	  echo "$(PYTEST) $(MEASURED) -m '$$part' $(ARGS)"; \
	  $(PYTEST) $(MEASURED) -m "$$part" $(ARGS) || [ $$? = 5 ] || status=1; \
	done; $(if $(COVERAGE),$(call REACHED,make test$(if $(ARGS), ARGS=$(ARGS)));) exit $$status

test-fast: .venv/.ready-for-tests  ## Run the tests that take less than some two seconds each
	$(PYTEST) -m 'not slow' $(ARGS)

test-kills: .venv/.ready  ## Kill real runs and sweeps 60 times at random, and compare what they come to
	$(PYTHON) -m pytest -s tests/trust/test_kills.py --kills=60 $(ARGS)

benchmark: .venv/.ready  ## Measure the compiled runtime beside TFF's own
	$(PYTHON) -m benchmarks.run $(ARGS)

gpu-evidence: .venv/.ready-for-tests  ## On a lent GPU: every check and measurement, in pieces of under ten minutes
	$(PYTHON) -m benchmarks.gpu_evidence $(ARGS)

self-check: .venv/.ready  ## Say which device is used, and compare it with TFF's own runtime
	$(PYTHON) -m runtime.self_check $(ARGS)

docs: .venv/.ready  ## Build the documentation as a site in build/site; fails at a broken link
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --quiet && echo 'build/site/index.html'

docs-check: docs .venv/.ready-for-tests  ## Build the site, and check that its reference has every public name
	@SITE=build/site $(PYTHON) -m pytest -q --exhaustive tests/docs/test_site.py

pictures: .venv/.ready  ## Draw the pictures of docs/results again from the tables beside them; nothing is run
	@$(PYTHON) -m experiments.recipes.pictures

notebooks: .venv/.ready-for-tests  ## Run the notebooks that changed and keep what they show (ARGS=name for one)
	@$(PYTHON) notebooks/build.py $(ARGS)

coverage: .venv/.ready-for-tests  ## Run the fast tests and say which lines they reach (all: make test COVERAGE=1)
	$(PYTEST) -m 'not slow' --cov --cov-report=term:skip-covered $(ARGS)
	@$(call REACHED,make test-fast)

wheel:  ## Build the wheel in dist/
	@command -v $(UV) >/dev/null 2>&1 || $(MAKE) --no-print-directory .uv/bin/uv
	@rm -rf build/lib dist && $(UV) build --wheel --quiet --out-dir dist

define PROGRAM_OF_THE_WHEEL
import numpy as np, tensorflow_federated as tff, runtime
context = runtime.install()
at_clients = tff.FederatedType(np.float32, tff.CLIENTS)
mean = tff.federated_computation(lambda values: tff.federated_mean(values), at_clients)
assert mean([1.0, 2.0, 6.0]) == 3.0 and context.explain(mean).is_compiled
endef
export PROGRAM_OF_THE_WHEEL

# Installed as a user would, away from this folder: its packages are the wheel's.
wheel-check: wheel requirements.txt  ## Install the wheel into an environment of its own, and train with it
	@rm -rf build/wheel-check && $(UV) venv --quiet --python 3.11 build/wheel-check
	@$(UV) pip install --quiet --python build/wheel-check --no-deps -r requirements.txt
	@$(UV) pip install --quiet --python build/wheel-check --no-deps dist/*.whl
	@cd build/wheel-check && bin/run-experiment --dataset=digits --rounds=2 --output_dir=run >run.log 2>&1 \
	  || { cat run.log; exit 1; }
	@cd build/wheel-check && TF_CPP_MIN_LOG_LEVEL=3 bin/python -c "$$PROGRAM_OF_THE_WHEEL" \
	  && test -f run/summary.json && echo 'The wheel trains.'
	@rm -rf build/wheel-check

lint: .venv/.ready  ## Check style
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

types: .venv/.ready  ## Check types
	.venv/bin/mypy

lock:  ## Write uv.lock and requirements.txt anew from pyproject.toml
	@command -v $(UV) >/dev/null 2>&1 || $(MAKE) --no-print-directory .uv/bin/uv
	$(UV) lock
	@$(MAKE) --no-print-directory requirements.txt

lock-check: .venv/.ready  ## Check that uv.lock and requirements.txt are in step with pyproject.toml
	$(UV) lock --check
	$(UV) export --frozen --no-dev --extra data --no-emit-project --no-header --quiet | diff -u requirements.txt -

# The registry says which versions their authors withdrew; advisories need a service beyond it.
scan: .venv/.ready  ## Look for withdrawn packages, and (needs the internet) for known vulnerabilities
	@said=$$($(UV) pip install --python $(PYTHON) --dry-run --no-deps --reinstall -r requirements.txt 2>&1) \
	  || { echo "$$said" >&2; exit 2; }; \
	if grep 'is yanked' <<< "$$said"; then exit 1; fi; echo 'No locked package has been withdrawn.'
	@said=$$($(UV) audit --frozen 2>&1); status=$$?; \
	if [ $$status -gt 1 ]; then echo "Advisories were not looked up:$$(tail -n 1 <<< "$$said")"; \
	else echo "$$said"; exit $$status; fi

requirements.txt: pyproject.toml uv.lock
	$(UV) export --frozen --no-dev --extra data --no-emit-project --no-header --quiet > $@

setup: .venv/.ready  ## Make the environment (EXTRA=gpu, EXTRA=cluster or EXTRA=notebooks adds to it)
	@$(if $(EXTRA),$(UV) sync --frozen --inexact --extra data $(EXTRA:%=--extra %) --quiet)

# Fast when nothing changed: the stamp is newer than the lock. Further extras (gpu) stay.
.venv/.ready: pyproject.toml uv.lock
	@command -v $(UV) >/dev/null 2>&1 || $(MAKE) --no-print-directory .uv/bin/uv
	$(UV) sync --frozen --inexact --extra data --compile-bytecode --quiet
	@touch $@

# What only the tests need: Ray, and the notebooks' tools.
.venv/.ready-for-tests: .venv/.ready
	$(UV) sync --frozen --inexact --extra data --extra cluster --extra notebooks --compile-bytecode --quiet
	@touch $@

# A machine without uv gets one of its own in .uv; pip and venv are all that it needs.
.uv/bin/uv:
	@echo 'Installing uv into .uv ...'
	@python3 -m venv .uv 2>/dev/null && .uv/bin/python -m pip install --quiet uv \
	  || { rm -rf .uv; python3 -m pip install --quiet --target=.uv uv; } \
	  || { echo 'error: uv could not be installed; install it by hand (pip install uv) and try again.' >&2; exit 1; }
