"""N8: A table accepts or refuses deliveries that lack columns. New columns and types are handled as usual."""

from dataclasses import replace
from itertools import count

import pandas as pd
import psycopg
import pyarrow as pa
import pytest
from committing import snapshots_of
from remembering import day

from backstory.errors import BackstoryError
from backstory.formats.memory import Memory
from backstory.model.instant import parse_instant
from backstory.model.table import table_name
from backstory.model.versions_layout import ON_SCHEMA_CHANGE
from backstory.settings import DRIVER_MEMORY
from backstory.stores.iceberg.store import existing
from backstory.warehouse import Warehouse

NUMBERS = count()
REFUSE, ACCEPT = {"on_schema_change": "refuse"}, {"on_schema_change": "accept"}
# Ten names. A copy that renames their column keeps all of them.
NAMES = [f"n{number}" for number in range(10)]


def columns(**values):
    return pa.table({"k": [str(number) for number in range(10)], **values})


def named(name="name", **others):
    return columns(**{name: NAMES}, **others)


class Policed:
    """A table with two columns that refuses copies without them."""

    def __init__(self, store, **options):
        self.store, self.name = store, f"policy.t{next(NUMBERS)}"
        self.warehouse = Warehouse(store, embedded=False)
        self.copy(1, named(city=NAMES[::-1]), **REFUSE | options)

    def copy(self, at, source, **options):
        return self.warehouse.snapshot(source, into=self.name, key="k", at=day(at), **options)

    def feed(self, source, **options):
        return self.warehouse.apply(source, into=self.name, key="k", **options)

    def refused(self, deliver, *arguments, **options):
        before = self.table.location
        with pytest.raises(BackstoryError) as stop:
            deliver(*arguments, **options)
        assert self.table.location == before
        return stop.value

    @property
    def table(self):
        return existing(self.store, table_name(self.name))

    @property
    def commits(self):
        return len(snapshots_of(self.table))


@pytest.fixture
def policed(store):
    return Policed(store)


def test_a_missing_column_and_a_likely_rename_are_refused_with_their_options(policed):
    """The error names the columns and both options, and each option works for its one delivery."""
    gone = policed.refused(policed.copy, 2, named())
    assert (gone.code, gone.exit_code, gone.keys) == ("columns-changed", 3, ["city"])
    assert "Column city is missing from this copy." in gone.message
    assert "`on_schema_change='accept'`" in gone.remedy
    renamed = policed.refused(policed.copy, 2, named("title", city=NAMES[::-1]))
    assert renamed.keys == ["name"]
    assert "title has the values of name" in renamed.message
    assert "`rename={'name': 'title'}`" in renamed.remedy
    assert policed.refused(policed.copy, 2, columns(), dry_run=True).keys == ["name", "city"]
    receipt = policed.copy(2, named("title", city=NAMES[::-1]), rename={"name": "title"})
    assert receipt.schema_changes == ["column name renamed to title"]
    taken = policed.copy(3, named("title"), **ACCEPT)
    assert taken.schema_changes == ["column city is missing from the copy; kept, NULL in new versions"]
    assert policed.refused(policed.copy, 4, columns(city=NAMES)).keys == ["title"]


def test_an_accepted_missing_column_stays_accepted(policed):
    """An accepted column stays accepted after feeds, `forget` and new columns, even if no row changed."""
    commits = policed.commits
    assert policed.copy(2, named(), **ACCEPT).snapshot_id is not None
    assert policed.copy(3, named(), **ACCEPT).snapshot_id is None
    assert policed.copy(4, named()).snapshot_id is None
    assert policed.commits == commits + 1
    assert policed.copy(5, named(more=NAMES)).schema_changes[0] == "new column more (STRING)"
    feed = pa.table({"k": ["0"], "name": ["x"], "city": ["y"], "more": ["z"], "at": [day(6)]})
    policed.feed(feed, sequence_by="at", drop=[])
    assert policed.refused(policed.copy, 7, named(more=NAMES)).keys == ["at"]  # the feed's own column
    policed.copy(7, named(more=NAMES), **ACCEPT)
    policed.warehouse.table(policed.name).forget("3", apply=True)
    policed.copy(8, named(more=NAMES[::-1]))


def test_a_returned_column_is_refused_when_it_is_missing_again(policed):
    """This holds even if the column returned unchanged."""
    policed.copy(2, named(), **ACCEPT)
    assert policed.copy(3, named(city=NAMES[::-1])).counts["unchanged"] == 10
    assert policed.refused(policed.copy, 4, named()).keys == ["city"]


def test_a_new_column_with_the_values_of_a_missing_column_is_refused(policed):
    """The old column was already missing, but the new name is refused."""
    policed.copy(2, named(), **ACCEPT)
    again = policed.refused(policed.copy, 3, named(town=NAMES[::-1]))
    assert (again.code, again.keys) == ("columns-changed", ["city"])
    assert "`rename={'city': 'town'}`" in again.remedy
    assert policed.copy(3, named(town=NAMES)).counts["changed"] == 10


def test_a_rewind_revokes_an_accepted_column(policed):
    """Otherwise the same mistake would be accepted silently."""
    before = policed.table.properties
    at = policed.warehouse.table(policed.name).log()[0]["recorded_at"]
    policed.copy(2, columns(name=NAMES[::-1]), **ACCEPT)
    policed.warehouse.table(policed.name).rewind(at, apply=True)
    assert policed.refused(policed.copy, 3, named()).keys == ["city"]
    assert policed.table.properties[ON_SCHEMA_CHANGE] == before[ON_SCHEMA_CHANGE] == "refuse"


def test_both_policies_accept_new_columns_and_wider_types(store):
    for policy in (REFUSE, ACCEPT):
        policed = Policed(store, **policy)
        more = named(city=NAMES[::-1], more=pa.array(range(10), pa.int32()))
        assert policed.copy(2, more).schema_changes == ["new column more (INT)"]
        wider = named(city=NAMES[::-1], more=pa.array(range(10), pa.int64()))
        assert policed.copy(3, wider).schema_changes == ["column more: type is now BIGINT"]
        other = named(city=NAMES[::-1], more=NAMES)
        assert policed.refused(policed.copy, 4, other).code == "type-changed"


def test_a_table_accepts_missing_columns_until_refuse_is_set(store):
    """`refuse` applies from then on, even if its copy changes nothing. Columns that were missing before are
    accepted."""
    policed = Policed(store, on_schema_change=None)
    assert ON_SCHEMA_CHANGE not in policed.table.properties
    policed.copy(2, columns(name=NAMES[::-1]))
    assert policed.copy(3, columns(name=NAMES[::-1]), **REFUSE).snapshot_id is not None
    assert policed.copy(4, columns(name=NAMES[::-1]), **REFUSE).snapshot_id is None
    assert policed.refused(policed.copy, 5, columns(city=NAMES)).keys == ["name"]


EVENT = {"k": "0", "name": "x", "city": "y", "at": "2030-01-01T00:00:00Z"}
FEED = {"sequence_by": "at", "apply_as_deletes": "op = 'D'", "drop": ["op"]}


def test_a_feed_without_a_column_of_the_previous_feed_is_refused(policed, tmp_path):
    """A feed has the columns of all its lines, or of its header."""
    file = tmp_path / "feed.jsonl"

    def feed(*events, **options):
        rows = pa.Table.from_pylist([{"op": "U", **event} for event in events]).to_pandas()
        rows.to_json(file, orient="records", lines=True)
        return policed.feed(file, **FEED | options)

    feed(EVENT)
    part = {"k": "0", "name": "z", "at": "2030-01-03T00:00:00Z"}
    stop = policed.refused(feed, part)
    assert (stop.code, stop.keys) == ("columns-changed", ["city"])
    assert "`rename=` of a full copy" in stop.remedy
    receipt = feed(part, **ACCEPT)
    assert receipt.schema_changes == ["column city is missing from the feed; kept as it was"]
    assert feed({**part, "at": "2030-01-04T00:00:00Z", "name": "w"}).schema_changes == []
    header = tmp_path / "feed.csv"
    header.write_text("k,city,at,op\n0,c,2030-01-05T00:00:00Z,U\n")
    assert policed.refused(policed.feed, header, **FEED).keys == ["name"]


@pytest.mark.parametrize("memory", [DRIVER_MEMORY, 0], ids=["driver", "tasks"])
def test_a_feed_of_only_deletes_may_omit_columns(store, memory):
    """Deletes set no columns, in every way of planning."""
    warehouse, name = (
        Warehouse(replace(store, memory=Memory(memory)), embedded=False),
        f"policy.t{next(NUMBERS)}",
    )
    bring = {
        "into": name,
        "key": "k",
        "sequence_by": "at",
        "apply_as_deletes": "op = 'D'",
        "drop": ["op"],
        **REFUSE,
    }
    warehouse.apply(pa.table({"k": ["0"], "name": ["x"], "op": ["U"], "at": [day(1)]}), **bring)
    receipt = warehouse.apply(pa.table({"k": ["0"], "op": ["D"], "at": [day(2)]}), **bring)
    assert (receipt.counts["ended"], receipt.schema_changes) == (1, [])


def test_any_feed_can_set_the_refuse_policy(store):
    """A delivery of known changes stores the policy. A first feed stores it with the table."""
    name = f"policy.t{next(NUMBERS)}"
    warehouse = Warehouse(store, embedded=False)
    rows = pa.table({"k": ["0"], "name": ["x"], "at": [day(1)]})
    bring = {"into": name, "key": "k", "sequence_by": "at"}
    warehouse.apply(rows, **bring)
    warehouse.apply(rows, **bring, **REFUSE)
    with pytest.raises(BackstoryError) as stop:
        warehouse.apply(rows.drop_columns(["name"]).set_column(1, "at", [[day(2)]]), **bring)
    assert stop.value.keys == ["name"]
    warehouse.apply(rows, **{**bring, "into": f"{name}b"}, **REFUSE)
    assert existing(store, table_name(f"{name}b")).properties[ON_SCHEMA_CHANGE] == "refuse"


def test_a_missing_column_is_refused_in_every_kind_of_source(store, tmp_path, postgres_url):
    """Files, frames of Spark and pandas, Arrow, tables and databases are refused alike."""
    policed, lacking = Policed(store), named()
    (tmp_path / "a.csv").write_text("k,name\n" + "".join(f"{n},n{n}\n" for n in range(10)))
    (tmp_path / "a.jsonl").write_text("".join(f'{{"k": "{n}", "name": "n{n}"}}\n' for n in range(10)))
    policed.warehouse.snapshot(lacking, into=f"{policed.name}s", key="k", at=day(1))
    rows = store.spark.table(store.sql_name(table_name(f"{policed.name}s"))).select("k", "name")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE lacking AS SELECT n::text AS k, 'n' || n AS name FROM generate_series(0, 9) n"
        )
    sources = {
        "csv": tmp_path / "a.csv",
        "jsonl": tmp_path / "a.jsonl",
        "arrow": lacking,
        "pandas": lacking.to_pandas(),
        "spark": rows,
        "table": f"table:{policed.name}s",
        "database": f"{postgres_url}?table=public.lacking",
    }
    types = {"csv": {"type": {"k": "STRING"}}}
    stops = {
        name: policed.refused(policed.copy, 2, each, **types.get(name, {})) for name, each in sources.items()
    }
    assert {name: (each.code, each.keys) for name, each in stops.items()} == dict.fromkeys(
        sources, ("columns-changed", ["city"])
    )


def test_a_rewind_and_a_rename_repair_a_missed_rename(store):
    """Under `accept`, and later under `refuse`, each record has one life under the new name."""
    policed = Policed(store, **ACCEPT)
    mistake = policed.copy(2, named("title", city=NAMES[::-1]))
    assert mistake.counts["changed"] == 10
    before = parse_instant(policed.warehouse.table(policed.name).log()[1]["recorded_at"])
    policed.warehouse.table(policed.name).rewind(before, apply=True)
    again = {"rename": {"name": "title"}, **REFUSE}
    assert policed.copy(2, named("title", city=NAMES[::-1]), **again).counts["changed"] == 0
    assert len(policed.warehouse.table(policed.name).timeline("3").versions) == 1
    assert policed.copy(3, named("title", city=NAMES)).counts["changed"] == 10


@pytest.mark.parametrize("word", ["ignore", "", True])
def test_other_schema_policies_are_refused(policed, word):
    assert policed.refused(policed.copy, 2, named(), on_schema_change=word).code == "bad-option"
    frame = pd.DataFrame({"k": ["0"], "at": [day(2)]})
    assert policed.refused(policed.feed, frame, sequence_by="at", on_schema_change=word).code == "bad-option"


@pytest.mark.parametrize(
    ("copy", "types"),
    {
        "a new one behind it": (
            {"k": [1], "w": [5], "x": ["new"]},
            {"k": "BIGINT", "w": "BIGINT", "x": "STRING"},
        ),
        "a wider type": ({"k": [1], "w": [5.5]}, {"k": "BIGINT", "w": "DOUBLE"}),
    }.values(),
    ids=["a new one behind it", "a wider type"],
)
def test_a_column_is_renamed_and_changed_in_one_copy(python, copy, types, request):
    """For Iceberg, the column has its former name until the whole change is committed."""
    into = f"evolving.renamed_{request.node.callspec.id.replace(' ', '_')}"
    python.snapshot(pa.table({"k": [1], "v": [5]}), into=into, key="k", at="2026-01-01")
    retype = {"w": types["w"]} if types["w"] != "BIGINT" else None
    python.snapshot(pa.table(copy), into=into, at="2026-01-02", rename={"v": "w"}, retype=retype)
    shape = existing(python.store, python.table(into).name).shape
    assert {each.name: str(each.type) for each in shape.user_columns} == types
    assert [row["w"] for row in python.table(into).as_of("2026-01-01").collect()] == [5]
