# One verb per job; `make help` lists them. What they make lies in .venv, .devcluster, ~/.cache/tandem, and pip's and Go's own caches.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
MINUTES := 10
BENCHMARKS = $(basename $(notdir $(shell grep -l '^if __name__' benchmarks/*.py)))

.DEFAULT_GOAL := help
.PHONY: help setup lint types contracts domain check outside inside test demo demo-down bench proto chart exactness faults mutants soak

help: ## list the verbs
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "Tandem needs Python 3.11 or newer, and there is no command '$(PYTHON)' here; set PYTHON=... to one" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Tandem needs Python 3.11 or newer, and $(PYTHON) is %d.%d; set PYTHON=... to one" % sys.version_info[:2])'
	@echo "==> environment in $(VENV) (about 1 minute where pip has the packages already, else as long as some 3 GB take to come)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt uv
	$(BIN)/uv pip install -q --compile-bytecode --python $(BIN)/python -c constraints.txt -e '.[operator,runtime]' --group test --group lint --group devcluster --group bench
	@touch $@

setup: $(STAMP) ## make the Python environment

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(STAMP)
	$(BIN)/mypy

contracts: $(STAMP)
	$(BIN)/lint-imports

domain: $(STAMP)
	$(BIN)/pytest -q tests/domain

check: $(STAMP) ## lint, types, import contracts and the pure tests: under two minutes
	@$(MAKE) --no-print-directory --jobs=2 types domain lint contracts

test: check controlplane ## every test this machine can run; says what it skips and why
	@echo "==> tests without a cluster beside tests on one (about 7 minutes on 2 cores); each prints when it is done"
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target outside inside
	$(BIN)/pytest -q tests/cluster/test_story.py

outside: $(STAMP)
	$(BIN)/pytest -q --numprocesses=2 --dist=loadfile tests/laws tests/seams tests/agreement tests/scenarios tests/exactness tests/mutants tests/soak

inside: $(STAMP) controlplane
	$(BIN)/pytest -q tests/cluster --ignore=tests/cluster/test_story.py

exactness: $(STAMP) ## text never depends on speculation: laws, 100,000 sequences, 1,000 over gRPC, real kernels, sampled laws (40 to 80 minutes on 2 cores)
	$(BIN)/pytest -q --numprocesses=2 -m exactness tests/laws tests/scenarios
	$(BIN)/python -m tests.exactness
	$(BIN)/python -m tests.exactness --torch --sequences 1000
	$(BIN)/python -m tests.exactness.kernels
	$(BIN)/python -m tests.exactness.sampled

faults: $(STAMP) controlplane ## a rollout whose operator is killed after every write, many seeds of API faults, many sequences of events (some 15 minutes)
	$(BIN)/pytest -q -m faults tests/scenarios tests/cluster

mutants: $(STAMP) ## plant each known fault in a copy and name the test that sees it; a survivor fails
	$(BIN)/python -m tests.mutants

soak: $(STAMP) ## callers of all kinds while engines and gateways are killed: make soak MINUTES=10
	$(BIN)/python -m tests.soak --minutes $(MINUTES)

bench: $(STAMP) ## one measured comparison: make bench NAME=coupled_verify (a wrong name lists them all)
	@$(if $(filter $(BENCHMARKS),$(NAME)),:,echo "NAME='$(NAME)' is no benchmark; give one: make bench NAME=..., of $(BENCHMARKS)" >&2; exit 2)
	$(BIN)/python -m benchmarks.$(NAME)

demo: controlplane ## the main job on a real control plane, told step by step; leaves it running
	$(BIN)/python -m examples.demo

demo-down: $(STAMP) ## end everything that the demo started
	$(BIN)/python -m examples.demo down

proto: $(STAMP) ## regenerate the wire's classes from verify.proto
	$(BIN)/python -m grpc_tools.protoc -I runtime --python_out=runtime --pyi_out=runtime --grpc_python_out=runtime runtime/tandem_runtime/wire/verify.proto

chart: ## copy the CRD into the Helm chart
	cp crds/speculativedeployments.yaml charts/tandem/files/

include devcluster/cluster.mk
