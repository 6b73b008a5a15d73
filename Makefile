# Each target sets itself up: only make and Python 3.11 or newer are needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PACKAGES := $(VENV)/.packages
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check
# Most tests spend part of their time waiting, so use more runners than cores.
PYTEST := $(BIN)/pytest -n 4 --dist loadgroup

# Keep the arguments of this machine out of the header of the pinned files.
export CUSTOM_COMPILE_COMMAND := make requirements

.DEFAULT_GOAL := help
.PHONY: help demo test test-long check lint words types imports docs screenshots bench format requirements clean

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 22

demo: $(STAMP) ## show a team at work, without a key and a network
	@$(BIN)/crewboard demo

test: $(STAMP) ## run the tests, about ten minutes on two cores
	@$(PYTEST)

test-long: $(STAMP) ## run the long fault and soak tests
	@$(PYTEST) -m long --timeout 1800

check: lint types imports test ## check everything: format, lint, types, import contracts, tests

lint: $(STAMP) words
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

# Words of another register than plain technical English. The field `buried` of exit.json is documented; the licence
# and the generated pictures are not ours to word.
WORDS := somebody|nobody|everybody|anybody|whoever|whom|mend|lest|amid|thereby|whither|besides|bury|burial
words: ## look for words that are not plain technical English; more than 10 lines fail
	@found=$$(git grep -nIwiE '$(WORDS)' -- . ':!Makefile' ':!LICENSE' ':!screenshots' || true); \
	count=$$(printf '%s' "$$found" | grep -c '' || true); \
	test "$$count" -le 10 || { printf '%s\n' "$$found" | cut -c1-160; echo "$$count lines with words to replace"; exit 1; }

types: $(STAMP)
	@$(BIN)/mypy

imports: $(STAMP)
	@$(BIN)/lint-imports --no-logo

format: $(STAMP) ## format the code, fix what ruff can fix
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

docs: $(STAMP) ## write the generated parts of docs/reference, then check all pages
	@$(BIN)/python -m tests.docs.reference
	@$(BIN)/pytest tests/docs -q

screenshots: $(STAMP) ## paint screenshots/
	@$(BIN)/python -m tests.screenshots

bench: $(STAMP) ## measure against baselines, print a table, write .bench.json
	@$(BIN)/pytest tests/bench -m bench --timeout 900

requirements: $(STAMP) ## pin the dependencies; UPGRADE=--upgrade takes the newest versions
	@$(BIN)/pip-compile --quiet $(UPGRADE) --output-file requirements.txt pyproject.toml
	@$(BIN)/pip-compile --quiet $(UPGRADE) --extra dev --extra serve --constraint requirements.txt \
		--output-file requirements-dev.txt pyproject.toml

clean: ## remove .venv, caches and builds
	@rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find core tui tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps are written last, so that an interrupted set-up starts again.
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
