# `make test` and `make demo` are all one needs: each sets the environment up first, and later runs skip what is done.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

# `make test PYTHON=python3.12` has an environment of its own.
PYTHON ?=
VENV := .venv$(if $(PYTHON),-$(notdir $(PYTHON)))
BIN := $(VENV)/bin
STAMP := $(VENV)/.workflow-sdk-installed
BENCH_BIN := .venv-bench/bin
BENCH_STAMP := .venv-bench/.workflow-sdk-installed
SITE_BIN := .venv-site/bin
SITE_STAMP := .venv-site/.workflow-sdk-installed
# What draws the diagrams of the documentation.
MERMAID := mermaid@11
# The one peer that pip has no server of.
RESTATE_SERVER := @restatedev/restate-server@1.7.12
# Editable, so that tests and demo run the sources; without isolation, as the lock has the build's own requirements.
INSTALL_SOURCES := python -m pip install --quiet --no-deps --no-build-isolation --editable .

# The newest Python that is tested with this project, or else any later one.
PYTHONS := python3.13 python3.12 python3.11 python3
FIND_PYTHON = python=$$(.ci/find-python $(or $(PYTHON),$(PYTHONS)))

.PHONY: help setup test check quick deep oldest chaos mutants bench bench-report demo docs dist release \
	lock lock-dev lock-bench lock-site clean

help:
	@echo "make test    set up, then format, lint, types, layers and the quick tier of the tests"
	@echo "             PYTHON=python3.12: with that one, in an environment of its own"
	@echo "make deep    all tests at full length, with coverage; then the quick tier on other versions"
	@echo "make demo    set up, then a workflow that is killed and goes on"
	@echo "make chaos   what tries at random, for longer: EFFORT=50 is fifty times as long"
	@echo "make mutants break the engine on purpose, in copies, and show which test notices each break"
	@echo "make bench   set up .venv-bench, with the peers; then tests/benchmarks"
	@echo "make bench-report  put the figures of the last make bench into docs/performance.md"
	@echo "make docs    build the documentation as a site, in build/site"
	@echo "make dist    build the wheel and the source distribution, in dist"
	@echo "make release VERSION=1.2.3  the changelog, the version, a commit and a tag"
	@echo "make lock    write the files requirements*.lock anew from pyproject.toml"
	@echo "make clean   remove the environments and what tools left behind"

setup: $(STAMP)

$(STAMP): pyproject.toml requirements.lock
	@$(FIND_PYTHON); \
	if ! $(BIN)/python -c '' >/dev/null 2>&1; then \
	    echo "== environment ($$("$$python" --version) in $(VENV))"; \
	    "$$python" -m venv --clear $(VENV); \
	fi
	@echo "== dependencies (requirements.lock)"
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --requirement requirements.lock
	@$(BIN)/$(INSTALL_SOURCES)
	@touch $@

test: $(STAMP) check quick

check: $(STAMP)
	@echo "== ruff format"
	@$(BIN)/ruff format --check .
	@echo "== ruff check"
	@$(BIN)/ruff check .
	@echo "== import-linter"
	@$(BIN)/lint-imports
# Each of them takes one core for a while.
	@echo "== mypy, and pyright beside it"
	@$(BIN)/pyright --pythonpath $(BIN)/python >$(VENV)/pyright.log 2>&1 & pyright=$$!; \
	$(BIN)/mypy && wait $$pyright || { kill $$pyright 2>/dev/null || true; cat $(VENV)/pyright.log; exit 1; }
	@tail -n 1 $(VENV)/pyright.log
# It asks the first python on the path where packages are, whatever is configured.
	@echo "== pyright --verifytypes"
	@PATH="$(CURDIR)/$(BIN):$$PATH" pyright --ignoreexternal --verifytypes workflow_sdk

# Tests start many processes: where compiled code may not be kept, each of them would compile everything anew.
PYTEST = env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal

quick: $(STAMP)
	@echo "== pytest, quick tier ($$($(BIN)/python --version))"
	@$(PYTEST)

# Everything, and then the quick tier on the other versions of Python. The oldest of them has the oldest packages.
OTHER_PYTHONS := python3.12 python3.11
# `make deep COVERAGE=` is a quarter faster; `TIER=--beyond` leaves out what the quick tier has run already.
TIER := --deep
COVERAGE := --cov --cov-report=term
deep: $(STAMP)
	@echo "== pytest, everything, with coverage ($$($(BIN)/python --version))"
	@$(PYTEST) $(TIER) $(COVERAGE)
	@for name in $(OTHER_PYTHONS); do \
	    if [ "$$($(BIN)/python -c 'import sys; print("python%d.%d" % sys.version_info[:2])')" = $$name ]; then \
	        :; \
	    elif ! .ci/find-python $$name >/dev/null 2>&1; then \
	        echo "== $$name: not on this machine, so not run"; \
	    elif [ $$name = $(lastword $(OTHER_PYTHONS)) ]; then \
	        $(MAKE) oldest quick PYTHON=$$name VENV=.venv-oldest; \
	    else \
	        $(MAKE) quick PYTHON=$$name; \
	    fi; \
	done

# The oldest versions that pyproject.toml allows of what the library needs.
oldest: $(STAMP)
	@echo "== the oldest versions of the dependencies"
	@oldest=$$($(BIN)/python .ci/oldest.py); echo $$oldest; $(BIN)/python -m pip install --quiet --no-deps $$oldest

# What tries at random takes more examples; a seed of its own each time.
EFFORT ?= 10
chaos: $(STAMP)
	@echo "== chaos (effort $(EFFORT))"
	@WORKFLOW_SDK_CHAOS=$(EFFORT) $(PYTEST) --deep \
	    tests/laws/model tests/laws/simulation tests/laws/processes tests/laws/fuzzing tests/laws/test_law_08_divergence_random.py \
	    tests/rewinding/test_rewinding_random.py tests/drivers/test_foundationdb_random.py

mutants: $(STAMP)
	@echo "== mutants"
	@$(BIN)/python -m tests.mutants

$(BENCH_STAMP): pyproject.toml requirements-bench.lock
	@$(FIND_PYTHON); \
	if ! $(BENCH_BIN)/python -c '' >/dev/null 2>&1; then \
	    echo "== environment ($$("$$python" --version) in .venv-bench)"; \
	    "$$python" -m venv --clear .venv-bench; \
	fi
	@echo "== dependencies (requirements-bench.lock)"
	@$(BENCH_BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@$(BENCH_BIN)/python -m pip install --quiet --requirement requirements-bench.lock
	@$(BENCH_BIN)/$(INSTALL_SOURCES)
# None of its scripts is needed: one of them counts installations.
	@if ! command -v npm >/dev/null; then \
	    echo "no npm here: without Restate"; \
	elif ! npm install --silent --no-audit --no-fund --ignore-scripts --prefix .venv-bench/node $(RESTATE_SERVER); then \
	    echo "npm could not install $(RESTATE_SERVER): without Restate"; \
	fi
	@touch $@

bench: $(BENCH_STAMP)
	@echo "== benchmarks"
	@$(BENCH_BIN)/python -m tests.benchmarks --out bench.jsonl
	@echo "== the figures are in bench.jsonl; make bench-report puts them into docs/performance.md"

bench-report: $(BENCH_STAMP)
	@$(BENCH_BIN)/python -m tests.benchmarks.report bench.jsonl

demo: $(STAMP)
	@$(BIN)/python examples/demo.py

$(SITE_STAMP): requirements-site.lock
	@$(FIND_PYTHON); \
	if ! $(SITE_BIN)/python -c '' >/dev/null 2>&1; then \
	    echo "== environment ($$("$$python" --version) in .venv-site)"; \
	    "$$python" -m venv --clear .venv-site; \
	fi
	@echo "== dependencies (requirements-site.lock)"
	@$(SITE_BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@$(SITE_BIN)/python -m pip install --quiet --requirement requirements-site.lock
	@touch $@

docs: $(SITE_STAMP)
	@echo "== documentation"
	@$(SITE_BIN)/python .ci/site_sources.py
# What draws the diagrams is served with the pages. Without npm they are shown as text.
	@if command -v npm >/dev/null; then \
	    npm install --silent --no-audit --no-fund --ignore-scripts --prefix build/node $(MERMAID) && \
	    cp build/node/node_modules/mermaid/dist/mermaid.min.js build/docs/mermaid.min.js; \
	fi || true
	@if [ ! -e build/docs/mermaid.min.js ]; then \
	    echo "no mermaid from npm: diagrams are shown as text"; : >build/docs/mermaid.min.js; \
	fi
	@$(SITE_BIN)/zensical build --strict --clean
	@echo "build/site: $$(find build/site -name '*.html' | wc -l) pages"

dist: $(STAMP)
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation --outdir dist . >/dev/null
	@$(BIN)/check-wheel-contents dist/*.whl

release: $(STAMP)
	@$(BIN)/python .ci/release.py "$(VERSION)"

# Everything that is installed is pinned, in an environment that has seen nothing else; on the oldest Python, whose
# choice of versions the later ones can follow. $(call PIN,file,whose,what to install)
define PIN
@$(FIND_PYTHON); \
dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; \
"$$python" -m venv "$$dir/venv"; \
"$$dir/venv/bin/python" -m pip install --quiet --upgrade 'pip>=25.1' setuptools; \
"$$dir/venv/bin/python" -m pip install --quiet $(3); \
{ \
    echo "# Every package of the $(2) environment. Written by \`make lock\`."; \
    "$$dir/venv/bin/python" -m pip freeze --all --exclude pip --exclude workflow-sdk; \
} >"$$dir/lock"; \
if grep -nE '://| @ ' "$$dir/lock"; then echo "error: not a plain pin" >&2; exit 1; fi; \
mv "$$dir/lock" $(1); \
echo "$(1): $$(grep -c == $(1)) packages"
endef

lock lock-dev lock-bench lock-site: PYTHONS := python3.11 python3.12 python3.13 python3
lock: lock-dev lock-bench lock-site
comma := ,
lock-dev:
	$(call PIN,requirements.lock,development,'.[cli$(comma)cron$(comma)demo$(comma)http$(comma)pydantic]' --group dev)
lock-bench:
	$(call PIN,requirements-bench.lock,benchmark,. --group bench)
lock-site:
	$(call PIN,requirements-site.lock,site,--group site)

clean:
	@rm -rf .venv .venv-* build dist .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
