#!/usr/bin/env bash
# Run the tests in one process more than there are cores, because many tests wait.
# Files that need only Python run first, then the longest files (tests/support/pace.py).
# Files with a failed test run once more, one after the other. Tests that pass then are printed as flaky.
set -euo pipefail
cd "$(dirname "$0")/.."
export BACKSTORY_DEPTH=${BACKSTORY_DEPTH:-gate} # tests/support/depth.py
unset PYTHONDONTWRITEBYTECODE # otherwise each process would compile all tests and modules again
workers=${BACKSTORY_WORKERS:-$(($(nproc) + 1))}
[ "$workers" -le 4 ] || workers=4 # each may have a Spark of its own, of some 1.5 GB
names=$(mktemp -d)
trap 'rm -rf "$names"' EXIT

try() { # try NAMES PYTEST'S ARGUMENTS...: write the names of failed tests to a file
  BACKSTORY_FAILED="$names/$1" .venv/bin/python -m pytest "${@:2}"
}

# The first tests need no Java, so the archive is made at the same time.
{ .venv/bin/python scripts/class_archive.py || echo "Java starts without an archive of its classes, which is slower." >&2; } &
failed=0
try first -n "$workers" --dist loadfile --no-loadscope-reorder "$@" || failed=$?
wait
[ "$failed" -ne 0 ] || exit 0
df -h "${TMPDIR:-/tmp}" # a full disk explains most failures
# A code other than 1 means that the run did not reach its end.
[ "$failed" -eq 1 ] && [ -s "$names/first" ] || exit "$failed"
echo "Run files with a failed test once more, one after the other:"
failed=0
BACKSTORY_AGAIN="$names/first" try second "$@" || failed=$?
[ -e "$names/second" ] || exit "$failed"
flaky=$(grep -vxFf "$names/second" "$names/first" || true)
if [ -n "$flaky" ]; then
  line=$(printf '!%.0s' {1..100})
  printf '\n%s\nFLAKY: these tests failed, and then passed alone. Fix them before anything else (CONTRIBUTING.md):\n\n%s\n%s\n' \
    "$line" "$flaky" "$line"
fi
exit "$failed"
