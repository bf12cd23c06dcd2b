"""Check that each command of a plain installation works, or prints how to install its missing extra."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

MODEL = "format: histories/1\ntables:\n  a.b: {source: a.csv, key: id}\n"
# Any arguments suffice that reach the import of the missing package.
COMMANDS = """
run
init a.csv
add a.yaml
pull
inspect a
list
tables
current a.b
as-of a.b 2026-01-01
diff a.b 2026-01-01 2026-01-02
timeline a.b 1
changes a.b
log a.b
check a.b
maintain a.b
runs
fresh
snapshot a.csv --into a.b --key id
apply a.jsonl --into a.b --key id --sequence-by ts
historize a.yaml
explore --port 0
demo
serve --port 0
send a.csv a.csv --to 127.0.0.1:1 --schema s --table t --key id
"""

# The extras that each command needs.
EXTRAS = {
    "run": "spark",
    "pull": "spark,odf",
    "add": "spark,odf",
    "historize": "spark,historize",
    "serve": "spark,fivetran",
    "send": "fivetran",
}


def faults(program: str, folder: Path) -> list[str]:
    """The commands that fail with a bug, or that lack an extra and do not print how to install it."""
    (folder / "a.csv").write_text("id,x\n1,1\n")
    (folder / "a.jsonl").write_text('{"id": 1, "ts": "2026-01-01T00:00:00Z"}\n')
    (folder / "histories.yaml").write_text(MODEL)
    (folder / "a.yaml").write_text("a: 1\n")
    (folder / "warehouse").mkdir()
    wrong = []
    for line in filter(None, COMMANDS.splitlines()):
        words = [program, *line.split(), "--output", "json"]
        done = subprocess.run(
            words, cwd=folder, env=os.environ, capture_output=True, text=True, check=False, timeout=120
        )
        output = done.stdout + done.stderr
        lacks = "is not installed" in output
        if "Traceback" in output or '"bug"' in output or (lacks and "pip install" not in output):
            wrong.append(f"{line}: {output.strip()[-300:]}")
        extras = EXTRAS.get(line.split()[0])
        if extras and f"[{extras}]" not in output:
            wrong.append(f"{line}: does not name [{extras}]: {output.strip()[-300:]}")
        if lacks and done.returncode != 2:  # noqa: PLR2004 - the code of usage errors
            wrong.append(f"{line}: exit code {done.returncode}")
    return wrong


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        messages = faults(sys.argv[1], Path(place))
    if messages:
        sys.exit("Commands of a plain installation do not name their missing extra:\n" + "\n".join(messages))
    print(json.dumps({"commands": len(COMMANDS.split("\n")) - 2, "wrong": 0}))
