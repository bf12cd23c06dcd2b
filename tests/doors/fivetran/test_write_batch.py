"""WriteBatch: requirements 64 to 79, section 2.8, decisions F7, F14 and F19."""

import pytest
from destination import HISTORY, LIVE, PLAIN, Place, gives, refusal
from tables_as_text import instant, table

STORED = """
    id  v   n  synced
    1   a   1  T1
    2   b   2  T1
    3   c   3  T1
"""


@pytest.fixture
def place(sender, store, schema):
    return Place.made(sender, store, schema, LIVE, STORED)


@pytest.mark.tables_on("memory", "iceberg")
def test_the_three_kinds_of_change_in_one_batch(place):
    """64 to 68, 71, 75: Replace writes whole rows, update its named columns, delete by key, in this order.
    Absent keys are ignored."""
    place.write(
        replace="""
            id  v    n  synced
            1   new  -  T5
            4   new  4  T5
            5   new  5  T5
        """,
        update="""
            id  v    n  synced
            2   -    .  T6
            4   mod  .  T7
            5   mod  .  T7
            9   new  9  T7
        """,
        delete="""
            id  v  n  synced
            3   -  -  -
            5   -  -  -
            8   -  -  -
        """,
    )
    expected = """
        id  v    n  synced
        1   new  -  T5
        2   -    2  T6
        4   mod  4  T7
    """
    assert gives(expected) == place.rows()


def test_soft_deletes_are_updates(sender, store, schema):
    """67, 77: The flag is an ordinary column. A missing row is not flagged."""
    place = Place.made(
        sender,
        store,
        schema,
        "id:LONG* v synced deleted",
        [{"id": 1, "v": "a", "_fivetran_synced": instant("T1"), "_fivetran_deleted": False}],
    )
    place.write(
        update="""
            id  v  synced  _fivetran_deleted
            1   .  T3      true
            2   .  T3      true
        """
    )
    expected = """
        id  v  synced  _fivetran_deleted
        1   a  T3      true
    """
    assert gives(expected) == place.rows()


def test_rows_with_a_repeated_key_are_merged_in_order(place):
    """72, 73: The last replaced row counts, and updates are combined in order, across the files of a kind."""
    rows = {
        "replace": table("id v n synced \n 1 x 7 T2 \n 6 y 8 T2 \n 1 z - T3 \n 6 - 9 T4"),
        "update": table("id v n synced \n 2 u . T2 \n 2 . 5 T3 \n 2 . . T4 \n 6 w . T5"),
        "delete": table("id \n 3 \n 3"),
    }
    place.send(**{k: [f for row in listed for f in place.files([row])] for k, listed in rows.items()})
    expected = """
        id  v  n  synced
        1   z  -  T3
        2   u  5  T4
        6   w  9  T5
    """
    assert gives(expected) == place.rows()


def test_keyless_tables_match_on_their_row_id(sender, store, schema):
    """69: `_fivetran_id` is an ordinary key."""
    place = Place.made(
        sender, store, schema, "v _fivetran_id* synced", "v _fivetran_id synced \n a x T1 \n a y T1"
    )
    place.write(
        replace="v _fivetran_id synced \n b z T2",
        update="v _fivetran_id synced \n c x T2",
        delete="_fivetran_id \n y",
    )
    assert gives("v _fivetran_id synced \n c x T2 \n b z T2") == place.rows()


def test_columns_outside_of_the_request(sender, store, schema):
    """76: Matched rows keep columns outside the request, and inserted rows get NULL. Absent columns are NULL
    or unmodified by kind."""
    place = Place.made(
        sender,
        store,
        schema,
        "id:LONG* v n:LONG more synced",
        "id v n more synced \n 1 a 1 kept T1 \n 2 b 2 kept T1 \n 3 c 3 kept T1",
    ).having(LIVE)
    place.write(
        replace=[
            *table("id n synced \n 1 7 T2 \n 4 8 T2"),
            *table("id v more synced \n 5 e here T2"),
        ],
        update=[*table("id v \n 2 new"), *table("id more _fivetran_deleted \n 3 here false")],
    )
    expected = """
        id  v    n  more  synced
        1   -    7  kept  T2
        2   new  2  kept  T1
        3   c    3  here  T1
        4   -    8  -     T2
        5   e    -  here  T2
    """
    assert gives(expected) == place.rows()


def test_batches_without_changes_succeed_without_a_commit(place):
    """74: Empty requests, empty files, files with only a header, and rows without a change succeed without a
    commit."""
    before = place.snapshots()
    empty = place.sender.folder / "empty"
    empty.write_bytes(b"")
    from backstory.formats.batch_file import BatchFile

    place.send()
    place.sent(encoding=PLAIN).send(replace=[BatchFile(empty, None)], update=[], delete=[])
    header = place.sender.folder / "header"
    header.write_text("synced,_fivetran_synced,id\n".removeprefix("synced,"))
    place.sent(encoding=PLAIN).send(replace=[BatchFile(header, None)])
    place.write(replace=STORED, update="id v \n 9 x", delete="id \n 9")
    assert place.snapshots() == before
    assert gives(STORED) == place.rows()


@pytest.mark.tables_on("memory", "iceberg")
def test_a_batch_sent_again_changes_nothing(place):
    """78, 79: The same files, new files with the same rows, and a batch after a refused one change nothing."""
    batch = {"replace": "id v n synced \n 4 d 4 T2", "update": "id v \n 1 new", "delete": "id \n 2"}
    files = {kind: place.files(rows) for kind, rows in batch.items()}
    missing = [*files["update"], *place.files("id v \n 1 x")]
    missing[-1].path.unlink()
    refusal(place.reply(**files | {"update": missing}))
    assert gives(STORED) == place.rows()
    place.send(**files)
    once, commits = place.rows(), place.snapshots()
    place.send(**files)
    place.write(**batch)
    assert (place.rows(), place.snapshots()) == (once, commits)
    assert len(commits) == 2


def test_requests_with_a_wrong_key_column_or_table_are_refused(place, sender, store, schema):
    """2.8, F17: A missing or wrong key, an unknown column and a missing table are answered with a task. The
    table is unchanged."""
    files = {"replace": place.files("id v n synced \n 1 x 1 T2")}
    for columns, word in {
        "id:LONG v n:LONG synced": "key",
        "id:LONG v* n:LONG synced": "key",
        "id:LONG* v n:LONG other synced": "other",
    }.items():
        assert word in refusal(place.having(columns).reply(**files))
    nowhere = place.having(LIVE)
    nowhere.table.name = "nowhere"
    assert "nowhere" in refusal(nowhere.reply(**files))
    assert gives(STORED) == place.rows()


def test_write_calls_are_limited_in_the_other_mode(place, sender, store, schema):
    """F19: WriteBatch to a history table may only replace. WriteHistoryBatch to a live table is refused."""
    row = "id v n synced start end active \n 1 a 1 T1 T1 TMAX true"
    history = Place.made(sender, store, schema, HISTORY)
    reduced = history.having(LIVE)
    reduced.write(replace=row)
    assert gives(row) == history.rows()
    assert refusal(reduced.reply(update=reduced.files("id v \n 1 b")))
    assert refusal(reduced.reply(delete=reduced.files("id \n 1")))
    assert gives(row) == history.rows()
    assert refusal(place.having(HISTORY).reply(replace=history.files(row)))
    assert gives(STORED) == place.rows()
