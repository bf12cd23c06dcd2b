"""Truncate: requirements 41 to 49, section 2.7, decision F6."""

from datetime import timedelta

import pytest
from destination import HISTORY, LIVE, Place, gives, refusal
from tables_as_text import instant

from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk

DONE = sdk.TruncateResponse(success=True)
ROWS = """
    id  v  n  synced
    1   a  1  T1
    2   b  2  T3-1
    3   c  3  T3-0.001
    4   d  4  T3
    5   e  5  T3+1
    6   f  6  -
"""


@pytest.mark.tables_on("memory", "iceberg")
def test_a_hard_truncate_deletes_only_rows_before_the_bound(sender, store, schema):
    """42, 44, 46, 49: Rows before the bound are deleted, and all others are kept. A repeated truncate makes
    no commit."""
    place = Place.made(sender, store, schema, LIVE, ROWS)
    assert place.truncate(instant("T3")) == DONE
    expected = "id v n synced \n 4 d 4 T3 \n 5 e 5 T3+1 \n 6 f 6 -"
    assert gives(expected) == place.rows()
    commits = place.snapshots()
    assert len(commits) == 2
    assert commits[1]["backstory.door"] == "fivetran"
    assert '"deleted": 3' in commits[1]["backstory.counts"]
    assert place.truncate(instant("T3")) == DONE
    assert place.truncate(instant("T0").replace(year=1970, month=1, day=1)) == DONE
    assert place.snapshots() == commits
    upsert = place.files("id v n synced \n 1 new 9 T5")
    for _ in range(2):
        place.send(replace=upsert)
        assert place.truncate(instant("T3")) == DONE
        assert gives(f"{expected} \n 1 new 9 T5") == place.rows()


@pytest.mark.tables_on("memory", "iceberg")
def test_digits_below_a_microsecond_are_cut_off(sender, store, schema):
    """F6, 44: The bound and the stored times are rounded down to microseconds."""
    place = Place.made(sender, store, schema, LIVE, "id v n synced \n 1 a 1 T3+0.25 \n 2 a 1 T3+0.251")
    request = sdk.TruncateRequest(
        schema_name=schema, table_name=place.table.name, synced_column="_fivetran_synced"
    )
    request.utc_delete_before.FromDatetime(instant("T3"))
    request.utc_delete_before.nanos = 250_999
    assert sender.stub.Truncate(request) == DONE
    assert len(place.rows()) == 2
    request.utc_delete_before.nanos = 251_000
    assert sender.stub.Truncate(request) == DONE
    assert [row["id"] for row in place.rows()] == [2]


@pytest.mark.parametrize("flag", ["_fivetran_deleted", "is deleted?"])
@pytest.mark.tables_on("memory", laws="iceberg")
def test_soft_truncate_sets_the_named_flag(sender, store, schema, flag):
    """43, 45, 46: The same rows get TRUE in the named flag, and are otherwise unchanged. A repeated truncate
    makes no commit."""
    columns = "id:LONG* synced deleted"
    place = Place.made(sender, store, schema, columns)
    if flag != "_fivetran_deleted":
        from destination import add_column

        sender_table = place.table
        add_column(sender_table, flag, "BOOLEAN")
        sender.alter(schema, sender_table)
    times = ["T1", "T2", "T3-1", "T3", "T9"]
    flags = [None, False, True, False, None]
    rows = [
        {"id": i, "_fivetran_synced": instant(t), "_fivetran_deleted": None} | {flag: f}
        for i, (t, f) in enumerate(zip(times, flags, strict=True))
    ]
    rows.append(dict.fromkeys(rows[0]) | {"id": 9})
    place.write(replace=rows)
    assert place.truncate(instant("T3"), flag) == DONE
    expected = [row | ({flag: True} if row["id"] < 3 else {}) for row in rows]
    assert gives(expected) == place.rows()
    commits = place.snapshots()
    assert place.truncate(instant("T3"), flag) == DONE
    assert place.snapshots() == commits


VERSIONS = """
    id  v  n  synced  start  end     active
    1   a  1  T1      T1     T2-1    false
    1   b  1  T2      T2     TMAX    true
    2   c  1  T3      T2     TMAX    true
    3   d  1  T2      T1     T2      false
    4   e  1  -       T1     TMAX    true
"""


@pytest.mark.tables_on("memory", "iceberg")
def test_soft_truncate_closes_the_versions_of_a_history(sender, store, schema):
    """48: Active versions synced before the bound end at it, and are otherwise unchanged. The next batch
    loads."""
    place = Place.made(sender, store, schema, HISTORY, VERSIONS)
    for _ in range(2):
        assert place.truncate(instant("T3"), "_fivetran_deleted") == DONE
        closed = VERSIONS.replace("T2     TMAX    true\n    2", "T2     T3      false\n    2")
        assert gives(closed) == place.rows()
    assert len(place.snapshots()) == 2
    place.write(
        earliest="id start \n 1 T5",
        replace="id v n synced start end active \n 1 new 2 T6 T5 TMAX true",
    )
    assert gives(f"{closed.rstrip()} \n 1 new 2 T6 T5 TMAX true") == place.rows()


def test_a_history_can_be_truncated_by_row(sender, store, schema):
    """42, 2.7: A hard truncate deletes versions by their synced time. A soft one flags them if the table has
    the flag."""
    place = Place.made(sender, store, schema, HISTORY, VERSIONS)
    flagged = place.alter(f"{HISTORY} gone:BOOLEAN")
    assert flagged.truncate(instant("T2"), "gone") == DONE
    assert [row["id"] for row in place.rows() if row["gone"]] == [1]
    assert place.truncate(instant("T3")) == DONE
    assert {row["v"] for row in place.rows()} == {"c", "e"}


def test_truncates_of_missing_tables_are_ignored(sender, store, schema):
    """41: A truncate of a missing table or schema succeeds, in both modes."""
    place = Place.made(sender, store, schema)
    missing = place.having(LIVE)
    missing.table.name = "missing"
    nowhere = Place(sender, store, "nowhere", place.table)
    for soft in (None, "_fivetran_deleted"):
        assert missing.truncate(instant("T3"), soft) == DONE
        assert nowhere.truncate(instant("T3"), soft) == DONE
    assert place.truncate(instant("T3")) == DONE
    assert place.snapshots() == []


def test_malformed_requests_wipe_nothing(sender, store, schema):
    """47, F17: A request without a bound, a valid synced column or the flag is answered with a task."""
    place = Place.made(sender, store, schema, LIVE, ROWS)
    late = instant("T9") + timedelta(days=900)
    commits = place.snapshots()
    assert refusal(place.truncate(None))
    assert refusal(place.truncate(late, synced=""))
    assert "nothing" in refusal(place.truncate(late, synced="nothing"))
    assert refusal(place.truncate(late, synced="v"))
    assert "_fivetran_deleted" in refusal(place.truncate(late, "_fivetran_deleted"))
    assert refusal(place.truncate(late, "v"))
    assert refusal(place.truncate(late, ""))
    assert gives(ROWS) == place.rows()
    assert place.snapshots() == commits


@pytest.mark.parametrize(
    ("columns", "flag", "rows"),
    [
        ("id:LONG* gone:BOOLEAN* synced", "gone", "id gone synced \n 1 false T1 \n 1 true T1"),
        (
            "id:LONG* synced start* end active",
            "_fivetran_active",
            "id start end active synced \n 1 T1 T2 false T1",
        ),
    ],
    ids=["key", "history"],
)
def test_key_and_layout_columns_cannot_be_truncation_flags(sender, store, schema, columns, flag, rows):
    """47: A soft truncate that would merge two keys or reopen a deleted version is answered with a task."""
    place = Place.made(sender, store, schema, columns, rows)
    assert flag in refusal(place.truncate(instant("T9"), flag))
    assert gives(rows) == place.rows()


def test_a_bound_beyond_the_calendar_is_not_an_internal_error(sender, store, schema):
    """11, F17: A bound outside the calendar is answered with a task or compared, but never with INTERNAL."""
    place = Place.made(sender, store, schema, LIVE, ROWS)
    request = sdk.TruncateRequest(
        schema_name=schema, table_name=place.table.name, synced_column="_fivetran_synced"
    )
    request.utc_delete_before.seconds = 2**60
    assert sender.stub.Truncate(request).WhichOneof("response") == "task"
    request.utc_delete_before.seconds = -(2**60)
    assert sender.stub.Truncate(request).WhichOneof("response") in {"task", "success"}
    assert gives(ROWS) == place.rows()
