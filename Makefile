PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
STAMP := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 10

demo: $(STAMP) ## train twins with and without softmax and show them; DEMO=--fresh to start over
	@$(BIN)/flashpoint demo $(DEMO)

test: $(STAMP) ## run the tests and the doctests, a process per core
	@OMP_NUM_THREADS=1 $(BIN)/pytest -q -n auto

lint: $(STAMP) ## check style, import directions and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-logo
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

bench: $(STAMP) ## time the operator beside PyTorch's attention; BENCH=--quick for a short run
	@$(BIN)/flashpoint bench --device cpu --threads 2 $(BENCH)

clean: ## remove .venv, caches and build products
	rm -rf .venv build dist .hypothesis .import_linter_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "error: Flashpoint needs Python 3.11 or newer, '$(PYTHON)' is not. Pass PYTHON=/path/to/python." >&2; exit 1; }
	"$(PYTHON)" -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@
