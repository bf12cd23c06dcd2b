"""`backstory snapshot --retype` in a process that is killed."""

import json

import pytest
from commands import command, configure, locked
from pyiceberg.catalog.sql import SqlCatalog

pytestmark = pytest.mark.process


def rows(catalog):
    """The type of the column and the values of each version, read by another program."""
    with SqlCatalog("backstory", uri=f"sqlite:///{catalog}", init_catalog_tables="false") as opened:
        table = opened.load_table("crm.t").scan().to_arrow()
    versions = ((row["id"], row["v"], row["valid_to"] is None) for row in table.to_pylist())
    return str(table.schema.field("v").type), sorted(versions)


def test_another_type_is_taken_when_it_is_named_and_a_kill_leaves_the_table_as_before(tmp_path):
    """A fraction in a column of whole numbers is refused with `--retype` as the remedy, which then works."""
    configure(tmp_path)
    warehouse, source = tmp_path / "warehouse", tmp_path / "copy.csv"
    catalog = warehouse / "catalog.db"
    words = ["snapshot", source, "--into", "crm.t", "--key", "id", "--warehouse", warehouse]

    def ended(*more):
        with command(tmp_path, *words, *more) as snapshot:
            told = snapshot.end()
            assert not [*snapshot.temp.glob("*.log")], "Java's log goes with its command"
            return told

    source.write_text("id,v\n1,1\n2,2\n")
    assert ended("--at", "2026-01-01")[0] == 0
    before = rows(catalog)
    source.write_text("id,v\n1,1.5\n2,2\n")
    code, said, _ = ended("--at", "2026-01-02")
    error = json.loads(said)["error"]
    assert (code, "--retype" in error["message"] + error["remedy"]) == (3, True), error
    assert rows(catalog) == before == ("int64", [(1, 1, True), (2, 2, True)])

    retyped = ["--at", "2026-01-02", "--retype", "v=DOUBLE"]
    with command(tmp_path, *words, *retyped) as killed, locked(catalog):
        killed.reach(lambda: len([*warehouse.rglob("*.metadata.json")]) > 1)
        killed.kill()
    assert rows(catalog) == before
    code, said, warned = ended(*retyped)
    assert (code, json.loads(said)["counts"]["changed"]) == (0, 1), warned
    assert rows(catalog) == ("double", [(1, 1.0, False), (1, 1.5, True), (2, 2.0, True)])
