"""Edge cases of histories: NULL flags and ends, overlapping versions, and spellings of keys."""

from datetime import UTC, datetime

import pytest
from committing import append_past, make
from remembering import E13, remembered
from tables_as_text import instant, table

from backstory.errors import Refused, UsageError
from backstory.model.layout import ACTIVE, END, START, Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType, Kind
from backstory.reading.queries import translate_query_faults
from backstory.stores.iceberg.create import drop
from backstory.table import Table

COLUMNS = {
    "id": Kind.LONG,
    "v": Kind.STRING,
    START: Kind.UTC_DATETIME,
    END: Kind.UTC_DATETIME,
    ACTIVE: Kind.BOOLEAN,
}


@pytest.fixture
def history(store):
    """A history with these rows, without any checks."""
    name = TableName("reading", "lives")

    def made(text):
        columns = tuple(Column(each, ColumnType(kind)) for each, kind in COLUMNS.items())
        drop(store, name)
        make(store, Shape(name, columns, ("id",), Layout.FIVETRAN_HISTORY))
        append_past(store, name, [tuple(row.values()) for row in table(text)])
        return Table(store, name)

    return made


def told(frame):
    with translate_query_faults("a table"):
        return sorted((row["id"], row["v"]) for row in frame.toArrow().to_pylist())


BORDERS = """id v       start end  active
             1  closed  T1    T3   -
             2  open    T1    TMAX -
             3  endless T1    -    true
             4  latter  T4    TMAX true
             5  long    T1    TMAX true
             5  within  T2    TMAX true
             6  beyond  T1    T5   false
             6  earlier T2    T3   false
"""


def test_at_any_instant_a_key_has_one_row_at_most(history):
    """Law 6: The end decides if the flag is NULL. Of overlapping versions, the last to begin counts."""
    found = history(BORDERS)
    assert told(found.current()) == [(2, "open"), (3, "endless"), (4, "latter"), (5, "within")]
    assert told(found.as_of(instant("T2"))) == [
        (1, "closed"),
        (2, "open"),
        (3, "endless"),
        (5, "within"),
        (6, "earlier"),
    ]
    assert told(found.as_of(instant("T4"))) == told(found.current())


@pytest.mark.parametrize("flag", ["-", "false"])
def test_a_version_that_ended_nobody_knows_when_is_refused(history, flag):
    """Neither flag nor end shows whether the version is still true, so the error contains the cause."""
    found = history(f"id v start end active\n1 a T1 - {flag}")
    for question in (found.current, lambda: found.as_of(instant("T2"))):
        with pytest.raises(Refused, match="has no _fivetran_end"):
            told(question())


def test_a_key_is_of_its_columns_type(history):
    """A text is read as the key's type. Any other text is wrong usage, not a fault."""
    found = history("id v start end active\n7 a T1 TMAX true")
    assert [row["v"] for row in found.timeline("7").versions] == ["a"]
    assert str(found.timeline("8")) == "There is no version of this record."
    with pytest.raises(UsageError, match="'abc' is not a BIGINT, the type of column id"):
        found.timeline("abc")
    assert datetime(2024, 2, 29, tzinfo=UTC) < found.timeline(7).versions[0]["valid_from"]


def test_for_one_record_iceberg_is_asked_for_what_can_hold_it(history, store):
    """`as_of` and `current` by key skip files without the key, on both kinds of history."""
    sent, native = history("id v start end active\n7 a T1 TMAX true"), remembered(store, "one_record", E13)
    for found, key, condition in ((sent, 7, "id = 7"), (native, "k", "k = 'k'")):
        for frame in (found.as_of(instant("T2"), key=key), found.current(key=key)):
            plan = frame._jdf.queryExecution().executedPlan().toString()
            assert condition in plan.partition("filters=")[2].partition("]")[0], plan
    assert [row["v"] for row in sent.as_of(instant("T2"), key="7", columns="v").collect()] == ["a"]
    assert sent.as_of(instant("T2"), key=8).count() == 0
    with pytest.raises(
        UsageError, match=r"reading.lives has no key column id2; the key is id. Write id=7, or only 7."
    ):
        sent.current(key="id2=7")
