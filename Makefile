# Everything here sets itself up: it needs make and Python 3.11 or newer, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PACKAGES := $(VENV)/.packages
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check
# Most tests wait a part of their time: twice as many runners as cores use it.
PYTEST := $(BIN)/pytest -n 4 --dist loadgroup

# The header of the pinned files names the command that makes them, not its arguments on this machine.
export CUSTOM_COMPILE_COMMAND := make requirements

.DEFAULT_GOAL := help
.PHONY: help demo test test-long check lint types imports docs screenshots bench format requirements clean

help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 22

demo: $(STAMP) ## a team at work in your terminal: no key, no network
	@$(BIN)/crewboard demo

test: $(STAMP) ## the tests, under three minutes
	@$(PYTEST)

test-long: $(STAMP) ## the long fault and soak runs
	@$(PYTEST) -m long --timeout 1800

check: lint types imports test ## all that must hold: style, types, import contracts, tests

lint: $(STAMP)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

types: $(STAMP)
	@$(BIN)/mypy

imports: $(STAMP)
	@$(BIN)/lint-imports --no-logo

format: $(STAMP) ## puts the code in its form, mends what can be mended
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

docs: $(STAMP) ## writes the generated parts of docs/reference, then checks all pages
	@$(BIN)/python -m tests.docs.reference
	@$(BIN)/pytest tests/docs -q

screenshots: $(STAMP) ## paints screenshots/ anew
	@$(BIN)/python -m tests.screenshots

bench: $(STAMP) ## measures beside baselines, prints a table, writes .bench.json
	@$(BIN)/pytest tests/bench -m bench --timeout 900

requirements: $(STAMP) ## pins what pyproject.toml asks for; UPGRADE=--upgrade takes the newest
	@$(BIN)/pip-compile --quiet $(UPGRADE) --output-file requirements.txt pyproject.toml
	@$(BIN)/pip-compile --quiet $(UPGRADE) --extra dev --constraint requirements.txt \
		--output-file requirements-dev.txt pyproject.toml

clean: ## removes .venv, caches and what was built
	@rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find core tui tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps are written last: a set-up that was cut short starts afresh.
$(STAMP): $(PACKAGES) pyproject.toml
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(PACKAGES): requirements-dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
		"crewboard needs Python 3.11 or newer; this is " + sys.version.split()[0] + \
		": make PYTHON=python3.12 ...")'
	@echo "Setting up $(VENV), once; it takes about a minute." >&2
	@$(PYTHON) -m venv --clear $(VENV)
	@$(PIP) install --require-hashes -r requirements-dev.txt
	@touch $@
