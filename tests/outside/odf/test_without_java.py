"""Commands in separate processes without Java."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from histories_as_text import written
from manifesting import manifest, polling

from backstory.doors.odf.door import IngestRequest, pull_all
from backstory.model.layout import Layout

BACKSTORY = str(Path(sys.executable).parent / "backstory")
READ = "{kind: csv, header: true, schema: {fields: [{name: id, type: Int32}, {name: city, type: String}]}}"
SOURCE = polling("{kind: snapshot, primaryKey: [id]}", fetch="{kind: url, url: alone.csv}", read=READ)


@pytest.mark.process
def test_small_datasets_need_none(store, warehouse, tmp_path):
    """Each is the first query of its process, and exits with 0."""
    (tmp_path / "alone.csv").write_text("id,city\n1,Bern\n2,Rome\n")
    path = tmp_path / "alone.yaml"
    path.write_text(manifest(SOURCE).replace("name: cities", "name: alone"))
    pull_all(store, [path], IngestRequest(), namespace="without")
    table = str(written(store, "without_java", Layout.VERSIONS, "k v from to recorded\na x T1 - T1\n"))
    asked = [
        ["list"],
        ["tail", "alone"],
        ["inspect", "alone"],
        ["verify", "alone"],
        ["pull", "alone"],
        ["pull", str(path)],
    ]
    asked = [[*words, "--namespace", "without"] for words in asked] + [["repair", table]]

    for words in asked:
        done = subprocess.run(
            [BACKSTORY, *words, "--warehouse", str(warehouse), "--output", "json"],
            cwd=tmp_path,
            env={"PATH": "", "JAVA_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, "Spark" in done.stderr) == (0, False), (words, done.stderr)
        assert json.loads(done.stdout)
