# make demo    the shortest way to see it work        make test     every test
# make check   what CI runs                           make help     all targets
# All of it happens in .venv; Python 3.11 or newer (with its headers), make and a C++20 compiler are enough.

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

# The first Python that is new enough, and has what builds an extension and a virtual environment.
SUITABLE := import os, sys, sysconfig, venv, ensurepip; \
  sys.exit(sys.version_info < (3, 11) or not os.path.exists(sysconfig.get_path("include") + "/Python.h"))
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
  $$p -c '$(SUITABLE)' 2>/dev/null && { echo $$p; break; }; done)

CXX_FILES = $(shell git ls-files '*.cpp' '*.hpp')
BUILD_INPUTS := pyproject.toml CMakeLists.txt $(shell find transforms/core -name '*.cpp' -o -name '*.hpp' -o -name CMakeLists.txt)
TORCH := torch==2.13.0 triton==3.7.1

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test check lint docs format bench-search mutate mutate-ptx ptx-functions tritons kills tamper attack relation expressions fuzz random agree ingest wheel clean

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "error: expected Python 3.11 or newer with its headers, got none; set PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# What is installed is stamped, so that the next call starts at once. An editable install: edits of Python count
# at once, edits of C++ after the next make. Each set of packages holds the ones before it.
$(VENV)/installed: $(BIN)/python $(BUILD_INPUTS)
	$(PIP) install -e .
	@touch $@

$(VENV)/installed-test: $(BIN)/python $(BUILD_INPUTS)
	$(PIP) install -e '.[test,models,bench]' $(TORCH)
	@touch $(VENV)/installed $@

$(VENV)/installed-dev: $(BIN)/python $(BUILD_INPUTS)
	$(PIP) install -e '.[test,reference,models,bench,docs,dev]' $(TORCH)
	@touch $(VENV)/installed $(VENV)/installed-test $@

DEMO := out/rmsnorm_linear
demo: $(VENV)/installed ## optimize examples/rmsnorm_linear.mlir and say where the results are
	@mkdir -p out
	$(BIN)/superopt-opt examples/rmsnorm_linear.mlir --superoptimize="target=sm_90 budget=60" --emit=bundle --report=$(DEMO).json -o $(DEMO)
	$(BIN)/superopt-verify --replay $(DEMO)/certificate.json
	@echo; echo "The results are in $(DEMO):"; ls -1 $(DEMO) | sed 's/^/  /'; echo "and the report of the search in $(DEMO).json"

test: $(VENV)/installed-test ## run pytest and lit; the last line is 'N passed, N failed'
	@$(BIN)/python test/run.py

check: export CXXFLAGS := $(CXXFLAGS) -Werror
check: lint docs test ## what CI runs: lint, the documentation, a build without warnings, every test

lint: $(VENV)/installed-dev ## ruff, pyright, clang-format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)

docs: $(VENV)/installed-dev ## build the site of documentation into out/docs; a broken link is an error
	$(BIN)/python -m sphinx -q -W --keep-going -b html -c docs . out/docs

format: $(VENV)/installed-dev ## format Python and C++ in place
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(CXX_FILES)

bench-search: $(VENV)/installed ## search Mirage's programs; the table is kept in benchmarks/results/search.json
	$(BIN)/python -m benchmarks.search
	$(BIN)/python -m benchmarks.winners

# What a GPU measures, in order of value. `make gpu` needs torch and triton beside the folder, nothing else; each call
# takes 9 minutes at most, and the next one goes on.
.PHONY: gpu gpu-folder
GPU_PROGRAMS := examples/rmsnorm_linear.mlir benchmarks/mugraph/gqa_decode_b1_safe.mlir examples/gated_mlp.mlir \
  benchmarks/mugraph/bilinear_form.mlir benchmarks/mugraph/lora_b8.mlir benchmarks/mugraph/mlp_b8.mlir \
  examples/matmul_bias_gelu.mlir benchmarks/mugraph/mha_decode_b1_safe.mlir
GPU_PYTHON ?= python3

gpu-folder: $(VENV)/installed ## prepare out/gpu, which a GPU elsewhere measures: no GPU, 10 CPU minutes, at most 30 MB
	$(BIN)/superopt-bench prepare $(GPU_PROGRAMS) -o out/gpu --candidates=1 --points=4 --tuning=30 --budget=15

gpu: ## measure out/gpu on this machine's GPU for 9 minutes: calibration, then the programs; call it again, it goes on
	$(GPU_PYTHON) out/gpu/calibrate.py -o out/gpu-calibration.json --minutes=2 || test $$? = 3
	$(GPU_PYTHON) out/gpu/measure.py -o out/gpu-results.json --minutes=6.5 || test $$? = 3

mutate: $(VENV)/installed-test ## inject 2,500 faults into the benchmarks' finished programs; none may be wrong and accepted
	$(BIN)/python test/mutation/harness.py --benchmarks --count=2500 --json=benchmarks/results/mutation.json

mutate-ptx: $(VENV)/installed-test ## inject 2,100 faults into the PTX of the benchmarks' kernels; none may be wrong and accepted
	$(BIN)/python test/mutation/ptx_harness.py --count=2100 --json=benchmarks/results/mutation_ptx.json

ptx-functions: $(VENV)/installed-test ## try all 2^32 inputs of the library functions that are known in PTX
	SUPEROPT_TEST_FLOATS=1 SUPEROPT_TEST_FLOATS_JSON=benchmarks/results/ptx_functions.json \
	  $(BIN)/python -m pytest -q -p no:xdist test/unit/test_ptx_templates.py -k they_are_the_functions

TRITONS ?= 3.6.0 3.7.1 3.8.0 3.9.0
TRITON_TESTS := $(patsubst %,test/unit/test_%.py,emission ttir ptx ptx_fences ptx_functions descriptors ranges separate_loads selections \
  schedule interpreter cubins hot_loops)
tritons: $(VENV)/installed-test ## run the tests that compile kernels with each version of Triton that is allowed, or TRITONS=3.9.0
	@for v in $(TRITONS); do \
	  test -d out/triton-$$v || $(PIP) install --no-deps --target out/triton-$$v triton==$$v || exit 1; \
	  echo "Triton $$v"; PYTHONPATH=$(CURDIR)/out/triton-$$v $(BIN)/python -m pytest $(TRITON_TESTS) || failed="$$failed $$v"; \
	done; test -z "$$failed" || { echo "failed with$$failed" >&2; exit 1; }

kills: $(VENV)/installed-test ## kill 500 whole runs at random moments; nothing may be lost
	$(BIN)/python test/kills/kills.py --count=500 --json=benchmarks/results/kills.json

tamper: $(VENV)/installed-test ## tamper with a bundle 400 times; none may be believed
	$(BIN)/python test/tamper/tamper.py --count=400 --json=benchmarks/results/tamper.json

attack: $(VENV)/installed-test ## try 20,000 pairs of programs, equal or nearly, on the certifier; nothing wrong may be accepted
	$(BIN)/python test/attack/attack.py --count=20000 --state=out/attack.jsonl --json=benchmarks/results/attack.json

relation: $(VENV)/installed-test ## where 10,000 corrupted programs differ, exactly, against full comparisons; none may be wrong
	$(BIN)/python test/relation/relation_campaign.py --sources=2000 --corrupted=10000 --seed=1 --json=benchmarks/results/relation.json

expressions: $(VENV)/installed ## what is derived for the operator cases of two papers, with proofs and prices
	$(BIN)/python -m benchmarks.expressions.cases

fuzz: $(VENV)/installed-test ## fuzz superopt-opt and superopt-verify for an hour
	$(BIN)/python test/fuzz/fuzz.py --seconds=3600 --findings=out/findings --json=benchmarks/results/fuzz.json

random: $(VENV)/installed-test ## 5,000 programs with extents from 1 to 200 through every optimizer; none may be wrong
	$(BIN)/python test/random/extents.py --count=5000 --state=out/extents.jsonl --json=benchmarks/results/extents.json

agree: $(VENV)/installed-test ## compare PTX, TTIR, Triton's interpreter and numpy on 200 random kernels, with planted faults
	$(BIN)/python test/random/agreement.py --kernels=200 --state=out/agreement.jsonl --json=benchmarks/results/agreement.json

ingest: $(VENV)/installed-test ## read 400 linalg and 400 PyTorch programs and execute them; no difference may be silent
	$(BIN)/python test/ingest/campaign.py --count=400 --json=benchmarks/results/ingest.json

wheel: ## build wheels for Python 3.11 to 3.14, as installed, and try each in an empty environment; or PYTHONS="3.12 3.13"
	@bash .ci/wheel $(PYTHONS)

clean: ## remove everything that make makes
	rm -rf $(VENV) build out test/Output .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
