"""`backstory snapshot --retype` in a process that is killed."""

import json

import pytest
from commands import command, configure, locked
from pyiceberg.catalog.sql import SqlCatalog

from backstory.errors import Refused

pytestmark = pytest.mark.process


def rows(catalog):
    """The type of the column and the values of each version, read by another program."""
    with SqlCatalog("backstory", uri=f"sqlite:///{catalog}", init_catalog_tables="false") as opened:
        table = opened.load_table("retyped.t").scan().to_arrow()
    versions = ((row["id"], row["v"], row["valid_to"] is None) for row in table.to_pylist())
    return str(table.schema.field("v").type), sorted(versions)


def test_a_named_retype_is_applied_and_a_kill_leaves_the_table_unchanged(python, warehouse, tmp_path):
    """A fraction in a column of whole numbers is refused with `--retype` as the remedy, which then works."""
    configure(tmp_path)
    source, catalog = tmp_path / "copy.csv", warehouse / "catalog.db"
    options = {"into": "retyped.t", "key": "id"}
    source.write_text("id,v\n1,1\n2,2\n")
    python.snapshot(source, at="2026-01-01", **options)
    before = rows(catalog)
    source.write_text("id,v\n1,1.5\n2,2\n")
    with pytest.raises(Refused, match="retype"):
        python.snapshot(source, at="2026-01-02", **options)
    assert rows(catalog) == before == ("int64", [(1, 1, True), (2, 2, True)])

    words = ["snapshot", source, "--into", "retyped.t", "--key", "id", "--warehouse", warehouse]
    words += ["--at", "2026-01-02", "--retype", "v=DOUBLE"]
    metadata = warehouse / "retyped" / "t" / "metadata"
    files = len([*metadata.glob("*.metadata.json")])
    with command(tmp_path, *words) as killed, locked(catalog):
        killed.reach(lambda: len([*metadata.glob("*.metadata.json")]) > files, pause=0.2)
        killed.kill()
    assert rows(catalog) == before
    with command(tmp_path, *words) as snapshot:
        code, output, warned = snapshot.end()
        assert not [*snapshot.temp.glob("*.log")], "Java's log goes with its command"
    assert (code, json.loads(output)["counts"]["changed"]) == (0, 1), warned
    assert rows(catalog) == ("double", [(1, 1.0, False), (1, 1.5, True), (2, 2.0, True)])
