# Each target sets up what it needs in .venv, once; a stamp file there remembers it. The benchmarks
# have an environment of their own: what they are measured beside may not break the tests.
PYTHON ?= python3
VENV := .venv
BENCH := .venv-bench
BIN := $(VENV)/bin
# Into the environment that the target's stamp lies in.
PIP = $(@D)/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: help demo test test-all check format docs bench fuzz clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.core ## learn three permuted-MNIST tasks in a row with SGD, L2 and EWC, and name the page (minutes)
	$(BIN)/ewc run learning-curves --preset quick --resume

test: $(VENV)/.dev ## run the tests, but for loops of random kills and long sweeps (minutes)
	$(BIN)/python -m pytest -m 'not slow'

test-all: $(VENV)/.dev ## run all tests
	$(BIN)/python -m pytest

check: $(VENV)/.dev ## lint, formatting, types, and that imports go one way
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest --quiet -n 0 tests/test_imports.py

format: $(VENV)/.dev ## format the code and mend what lint can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.docs ## build the documentation into site/, and fail on broken links
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo 'the documentation is in site/index.html'

bench: $(BENCH)/.bench ## measure the Fisher, the pull and the training loop beside other libraries
	$(BENCH)/bin/python -m benchmarks $(ONLY)

fuzz: $(VENV)/.dev ## random models and memory programs beside slow references (an hour; FUZZ=--help)
	cd tests && ../$(BIN)/python -m fuzz $(FUZZ)

clean: ## remove environments and caches; runs are kept
	rm -rf $(VENV) $(BENCH) .venv-versions site .mypy_cache .pytest_cache .ruff_cache .hypothesis

# Two distributions: the library at the root, the paper's experiments in paper/.
$(VENV)/.core $(BENCH)/.core: pyproject.toml paper/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(v < (3, 11) and \
	  "ewc needs Python 3.11 or later, found %d.%d: call make PYTHON=python3.11" % v)'
	$(PYTHON) -m venv $(@D)
	$(PIP) --editable . --editable paper
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) --editable '.[dev]' --editable 'paper[cluster,games,tensorboard]'
	@touch $@

$(VENV)/.docs: $(VENV)/.core
	$(PIP) --editable '.[docs]'
	@touch $@

$(BENCH)/.bench: $(BENCH)/.core
	$(PIP) --editable '.[bench]' --editable 'paper[atari]'
	@touch $@
