#!/usr/bin/env bash
# The tests in as many processes as there are cores: what needs Python alone first, then the longest files.
set -euo pipefail
cd "$(dirname "$0")/.."
export BACKSTORY_DEPTH=${BACKSTORY_DEPTH:-gate} # tests/depth.py
unset PYTHONDONTWRITEBYTECODE # to write no bytecode is to compile every test and module anew, in each process
workers=${BACKSTORY_WORKERS:-$(nproc)}
[ "$workers" -le 4 ] || workers=4 # each may have a Spark of its own, of some 1.5 GB

# What needs no Java is tried first, meanwhile.
{ .venv/bin/python scripts/class_archive.py || echo "Java starts without an archive of its classes: slower, and no other." >&2; } &
failed=0
.venv/bin/python -m pytest -n "$workers" --dist loadfile --no-loadscope-reorder "$@" || failed=$?
wait
[ "$failed" -ne 0 ] || exit 0
df -h "${TMPDIR:-/tmp}" # no space left explains most failures at once
exit "$failed"
