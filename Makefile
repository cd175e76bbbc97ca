# Everything a newcomer needs: each target does its own set-up.
PYTHON ?= python3

# Another interpreter gets an environment of its own: `make test PYTHON=python3.13` installs into .venv-3.13.1.
ifeq ($(PYTHON),python3)
VENV ?= .venv
else
VENV ?= .venv-$(or $(shell $(PYTHON) -c 'import platform; print(platform.python_version())'),$(error \
	PYTHON=$(PYTHON) cannot be run: give the path of a Python from 3.11 to 3.13))
endif

BIN := $(VENV)/bin
CORE := $(VENV)/.core
DEMO := $(VENV)/.demo
DEV := $(VENV)/.dev
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Tests run in one process for each core, with one thread each; files stay whole because their tests share fixtures.
# A crashed test process is not replaced: with whole files, pytest-xdist may then wait forever.
WORKERS ?= auto
PARALLEL := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 8 --dist loadfile --max-worker-restart 0

# Bytecode is kept: without it each of the hundreds of processes that tests start compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-portable fuzz chaos check docs bench peers format clean

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 16

$(CORE): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing fedra into $(VENV) (a few minutes the first time)"
	@$(PIP) torch
	@$(PIP) -e .
	@touch $@

$(DEMO): $(CORE)
	@$(PIP) -e '.[onnx]'
	@touch $@

$(DEV): $(CORE)
	@$(PIP) -e '.[dev]'
	@touch $@

demo: $(DEMO)  ## Compare methods on digits, then faces from photographs to names (minutes)
	@$(BIN)/fedra demo --out runs/demo

test: $(DEV)  ## Run the tests but for the slow ones, on all cores
	@$(PARALLEL) -m "not slow"

# Slow tests start processes of their own and share little, so each goes to the next free core; Ray's stay together.
test-slow: $(DEV)  ## Run the slow tests, on all cores
	@$(PARALLEL) --dist loadgroup -m slow

# A processor's own instruction set decides the last bits of every product. AVX2 is tried where more is there.
test-portable: $(DEV)  ## Run the tests that train as processors with fewer instructions do
	@ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 $(PARALLEL) -m "trains and not slow"
	@if $(BIN)/python -c 'import sys, torch; sys.exit("AVX512" not in torch.backends.cpu.get_cpu_capability())'; then \
		ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 $(PARALLEL) -m "trains and not slow"; fi

# FUZZ_SECONDS for all targets; FUZZ="gallery model" chooses some, FUZZ="--repeat FILE" reads a saved input again.
FUZZ_SECONDS ?= 300
FUZZ ?=
fuzz: $(DEV)  ## Mutate every file and message that comes from outside, for FUZZ_SECONDS
	@$(BIN)/python tests/fuzz/fuzz_campaign.py --seconds $(FUZZ_SECONDS) $(FUZZ)

# CHAOS="run sweep" chooses scenarios, CHAOS="--only run:17" repeats a trial that failed.
CHAOS_KILLS ?= 200
CHAOS ?=
chaos: $(DEV)  ## Kill commands at random moments CHAOS_KILLS times, and compare with undisturbed ones
	@$(BIN)/python tests/chaos/chaos_campaign.py --kills $(CHAOS_KILLS) $(CHAOS)

check: $(DEV)  ## Lint, types and import directions
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(DEV)  ## Format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(DEV)  ## Regenerate the reference pages and build the site into site/
	@$(BIN)/python docs/generate.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

bench: $(DEV)  ## Measure speed against bare loops; prints ratios
	@$(BIN)/python benchmarks/run.py

peers: $(DEV)  ## Install Flower, pfl and fluke into .bench/ to compare speed with (4 GB)
	@$(BIN)/python benchmarks/peers.py --install

clean:  ## Remove caches and build products (not your runs)
	@rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
