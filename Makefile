# Each target sets up everything that it needs. A second run starts in seconds.
.DEFAULT_GOAL := help
PY := .venv/bin/python
ZENSICAL := 0.0.73
# Pytest, and each process that tests start, begins with the stored bytecode.
unexport PYTHONDONTWRITEBYTECODE
# A network may have its own certificates.
export UV_SYSTEM_CERTS := 1
.PHONY: help setup setup-tests demo test test-all laws test-fast lint format wheel-check bench bench-full soak reference docs protos lock clean

help:           ## Show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup:          ## Set up the virtual environment, packages and Java
	@scripts/setup.sh

setup-tests: setup ## Also set up the databases and the browser for the tests
	@scripts/setup.sh --tests

demo: setup     ## Send twelve years of real data to a real Fivetran destination
	@.venv/bin/backstory demo --output table

test: setup-tests ## Run all tests except the long ones
	@scripts/test.sh -m "not long"

test-all: setup-tests ## Run all tests, as before a merge
	@scripts/test.sh

laws: setup-tests ## Run all tests with many more examples, as before a release
	@BACKSTORY_DEPTH=laws scripts/test.sh

test-fast: setup ## Run the tests that need neither Java nor a database
	@BACKSTORY_DEPTH=fast $(PY) -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m "not spark and not process and not database"

lint: setup     ## Check style, types and the borders between the rooms
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@.venv/bin/lint-imports

format: setup   ## Fix the style
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

wheel-check: setup ## Install the wheel into an empty environment and run the demo
	@scripts/wheel_check.sh

bench: setup    ## Run the benchmarks in a quarter of an hour (for less: ONLY=peers SCALE=0.1 MINUTES=5)
	@$(PY) -m benchmarks.venvs
	@$(PY) -m benchmarks $(if $(ONLY),--only $(ONLY)) $(if $(SCALE),--scale $(SCALE)) $(if $(MINUTES),--minutes $(MINUTES))

bench-full: setup ## Run the benchmarks at full size, also on a cluster, in some hours
	@$(PY) -m benchmarks --full $(if $(ONLY),--only $(ONLY)) $(if $(SCALE),--scale $(SCALE)) $(if $(MINUTES),--minutes $(MINUTES))

soak: setup     ## Write 200 tables by 8 parallel requests for ten minutes; measure throughput and growth
	@$(PY) benchmarks/many_tables.py soak

reference: setup ## Generate the reference pages from the code
	@$(PY) scripts/reference.py

docs: setup     ## Check the reference pages and build the site in build/site
	@$(PY) scripts/reference.py --check || { echo "These pages differ from the code: run make reference." >&2; exit 1; }
	@.venv/bin/uv tool run --quiet --from zensical==$(strip $(ZENSICAL)) zensical build --strict

protos: setup   ## Generate the gRPC stubs
	@$(PY) scripts/generate_wire.py

lock: setup     ## Resolve the dependencies again and write requirements.lock
	@.venv/bin/uv pip compile pyproject.toml --all-extras --group dev --universal --generate-hashes \
	  --no-emit-index-url --no-header --quiet --upgrade -o requirements.lock

clean:          ## Remove all generated files except the warehouse
	rm -rf .venv dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
