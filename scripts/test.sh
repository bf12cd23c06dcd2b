#!/usr/bin/env bash
# All tests in two processes: those with the one Spark session, and beside them those that need none of it.
# The others print when all is done. It fails if one half does. How long it takes is known from the last time.
set -uo pipefail
cd "$(dirname "$0")/.."
export BACKSTORY_DEPTH=${BACKSTORY_DEPTH:-gate} # tests/depth.py
beside="$(mktemp)"
trap 'rm -f "$beside"' EXIT
known=.pytest_cache/minutes
if [ $# -gt 0 ]; then
  echo "Chosen tests, in two processes: with Spark here, the others beside them." >&2
elif [ -s "$known" ]; then
  echo "All tests, in two processes: with Spark here, the others beside them. The last time it took $(cat "$known") minutes." >&2
else
  echo "All tests, in two processes: with Spark here, the others beside them. On two cores it takes most of an hour." >&2
fi
echo "The others write into $beside until all is done." >&2

.venv/bin/python -m pytest -m "not spark" "$@" >"$beside" 2>&1 &
other=$!
trap 'kill "$other" 2>/dev/null; exit 130' INT TERM
failed=0
.venv/bin/python -m pytest -m spark "$@" || failed=1
wait "$other" || failed=1
cat "$beside"
if [ "$failed" = 0 ] && [ $# = 0 ]; then mkdir -p .pytest_cache && echo $(((SECONDS + 59) / 60)) >"$known"; fi
[ "$failed" = 0 ] || df -h "${TMPDIR:-/tmp}" # no space left explains most failures at once
exit "$failed"
