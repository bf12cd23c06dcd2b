#!/usr/bin/env bash
# What Fivetran's build runs before it packs main.py: lay out ./protos, generate the stubs from them.
set -euo pipefail
cd "$(dirname "$0")"
python="${PYTHON:-python3}"
mkdir -p protos
cp src/backstory/doors/fivetran/wire/*.proto protos/
"$python" -m pip install --quiet --disable-pip-version-check "$(grep -o 'grpcio-tools==[0-9.]*' pyproject.toml)"
"$python" scripts/generate_wire.py
