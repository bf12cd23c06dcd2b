#!/usr/bin/env bash
# The tests in one process more than there are cores, for many wait: what needs Python alone first, then the longest files.
# Files in which a test failed run once more, alone; tests that pass then are named as flaky.
set -euo pipefail
cd "$(dirname "$0")/.."
export BACKSTORY_DEPTH=${BACKSTORY_DEPTH:-gate} # tests/support/depth.py
unset PYTHONDONTWRITEBYTECODE # to write no bytecode is to compile every test and module anew, in each process
workers=${BACKSTORY_WORKERS:-$(($(nproc) + 1))}
[ "$workers" -le 4 ] || workers=4 # each may have a Spark of its own, of some 1.5 GB
names=$(mktemp -d)
trap 'rm -rf "$names"' EXIT

try() { # try NAMES PYTEST'S ARGUMENTS...: the names of the tests that fail are written to a file
  BACKSTORY_FAILED="$names/$1" .venv/bin/python -m pytest "${@:2}"
}

# What needs no Java is tried first, meanwhile.
{ .venv/bin/python scripts/class_archive.py || echo "Java starts without an archive of its classes: slower, and no other." >&2; } &
failed=0
try first -n "$workers" --dist loadfile --no-loadscope-reorder "$@" || failed=$?
wait
[ "$failed" -ne 0 ] || exit 0
df -h "${TMPDIR:-/tmp}" # no space left explains most failures at once
# Any other code than 1 is of a run that did not come to its end.
[ "$failed" -eq 1 ] && [ -s "$names/first" ] || exit "$failed"
echo "Files in which a test failed run once more, alone:"
failed=0
BACKSTORY_AGAIN="$names/first" try second "$@" || failed=$?
[ -e "$names/second" ] || exit "$failed"
flaky=$(grep -vxFf "$names/second" "$names/first" || true)
if [ -n "$flaky" ]; then
  line=$(printf '!%.0s' {1..100})
  printf '\n%s\nFLAKY: failed beside others, passed alone. Mend these before anything else (CONTRIBUTING.md):\n\n%s\n%s\n' \
    "$line" "$flaky" "$line"
fi
exit "$failed"
