#!/usr/bin/env bash
# All tests in two processes: those with the one Spark session, and beside them those that need none of it.
# The others print when all is done. It fails if one half does.
set -uo pipefail
cd "$(dirname "$0")/.."
export BACKSTORY_DEPTH=${BACKSTORY_DEPTH:-gate}
beside="$(mktemp)"
trap 'rm -f "$beside"' EXIT

.venv/bin/python -m pytest -m "not spark" "$@" >"$beside" 2>&1 &
other=$!
trap 'kill "$other" 2>/dev/null; exit 130' INT TERM
failed=0
.venv/bin/python -m pytest -m spark "$@" || failed=1
wait "$other" || failed=1
cat "$beside"
[ "$failed" = 0 ] || df -h "${TMPDIR:-/tmp}" # no space left explains most failures at once
exit "$failed"
