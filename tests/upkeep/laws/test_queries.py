"""Each layout's query, in DuckDB and in Spark, finds the same violations as the rule in random lives."""

import random
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest
from depth import deep
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from specification.laws import HashedRow, LogFacts, LogRow, broken_events, violations

from backstory.formats.memory import Memory
from backstory.model.layout import ACTIVE, END, MEMORY, ROW_HASH, START, STATE, Layout
from backstory.model.layout import ENDED as HIST_END
from backstory.model.layout import STARTED as HIST_START
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType, Kind
from backstory.model.versions_layout import MEMORY_TYPE, OWN_COLUMNS
from backstory.stores.metadata.table_metadata import Unreadable
from backstory.upkeep.laws import checks
from backstory.upkeep.laws.queries import query_of_events, query_of_rows
from backstory.upkeep.laws.terms import LawTerms, RecordRow

INSTANT, TEXT, FLAG = pa.timestamp("us", "UTC"), pa.string(), pa.bool_()
TIME, WORD, TRUTH = (ColumnType(kind) for kind in (Kind.UTC_DATETIME, Kind.STRING, Kind.BOOLEAN))
ORDER = (("n", ColumnType(Kind.LONG)), ("read", TRUTH))
SEQUENCED = replace(
    MEMORY_TYPE, parts=(*MEMORY_TYPE.parts, ("sequence", ColumnType(Kind.STRUCT, parts=ORDER)))
)
MEMORIES = pa.struct(
    {
        **dict.fromkeys(("role", "kind", "scope"), TEXT),
        **dict.fromkeys(("ended_at", "end_before", "time"), INSTANT),
        "columns": pa.list_(pa.int32()),
        "sequence": pa.struct({"n": pa.int64(), "read": FLAG}),
    }
)
KEY = Column("k", WORD)


def shape(layout, *columns, key=("k",)):
    return Shape(TableName("some", "c_hist"), (KEY, *columns), key, layout)


def spanned(layout, start, end, *more):
    return shape(layout, Column(start, TIME), Column(end, TIME), *more)


NATIVE = [each if each.name != MEMORY else Column(MEMORY, SEQUENCED) for each in OWN_COLUMNS]
VERSIONS = shape(Layout.VERSIONS, Column("v", ColumnType(Kind.DOUBLE)), *NATIVE)
FED = LawTerms(VERSIONS, newest=60, tracked=("v",), numbers={"v": 2})
COPIED = replace(
    FED,
    marks=(RecordRow(0, 4, keyed=False, kind="copy"), RecordRow(0, 7, keyed=False, kind="copy")),
    settled=(None, 2),
)
JUDGED = {
    "fivetran": LawTerms(spanned(Layout.FIVETRAN_HISTORY, START, END, Column(ACTIVE, TRUTH))),
    "hist": LawTerms(spanned(Layout.HIST, HIST_START, HIST_END, Column(STATE, WORD), Column(ROW_HASH, WORD))),
    "dbt": LawTerms(spanned(Layout.DBT, "dbt_valid_from", "dbt_valid_to")),
    "versions": LawTerms(VERSIONS, newest=60),
    "fed": FED,
    "copied": COPIED,
    "cleared": replace(FED, marks=(RecordRow(0, 4, keyed=False, kind="truncate"),)),
}
KEYS = (*"abcdefghij", None)
HASHES = ("a" * 64, "A" * 64, "erased", "a" * 63 + "\n", "a" * 63, None)


def lived(chance, judged, key):
    """The rows of one record, valid or damaged, by fields of the rule."""
    grain, far = judged.span.grain, judged.span.far
    scale = grain * 10 or 1
    at, rows = chance.randint(-3, 4), []
    for _ in range(chance.randint(1, 4)):
        length = chance.choice([0, 1, 1, 2, 3])
        end = (at + length) * scale - grain * chance.choice([1, 1, 1, 0, 3])
        rows.append({"start": at * scale, "end": end, **_remembered(chance, judged)})
        at += length + chance.choice([0, 0, 0, 1, -1])
    if chance.random() < 0.7:
        rows[-1]["end"] = far
    if chance.random() < 0.4:
        chance.choice(rows)["end"] = chance.choice([None, far, 0, 3 * scale])
    if chance.random() < 0.1:
        chance.choice(rows)["start"] = None
    if chance.random() < 0.1:
        rows.append(dict(chance.choice(rows)))
    for row in rows:
        is_open = row["end"] is None or (far is not None and row["end"] >= far)
        state = chance.choice(["changed", "changed", "new" if is_open else "deleted", "new", "OWN", None])
        flag = is_open if chance.random() < 0.8 else chance.choice([True, False, None])
        row |= {"flag": flag, "state": state, "hash": chance.choice(HASHES), "key": key}
    chance.shuffle(rows)
    return rows


def _remembered(chance, judged):
    if not judged.remembers:
        return {}
    written = chance.choice([1, 1, 1, 1, 2, 70, None])
    row = {"written": written, "v": chance.choice([0.0, -0.0, 1.5, float("nan"), None])}
    row["kind"] = chance.choice(["upsert"] * 4 + [None, None, None, "delete", "copy"])
    row["ended_at"] = chance.choice([None, None, 2, 3, 1])
    row["end_before"] = chance.choice([None, 3, 9])
    row["columns"] = chance.choice([None, None, None, [2], []])
    row["role"] = chance.choice([None] * 8 + ["past", "fact", "fact", "odd"])
    row["scope"] = chance.choice([None] * 9 + ["{}"])
    row["time"] = chance.choice([None] * 5 + [1])
    row["sequence"] = chance.choice([None, (1, True), (2, False), (2, True)])
    return row


def arrow(rows, judged):
    """The rows as a table of the layout."""
    span = judged.shape.layout.span

    def column(name, type_):
        values = [row.get(name) for row in rows]
        return pa.array(values, pa.int64()).cast(type_) if type_ == INSTANT else pa.array(values, type_)

    columns = {"k": column("key", TEXT)}
    columns |= {span.start: column("start", INSTANT), span.end: column("end", INSTANT)}
    columns |= {span.flag: column("flag", FLAG)} if span.flag else {}
    columns |= {span.state: column("state", TEXT), ROW_HASH: column("hash", TEXT)} if span.state else {}
    if judged.remembers:
        columns |= {"v": column("v", pa.float64()), span.written: column("written", INSTANT)}
        orders = [row["sequence"] and dict(zip(("n", "read"), row["sequence"], strict=True)) for row in rows]
        fields = {
            field.name: column(field.name, field.type) for field in MEMORIES if field.name != "sequence"
        }
        fields["sequence"] = pa.array(orders, MEMORIES.field("sequence").type)
        arrays = [fields[field.name] for field in MEMORIES]
        columns[MEMORY] = pa.StructArray.from_arrays(arrays, fields=list(MEMORIES))
    return pa.table(columns)


def by_rule(rows, judged):
    """The number of violations of each law by the rule."""
    lives = {}
    for place, row in enumerate(rows):
        known = {name: value for name, value in row.items() if name not in {"key", "v"}}
        known["sequence"] = tuple(row.get("sequence") or ())
        values = {"v": row.get("v")} if judged.tracked else {}
        lives.setdefault(row["key"], []).append(
            HashedRow(place, **known, keyed=row["key"] is not None, values=values)
        )
    counts = Counter()
    for life in lives.values():
        hashed = life if judged.has_hashes else [replace(row, hash=None) for row in life]
        counts += violations(hashed, judged)
    return {law.value: times for law, times in counts.items()}


def counted(results):
    return {law: times for law, (times, _) in results.items()}


def in_duckdb(rows, judged):
    with Memory(1 << 30).lease() as lease:
        return counted(checks.FileRows(lease, arrow(rows, judged)).count(query_of_rows(judged)))


def of_chance(chance, judged, keys=KEYS):
    return [row for key in keys for row in lived(chance, judged, key)]


@pytest.mark.parametrize("layout", JUDGED)
@settings(max_examples=deep(400, 15), deadline=None, phases=[Phase.generate])
@given(st.randoms(use_true_random=False))
def test_duckdb_finds_the_same_violations_in_versions_as_the_rule(layout, chance):
    judged = JUDGED[layout]
    rows = of_chance(chance, judged)

    assert in_duckdb(rows, judged) == by_rule(rows, judged)


@pytest.mark.spark
@pytest.mark.parametrize("layout", JUDGED)
def test_spark_finds_the_same_violations_in_versions_as_the_rule(spark, layout):
    """Rows with equal starts and ends have no order, so only one such row is kept."""
    judged = JUDGED[layout]
    rows = of_chance(random.Random(7), judged, [*map(str, range(deep(2_000, 200))), None])
    if judged.remembers:
        rows = [*{(row["key"], row["start"], row["end"]): row for row in rows}.values()]

    results = checks.broken_in_frame(spark.createDataFrame(arrow(rows, judged)), judged)

    assert counted(results) == by_rule(rows, judged)


def test_equal_keys_with_different_texts_are_left_to_spark():
    """Only Spark knows which of both texts names the record, but a healthy table does not need it."""
    held = Shape(
        TableName("some", "rows"), (Column("k", ColumnType(Kind.DOUBLE)),), ("k",), Layout.FIVETRAN_LIVE
    )
    with Memory(1 << 30).lease() as lease:

        def broken(*keys):
            rows = checks.FileRows(lease, pa.table({"k": pa.array(keys, pa.float64())}))
            return rows.count(query_of_rows(LawTerms(held)))

        assert broken(1.0, float("nan"), -0.0) == {}
        for twice in ((0.0, -0.0), (float("nan"), float("nan"))):
            with pytest.raises(Unreadable):
                broken(*twice)


LOGS = {
    "keyed": (LogFacts(keyed=True, paired=True, watermark=5), "op", False),
    "unpaired": (LogFacts(keyed=True, paired=False), None, False),
    "taken": (LogFacts(keyed=True, paired=True, strict=False), "op", False),
    "ledger": (LogFacts(keyed=True, paired=True, corrects=True), "op", True),
    "append": (LogFacts(keyed=False, paired=False), None, False),
}


@pytest.mark.parametrize("kind", LOGS)
@settings(max_examples=deep(400, 30), deadline=None, phases=[Phase.generate])
@given(st.randoms(use_true_random=False))
def test_duckdb_finds_the_same_violations_in_events_as_the_rule(kind, chance):
    log, op, ledger = LOGS[kind]
    events = [
        (
            chance.choice("abcd") if log.keyed and chance.random() < 0.9 else None,
            _op(chance, op),
            _time(chance),
        )
        for _ in range(20)
    ]
    names = {
        "offset": "o",
        "op": op,
        "event_time": "at",
        "observed": None if op else "letter",
        "events": ledger,
    }
    letters = [{0: "I", 1: "D", 3: "U"}.get(each) for _, each, _ in events]
    keys, ops, times = zip(*events, strict=True)
    table = pa.table(
        {
            "k": pa.array(keys, TEXT),
            "op": pa.array(ops, pa.int32()),
            "letter": pa.array(letters, TEXT),
            "at": pa.array(times, pa.int64()).cast(INSTANT),
            "o": pa.array(range(len(events)), pa.int64()),
        }
    )
    columns = (Column("k", WORD), Column("at", TIME))
    held = Shape(TableName("some", "log"), columns, ("k",) if log.keyed else (), Layout.ODF)
    with Memory(1 << 30).lease() as lease:
        laws = query_of_events(held, names, strict=log.strict, watermark=log.watermark)
        results = checks.FileRows(lease, table).count(laws)

    lives = {}
    for place, (key, each, at) in enumerate(events):
        row = LogRow(each, at, keyed=not log.keyed or key is not None)
        lives.setdefault(key if log.keyed else place, []).append(row)
    expected = sum((broken_events(life, log) for life in lives.values()), Counter())
    assert counted(results) == {law.value: times for law, times in expected.items()}


def _op(chance, op):
    return chance.choice([0, 0, 1, 2, 3, 9, None]) if op else chance.choice([0, 0, 1, 3])


def _time(chance):
    return chance.choice([1, 2, 3, 4, 9, None])
