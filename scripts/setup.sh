#!/usr/bin/env bash
# Set up .venv with the locked packages, and Java. With --tests, also set up the programs that only tests need:
# PostgreSQL, MariaDB, Chromium, rsync, Spark 3.5, two more versions of DuckDB (the oldest supported one, and the one
# whose Iceberg extension exists as a package), and a server with S3's interface (moto).
# As root on Debian or Ubuntu, this script installs missing programs. Elsewhere it prints one line with the remedy.
set -euo pipefail
cd "$(dirname "$0")/.."
export UV_SYSTEM_CERTS=1 # a network may have its own certificates

install() { # install "PACKAGE ..." "REMEDY, if this script cannot install them"
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Installing $1 ..." >&2
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $1; } >/dev/null
  else
    echo "$2" >&2
    exit 1
  fi
}

java_found() {
  local java="${JAVA_HOME:+$JAVA_HOME/bin/}java"
  command -v "$java" >/dev/null || return 1
  local number
  number="$("$java" -version 2>&1 | sed -nE 's/.*version "([0-9]+).*/\1/p')"
  [ "$number" -ge 17 ] && [ "$number" -le 23 ]
}

java_found 2>/dev/null || install openjdk-17-jre-headless \
  "Java 17 to 23 is needed: install JDK 17 or 21 (Debian, Ubuntu: apt-get install openjdk-17-jre-headless), or set JAVA_HOME to one."

place() { # place FOLDER LOCK: install the packages of a lock file into a folder of .venv
  [ ".venv/$1/ready" -nt "tests/$2.lock" ] || {
    .venv/bin/uv pip install --quiet --python .venv/bin/python --target ".venv/$1" -r "tests/$2.lock"
    touch ".venv/$1/ready"
  }
}

if [ "${1:-}" = --tests ]; then
  "$0"
  # Each of these waits for the network, so they run at the same time.
  place spark35 spark-3.5 &
  older=$!
  places=()
  for each in duckdb-iceberg duckdb-oldest moto; do
    place "$each" "$each" &
    places+=($!)
  done
  missing=()
  compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || command -v initdb >/dev/null || missing+=(postgresql)
  compgen -G '/usr/sbin/mariadbd' >/dev/null || command -v mariadbd >/dev/null || missing+=(mariadb-server)
  command -v chromium >/dev/null || command -v google-chrome >/dev/null || missing+=(chromium)
  command -v rsync >/dev/null || missing+=(rsync)
  [ ${#missing[@]} = 0 ] || install "${missing[*]}" \
    "The tests need PostgreSQL, MariaDB, Chromium and rsync: install ${missing[*]} (Debian, Ubuntu: apt-get install ${missing[*]})."
  .venv/bin/python scripts/test_jars.py
  wait "$older"
  PYTHONPATH="$PWD/.venv/spark35" .venv/bin/python scripts/test_jars.py --of-sessions
  for each in "${places[@]}"; do wait "$each"; done
  exit 0
fi

if [ .venv/ready -nt requirements.lock ] && [ .venv/ready -nt pyproject.toml ]; then exit 0; fi
python="${PYTHON:-python3}"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed." >&2; exit 1; }
"$python" -c 'import ensurepip, venv' 2>/dev/null || install python3-venv "Python lacks venv: install python3-venv."
began=$SECONDS
packages=$(grep -cE '^[A-Za-z0-9._-]+==' requirements.lock)
echo "Setting up .venv: $packages packages of some 600 MB. This takes a minute or two, only once ..." >&2
quiet=--quiet # uv draws progress bars only on a terminal
[ -t 2 ] && quiet=
[ -x .venv/bin/python ] || "$python" -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check uv
.venv/bin/uv pip sync $quiet --python .venv/bin/python requirements.lock
.venv/bin/uv pip install --quiet --python .venv/bin/python --no-deps --editable .
touch .venv/ready
echo "Ready after $((SECONDS - began)) s." >&2
