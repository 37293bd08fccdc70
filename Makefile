PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
STAMP := .venv/.installed
DOCS := .venv/.docs-installed
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -q
# Bytecode is kept, whatever the environment says: without it a process imports torch for 2 s longer.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/.venv/bytecode
# the oldest torch that is served, with the Triton it brings, and the newest Triton
OLDEST := .versions/torch-2.9.0
NEWEST := .versions/triton-3.9.0
COMPILED := tests/ops/gpu/test_launcher.py tests/ops/gpu/test_portable_compiles.py tests/ops/gpu/test_hopper_compiles.py
# tests of what PyTorch does not promise to keep
INTERNALS := tests/ops/test_library.py tests/layers/test_pytorch.py \
  tests/lab/training/test_step.py tests/lab/training/test_step_memory.py tests/lab/training/test_optimizer.py

.DEFAULT_GOAL := help
.PHONY: help demo page test test-all test-versions versions mutants lint docs docs-numbers notebooks wheel try-wheel \
  hub-kernel bench clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 15

demo: $(STAMP) ## train twins with and without softmax and show them; DEMO=--fresh to start over
	@$(BIN)/flashpoint demo $(DEMO)

page: demo ## put the demo's twins into a page that runs them, build/page.html
	@$(BIN)/flashpoint page runs/demo/relu runs/demo/softmax --out build/page.html

test: $(STAMP) ## run the tests and the doctests, a process per core; slow ones are left out
	@$(PYTEST) -n auto --dist worksteal -m "not slow"

test-all: $(STAMP) ## run all of them: processes, compilers, browsers and whole products too
	@$(PYTEST) -n auto --dist worksteal

test-versions: versions ## compile and replay with the oldest and newest Triton, and run an old torch
	PYTHONPATH=$(CURDIR)/$(OLDEST) $(PYTEST) --each-gpu main $(COMPILED)
	PYTHONPATH=$(CURDIR)/$(NEWEST) $(PYTEST) --each-gpu all $(COMPILED)
	PYTHONPATH=$(CURDIR)/$(OLDEST) $(PYTEST) -n auto -m "not slow" $(INTERNALS)

versions: $(STAMP) $(OLDEST)/.installed $(NEWEST)/.installed ## download what test-versions needs (7 GB, once)

.versions/%/.installed:
	rm -rf $(@D)
	$(BIN)/python -m pip install --quiet --no-warn-conflicts --no-compile --no-cache-dir --target $(@D) $(if $(findstring triton,$*),--no-deps) $(subst -,==,$*)
	@touch $@

mutants: $(STAMP) ## plant faults one by one and see that make test catches each; MUTANTS=--list
	@$(BIN)/python tools/mutants.py $(MUTANTS)

lint: $(STAMP) ## check style, import directions and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-logo
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

docs: $(DOCS) ## build the documentation as a site, build/site; a warning or a broken link fails
	@NO_MKDOCS_2_WARNING=1 PYTHONPATH=tools $(BIN)/mkdocs build --strict

docs-numbers: $(STAMP) ## write the stored numbers into README and docs; NUMBERS=--check compares
	@PYTHONPATH=tools $(BIN)/python -m docs_numbers $(NUMBERS)

notebooks: $(STAMP) ## run the notebooks in examples and store what they show
	@$(BIN)/python tools/notebooks.py

wheel: $(STAMP) ## build the sdist and, from it, the wheel, in dist
	@rm -rf dist
	@$(BIN)/python -m build --quiet --outdir dist

try-wheel: wheel ## install the wheel into a bare environment and use it there
	@$(BIN)/python tools/try_wheel.py dist/*.whl

hub-kernel: $(STAMP) ## the operator as Hugging Face's kernels package loads it, in build/hub-kernel
	@PYTHONPATH=tools $(BIN)/python -m hub_kernel

bench: $(STAMP) ## time the operator beside PyTorch's attention; BENCH=--quick for a short run
	@$(BIN)/flashpoint bench --device cpu --threads 2 $(BENCH)

clean: ## remove .venv, other versions, caches and build products
	rm -rf .venv .versions build dist .hypothesis .import_linter_cache .pytest_cache .ruff_cache
	find src tests tools -name __pycache__ -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt tools/mend_torchvision.py
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "error: Flashpoint needs Python 3.11 or newer, '$(PYTHON)' is not. Pass PYTHON=/path/to/python." >&2; exit 1; }
	"$(PYTHON)" -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python tools/mend_torchvision.py
	@touch $@

$(DOCS): $(STAMP)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[docs]'
	@touch $@
