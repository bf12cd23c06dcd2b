"""The requirements of a store for every Iceberg and every catalog: one walk through the life of tables."""

from destination import HISTORY, LIVE, VERSIONS, Place, gives
from tables_as_text import instant

from backstory.errors import TryAgain
from backstory.stores.iceberg.store import IcebergStore, existing
from backstory.table import Table
from backstory.testing.sender import Sender

STORED = "id v n synced \n 1 a 1 T1 \n 2 b 2 T1 \n 3 c 3 T1 \n 4 d 4 T1"


def check(sender: Sender, store: IcebergStore, schema: str) -> None:
    """Create, write, read slices, commit, evolve, hide by vectors, keep ids, rewrite.

    Raises the first error.
    """
    live(sender, store, schema)
    history(sender, store, schema)
    other_writers(sender, store, schema)


def live(sender: Sender, store: IcebergStore, schema: str) -> None:
    place = Place.made(sender, store, schema, LIVE, STORED)
    first = row_ids(place)
    place.write(replace="id v n synced \n 1 x 1 T2", update="id v \n 2 y", delete="id \n 3")
    assert place.rows() == gives("id v n synced \n 1 x 1 T2 \n 2 y 2 T1 \n 4 d 4 T1")
    assert row_ids(place) == {key: first[key] for key in (1, 2, 4)}
    assert vectors(place) == {"PUFFIN"}
    place.write(delete="id \n 4")  # the new vector replaces the older one of the same file
    columns = f"{LIVE.replace('n:LONG', 'n:STRING')} more:DOUBLE"
    place = place.alter(columns)  # the numbers are rewritten as texts
    place.write(replace="id v synced \n 5 e T3")
    compact(place)
    assert {row["id"]: row["n"] for row in place.rows()} == {1: "1", 2: "2", 5: None}
    changes(Table(store, place.name))


def changes(table: Table) -> None:
    """Check that the changes of all commits sum up to the rows, and that a cursor moves without a snapshot."""
    with table.changes(cursor="reader", net=True) as feed:
        rows = feed.frame.toArrow().to_pylist()
    assert {row["id"]: (row["n"], row["_change_type"]) for row in rows} == {
        1: ("1", "insert"),
        2: ("2", "insert"),
        5: (None, "insert"),
    }
    with table.changes(cursor="reader") as feed:
        assert (feed.since, feed.frame.count()) == (feed.until, 0)


def history(sender: Sender, store: IcebergStore, schema: str) -> None:
    place = Place.made(sender, store, schema, HISTORY, VERSIONS)
    place.write(
        earliest="id start \n 1 T5", replace="id v n start end active synced \n 1 z 9 T5 TMAX true T5"
    )
    place.write(delete="id end \n 3 T7")
    active = {row["id"]: row["v"] for row in place.rows() if row["_fivetran_active"]}
    assert active == {1: "z"}
    assert len(place.rows()) == 5
    assert place.truncate(instant("T9"), soft="_fivetran_deleted").success
    assert not any(row["_fivetran_active"] for row in place.rows())


def other_writers(sender: Sender, store: IcebergStore, schema: str) -> None:
    place = Place.made(sender, store, schema, LIVE, STORED)
    before = existing(store, place.name)
    place.write(delete="id \n 1")
    try:
        before.begin()
    except TryAgain:
        return
    raise AssertionError("A commit on a table that is no longer the newest was begun.")


def row_ids(place: Place) -> dict[int, int]:
    rows = place.store.spark.sql(f"SELECT id, _row_id FROM {place.store.sql_name(place.name)}").collect()
    assert len({row["_row_id"] for row in rows}) == len(rows)
    return {row.id: row["_row_id"] for row in rows}


def vectors(place: Place) -> set[str]:
    files = place.store.spark.table(place.store.sql_name(place.name, "delete_files")).collect()
    return {file.file_format for file in files}


def compact(place: Place) -> None:
    """Compact every file with Iceberg's own procedure."""
    name = f"{place.schema}.{place.table.name}"
    call = f"CALL {place.store.catalog}.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))"
    place.store.spark.sql(call).collect()
