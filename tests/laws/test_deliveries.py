"""Laws of any delivery of files, from the door's request to the table, with tables in memory and many lives."""

from itertools import groupby

import pyarrow as pa
import pytest
from committing import commit, snapshots_of
from destination import PLAIN, add_column, fresh
from histories import COLUMNS, KEY, LEFT_OVER, LIVE_COLUMNS, batches, live_batches, wild_batches
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_store.store import MemoryStore
from plans_in_memory import in_utc
from specification.live_rows import apply as live_rule
from specification.versions import apply as history_rule
from tables_as_text import in_order

from backstory.doors.fivetran.batches import batch_of
from backstory.doors.fivetran.options import ServeRequest
from backstory.doors.fivetran.wire import common_pb2 as common
from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.engine.batches import deliver_batch
from backstory.formats.delivered import arrow_schema
from backstory.model.change import Change
from backstory.model.layout import ACTIVE, END, Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType, Kind
from backstory.model.values import UNMODIFIED
from backstory.stores.tables import existing, rows_of
from backstory.testing.sender import write_batch_file

KINDS = {"id": Kind.LONG, "b": Kind.LONG, "part": Kind.STRING, "a": Kind.STRING, LEFT_OVER: Kind.STRING}
FILES = {
    "replace": "replace_files",
    "update": "update_files",
    "delete": "delete_files",
    "earliest": "earliest_start_files",
}
ANY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def types(names):
    times = {name: Kind.UTC_DATETIME for name in names if name.startswith("_fivetran_")}
    kinds = times | {ACTIVE: Kind.BOOLEAN} | KINDS
    return {name: ColumnType(kinds[name]) for name in names}


class Table:
    """A live or history table, with a column that no delivery's definition names."""

    def __init__(self, folder, stored, *, keeps_history):
        self.folder, self.store, self.keeps_history = folder, MemoryStore(), keeps_history
        self.columns = COLUMNS if keeps_history else LIVE_COLUMNS
        layout = Layout.FIVETRAN_HISTORY if keeps_history else Layout.FIVETRAN_LIVE
        column_types = types([*self.columns, LEFT_OVER])
        columns = tuple(Column(name, type_) for name, type_ in column_types.items())
        shape = Shape(TableName("laws", fresh()), columns, KEY, layout)
        self.name = shape.table
        rows = pa.Table.from_pylist(
            [{name: row.get(name) for name in column_types} for row in stored], arrow_schema(column_types)
        )
        commit(self.store, None, Change(into=shape, added=rows))

    def delivery(self, batch, *, by_row=False):
        """The batch as files: one for rows with equal columns, or one per row."""
        files = {
            name: [
                str(write_batch_file(self.folder, rows, list(rows[0]), PLAIN).path)
                for rows in _parts(batch.get(kind, []), kind, by_row=by_row, ends=self.keeps_history)
            ]
            for kind, name in FILES.items()
            if kind in batch
        }
        table = common.Table(name=self.name.name)
        for name, type_ in types(self.columns).items():
            add_column(table, name, type_.kind, key=name in KEY)
        make = sdk.WriteHistoryBatchRequest if self.keeps_history else sdk.WriteBatchRequest
        markers = sdk.FileParams(null_string=PLAIN.null_string, unmodified_string=PLAIN.unmodified_string)
        return batch_of(make(table=table, file_params=markers, **files), self.name, ServeRequest())

    def deliver(self, delivery):
        return deliver_batch(self.store, delivery)

    @property
    def commits(self):
        return len(snapshots_of(existing(self.store, self.name)))

    @property
    def rows(self):
        return self.whole(in_utc(rows_of(self.store, existing(self.store, self.name)).to_pylist()))

    def whole(self, rows):
        """The rows with every column of the table."""
        return in_order({name: row.get(name) for name in sorted([*self.columns, LEFT_OVER])} for row in rows)

    def by_rule(self, stored, batch):
        rule = history_rule if self.keeps_history else live_rule
        return self.whole(rule(stored, KEY, self.columns, **batch).rows)


def _parts(rows, kind, *, by_row, ends):
    if kind == "update" and ends:
        rows = [{END: UNMODIFIED} | row for row in rows]
    rows = [{name: row[name] for name in sorted(row)} for row in rows]
    return [[row] for row in rows] if by_row else [list(part) for _, part in groupby(rows, key=list)]


@pytest.fixture(params=["live", "history"])
def drawn(request):
    """Tables of the kind, each with an arbitrary batch."""
    keeps_history = request.param == "history"
    return keeps_history, wild_batches() if keeps_history else live_batches()


@ANY
@given(st.data())
def test_a_table_has_the_rows_of_the_rule(drawn, tmp_path, data):
    """This holds for any delivery, and the same files make no second commit."""
    keeps_history, histories = drawn
    history = data.draw(histories)
    table, (batch,) = Table(tmp_path, history.stored, keeps_history=keeps_history), history.batches
    delivery, expected = table.delivery(batch), table.by_rule(history.stored, batch)
    first = table.deliver(delivery)
    assert table.rows == expected
    assert table.commits == 1 + (first.snapshot_id is not None)
    assert table.deliver(delivery).snapshot_id is None
    assert table.rows == expected
    assert table.commits == 1 + (first.snapshot_id is not None)


@ANY
@given(st.data())
def test_the_division_into_files_does_not_matter(drawn, tmp_path, data):
    """One file per row gives the same result as one file."""
    keeps_history, histories = drawn
    history = data.draw(histories)
    (batch,) = history.batches
    one, many = (Table(tmp_path, history.stored, keeps_history=keeps_history) for _ in range(2))
    counts = one.deliver(one.delivery(batch)).counts
    assert many.deliver(many.delivery(batch, by_row=True)).counts == counts
    assert many.rows == one.rows


@ANY
@given(st.data())
def test_keys_absent_from_the_delivery_keep_their_rows(drawn, tmp_path, data):
    """This includes the column that the definition does not name."""
    keeps_history, histories = drawn
    history = data.draw(histories)
    table, (batch,) = Table(tmp_path, history.stored, keeps_history=keeps_history), history.batches
    named = {_key(row) for rows in batch.values() for row in rows}
    before = [row for row in table.rows if _key(row) not in named]
    table.deliver(table.delivery(batch))
    assert [row for row in table.rows if _key(row) not in named] == before


def _key(row):
    return tuple(row[name] for name in KEY)


@ANY
@given(batches())
def test_a_repeated_last_delivery_changes_nothing(tmp_path, history):
    """This includes new files. The table is the source's own history after each delivery."""
    table = Table(tmp_path, history.stored, keeps_history=True)
    for batch, expected in zip(history.batches, history.tables, strict=True):
        table.deliver(table.delivery(batch))
        assert table.rows == table.whole(expected)
    commits = table.commits
    assert table.deliver(table.delivery(history.batches[-1])).snapshot_id is None
    assert (table.rows, table.commits) == (table.whole(history.tables[-1]), commits)
