# Everything a newcomer needs: each target does its own set-up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core
DEMO := $(VENV)/.demo
DEV := $(VENV)/.dev
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test check docs bench peers format clean

help:  ## Show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 10

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

test: $(DEV)  ## Run all tests
	@$(BIN)/python -m pytest

check: $(DEV)  ## Lint, types and import directions
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(DEV)  ## Format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(DEV)  ## Regenerate the reference pages in docs/
	@$(BIN)/python docs/generate.py

bench: $(DEV)  ## Measure speed against bare loops; prints ratios
	@$(BIN)/python benchmarks/run.py

peers: $(DEV)  ## Install Flower, pfl and fluke into .bench/ to compare speed with (4 GB)
	@$(BIN)/python benchmarks/peers.py --install

clean:  ## Remove caches and build products (not your runs)
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
