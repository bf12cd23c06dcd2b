"""Concurrent writers during upkeep: their added rows are kept, and their removed rows stay removed."""

from datetime import UTC, datetime

import pytest
import tenacity
from committing import snapshots_of
from stored_versions import make_table, put, rows_in, t, version

from backstory.engine.upkeep import compact, erase, expire
from backstory.errors import TryAgain
from backstory.stores.iceberg.erasures import Erasure, Expiry, UnfinishedErasure, columns_with_ids, search
from backstory.stores.iceberg.literals import column
from backstory.stores.iceberg.maintenance import compact as compact_as_loaded
from backstory.stores.iceberg.storage import SharedFolders, is_metadata, listed_files, named_files, strays
from backstory.stores.tables import existing
from backstory.upkeep.maintaining import carried_properties


def values(store, name):
    return sorted((row["id"], row["v"]) for row in rows_in(store, name))


class Other:
    """A foreign program that executes the next of these texts on request. `;` separates statements."""

    def __init__(self, store, name, *statements):
        self.store, self.name, self.left = store, name, list(statements)

    def writes(self, result=None):
        if self.left:
            for statement in self.left.pop(0).split(";"):
                self.store.spark.sql(statement.format(f"backstory.{self.name}"))
        return result


ALONE = SharedFolders(False, ())
APPEND = (
    "INSERT INTO {0} SELECT 9, 'new', valid_from, valid_to, is_current, recorded_at, _memory "
    "FROM {0} WHERE id = 1"
)
DELETE = "DELETE FROM {0} WHERE id = 2"
UPDATE = "UPDATE {0} SET v = 'other' WHERE id = 3"


@pytest.fixture
def scattered(store, monkeypatch, request):
    """Three records in separate files, without pauses between attempts."""
    monkeypatch.setattr(tenacity.nap.time, "sleep", lambda _: None)
    name = make_table(store, request.node.name)
    for number in (1, 2, 3):
        put(store, name, [version(number, "abc"[number - 1], 10) | {"recorded_at": t(number)}])
    return name


def test_a_compaction_is_planned_again_after_another_commit(store, scattered):
    """A plan for an older table is not committed. Planned again, it contains the other writer's rows.

    No file of the first plan is left, including manifests.
    """
    other = Other(store, scattered, APPEND, DELETE, UPDATE)
    while len(other.left) > 1:
        stale = existing(store, scattered)
        other.writes()
        wanted = values(store, scattered)
        with pytest.raises(TryAgain):
            compact_as_loaded(store, stale, {})
        assert values(store, scattered) == wanted

    done = compact(store, scattered, lambda table: other.writes(carried_properties(table)), dry_run=False)

    assert (other.left, values(store, scattered)) == ([], [(1, "a"), (3, "other"), (9, "new")])
    assert done.files_after == 1
    table = existing(store, scattered)
    named = named_files(store, table, former=True)
    left = strays(table, listed_files(table), ALONE, named.now, named.past)
    assert [each for each in left.own.all | left.others if not is_metadata(each)] == []


def test_rows_written_during_an_erasure_are_kept(store, scattered):
    """Between plan and commit, another writer adds and changes a row. Both are kept, and the record is gone."""
    other = Other(store, scattered, f"{APPEND};{UPDATE}")
    of_record = column("id") == 2

    def chosen(table):
        every = search(store, table, column("id") > 0, columns_with_ids(store, table, {"id": ()}), ALONE)
        return Erasure(every, carried_properties(table), {}, UnfinishedErasure())

    erase(store, scattered, chosen, lambda rows: other.writes(rows).where(~of_record))

    assert other.left == []
    assert values(store, scattered) == [(1, "a"), (3, "other"), (9, "new")]
    assert len(snapshots_of(existing(store, scattered))) == 1


def test_an_expiry_keeps_a_commit_that_another_writer_makes_meanwhile(store, scattered):
    """Only the newest snapshot remains, which is the other writer's."""
    other = Other(store, scattered, APPEND)
    every = Expiry(datetime(9999, 1, 1, tzinfo=UTC), 0, [], {})
    expire(store, scattered, lambda _: other.writes(every))
    assert (9, "new") in values(store, scattered)
    assert len(snapshots_of(existing(store, scattered))) == 1
