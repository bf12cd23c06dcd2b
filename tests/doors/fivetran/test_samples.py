"""The published sample files end in the states of section 7.13 (requirement 111).

The rows of an op have the op's number as their synced time: `T1` for the first op of a file.
"""

import json
import re
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
from destination import PLAIN, Place, column_types, gives, without
from tables_as_text import instant, table
from tester import Replay, play, ticking

from backstory.doors.fivetran.wire import common_pb2 as common
from backstory.model.instant import TMAX
from backstory.testing.sender import AS_FIVETRAN

SAMPLES = Path(__file__).parent / "samples"
ENCODINGS = {"encrypted": AS_FIVETRAN, "plain": PLAIN}
SIX_ROWS = """
    id  amount  desc   synced
    1   100.45  -      T1
    2   150.33  two    T1
    3   150.33  two    T1
    4   150.33  two    T1
    10  200.0   three  T1
    20  50.0    money  T1
"""

# Every file in both orders, encrypted and plain, sent once and twice. Four files cover each pair of these.
_hows = cycle(
    [
        (("tester", "encrypted", 1), ("strict", "plain", 2)),
        (("tester", "plain", 2), ("strict", "encrypted", 1)),
        (("tester", "plain", 1), ("strict", "encrypted", 2)),
        (("tester", "encrypted", 2), ("strict", "plain", 1)),
    ]
)


def replayed(*names):
    """Give a test the target of each of these files, run in two ways."""
    runs = [(name, *how) for name in names for how in next(_hows)]
    ids = ["-".join(map(str, (Path(run[0]).stem, *run[1:]))) for run in runs]
    return pytest.mark.parametrize("target", runs, ids=ids, indirect=True)


@dataclass(frozen=True)
class Target:
    """The target of a file's operations."""

    replay: Replay
    store: object

    def rows(self, name: str) -> list[dict[str, object]]:
        place = Place(self.replay.sender, self.store, self.replay.schema, common.Table(name=name))
        return place.rows()

    def described(self, name: str) -> dict[str, str] | None:
        definition = self.replay.sender.describe(self.replay.schema, name)
        return definition and column_types(definition)


@pytest.fixture
def target(request, sender, store):
    name, order, wrapped, times = request.param
    replay = Replay(
        replace(sender, encoding=ENCODINGS[wrapped]),
        ticking(instant("T1")),
        re.sub(r"\W+", "_", request.node.name),
        order == "strict",
        times,
    )
    unsupported = play(replay, json.loads((SAMPLES / name).read_text("utf-8")))
    assert not unsupported
    return Target(replay, store)


def state(text: str, **more: object) -> list[dict[str, object]]:
    """The rows of a text table, with further columns. Fractions and instants are compared as text."""
    return gives([{name: _value(cell) for name, cell in row.items()} | more for row in table(text)])


def _value(cell: object) -> object:
    if isinstance(cell, str) and re.fullmatch(r"\d+\.\d+", cell):
        return float(cell)
    if isinstance(cell, str) and re.fullmatch(r"\d{4}-.*Z", cell):
        return datetime.fromisoformat(cell)
    return cell


def single(value: float) -> float:
    """The value as a 32-bit FLOAT."""
    return np.float32(value).item()


def columns(text: str, *, history: bool = False) -> dict[str, str]:
    """The columns of a definition, including the system columns of its mode."""
    system = ["_fivetran_synced:UTC_DATETIME"]
    if history:
        system += ["_fivetran_start:UTC_DATETIME*", "_fivetran_end:UTC_DATETIME", "_fivetran_active:BOOLEAN"]
    else:
        system += ["_fivetran_deleted:BOOLEAN"]
    return dict(column.split(":") for column in [*text.split(), *system])


LIVE = columns("id:INT* amount:DOUBLE desc:STRING")
HISTORY = columns("id:INT* amount:DOUBLE desc:STRING", history=True)


@replayed("input.json")
def test_input(target):
    """Columns and keys are altered, a history gets updates and deletes, and tables are truncated in both
    modes."""
    assert target.described("transaction") == columns(
        """
        id:INT* amount_double:DOUBLE amount_float:FLOAT amount_decimal:DECIMAL(38,15) flag:BOOLEAN
        short_val:SHORT long_val:LONG time_val:NAIVE_TIME date_val:NAIVE_DATE datetime_val:NAIVE_DATETIME
        utc_val:UTC_DATETIME binary_val:BINARY xml_val:XML string_val:STRING json_val:JSON old_column:STRING
        new_column:STRING
        """,
        history=True,
    )
    assert target.described("campaign") == columns(
        """
        name:STRING num_decimal:DECIMAL(6,3) start_date:NAIVE_DATE end_datetime:NAIVE_DATETIME
        is_active:BOOLEAN _fivetran_id:STRING*
        """
    )
    assert target.described("composite_table") == columns(
        "pk1:INT* pk2:INT* old_pk:INT new_pk:INT* value:STRING"
    )
    first = {
        "id": 1,
        "amount_double": 100.45,
        "amount_float": single(100.45),
        "amount_decimal": Decimal("12345.123456789011000"),
        "flag": True,
        "short_val": -32768,
        "long_val": 9223372036854775807,
        "time_val": "10:15:30",
        "date_val": date(2007, 12, 3),
        "datetime_val": datetime(2007, 12, 3, 10, 15, 30),
        "utc_val": datetime(2007, 12, 3, 10, 15, 30, 123_000, UTC),
        "binary_val": b"[B@7d4991ad",
        "xml_val": '<a><b>"c", d</b></a>',
        "string_val": 'one, "two"\nand a backslash\\',
        "json_val": '{"a": [1, null, "NULL"]}',
        "old_column": None,
        "new_column": "",
    }
    other = dict.fromkeys(first) | {
        "id": 2,
        "amount_double": 150.33,
        "amount_float": single(150.33),
        "amount_decimal": Decimal("-0.500000000000000"),
        "flag": False,
        "short_val": 32767,
        "long_val": -9223372036854775808,
        "time_val": "23:59:59",
        "date_val": date(9999, 12, 31),
        "datetime_val": datetime(2007, 12, 3, 10, 15, 30, 123_000),
        "utc_val": datetime(2007, 12, 3, 10, 15, 30, tzinfo=UTC),
    }
    second = first | {
        "amount_double": 200.0,
        "amount_float": 200.0,
        "amount_decimal": Decimal("99999.500000000000000"),
        "short_val": 1,
        "long_val": 2,
        "time_val": "00:00:00",
        "date_val": date(2005, 5, 24),
        "datetime_val": datetime(2005, 5, 24, 20, 57),
        "utc_val": datetime(2005, 5, 24, 20, 57, tzinfo=UTC),
        "binary_val": b"\x00\x01\x02",
        "xml_val": "<a/>",
        "string_val": "three",
        "json_val": "{}",
        "new_column": "new",
    }
    third = second | {"amount_double": 400.555, "flag": False}
    versions = table(
        """
        synced  start                 end                       active
        T1      2005-05-23T20:57:00Z  2005-05-23T20:57:59.999Z  false
        T1      2005-05-23T20:58:00Z  2023-10-30T14:59:59.999Z  false
        T4      2023-10-30T15:00:00Z  2023-10-30T16:30:00Z      false
        T1      2005-05-23T20:57:00Z  2023-10-30T16:00:00Z      false
        """
    )
    whole = [
        values | {name: _value(cell) for name, cell in version.items()}
        for values, version in zip([first, second, third, other], versions, strict=True)
    ]
    assert gives(whole) == target.rows("transaction")
    assert target.rows("campaign") == []
    two = "pk1 pk2 old_pk new_pk value synced \n 1 2 - 3 first T1 \n 1 2 - 4 second T1"
    assert state(two, _fivetran_deleted=True) == target.rows("composite_table")


@replayed("schema_migrations_input_ddl.json")
def test_columns_change(target):
    """A column is added, one changes from DOUBLE to FLOAT, and one is dropped."""
    assert target.described("transaction") == columns("id:INT* amount:FLOAT operation_time:UTC_DATETIME")
    rows = without(state(SIX_ROWS, operation_time=None, _fivetran_deleted=False), "desc")
    assert gives(row | {"amount": single(row["amount"])} for row in rows) == target.rows("transaction")


@replayed("schema_migrations_input_dml.json")
def test_columns_and_tables_are_copied_renamed_filled_and_dropped(target):
    """Values are copied before they are overwritten, and the copied table keeps the old column name."""
    more = "desc:STRING desc_detailed:STRING operation_time:UTC_DATETIME"
    assert target.described("transaction") == columns(f"id:INT* amount_renamed:DOUBLE {more}")
    assert target.described("transaction_renamed") == columns(f"id:INT* amount:DOUBLE {more}")
    assert target.described("transaction_new") is None
    assert target.described("transaction_drop") is None
    filled = [
        {"id": row["id"], "desc": None, "desc_detailed": row["desc"], "_fivetran_synced": instant("T1")}
        | {"operation_time": datetime(2005, 5, 28, 20, 57, tzinfo=UTC), "_fivetran_deleted": False}
        for row in table(SIX_ROWS)
    ]
    assert gives([row | {"amount_renamed": 202.57} for row in filled]) == target.rows("transaction")
    assert gives([row | {"amount": 202.57} for row in filled]) == target.rows("transaction_renamed")


# Only DescribeTable provides its definitions.
NEXT_FILE = {
    "describe_table": ["transaction", "new_transaction_history"],
    "ops": [
        {
            "update": {
                "transaction": [{"id": 1, "op_time": "2005-05-29T00:00:00Z", "amount": 1.5}],
                "new_transaction_history": [{"id": 1, "amount": 1.5}],
            }
        },
        {
            "delete": {
                "transaction": [{"id": 2, "op_time": "2024-03-01T00:00:00Z"}],
                "new_transaction_history": [{"id": 2}],
            }
        },
    ],
}


@replayed("schema_migrations_input_sync_modes.json")
def test_sync_modes_change(target):
    """108, example I: Columns are added and dropped at one instant, tables change modes and back, and the
    next file's rows load."""
    with_article = columns("id:INT* amount:DOUBLE desc:STRING article:STRING", history=True)
    assert target.described("transaction_history") == with_article
    assert target.described("transaction") == HISTORY
    assert target.described("new_transaction_history") == LIVE
    expected = """
        id  amount  desc    article            synced  start                 end                       active
        1   100.45  -       -                  T1      2005-05-23T20:57:00Z  2005-05-28T20:56:59.999Z  false
        2   150.33  two     -                  T1      2005-05-23T20:57:00Z  2005-05-28T20:56:59.999Z  false
        3   150.33  two     -                  T1      2005-05-23T20:57:00Z  2005-05-28T20:56:59.999Z  false
        4   150.33  two     -                  T1      2005-05-23T20:57:00Z  2005-05-28T20:56:59.999Z  false
        10  200.0   three   -                  T2      2005-05-26T20:57:00Z  2005-05-26T20:57:59.999Z  false
        10  100.0   thirty  -                  T2      2005-05-26T20:58:00Z  2005-05-28T20:56:59.999Z  false
        20  50.0    money   -                  T2      2005-05-26T21:57:00Z  2005-05-28T20:56:59.999Z  false
        1   100.45  -       "Ordered article"  T1      2005-05-28T20:57:00Z  TMAX                      true
        2   150.33  -       "Ordered article"  T1      2005-05-28T20:57:00Z  TMAX                      true
        3   150.33  -       "Ordered article"  T1      2005-05-28T20:57:00Z  TMAX                      true
        4   150.33  -       "Ordered article"  T1      2005-05-28T20:57:00Z  TMAX                      true
        10  100.0   -       "Ordered article"  T2      2005-05-28T20:57:00Z  TMAX                      true
        20  50.0    -       "Ordered article"  T2      2005-05-28T20:57:00Z  TMAX                      true
    """
    assert state(expected) == target.rows("transaction_history")
    six = re.sub(r"(?m)^( +[12]0 .*)T1$", r"\1T2", SIX_ROWS)
    active = {"_fivetran_start": instant("T2"), "_fivetran_end": TMAX, "_fivetran_active": True}
    assert state(six, **active) == target.rows("transaction")
    assert state(six, _fivetran_deleted=False) == target.rows("new_transaction_history")
    assert play(target.replay, NEXT_FILE) == []
    versions = """
        id  amount  desc   synced  start                 end                   active
        1   1.5     -      T3      2005-05-29T00:00:00Z  TMAX                  true
        2   150.33  two    T1      T2                    2024-03-01T00:00:00Z  false
        3   150.33  two    T1      T2                    TMAX                  true
        4   150.33  two    T1      T2                    TMAX                  true
        10  200.0   three  T2      T2                    TMAX                  true
        20  50.0    money  T2      T2                    TMAX                  true
    """
    assert state(versions) == target.rows("transaction")
    rows = """
        id  amount  desc   synced
        1   1.5     -      T3
        3   150.33  two    T1
        4   150.33  two    T1
        10  200.0   three  T2
        20  50.0    money  T2
    """
    assert state(rows, _fivetran_deleted=False) == target.rows("new_transaction_history")


CAMPAIGN = columns("name:STRING num:INT _fivetran_id:STRING*")


@replayed(
    "operations_on_nonexistent_records/update_missing_record.json",
    "operations_on_nonexistent_records/delete_missing_record.json",
    "operations_on_nonexistent_records/soft_delete_missing_record.json",
)
def test_operations_on_missing_records_are_ignored(target):
    """An update, a delete and a soft delete of missing records leave both tables empty."""
    assert target.described("transaction") == HISTORY
    assert target.described("campaign") == CAMPAIGN
    assert target.rows("transaction") == []
    assert target.rows("campaign") == []


@replayed("operations_on_nonexistent_records/truncate_missing_table.json")
def test_a_truncate_of_a_missing_table_is_ignored(target):
    """The truncate succeeds, and the table is still missing."""
    assert target.described("nonexistent_table") is None


def left(target, *, transaction=(), campaign=()):
    """The rows that remain if the truncate is after all rows, as in the tester's order. In strict order none
    remain."""
    strict = target.replay.strict
    assert target.rows("transaction") == ([] if strict else gives(transaction))
    assert target.rows("campaign") == ([] if strict else gives(campaign))


@replayed("operations_on_nonexistent_records/truncate_then_update.json")
def test_updates_after_a_truncate(target):
    """The updated row and version are newer than the truncate, so they remain."""
    left(
        target,
        transaction=state(
            "id amount desc synced start end active \n 1 200.0 one T3 2005-05-24T20:57:00Z TMAX true"
        ),
        campaign=state("_fivetran_id name num synced \n abc Christmas 200 T3", _fivetran_deleted=False),
    )


@replayed("operations_on_nonexistent_records/truncate_then_delete.json")
def test_deletes_after_a_truncate(target):
    """A delete removes the row. The closed version keeps its old synced time."""
    left(target)


@replayed("operations_on_nonexistent_records/truncate_then_soft_delete.json")
def test_soft_deletes_after_a_truncate(target):
    """The flagged row is newer than the truncate. The version that a delete row closed is not."""
    flagged = state("_fivetran_id name num synced \n abc Christmas 100 T3", _fivetran_deleted=True)
    left(target, campaign=flagged)
