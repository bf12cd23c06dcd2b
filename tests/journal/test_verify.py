"""Whether a dataset agrees with its commits: R83, R85 and R86."""

import itertools
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pyarrow as pa
import pytest
from committing import commit as commit_change
from datasets import Dataset
from pyspark.sql.pandas.types import from_arrow_schema
from row_texts import in_python
from spoilt_histories import of_files

from backstory.doors.odf.registry import renamings
from backstory.engine import deliver
from backstory.journal import chain
from backstory.journal.chain import (
    EVENT_JSON,
    EVENT_KIND,
    HASH,
    NUMBER,
    PREV_HASH,
    TIME,
    Block,
    bring_up_to_date,
    log_of,
    log_rows,
    row_of,
    schema_hash,
    stored_journal,
    walk,
)
from backstory.journal.verify import Verdict, read_history, verify, verify_small
from backstory.model.change import Change, Note
from backstory.model.instant import iso
from backstory.model.table import TableName
from backstory.stores.iceberg.create import drop, ensure_schema
from backstory.stores.iceberg.store import IcebergStore, existing, load
from backstory.stores.metadata.table_metadata import Unreadable

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
FLAT, NESTED = ("INT", pa.int32(), int), ("ARRAY<INT>", pa.list_(pa.int32()), lambda number: [number])
numbers = itertools.count()


class Place:
    """A dataset that the test writes."""

    def __init__(self, store, name="d", kind=FLAT):
        self.store = store
        sql_type, type_, self.made = kind
        columns = [("offset", pa.int64()), ("system_time", pa.timestamp("us", "UTC")), ("v", pa.string())]
        self.schema = pa.schema([*columns, ("a.b", type_)])
        self.name = TableName("verify", f"{name} {next(numbers)}")
        self.sql_name = store.sql_name(self.name)
        self.log = store.sql_name(log_of(self.name))
        ensure_schema(store, "verify")
        self.make(sql_type)

    def make(self, sql_type="INT"):
        self.sql(
            f"CREATE TABLE {self.sql_name} (offset BIGINT, system_time TIMESTAMP, v STRING, `a.b` {sql_type})"
            " USING iceberg TBLPROPERTIES ('format-version'='3', 'write.delete.mode'='merge-on-read',"
            " 'write.update.mode'='merge-on-read')"
        )

    def sql(self, text):
        return self.store.spark.sql(text)

    def procedure(self, name, arguments="", table=None):
        self.sql(f"CALL backstory.system.{name}(table => 'verify.`{(table or self.name).name}`'{arguments})")

    @property
    def table(self):
        return existing(self.store, self.name)

    def pull(self, *values, **options):
        """Make one commit with a row for each value. Its block may be wrong."""
        table = self.table
        head = stored_journal(self.store, table).newest()
        before = (
            -1
            if head is None
            else head.event["end"]
            if head.event["end"] is not None
            else head.event["prev_offset"]
        )
        number = 0 if head is None else head.sequence + 1
        rows = [(before + 1 + place, NOON, value, self.made(number)) for place, value in enumerate(values)]
        named = [dict(zip(self.schema.names, row, strict=True)) for row in rows]
        table_rows = pa.Table.from_pylist(named, self.schema)
        event = {
            "start": before + 1 if rows else None,
            "end": before + len(rows) if rows else None,
            "prev_offset": before if before >= 0 else None,
            "watermark": iso(NOON + timedelta(days=number)),
            "source_state": {"kind": "odf/etag", "value": str(number)},
            "logical_hash": in_python(rows, from_arrow_schema(self.schema).jsonValue()) if rows else None,
            "schema_hash": self.schema_hash(),
            **options,
        }
        for name in self.store.spark.table(self.sql_name).columns[4:]:
            table_rows = table_rows.append_column(name, pa.nulls(len(rows), pa.string()))
        block = Block(number, head and head.hash, NOON + timedelta(hours=number), "AddData", event)
        note = Note("odf", block.hash, block.properties())
        commit_change(self.store, table, Change(added=table_rows if rows else None, snapshot=True), note)
        return block

    def schema_hash(self):
        schema = self.store.spark.table(self.sql_name).schema
        return schema_hash([(field.name, field.dataType.simpleString()) for field in schema])

    def log_it(self):
        bring_up_to_date(self.store, self.table)

    def expire(self, table=None):
        self.procedure("expire_snapshots", ", older_than => TIMESTAMP'2999-01-01', retain_last => 1", table)

    def verdict(self):
        return verified_twice(self.store, self.name)


def verified_twice(store, name):
    """The result of Spark, which equals the result from the dataset's files."""
    verdict = verify(store, name, renamings)
    assert verdict == of_files(store, name, partial(verify_small, renamings=renamings))
    return verdict


@pytest.fixture
def place(store):
    """Two commits of rows, and one without rows in between, all in the log."""
    return filled(store)


@pytest.fixture(scope="module")
def shared_place(spark):
    """A place that is restored after each change."""
    return filled(IcebergStore(spark))


def filled(store, kind=FLAT):
    new_place = Place(store, kind=kind)
    new_place.pull("a", "b", "c")
    new_place.pull()
    new_place.pull("d", None)
    new_place.log_it()
    return new_place


def chained(*events):
    """Blocks of one row each, unless the events differ."""
    history = []
    for number, changes in enumerate(events):
        event = {
            "start": number,
            "end": number,
            "prev_offset": number - 1 if number else None,
            "watermark": None,
        }
        previous = history[-1].hash if history else None
        history.append(Block(number, previous, NOON, "AddData", event | changes))
    return history


CHAIN = chained({}, {}, {"watermark": "2026-01-31"}, {"watermark": "2026-01-31"})
ROWS = [row_of(block) for block in CHAIN]
TOLD = [block.properties() for block in CHAIN[::-1]]


def first(rows, properties):
    """The first bad block, and its difference."""
    (problem, *_) = read_history(rows, properties)[1]
    return problem.sequence, problem.what


def test_a_chain_is_complete_from_log_and_snapshots():
    """This holds for any division and overlap of blocks."""
    for logged_, expired in [(4, 0), (4, 4), (4, 2), (3, 0), (2, 2), (0, 0)]:
        assert (CHAIN, []) == read_history(ROWS[:logged_], TOLD[: 4 - expired])


@pytest.mark.parametrize("column", ROWS[0])
@pytest.mark.parametrize("expired", [0, 2, 4])
@pytest.mark.parametrize("number", [0, 1, 3])
def test_r86_a_change_in_any_log_cell_is_found(column, expired, number):
    """R86: This holds with existing and with expired commits."""
    other = {TIME: NOON + timedelta(microseconds=1), NUMBER: 9}.get(column, f"{ROWS[number][column]} ")
    if column == EVENT_JSON:
        other = ROWS[number][EVENT_JSON].replace("watermark", "watermarks")
    rows = [row | {column: other} if row is ROWS[number] else row for row in ROWS]

    sequence, what = first(rows, TOLD[: 4 - expired])

    assert number == sequence
    assert what in {"log", "chain"}


@pytest.mark.parametrize(
    "changes",
    [
        {NUMBER: None},
        {PREV_HASH: "x"},
        {TIME: None},
        {EVENT_KIND: "Seed"},
        {EVENT_JSON: "?"},
        {EVENT_JSON: None},
        {HASH: None},
    ],
)
def test_invalid_log_rows_are_found(changes):
    for expired in (0, 4):
        assert "log" in {
            each.what for each in read_history([*ROWS[:3], ROWS[3] | changes], TOLD[: 4 - expired])[1]
        }


def test_lost_and_repeated_log_rows_are_found():
    """The newest rows may be missing, because they are logged later."""
    lost = [ROWS[0], ROWS[2]]

    assert (1, "log") == first(lost, TOLD)
    assert (1, "chain") == first(lost, TOLD[:2])
    assert (0, "chain") == first(ROWS[1:], [])
    assert (0, "log") == first([ROWS[0], *ROWS], TOLD)
    assert (2, "log") == first(ROWS, [block.properties() for block in CHAIN[:2][::-1]])


def test_lost_blocks_are_named_by_their_offsets():
    assert (1, (1, 2), "chain") == ends(read_history([ROWS[0], ROWS[3]], [])[1][0])


def ends(problem):
    return problem.sequence, problem.offsets, problem.what


@pytest.mark.parametrize("name", [name for name in TOLD[0] if name != "backstory.odf.sequence"])
def test_changed_properties_are_found(name):
    properties = [
        each | {name: f"{each[name]} "} if number == 1 else each for number, each in enumerate(TOLD)
    ]

    assert (2, "chain") == first([], properties)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"start": 3}, "offsets"),
        ({"start": 1, "end": 1}, "offsets"),
        ({"end": 1}, "offsets"),
        ({"end": None}, "offsets"),
        ({"prev_offset": None}, "offsets"),
        ({"start": None, "end": None, "prev_offset": 0}, "offsets"),
        ({"watermark": None}, "chain"),
        ({"watermark": "2026-01-29"}, "chain"),
        ({"watermark": "noon"}, "chain"),
    ],
)
def test_contradictory_blocks_are_found(changes, what):
    """Correct hashes do not make a wrong block valid."""
    history = chained({}, {"watermark": "2026-01-30"}, {"watermark": "2026-01-31"} | changes)

    assert (2, what) == first([row_of(block) for block in history], [])


def test_a_decreasing_system_time_is_found():
    late = replace(CHAIN[1], system_time=NOON - timedelta(1))

    assert (1, "chain") == first([], [each.properties() for each in (late, CHAIN[0])])


def test_a_block_of_another_chain_is_found():
    """A valid block that follows another one is found."""
    assert (1, "chain") == first([], [replace(CHAIN[1], previous="0").properties(), TOLD[3]])


def test_r85_maintenance_and_new_columns_keep_a_dataset_valid(place):
    """R85: The dataset verifies after a rewrite, expired snapshots and a new column, and new commits work."""
    assert Verdict(place.name, 3, 5) == place.verdict()

    place.procedure("rewrite_data_files", ", options => map('rewrite-all', 'true')")
    assert 3 == len(list(walk(place.table)))
    place.expire()
    assert [] == list(walk(place.table))
    assert 2 == stored_journal(place.store, place.table).newest().sequence
    place.sql(f"ALTER TABLE {place.sql_name} ADD COLUMN extra STRING")
    assert Verdict(place.name, 3, 5) == place.verdict()

    place.pull("e")
    assert [0, 1, 2, 3] == [block.sequence for block in stored_journal(place.store, place.table).all_blocks()]
    assert Verdict(place.name, 4, 6) == place.verdict()


def test_r83_the_log_can_be_rebuilt_from_the_commits(shared_place):
    """R83: The rebuilt log equals the former."""
    before = log_rows(shared_place.store, shared_place.name)

    drop(shared_place.store, log_of(shared_place.name))
    assert shared_place.verdict().valid
    shared_place.log_it()

    assert 3 == len(before)
    assert log_rows(shared_place.store, shared_place.name) == before


def test_r86_changed_rows_are_found(shared_place):
    """R86: This covers a changed value, a removed row, swapped offsets, an added row and a repeated one."""
    start = shared_place.table.iceberg.currentSnapshot().snapshotId()
    changes = {
        "UPDATE {} SET v = '' WHERE v IS NULL": (2, (3, 4), "rows"),
        "DELETE FROM {} WHERE offset = 1": (0, (0, 2), "rows"),
        "UPDATE {} SET offset = 4 - offset WHERE offset IN (1, 3)": (0, (0, 2), "rows"),
        "INSERT INTO {} VALUES (5, NULL, 'e', NULL), (NULL, NULL, 'e', NULL)": (None, (5, 5), "offsets"),
        "UPDATE {} SET offset = 1 WHERE offset = 0": (0, (0, 2), "offsets"),
        "UPDATE {} SET offset = NULL WHERE offset = 4": (2, (3, 4), "rows"),
        "INSERT INTO {} SELECT * FROM {}": (0, (0, 2), "offsets"),
        "DELETE FROM {}": (0, (0, 2), "rows"),
    }

    problems = {}
    for change in changes:
        shared_place.sql(change.replace("{}", shared_place.sql_name))
        problems[change] = ends(shared_place.verdict().problems[0])
        shared_place.procedure("rollback_to_snapshot", f", snapshot_id => {start}")

    assert problems == changes


def test_r86_edited_log_rows_are_found(shared_place):
    """R86: The problem names the edited row's block. A log that is written again is valid."""
    shared_place.sql(
        f"UPDATE {shared_place.log} SET event_json = replace(event_json, 'etag', 'gate') WHERE sequence_number = 2"
    )
    edited = shared_place.verdict()
    drop(shared_place.store, log_of(shared_place.name))
    shared_place.log_it()

    assert [(2, (3, 4), "log")] == [ends(each) for each in edited.problems]
    assert shared_place.verdict().valid


def test_a_block_is_logged_once(place):
    """This includes a process with an old copy of the table, and a compacted and expired log."""
    old = place.table
    place.pull("e")
    place.log_it()
    log = load(place.store, log_of(place.name))
    place.log_it()
    bring_up_to_date(place.store, old)

    assert load(place.store, log_of(place.name)).location == log.location
    assert "3" == log.iceberg.currentSnapshot().summary().get("backstory.odf.logged")

    for name in (log_of(place.name), place.name):
        place.procedure("rewrite_data_files", ", options => map('rewrite-all', 'true')", name)
        place.expire(name)
        place.log_it()

    assert [0, 1, 2, 3] == [row["sequence_number"] for row in log_rows(place.store, place.name)]
    assert 3 == stored_journal(place.store, place.table).newest().sequence


def test_two_processes_log_a_block_once(place, monkeypatch):
    """The other process logs it between reading and writing."""
    place.pull("e")
    commit = deliver.commit

    def late(*arguments):
        monkeypatch.setattr(deliver, "commit", commit)
        deliver.deliver_once(place.store, lambda store: nullcontext(chain.plan_log(store, place.table)))
        return commit(*arguments)

    monkeypatch.setattr(deliver, "commit", late)
    place.log_it()

    assert [0, 1, 2, 3] == [row["sequence_number"] for row in log_rows(place.store, place.name)]


def test_a_rolled_back_dataset_is_reported(place):
    """The log keeps the former commits, and the later ones are added."""
    oldest = next(iter(place.table.iceberg.snapshots())).snapshotId()
    place.procedure("rollback_to_snapshot", f", snapshot_id => {oldest}")

    assert (1, None, "log") == ends(place.verdict().problems[0])

    place.pull("x")
    place.log_it()
    assert [0, 1, 1, 2] == [row["sequence_number"] for row in log_rows(place.store, place.name)]
    assert (1, None, "log") == ends(place.verdict().problems[0])


def test_system_columns_may_be_renamed(store, tmp_path):
    """O22: Rows with former column names verify under the new ones, before and after later commits."""
    life = Dataset(store, tmp_path, "{kind: append}", "city STRING, b STRING")
    name = TableName(life.namespace, life.name)
    life.push("A,1")
    assert Verdict(name, 1, 1) == verified_twice(store, name)

    life.add(after=("{kind: setVocab, systemTimeColumn: seen, offsetColumn: number}",))
    assert Verdict(name, 1, 1) == verified_twice(store, name)

    life.push("B,2")
    assert Verdict(name, 2, 2) == verified_twice(store, name)

    store.spark.sql(f"UPDATE {store.sql_name(name)} SET seen = seen + INTERVAL 1 SECOND WHERE number = 0")
    assert [(0, (0, 0), "rows")] == [ends(each) for each in verified_twice(store, name).problems]


def test_nested_values_are_hashed_only_by_spark(store):
    place = filled(store, NESTED)

    assert Verdict(place.name, 3, 5) == verify(store, place.name, renamings)
    with pytest.raises(Unreadable, match="nested"):
        place.verdict()


def test_a_recreated_table_lacks_the_logged_rows(place):
    """The new table has no commits and no rows."""
    drop(place.store, place.name)
    place.make()

    assert [(0, (0, 2), "rows"), (2, (3, 4), "rows")] == [ends(each) for each in place.verdict().problems]


def test_a_different_schema_is_found(store):
    place = Place(store)
    place.pull("a", schema_hash=schema_hash([("offset", "bigint"), ("v", "string")]))

    assert [(0, (0, 0), "schema")] == [ends(each) for each in place.verdict().problems]


def test_an_empty_table_is_valid(store):
    place = Place(store)
    place.log_it()

    assert place.verdict().valid
    assert stored_journal(store, place.table).newest() is None
    assert load(store, log_of(place.name)) is None
