"""An embedded warehouse detects whether its folder is the one of its tables."""

import shutil
import sqlite3
from contextlib import closing
from urllib.parse import quote

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from backstory.errors import UsageError
from backstory.model.table import TableName
from backstory.stores import embedded_catalog
from backstory.stores.embedded_catalog import (
    FOLDERS,
    read_catalog,
    remember,
    remember_if_writable,
    warehouse_folders,
)
from backstory.stores.metadata.catalogs import EmbeddedCatalog

T = TableName("crm", "t")
ROWS = pa.table({"id": [1, 2]})


def made(folder, name="crm.t", location=None, spelled="file://"):
    """A warehouse with a table from another program, without a recorded folder."""
    folder.mkdir(parents=True, exist_ok=True)
    address = f"sqlite:///{quote(str(folder))}/catalog.db"
    with SqlCatalog("backstory", uri=address, warehouse=f"{spelled}{folder}") as catalog:
        catalog.create_namespace_if_not_exists("crm")
        catalog.create_table(name, ROWS.schema, location=location).append(ROWS)
    return folder


def rows(folder, table=T):
    catalog = EmbeddedCatalog(folder)
    description = catalog.describe(table)
    return catalog.count(description).rows


def refused(folder, table=T):
    with pytest.raises(UsageError) as error:
        EmbeddedCatalog(folder).describe(table)
    assert error.value.code == "warehouse-moved"
    assert error.value.exit_code == 2
    return error.value


def copied(folder, to):
    shutil.copytree(folder, to, symlinks=True)
    return to


@pytest.mark.parametrize("remembers", [True, False])
@pytest.mark.parametrize("original", ["stands", "gone", "another"])
def test_a_warehouse_in_another_folder_is_refused(tmp_path, remembers, original):
    """A copy or move is detected by recorded folders or table locations, whatever is in the former folder."""
    old = made(tmp_path / "a b%20ü")
    if remembers:
        remember(old)
    new = copied(old, tmp_path / "new")
    if original != "stands":
        shutil.rmtree(old)
    if original == "another":
        made(old)

    error = refused(new)

    assert f"The warehouse {new} was copied or moved from {old}" in error.message
    assert "`backstory relocate`" in error.remedy
    if original != "gone":
        assert rows(old) == 2
    shutil.rmtree(old, ignore_errors=True)
    shutil.move(new, old)
    assert rows(old) == 2  # moved back


@pytest.mark.parametrize("remembers", [True, False])
def test_a_table_outside_the_warehouse_is_read(tmp_path, remembers):
    """It is in no former folder of the warehouse, before and after a move."""
    old = made(tmp_path / "old")
    made(old, "crm.far", f"file://{tmp_path}/far/crm/far")
    if remembers:
        remember(old)
    new = copied(old, tmp_path / "new")

    assert rows(old, TableName("crm", "far")) == rows(new, TableName("crm", "far")) == 2
    refused(new)


def test_one_folder_may_have_several_names(tmp_path):
    """A link to the folder, detours in its path and a trailing slash mean the same folder."""
    real = made(tmp_path / "real")
    (tmp_path / "link").symlink_to(real)
    (tmp_path / "x").mkdir()
    for each in (tmp_path / "link", tmp_path / "x" / ".." / "real", tmp_path / "real/"):
        remember(each)
        assert rows(each) == 2
    made(tmp_path / "link", "crm.by_link")
    for each in (real, tmp_path / "link", tmp_path / "x" / ".." / "real"):
        assert rows(each, TableName("crm", "by_link")) == 2


def test_a_link_changed_to_the_copy_gives_no_access_to_the_original(tmp_path):
    """The present target of a link counts, not its former one."""
    real, link = made(tmp_path / "real"), tmp_path / "link"
    link.symlink_to(real)
    made(link, "crm.by_link")
    remember(real)
    remember(link)
    copy = copied(real, tmp_path / "copy")
    link.unlink()
    link.symlink_to(copy)

    for here in (link, copy):
        assert rows(here, TableName("crm", "by_link")) == 2
        refused(here)  # crm.t was put below `real`
    refused(real, TableName("crm", "by_link"))
    assert rows(real) == 2


def test_a_copy_of_a_copy_is_refused(tmp_path):
    """Every folder with tables is recorded, whichever of them still exists."""
    first = made(tmp_path / "1")
    remember(first)
    second = copied(first, tmp_path / "2")
    made(second, "crm.later")
    remember(second)
    third = copied(second, tmp_path / "3")

    assert rows(second, TableName("crm", "later")) == 2
    refused(second)
    refused(third)
    refused(third, TableName("crm", "later"))


@pytest.mark.parametrize("remembers", [True, False])
@pytest.mark.parametrize(("old", "new"), [("a", "a/b"), ("a/b", "c")])
def test_a_warehouse_inside_another_is_independent(tmp_path, old, new, remembers):
    """The deepest recorded folder above a table counts."""
    made(tmp_path / old)
    if remembers:
        remember(tmp_path / old)
    shutil.copytree(tmp_path / old, tmp_path / "between")
    shutil.move(tmp_path / "between", tmp_path / new)

    refused(tmp_path / new)
    made(tmp_path / new, "crm.own")
    remember(tmp_path / new)

    assert rows(tmp_path / new, TableName("crm", "own")) == 2
    assert rows(tmp_path / old) == 2
    refused(tmp_path / new)


def test_a_copy_taken_during_a_write_is_refused_too(tmp_path):
    """If the metadata is newer than the copied files, the older files show the location."""
    old = made(tmp_path / "old")
    new = tmp_path / "new"
    copied(old, new)
    with SqlCatalog("backstory", uri=f"sqlite:///{old}/catalog.db") as catalog:
        catalog.load_table("crm.t").append(ROWS)
    shutil.copy(old / "catalog.db", new / "catalog.db")

    refused(new)


def test_recorded_folders_do_not_affect_other_programs(tmp_path, monkeypatch):
    """pyiceberg reads and writes the catalog. Nothing is created without a catalog, or in a locked one."""
    folder = made(tmp_path / "w")
    remember(folder)
    assert read_catalog(folder).folders == [str(folder)]
    made(folder, "crm.more")
    assert rows(folder, TableName("crm", "more")) == 2

    remember_if_writable(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    with closing(sqlite3.connect(folder / "catalog.db")) as connection, connection:
        connection.execute(f"DROP TABLE {FOLDERS}")
    catalog = (folder / "catalog.db").read_bytes()
    monkeypatch.setattr(embedded_catalog, "PATIENCE", 0)
    with closing(sqlite3.connect(folder / "catalog.db", isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")  # another writer is at work
        remember_if_writable(folder)
        connection.rollback()
    assert (folder / "catalog.db").read_bytes() == catalog
    assert warehouse_folders(folder).former == frozenset()
    assert rows(folder) == 2
