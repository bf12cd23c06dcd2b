"""A real kill: whoever makes a copied warehouse whole is killed amid it, and the second run ends it."""

import json
import shutil
import signal
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

import java
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from backstory.errors import UsageError
from backstory.model.table import TableName
from backstory.stores.catalog_file import read
from backstory.stores.metadata.embedded import EmbeddedCatalog

pytestmark = pytest.mark.process

BACKSTORY = str(Path(sys.executable).parent / "backstory")
NAMES = [f"t{number}" for number in range(12)]
WRITTEN = "crm/*/metadata/*-r????????.*"


def digests(folder):
    return {each: sha256(each.read_bytes()).hexdigest() for each in folder.rglob("*") if each.is_file()}


def rows_of(folder):
    catalog = EmbeddedCatalog(folder)
    return [catalog.count(catalog.describe(TableName("crm", name))).rows for name in NAMES]


def test_killed_amid_it_nothing_has_changed_and_a_second_run_ends_it(tmp_path):
    """Before the catalog changes all tables are refused, after it all are read; the original is never touched."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    (tmp_path / "backstory.toml").write_text(f"[spark]\n{java.in_toml(java.PLANS)}")
    with SqlCatalog("backstory", uri=f"sqlite:///{old}/catalog.db", warehouse=f"file://{old}") as catalog:
        catalog.create_namespace("crm")
        for name in NAMES:
            table = catalog.create_table(f"crm.{name}", pa.schema([("id", pa.int64())]))
            for number in range(5):
                table.append(pa.table({"id": [number]}))
    shutil.copytree(old, new)
    before, held = digests(old), read(new)
    words = [BACKSTORY, "relocate", "--warehouse", new, "--output", "json"]

    killed = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while killed.poll() is None and not list(new.glob(WRITTEN)):
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()

    assert killed.returncode == -signal.SIGKILL
    assert list(new.glob(WRITTEN))
    assert read(new) == held
    with pytest.raises(UsageError, match="was copied or moved from"):
        rows_of(new)
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    assert len(json.loads(done.stdout)["tables"]) == len(NAMES)
    assert digests(old) == before
    shutil.rmtree(old)
    assert rows_of(new) == [5] * len(NAMES)
    # None of the old metadata is left, and of the first run's files none that nobody names.
    named = {each.location.rpartition("/")[2] for each in read(new).entries}
    newest = {max(each.glob("*.metadata.json")).name for each in new.glob("crm/*/metadata")}
    assert named == newest
    assert all("-r" in each.name for each in new.glob("crm/*/metadata/*"))
