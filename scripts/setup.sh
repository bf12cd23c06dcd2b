#!/usr/bin/env bash
# Set up .venv with the locked packages, and Java; with --tests also what only tests need: a PostgreSQL and
# a MariaDB server, Chromium, rsync, Spark 3.5, DuckDB in the oldest version that is supported and in that for which its
# Iceberg extension is packed, and a server of S3's interface (moto).
# As root on Debian or Ubuntu it installs what is missing; elsewhere it says in one line what to do.
set -euo pipefail
cd "$(dirname "$0")/.."
export UV_SYSTEM_CERTS=1 # a network may have certificates of its own

install() { # install "PACKAGE ..." "what to do where this script cannot install them"
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

place() { # place FOLDER LOCK: the packages of a lock in a folder of .venv
  [ ".venv/$1/ready" -nt "tests/$2.lock" ] || {
    .venv/bin/uv pip install --quiet --python .venv/bin/python --target ".venv/$1" -r "tests/$2.lock"
    touch ".venv/$1/ready"
  }
}

if [ "${1:-}" = --tests ]; then
  "$0"
  # Each waits for the network, so all of them do at once.
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
    "The tests start servers of PostgreSQL and MariaDB, drive Chromium and copy by rsync: install ${missing[*]} (Debian, Ubuntu: apt-get install ${missing[*]})."
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
echo "Setting up .venv, once: $packages packages, some 600 MB, most of it Spark; a minute or two ..." >&2
quiet=--quiet # uv draws bars of what is fetched and how much is left, for a terminal alone
[ -t 2 ] && quiet=
[ -x .venv/bin/python ] || "$python" -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check uv
.venv/bin/uv pip sync $quiet --python .venv/bin/python requirements.lock
.venv/bin/uv pip install --quiet --python .venv/bin/python --no-deps --editable .
touch .venv/ready
echo "Ready after $((SECONDS - began)) s." >&2
