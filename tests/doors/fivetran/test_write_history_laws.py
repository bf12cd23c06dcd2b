"""WriteHistoryBatch: requirements 81 to 92 beyond the worked examples (sections 5.2 and 5.6)."""

from datetime import datetime, timedelta

import pytest
from destination import HISTORY, Place, gives, refusal
from tables_as_text import instant, table

COLUMNS = "id v n synced start end active"
ONE = f"{COLUMNS} \n 1 abc 1 T1 T1 TMAX true"


@pytest.fixture
def history(sender, store, schema):
    def of(stored=(), columns=HISTORY):
        return Place.made(sender, store, schema, columns, stored)

    return of


def test_the_first_step_removes_versions_by_key_and_millisecond(history):
    """81, 82, H9: Versions that start at s0 are removed, to the millisecond, by key and with the least s0 of
    all files."""
    place = history(
        f"""
        {COLUMNS}
        1  a  1  T1  T3    TMAX  true
        2  a  1  T1  T3-1  TMAX  true
        3  a  1  T1  T1    T3    false
        4  a  1  T1  T1    T3-1  false
        5  a  1  T1  T1    T2    false
        6  a  1  T1  T3    TMAX  true
        """
    )
    starts = [place.files(f"id start \n {rows}") for rows in ("1 T9 \n 2 T3 \n 3 T3", "1 T3 \n 4 T3 \n 5 T3")]
    place.send(earliest=[file for files in starts for file in files])
    expected = f"""
        {COLUMNS}
        2  a  1  T1  T3-1  T3-1  false
        3  a  1  T1  T1    T3-1  false
        4  a  1  T1  T1    T3-1  false
        5  a  1  T1  T1    T2    false
        6  a  1  T1  T3    TMAX  true
    """
    assert gives(expected) == place.rows()


def test_replace_rows_are_stored_unchanged(history):
    """83, H22, H25: Replace rows keep their end and activity. An equal start is replaced, and finer digits
    are cut off."""
    place = history(ONE)
    place.write(
        replace=f"""
        {COLUMNS}
        1  new  -  T8  T1       TMAX     true
        2  a    1  T7  T1       T9       true
        2  mid  1  T7  T2       TMAX     true
        2  b    2  T8  T2       TMAX     false
        3  c    3  T7  T3+0.25  T4+0.25  -
        """
    )
    place.write(
        replace=[
            {**row, "_fivetran_start": "2024-02-29T00:00:03.000250999Z"}
            for row in table(f"{COLUMNS} \n 4 d 4 T7 T3 TMAX true")
        ]
    )
    expected = f"""
        {COLUMNS}
        1  new  -  T8  T1       TMAX     true
        2  a    1  T7  T1       T9       true
        2  b    2  T8  T2       TMAX     false
        3  c    3  T7  T3+0.25  T4+0.25  -
        4  d    4  T7  T3+0.25  TMAX     true
    """
    assert gives(expected) == place.rows()


@pytest.mark.parametrize("shape", ["id end", "id start end active", "id v n synced start end active"])
def test_deletes_of_every_shape(history, shape):
    """85 to 87, 89, H15, H16, H23: A delete sets only end and activity of the version at its time. Others are
    ignored."""
    place = history(
        f"""
        {COLUMNS}
        1  a  1  T1  T1  TMAX  true
        2  a  1  T1  T1  T2    false
        3  a  1  T1  T5  TMAX  true
        """
    )
    rows = table(
        "id v n synced start end active \n 1 x 7 T9 - T4 true \n 2 - - - - T4 - \n 3 - - - - T4 - \n 9 - - - - T4 -"
    )
    names = list(table(f"{shape} \n {' -' * len(shape.split())}")[0])
    place.write(delete=[{name: row[name] for name in names} for row in rows])
    expected = f"""
        {COLUMNS}
        1  a  1  T1  T1  T4    false
        2  a  1  T1  T1  T2    false
        3  a  1  T1  T5  TMAX  true
    """
    assert gives(expected) == place.rows()


def test_updates_of_existing_records(history):
    """84, 85, F16: NULL is set, unmodified keeps. An update finds its record across a gap, and inherits
    absent columns."""
    place = history(
        f"{COLUMNS} more \n 1 a 1 T1 T1 TMAX true kept \n 2 b 2 T1 T1 TMAX true kept \n 3 c 3 T1 T1 TMAX true kept",
        f"{HISTORY} more",
    ).having(HISTORY)
    place.write(
        earliest="id start \n 1 T3 \n 2 T3 \n 3 T3",
        update=f"{COLUMNS} \n 1 - . T7 T3 TMAX true \n 2 x . T7 T5 TMAX true",
        replace=f"{COLUMNS} \n 3 new 4 T7 T3 TMAX true",
    )
    expected = f"""
        {COLUMNS} more
        1  a    1  T1  T1  T3-1  false  kept
        1  -    1  T7  T3  TMAX  true   kept
        2  b    2  T1  T1  T3-1  false  kept
        2  x    2  T7  T5  TMAX  true   kept
        3  c    3  T1  T1  T3-1  false  kept
        3  new  4  T7  T3  TMAX  true   -
    """
    assert gives(expected) == place.rows()


@pytest.mark.tables_on("memory", laws="iceberg")
def test_composite_and_null_keys_have_separate_histories(history):
    """70, 82: NULL in a key part, case and spaces distinguish records."""
    names = "a b v start end active synced"
    place = history(
        f'{names} \n x - 1 T1 TMAX true T1 \n x "x " 1 T1 TMAX true T1 \n - - 1 T1 TMAX true T1',
        "a* b* v:LONG start* end active synced",
    )
    place.write(
        earliest="a b start \n x - T3 \n X - T3",
        update=f"{names} \n x - 2 T3 TMAX true T7 \n X - 2 T3 TMAX true T7",
        delete="a b end \n - - T2 \n x x T2",
    )
    expected = f"""
        {names}
        x  -     1  T1  T3-1  false  T1
        x  -     2  T3  TMAX  true   T7
        x  "x "  1  T1  TMAX  true   T1
        -  -     1  T1  T2    false  T1
    """
    assert gives(expected) == place.rows()


def test_the_order_of_rows_files_and_columns_is_irrelevant(history):
    """40, 91: The order of columns, rows and files does not affect the result."""
    stored = f"{COLUMNS} \n 1 a 1 T1 T1 TMAX true \n 2 b 2 T1 T1 TMAX true"
    update = table(f"{COLUMNS} \n 1 x . T7 T3 T4-1 false \n 1 . 5 T8 T4 TMAX true \n 2 . 6 T7 T5 TMAX true")
    earliest = table("id start \n 1 T3 \n 2 T5")
    straight, turned = history(stored), history(stored)
    straight.write(earliest=earliest, update=update)
    turned = turned.having("active end start* synced n:LONG v id:LONG*")
    backward = [[dict(reversed(row.items()))] for row in reversed(update)]
    turned.send(
        earliest=[f for row in reversed(earliest) for f in turned.files([row])],
        update=[f for rows in backward for f in turned.files(rows)],
    )
    assert straight.rows() == turned.rows()
    assert len(straight.rows()) == 5


@pytest.mark.parametrize("year", [1, 1582, 1969])
@pytest.mark.tables_on("memory", "iceberg")
def test_histories_may_start_before_1970(history, year):
    """E1, E3, F18: Starts before 1970 and before the Gregorian calendar are ordinary instants."""
    first = instant("T0").replace(year=year, month=3, day=1)
    times = [first + timedelta(days=days) for days in range(4)]
    place = history()
    tmax = datetime.fromisoformat("9999-12-31T23:59:59.999Z")

    def row(start, end, v, id_=1):
        system = {"_fivetran_synced": start, "_fivetran_start": start, "_fivetran_end": end}
        return {"id": id_, "v": v, "n": 1, **system, "_fivetran_active": end == tmax}

    millisecond = timedelta(milliseconds=1)
    place.write(replace=[row(times[0], times[1] - millisecond, "a"), row(times[1], tmax, "b")])
    place.write(replace=[row(times[0], times[1], "closed", 2)])
    place.write(
        earliest=[{"id": 1, "_fivetran_start": times[2]}],
        update=[row(times[2], tmax, "c")],
        delete=[{"id": 2, "_fivetran_end": times[1] + millisecond}],
    )
    expected = [
        row(times[0], times[1] - millisecond, "a"),
        row(times[1], times[2] - millisecond, "b"),
        row(times[2], tmax, "c"),
        row(times[0], times[1] + millisecond, "closed", 2),
    ]
    assert gives(expected) == place.rows()
    place.write(earliest=[{"id": 1, "_fivetran_start": times[0]}])
    assert gives(expected[3:]) == place.rows()


def test_incomplete_history_rows_are_refused(history):
    """F17, 3.5: A missing or NULL start or end is answered with a task that names file and row. Nothing is
    written."""
    place = history(ONE)
    commits = place.snapshots()
    for kind, rows, column in [
        ("earliest", "id start \n 1 T3 \n 1 -", "_fivetran_start"),
        ("earliest", "id \n 1", "_fivetran_start"),
        ("replace", f"{COLUMNS} \n 1 x 1 T7 - TMAX true", "_fivetran_start"),
        ("replace", f"{COLUMNS} \n 1 . 1 T7 T3 TMAX true", "v"),
        ("update", f"{COLUMNS} \n 1 x 1 T7 - TMAX true", "_fivetran_start"),
        ("delete", "id v \n 1 -", "_fivetran_end"),
        ("delete", "id end \n 1 -", "_fivetran_end"),
        ("delete", "end \n T4", "id"),
    ]:
        files = place.files(rows)
        text = refusal(place.reply(**{kind: files}))
        assert column in text
        assert files[0].name in text
    assert gives(ONE) == place.rows()
    assert place.snapshots() == commits
