# Every target does its own set-up; a second run starts in seconds.
.DEFAULT_GOAL := help
PY := .venv/bin/python
ZENSICAL := 0.0.73
# Written bytecode is what pytest and every process that tests start begin with.
unexport PYTHONDONTWRITEBYTECODE
# A network may have certificates of its own.
export UV_SYSTEM_CERTS := 1
.PHONY: help setup setup-tests demo test test-all laws test-fast lint format wheel-check bench bench-full soak reference docs protos lock clean

help:           ## Show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup:          ## Virtual environment, packages and Java
	@scripts/setup.sh

setup-tests: setup ## And what only tests need: databases, a browser
	@scripts/setup.sh --tests

demo: setup     ## Twelve years of real data through a real Fivetran destination
	@.venv/bin/backstory demo --output table

test: setup-tests ## The tests, on up to four cores, in some eight minutes: what needs Python alone first
	@scripts/test.sh -m "not long"

test-all: setup-tests ## Also those that take long: what must hold before a change lands
	@scripts/test.sh

laws: setup-tests ## All of them, each law tried many more times: before a release
	@BACKSTORY_DEPTH=laws scripts/test.sh

test-fast: setup ## The tests that need no Java, in seconds
	@BACKSTORY_DEPTH=fast $(PY) -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m "not spark and not process and not database"

lint: setup     ## Style, types and the borders between the rooms
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@.venv/bin/lint-imports

format: setup   ## Bring the style in order
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

wheel-check: setup ## Build the wheel, install it into an empty environment and run the demo there
	@scripts/wheel_check.sh

bench: setup    ## Speed against peers and by size, HistoryBench, the case book, growth: a quarter of an hour; ONLY=peers SCALE=0.1 MINUTES=5 for less
	@$(PY) -m benchmarks.venvs
	@$(PY) -m benchmarks $(if $(ONLY),--only $(ONLY)) $(if $(SCALE),--scale $(SCALE)) $(if $(MINUTES),--minutes $(MINUTES))

bench-full: setup ## The same at full size, each door against its floor, and a cluster: hours
	@$(PY) -m benchmarks --full $(if $(ONLY),--only $(ONLY)) $(if $(SCALE),--scale $(SCALE)) $(if $(MINUTES),--minutes $(MINUTES))

soak: setup     ## 200 tables, 8 requests at once, ten minutes: throughput, and what grows
	@$(PY) benchmarks/many_tables.py soak

reference: setup ## Write the reference pages again from the code
	@$(PY) scripts/reference.py

docs: setup     ## The documentation as a site, in build/site, once its reference is fresh
	@$(PY) scripts/reference.py --check || { echo "These pages are not what the code says: run make reference." >&2; exit 1; }
	@.venv/bin/uv tool run --quiet --from zensical==$(strip $(ZENSICAL)) zensical build --strict

protos: setup   ## Generate the gRPC stubs again
	@$(PY) scripts/generate_wire.py

lock: setup     ## Resolve the dependencies again
	@.venv/bin/uv pip compile pyproject.toml --all-extras --group dev --universal --generate-hashes \
	  --no-emit-index-url --no-header --quiet --upgrade -o requirements.lock

clean:          ## Remove what the targets made, the warehouse excepted
	rm -rf .venv dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
