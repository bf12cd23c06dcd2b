#!/usr/bin/env bash
# Check that the wheel works outside the clone: install it with [all] into an empty environment, and run the demo.
set -euo pipefail
cd "$(dirname "$0")/.."
export UV_SYSTEM_CERTS=1 # a network may have its own certificates
root="$PWD"
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
.venv/bin/uv build --quiet --wheel --out-dir "$folder" .
.venv/bin/uv venv --quiet --python .venv/bin/python "$folder/empty"
locked="$folder/locked.txt"
grep -E '^[a-z0-9.-]+==' requirements.lock | sed 's/ \\$//' >"$locked"
# Without extras, each command that needs one names it, and prints the line that installs it.
.venv/bin/uv venv --quiet --python .venv/bin/python "$folder/plain"
.venv/bin/uv pip install --quiet --python "$folder/plain/bin/python" --constraint "$locked" "$(ls "$folder"/*.whl)"
.venv/bin/python scripts/missing_parts.py "$folder/plain/bin/backstory"
# Setup has already built pyspark, the largest source package; the same hashes take it from the cache.
.venv/bin/uv pip install --quiet --python "$folder/empty/bin/python" --no-deps --require-hashes -r <(grep -A1 '^pyspark==' requirements.lock)
.venv/bin/uv pip install --quiet --python "$folder/empty/bin/python" --constraint "$locked" "$(ls "$folder"/*.whl)[all]"
# Java uses one compiler, as in the tests. In such short processes the second one would take most of the time.
JAVA_TOOL_OPTIONS=$(PYTHONPATH=tests/support .venv/bin/python -c 'import java; print(java.SHORT)')
export JAVA_TOOL_OPTIONS
cd "$folder"
# Three first commands start at once on a machine without jars and without a cache. Later commands use their files.
export XDG_CACHE_HOME="$folder/cache" BACKSTORY_CONFIG=first.toml
printf 'id,a\n1,x\n' >first.csv
printf '[spark]\n"spark.jars.ivy" = "%s"\n' "$folder/ivy" >first.toml
pids=()
for each in 1 2 3; do
  HOME="$folder/home" "$folder/empty/bin/backstory" \
    snapshot first.csv --into first.t --key id --warehouse "$folder/first$each" --quiet >/dev/null &
  pids+=($!)
done
for each in "${pids[@]}"; do wait "$each"; done
echo "Three first commands at once work on a machine without jars."
"$folder/empty/bin/backstory" demo --output json >"$folder/commits.json"
"$folder/empty/bin/python" -c "
import json, sys
commits = json.load(open('$folder/commits.json'))
assert len(commits) == 20, f'{len(commits)} commits'
print(f'The wheel runs the demo outside the clone: {len(commits)} commits.')"
"$folder/empty/bin/python" -c "
from urllib.request import urlopen
from backstory.explorer.access import open_explorer
from backstory.explorer.catalog_reader import table_reader
from backstory.settings import load
running = open_explorer(table_reader(load('$folder/warehouse')), port=0)
assert b'demo.countries' in urlopen(running.link).read()
assert urlopen(running.link + 'static/explore.js').status == 200
print('The wheel has the pages of the explorer.')"
cd "$root"
