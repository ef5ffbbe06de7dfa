# `make demo` and `make test` do all the set-up themselves. The environment is .venv/ and nothing outside it is touched.
PYTHON ?= python3
UV_VERSION := 0.13.7
ifeq ($(OS),Windows_NT)
BIN := .venv/Scripts
else
BIN := .venv/bin
endif
# Folders of tests lie in memory where it has room for 4 GB of files: else tests wait for the disk a fifth of the time.
IN_MEMORY := $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4000000 {print "TMPDIR=/dev/shm"}')
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(IN_MEMORY)
# One process more than cores: tests that wait for a server, a browser or a clock leave a third of two cores to others.
# All tests of a file run in one process, so that what they share (runs, exported models, clusters) is made once, and
# some files together; files in the order of tests/conftest.py, the longest first.
PYTEST := -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not slow"
comma := ,

# Compiled modules are kept in .venv/, even where the environment says to keep none (as images of containers do): without
# them every process that a test starts compiles torch and fewtags again, which takes longer than to run them.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/.venv/compiled

.PHONY: help setup demo browser test unit test-slow test-lowest others lint format docs docs-serve coverage release-check lock clean

help:  ## Show what can be made
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

setup: .venv/.ready  ## Create .venv/ with the locked versions; does nothing when they are installed

# uv is taken from the PATH, or else put into the project's own environment by the pip of $(PYTHON), or where that has none
# by one of its own, which takes seconds to install. triton, a gigabyte, compiles for GPUs and is left out where there is none.
# The large packages that the demo and the tests import are compiled on all cores, in 10 seconds; Python would do it file by
# file when they are first imported, while the other core waits. Of the other half of the 18,000 files few are imported.
COMPILED := torch torchvision timm numpy scipy sklearn sympy networkx onnx onnxscript datasets huggingface_hub tensorboard PIL \
  pydantic rich typer
.venv/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "fewtags needs Python 3.11 or newer; say which with: make PYTHON=python3.11"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv --without-pip .venv
	command -v uv >/dev/null || test -x $(BIN)/uv || \
	  $(PYTHON) -m pip --python $(BIN)/python install --quiet --disable-pip-version-check uv==$(UV_VERSION) || \
	  { $(BIN)/python -m ensurepip >/dev/null && $(BIN)/python -m pip install --quiet uv==$(UV_VERSION); }
	if test -e /dev/nvidiactl; then cat requirements.lock; else grep -v '^triton==' requirements.lock; fi >.venv/locked.txt
	UV=$$(command -v uv || echo $(BIN)/uv); \
	  $$UV pip install --quiet --python $(BIN)/python --no-deps -r .venv/locked.txt && \
	  $$UV pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@cd "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" && \
	  "$(CURDIR)/$(BIN)/python" -m compileall -q -j 0 $(COMPILED) >/dev/null 2>&1 || true  # some files are for other Pythons
	@touch $@

demo: setup  ## Draw images, hide most of their tags, train, and show what was found (under two minutes)
	$(BIN)/fewtags demo

BROWSERS := chromium-headless-shell chromium chromium-browser google-chrome
browser:  ## Install the browser (Debian's chromium without windows) in which the tests try the review page
	@for name in $(BROWSERS); do command -v $$name && exit; done; $$(test "$$(id -u)" = 0 || echo sudo) apt-get install -y chromium-headless-shell

test: setup  ## Check style and types, and run the tests beside it, on two cores
	@{ $(MAKE) --no-print-directory lint >.venv/lint.txt 2>&1; code=$$?; cat .venv/lint.txt; exit $$code; } & \
	  $(MAKE) --no-print-directory unit; tests=$$?; \
	  wait $$! && exit $$tests || { echo "Style or types are wrong; \`make lint\` says where."; exit 1; }

unit: setup  ## Only the tests
	@for name in $(BROWSERS); do command -v $$name >/dev/null && exit; done; \
	  echo "No browser is installed, so the review page is not tried in one; \`make browser\` installs it."
	$(TEST_ENV) $(BIN)/python $(PYTEST) --durations=10

test-slow: setup others  ## The tests that take over a minute, and those against large packages of other projects
	$(TEST_ENV) $(BIN)/python -m pytest -m slow

others: setup  ## Install those packages, an environment each in .venv-others/ (2 GB)
	$(BIN)/python tools/other_sides.py

# The oldest versions that pyproject.toml allows, but the newest test tools that go with them. Without `datasets`: it would
# bring the newest pyarrow, which wants NumPy 2 and says so only when it is imported.
LOWEST := .venv-lowest
LOWEST_EXTRAS := onnx,serve,tensorboard,heic,remote
test-lowest: setup  ## Run the tests on the lowest versions that pyproject.toml allows (2 GB in .venv-lowest/)
	UV=$$(command -v uv || echo $(BIN)/uv); test -d $(LOWEST) || $$UV venv --quiet --python $(BIN)/python $(LOWEST); \
	  $$UV pip compile --quiet pyproject.toml $(foreach extra,$(subst $(comma), ,$(LOWEST_EXTRAS)),--extra $(extra)) \
	    --resolution lowest-direct --python $(BIN)/python --no-header --no-annotate -o $(LOWEST)/lowest.txt && \
	  $$UV pip install --quiet --python $(LOWEST) -r $(LOWEST)/lowest.txt && \
	  $$UV pip install --quiet --python $(LOWEST) -c $(LOWEST)/lowest.txt -r tests/test-tools.txt && \
	  $$UV pip install --quiet --python $(LOWEST) --no-deps --no-build-isolation --editable .
	$(TEST_ENV) $(LOWEST)/$(notdir $(BIN))/python $(PYTEST) $(LOWEST_TESTS)

lint: setup  ## ruff, types and the one-way layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python
	$(BIN)/lint-imports

format: setup  ## Let ruff put the code in shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup  ## Build the documentation into site/; a broken link is an error
	$(TEST_ENV) $(BIN)/python tools/make_reference.py
	$(BIN)/zensical build --clean --strict
	$(BIN)/python tools/make_llms.py --site site

docs-serve: docs  ## Read the documentation in a browser: http://127.0.0.1:8008
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory site 8008

COVERAGE_FLOOR := 85
coverage: setup  ## Run the tests and show which lines they reach
	$(TEST_ENV) $(BIN)/python $(PYTEST) --cov=fewtags --cov-report=term:skip-covered --cov-report=xml --cov-fail-under=$(COVERAGE_FLOOR)

release-check: setup  ## Build the wheel, install it into a clean environment and try it there
	$(BIN)/python tools/release_check.py

# The extra `words` is left out: with its vectors installed, `words.source=auto` would mean something else here than for
# most users.
lock: setup  ## Choose versions anew; the file names packages and versions, never where they come from
	UV=$$(command -v uv || echo $(BIN)/uv); $$UV pip compile --quiet pyproject.toml --extra all-dev --extra clip --universal \
	  --python-version 3.11 --no-header --no-annotate --no-emit-index-url --no-emit-find-links --upgrade -o requirements.lock

clean:  ## Remove the environment and everything made
	rm -rf .venv .venv-others .venv-lowest demo-run dist site .cache .ruff_cache
