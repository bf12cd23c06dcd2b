"""The rows of feeds, their counts, and unaffected rows (V48 to V60, V80, V124, V125)."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from remembering import day, lives

from backstory.errors import BackstoryError, Refused, UsageError
from backstory.warehouse import Warehouse

FEED = {"key": "k", "sequence_by": "at", "apply_as_deletes": "op = 'D'", "drop": "op"}
TYPES = {"k": pa.string(), "v": pa.string(), "at": pa.timestamp("us", "UTC"), "op": pa.string()}
NUMBERS = iter(range(1000))
COUNTS = {"began", "ended", "silent", "duplicate", "too_late", "late", "partial", "mismatched", "raised"}


class Fed:
    """A table with a feed of rows `k v at op`, with `~` for NULL."""

    def __init__(self, store):
        self.warehouse = Warehouse(store, embedded=False)
        self.name = f"feed_rules.t{next(NUMBERS)}"

    def apply(self, *rows, names="k v at op", types=(), **options):
        schema = pa.schema({name: dict(TYPES | dict(types))[name] for name in names.split()})
        cells = [self._cells(row, schema) for row in rows]
        return self.warehouse.apply(pa.Table.from_pylist(cells, schema), into=self.name, **FEED | options)

    def _cells(self, row, schema):
        cells = dict(zip(schema.names, row.split(), strict=True))
        values = {name: None if cell == "~" else cell for name, cell in cells.items()}
        return values | {
            field.name: day(values[field.name]) if field.name == "at" else int(values[field.name])
            for field in schema
            if field.name == "at" or pa.types.is_integer(field.type)
        }

    def refused(self, *rows, **options):
        with pytest.raises(BackstoryError) as stop:
            self.apply(*rows, **options)
        return stop.value

    @property
    def table(self):
        return self.warehouse.table(self.name)

    @property
    def stored(self):
        return self.warehouse.spark.table(f"backstory.{self.name}")

    @property
    def lives(self):
        return lives(self.stored.where("_memory.role IS NULL").toArrow().to_pylist())


@pytest.fixture
def fed(store):
    return Fed(store)


def test_NULL_in_a_condition_is_false(fed):
    """V48: A NULL condition is false."""
    fed.apply("k a 10 ~", "k b 20 D")
    assert fed.lives == ["k: a[10,20)"]


def test_the_order_column_is_stored_and_opens_no_version(fed):
    """V49: The time is a column of the record, with the value of the change that began the version."""
    fed.apply("k a 10 U", "k a 20 U")
    assert fed.lives == ["k: a[10,)"]
    (row,) = fed.table.current().collect()
    assert row["at"] == day(10).replace(tzinfo=None) or row["at"] == day(10)
    assert "op" not in row.asDict()


def test_a_change_may_have_a_future_time(fed):
    """V57: A change in the future is already current, but not valid at the present time."""
    soon = datetime.now(UTC) + timedelta(days=30)
    rows = pa.Table.from_pylist([{"k": "k", "v": "a", "at": soon, "op": "U"}], pa.schema(TYPES))
    fed.warehouse.apply(rows, into=fed.name, **FEED)
    assert fed.table.current().count() == 1
    assert fed.table.as_of(datetime.now(UTC)).count() == 0


def test_each_change_is_counted_once(fed):
    """V58, V125: Outcomes are disjoint, other counts overlap with them, and the receipt has all counts."""
    fed.apply("k a 10 U", "k c 40 U", "m x 10 U")
    rows = ("k a 10 U", "k b 20 U", "k b 30 U", "m ~ 50 D", "n y 60 U", "o ~ 70 D")
    receipt = fed.apply(*rows)
    counts = receipt.counts
    assert counts.keys() == COUNTS
    assert sum(counts[name] for name in ("began", "ended", "silent", "duplicate", "too_late")) == len(rows)
    assert counts == dict.fromkeys(COUNTS, 0) | {
        "began": 2,
        "ended": 1,
        "silent": 2,
        "duplicate": 1,
        "late": 2,
    }
    document = receipt.to_dict()
    assert document.keys() == {"table", "counts", "schema_changes", "recorded_at", "snapshot_id"}
    assert document["snapshot_id"] is not None


def test_a_delivery_without_effect_makes_no_commit(fed):
    """V59: An empty delivery, only duplicates, or only late changes make no commit."""
    fed.apply("k a 10 U")
    fed.warehouse.maintain(fed.name, settle_before=day(15))
    before = len(fed.table.log())
    for rows in ((), ("k z 5 U",)):
        receipt = fed.apply(*rows, late="drop")
        assert receipt.to_dict()["snapshot_id"] is None
        assert receipt.counts["too_late"] == len(rows)
    fed.apply("k b 20 U")
    assert fed.apply("k b 20 U").to_dict()["snapshot_id"] is None
    assert len(fed.table.log()) == before + 1


def test_a_feed_may_only_add_or_widen_columns(fed):
    """V60: Columns may be added or widened. Earlier changes have no value in a new column."""
    fed.apply("k 1 10 U", types={"v": pa.int32()})
    receipt = fed.apply("k 2 red 20 U", names="k v w at op", types={"v": pa.int64(), "w": pa.string()})
    assert len(receipt.to_dict()["schema_changes"]) == 2
    assert dict(fed.stored.dtypes)["v"] == "bigint"
    assert [
        (row.v, row.w) for row in fed.stored.where("_memory.role IS NULL").sort("valid_from").collect()
    ] == [
        (1, None),
        (2, "red"),
    ]
    refusal = fed.refused("k x 30 U")
    assert refusal.code == "type-changed"
    assert "STRING" in str(refusal)
    assert "retype" not in str(refusal)  # `apply` has no such option


EXPRESSIONS = (
    "rand() < 0.5",
    "at < current_timestamp()",
    "at < now()",
    "at < current_date()",
    "k IN (SELECT 'k')",
    "row_number() OVER (ORDER BY k) = 1",
    "count(v) > 0",
    "explode(array(true, false))",
    "no such column",
    "lacking",
    "v",
    "'D'",
)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions_may_use_only_the_delivered_row(fed, expression):
    """V124: Expressions may not use the current time, other rows or other tables, which would change a
    replay."""
    refusal = fed.refused("k a 10 U", apply_as_deletes=expression)
    assert (refusal.code, refusal.exit_code) == ("bad-option", 2)


def test_the_order_of_changes_needs_a_delivered_column(fed):
    """V52, V124: The order needs an existing column, even if the table stores the order and the delivery
    lacks the column."""
    assert fed.refused("k a 10 U", sequence_by=["at", "current_timestamp()"]).code == "bad-option"
    fed.apply("k a 10 U 1", names="k v at op n", types={"n": pa.int64()}, sequence_by=["at", "n"])
    nothing = fed.refused("k b 20 U ~", names="k v at op n", types={"n": pa.null()}, sequence_by=None)
    assert (nothing.code, nothing.keys) == ("null-sequence", ["k"])
    options = {"sequence_by": None}
    assert "no column n, which the order of changes" in str(fed.refused("k b 20 U", **options))


def test_columns_to_update_must_name_columns_of_the_source(fed):
    """V50: An array that names another column is refused, because its change would be lost silently."""
    refusal = fed.refused("k a 10 U", columns_to_update="v")
    assert (refusal.code, refusal.exit_code) == ("bad-option", 2)
    rows = pa.table(
        {"k": ["k"], "v": ["a"], "at": [day(10)], "op": ["U"], "sets": [["V"]]},
        pa.schema(TYPES | {"sets": pa.list_(pa.string())}),
    )
    with pytest.raises(Refused, match="sets names the column V") as refusal:
        fed.warehouse.apply(rows, into=fed.name, columns_to_update="sets", **FEED | {"drop": ["op", "sets"]})
    assert (refusal.value.code, refusal.value.keys) == ("unknown-column", ["V"])


def test_a_first_feed_of_only_truncates_is_refused(fed):
    """V48 ignores their key, so its type is unknown."""
    types = {"k": pa.null()}
    refusal = fed.refused("~ ~ 10 T", types=types, apply_as_truncates="op = 'T'")
    assert refusal.code == "untyped-key"
    with pytest.raises(UsageError, match="There is no table"):
        fed.warehouse.table(fed.name)


def test_an_empty_restatement_needs_columns_and_an_end(fed, tmp_path):
    """V86: Without changes, the end of the withdrawn time is unknown, and JSON lines name no columns."""
    fed.apply("k a 10 U", "k b 20 U")
    window = {"restate_from": day(10), "all_keys": True, "allow_empty": True}
    assert fed.refused(**window).code == "bad-option"
    (tmp_path / "e.jsonl").touch()
    with pytest.raises(UsageError) as refusal:
        fed.warehouse.apply(str(tmp_path / "e.jsonl"), into=fed.name, restate_until=day(30), **window)
    assert "a CSV file with only a header" in refusal.value.remedy
    fed.apply(restate_until=day(30), **window)
    assert fed.lives == []


def test_a_restatement_at_the_instant_of_a_truncate_breaks_no_law(fed):
    """V72, L8: The mark no longer applies to the restated keys."""
    options = {"apply_as_truncates": "op = 'T'"}
    fed.apply("k a 10 U", "~ ~ 30 T", **options)
    fed.apply("k x 30 U", restate_from=day(30), **options)
    assert fed.lives == ["k: a[10,30) x[30,)"]
    assert [each["law"] for each in fed.table.check() if each["violations"]] == []


def test_rows_of_other_records_are_not_rewritten(fed):
    """V80: Other rows keep files, places and ids. A version that only ends keeps its id."""
    fed.apply("k a 10 U", "m x 10 U")

    def places():
        rows = fed.warehouse.spark.sql(f"SELECT k, v, _file, _pos, _row_id FROM backstory.{fed.name}")
        return {row.k: (row._file, row._pos, row._row_id) for row in rows.collect() if row.v in {"a", "x"}}

    before = places()
    fed.apply("k b 20 U")
    after = places()
    assert after["m"] == before["m"]
    assert after["k"][2] == before["k"][2]
    assert after["k"][:2] != before["k"][:2]
