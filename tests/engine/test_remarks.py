"""A commit has the note and the author of its caller, at every door that writes, and no other commit has
them."""

import pyarrow as pa
import pytest

from backstory.engine.run_context import LONGEST, remark_properties, with_remark
from backstory.errors import UsageError
from backstory.reading.blame import blame
from backstory.stores.metadata.catalogs import EmbeddedCatalog
from backstory.stores.metadata.table_rows import TableReader
from backstory.table import Table

FIRST, SECOND = "2024-01-01", "2024-01-02"


def rows(**values):
    return pa.table({"k": list(values), "v": list(values.values())})


def remarks(table: Table):
    """The notes and authors of a table's commits, newest first."""
    return [(each["note"], each["author"]) for each in table.log()]


def test_every_action_has_its_own_note_and_author(python):
    """This includes actions that copy the newest commit's properties: settling, compaction and erasure."""
    into = "remarks.deeds"
    python.snapshot(rows(a=1, b=2), into=into, key="k", at=FIRST, remember=True, note="load", author="ada")
    python.snapshot(rows(a=1, b=3), into=into, at=SECOND)
    table = python.table(into)
    assert remarks(table) == [(None, None), ("load", "ada")]
    table.rewind(FIRST, apply=True, note="wrong file")
    assert remarks(table)[0] == ("wrong file", None)
    python.snapshot(rows(a=1, b=4), into=into, at="2024-01-03")
    python.maintain(into, settle_before=FIRST, note="weekly", author="cron")
    assert remarks(table)[0] == ("weekly", "cron")
    table.forget("a", apply=True, note="request 7", author="bo")
    assert remarks(table)[0] == ("request 7", "bo")
    python.snapshot(rows(b=5), into=into, at="2024-01-04", note="last")
    table.maintain()
    assert remarks(table)[:2] == [(None, None), ("last", None)]


def test_a_feed_and_a_repair_have_notes_and_authors(python):
    into = "remarks.feed"
    changes = pa.table({"k": ["a"], "v": [1], "at": ["2024-01-01T00:00:00Z"]})
    python.apply(changes, into=into, key="k", sequence_by="at", note="fed", author="ada")
    table = python.table(into)
    assert remarks(table) == [("fed", "ada")]
    name = python.store.sql_name(table.name)
    python.spark.sql(f"UPDATE {name} SET is_current = false")
    assert table.repair(apply=True, note="mended").applied
    assert remarks(table)[0] == ("mended", None)


def test_a_run_has_a_note_unless_its_declaration_sets_one(python, tmp_path):
    """This applies to tables and datasets. A model's load stores no note."""
    (tmp_path / "a.csv").write_text("id,name\n1,Ann\n")
    (tmp_path / "manifest.yaml").write_text(
        "kind: DatasetSnapshot\nversion: 1\ncontent:\n  name: remarks.cities\n  kind: Root\n  metadata:\n"
        "    - kind: SetPollingSource\n"
        f"      fetch: {{kind: FilesGlob, path: {tmp_path}/a.csv, eventTime: {{kind: FromSystemTime}}}}\n"
        "      read: {kind: Csv, header: true, ddlSchema: [id BIGINT, name STRING]}\n"
        "      merge: {kind: Ledger, primaryKey: [id]}\n"
    )
    (tmp_path / "histories.yaml").write_text(
        "format: histories/1\n"
        "tables:\n  remarks.plain: {source: a.csv, key: id}\n"
        "  remarks.own: {source: a.csv, key: id, author: crm team}\n"
        "datasets: [manifest.yaml]\n"
    )
    receipts = python.run(tmp_path / "histories.yaml", note="nightly", author="cron")
    assert {each.status for each in receipts} == {"changed"}
    assert remarks(python.table("remarks.plain")) == [("nightly", "cron")]
    assert remarks(python.table("remarks.own")) == [("nightly", "crm team")]
    assert remarks(python.table("remarks.cities"))[0] == ("nightly", "cron")


def test_blame_shows_the_note_and_author_of_the_commit(python, warehouse):
    python.snapshot(rows(a=1), into="remarks.blamed", key="k", at=FIRST, note="first", author="ada")
    table = python.table("remarks.blamed")
    catalog = EmbeddedCatalog(warehouse)
    with python.store.memory.lease() as lease:
        commit = blame(TableReader(catalog.describe(table.name), catalog, lease), "a", "v")["commit"]
    assert (commit["note"], commit["author"]) == ("first", "ada")


def test_inner_notes_and_authors_override_outer_ones_separately():
    with with_remark("outer", "ada"), with_remark(None, "bo"):
        assert remark_properties() == {"backstory.note": "outer", "backstory.author": "bo"}
    assert remark_properties() == {}


@pytest.mark.parametrize("remark", [{"note": "x" * (LONGEST + 1)}, {"author": 7}])
def test_invalid_notes_and_authors_are_refused(python, remark):
    with pytest.raises(UsageError) as refused:
        python.snapshot(rows(a=1), into="remarks.refused", key="k", **remark)
    assert refused.value.code == "bad-option"
