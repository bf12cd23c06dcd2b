"""R29: A planned load, whole or in parts by key, equals the rule, for many lives in memory."""

from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from specification.scd2 import BaseRow, LoadRejected, Rules, Version, historize

from backstory.model.layout import ENDED, FILE, LOAD_RUN_ID, LOADED_AT, POSITION, ROW_HASH, STARTED, STATE
from backstory.strategies.keys import key_parts
from backstory.strategies.part_plan import PlanSums
from backstory.strategies.scd2.plan import (
    APPEARED,
    APPEARS,
    BASE,
    BEGINNING,
    BEGINS,
    BEGINS_EARLY,
    CHANGED,
    EARLIER,
    EARLIER_DATE,
    ENDS,
    ENDS_EARLY,
    HIST_REMOVED,
    IN_SCOPE,
    INTERRUPTED,
    LIVE,
    LIVE_TWICE,
    NEVER_BEGAN,
    NO_HASH,
    NO_KEY,
    OPEN,
    OPEN_TWICE,
    SEEN,
    LoadTerms,
    as_they_are,
    counted_match,
    plan_beginnings,
    plan_load,
    sampled_keys,
    tally,
)
from backstory.strategies.scd2.transitions import WORDS, State

DAY = datetime(2025, 1, 2, tzinfo=UTC)
LABELS = {State.NEW: "N", State.CHANGED: "C", State.DELETED: "D", State.REAPPEARED: "R"}
INSTANT = pa.timestamp("us", "UTC")
TEXTS = [pa.field(name, pa.string()) for name in ("h_key", "b_key", ROW_HASH, "a")]
TIMES = [pa.field(name, INSTANT) for name in (STARTED, ENDED)]
LAST = [pa.field(STATE, pa.string()), pa.field(LOAD_RUN_ID, pa.string()), pa.field(LOADED_AT, INSTANT)]
STORED = pa.schema([*TEXTS, *TIMES, *LAST])
ROWS = pa.schema([("b_key", pa.string()), ("k", pa.string()), ("a", pa.string()), (ROW_HASH, pa.string())])
# The refusals, in the order of the rule.
CODES = {
    NO_KEY: "NULL_KEY",
    NO_HASH: "NULL_ROW_HASH",
    LIVE_TWICE: "DUPLICATE_KEY",
    OPEN_TWICE: "MULTIPLE_OPEN",
    NEVER_BEGAN: "spoilt-table",
    ENDS_EARLY: "NON_MONOTONIC_TIMESTAMP",
    BEGINS_EARLY: "NON_MONOTONIC_TIMESTAMP",
}
KEYS = "abcdef"


def terms(words, number, *, collapses=False):
    """A load at a second of the day."""
    at = DAY + timedelta(seconds=number)
    return LoadTerms("b_key", ("a",), {"a": "a"}, at, f"r{number}", words, collapses=collapses, late=True)


def stored(versions):
    """Versions as rows of a history."""
    names = dict(zip(asdict(Version(*range(9))), STORED.names, strict=True))
    rows = []
    for version in versions:
        row = {names[name]: value for name, value in vars(version).items()}
        rows.append(row | {"a": row["a"]["a"]})
    return pa.Table.from_pylist(rows, STORED)


def made(rows):
    """Rows of a history as versions."""
    versions = []
    for row in rows.to_pylist():
        built = row.get("h_key") or f"{row['b_key']} {row[STARTED]}"
        versions.append(
            Version(built, row["b_key"], row[ROW_HASH], {"a": row["a"]}, *[row[n] for n in STORED.names[4:]])
        )
    return versions


def sides_of(history, base, archived, scope):
    """A base, its open versions and earlier ones, as in a load."""
    rows = [{"b_key": row.key, "k": row.key, "a": row.values["a"], ROW_HASH: row.row_hash} for row in base]
    base_rows = pa.Table.from_pylist(rows, ROWS)
    open_ = stored([version for version in history if version.ended is None])
    open_ = open_.append_column(FILE, pa.repeat("file", len(open_)))
    open_ = open_.append_column(POSITION, pa.array(range(len(open_)), pa.int64()))
    known = [scope(version) for version in history if version.ended is None]
    earlier = stored([version for version in history if version.ended is not None])
    earlier = earlier.select(["b_key", STARTED, ENDED, STATE])
    pruned = pa.table({"b_key": pa.array(sorted(archived), pa.string())})
    return {
        BASE: base_rows.append_column(LIVE, pa.repeat(True, len(base_rows))),
        OPEN: open_.append_column(IN_SCOPE, pa.array(known, pa.bool_())),
        EARLIER: pa.concat_tables([earlier, pruned], promote_options="default"),
    }


def planned_part(load_terms, sides):
    """The plan of a part, with new versions next to earlier ones of their records."""
    part = plan_load(load_terms, sides)
    if not part.rows:
        return part
    kinds = ((CHANGED, False), (APPEARED, True))
    rows = [part.rows[k].append_column(APPEARS, pa.repeat(new, len(part.rows[k]))) for k, new in kinds]
    begin = {BEGINNING: pa.concat_tables(rows), EARLIER: sides[EARLIER]}
    return part + plan_beginnings(load_terms, STORED, begin, as_they_are)


def parted(sides, count):
    """The sides in parts by key."""
    for part in range(count):
        yield {
            name: rows.filter(pa.array(key_parts(rows, ["b_key"], count) == part))
            for name, rows in sides.items()
        }


VALUES = st.sampled_from(["1", "2", None])
ROW = st.tuples(st.sampled_from(KEYS), VALUES)


@st.composite
def lives(draw):
    """Words for states, rules and a series of loads, each with a second and rows."""
    lawful = st.dictionaries(st.sampled_from(KEYS), VALUES).map(lambda rows: list(rows.items()))
    rows = st.one_of(lawful, lawful, lawful, st.lists(ROW, max_size=4))
    loads = st.lists(st.tuples(st.integers(1, 8), st.sampled_from([False] * 9 + [True]), rows), max_size=6)
    return (
        draw(st.sampled_from([WORDS, LABELS])),
        draw(st.sampled_from([None, "1"])),
        draw(st.frozensets(st.sampled_from(KEYS), max_size=2)),
        draw(st.booleans()),
        draw(st.integers(1, 3)),
        draw(loads),
    )


def _row(key, value, *, broken):
    return BaseRow(key, None if broken else f"#{value}", {"a": value})


@given(lives())
def test_a_load_in_any_number_of_parts_gives_the_rules_result(life):
    """Versions, states, counts and refusals equal the rule's in each load, including late and interrupted
    ones, identical rows, and rows without a hash."""
    words, scope, archived, collapses, parts, loads = life
    history = []
    within = (lambda version: version.values["a"] == scope) if scope else (lambda _: True)
    rules = Rules(within, allow_empty=True, archived=archived, words=words, collapse_identical=collapses)
    for number, broken, rows in loads:
        load_terms = terms(words, number, collapses=collapses)
        base = [_row(*each, broken=broken and place == 0) for place, each in enumerate(rows)]
        sides = sides_of(history, base, archived, within)
        planned, sums = [planned_part(load_terms, each) for each in parted(sides, parts)], PlanSums()
        for part in planned:
            sums.add(part)
        faults = [code for fault, code in CODES.items() if sums.counts.get(fault)]
        try:
            expected, counted = historize(
                history, base, load_terms.instant, load_terms.run, lambda key, at: f"{key} {at}", rules
            )
        except LoadRejected as rejected:
            expected, counted = None, rejected.code
        assert faults[:1] == ([] if expected is not None else [counted])
        if expected is None:
            continue
        ended = [each for part in planned for each in made(part.rows[ENDS])]
        begun = [each for part in planned for each in made(part.rows[BEGINS])]
        after = {version.hist_key: version for version in [*history, *ended, *begun]}
        assert sorted(after.values(), key=repr) == sorted(expected, key=repr)
        assert sum(len(part.rows[HIST_REMOVED]) for part in planned) == len(ended)
        open_match = counted_match(OPEN, sums.counts)
        seen, interrupted = (sums.counts.get(name, 0) for name in (SEEN, INTERRUPTED))
        assert tally(open_match, seen, interrupted).counts == counted.counts
        assert open_match.nothing == (not ended and not begun)
        history = list(after.values())


def test_an_interrupted_load_is_completed():
    """The next version is `changed`, not `reappeared`."""
    now = DAY + timedelta(seconds=5)
    closed = Version("h", "x", "#1", {"a": "1"}, DAY, now, "changed", "r5", DAY)
    sides = sides_of([closed], [_row("x", "2", broken=False)], (), lambda _: True)
    part = planned_part(terms(WORDS, 5), sides)
    assert part.rows[BEGINS][STATE].to_pylist() == ["changed"]
    assert [part.counts.get(name, 0) for name in (INTERRUPTED, SEEN)] == [1, 0]


@pytest.mark.parametrize("value", ["1", "2"])
def test_an_open_version_without_a_start_is_refused(value):
    """This holds whether its record changes or not."""
    stands = Version("h", "x", "#1", {"a": "1"}, None, None, "new", "r0", DAY)
    sides = sides_of([stands], [_row("x", value, broken=False)], (), lambda _: True)
    sums = PlanSums()
    sums.add(plan_load(terms(WORDS, 5), sides))
    assert {fault: sampled_keys(sums, fault) for fault in sums.counts} == {NEVER_BEGAN: ["1"]}


@pytest.mark.parametrize("date", ["2025-01-01", None])
def test_an_earlier_effective_date_is_refused_but_null_is_accepted(date):
    """7.1: LATE_EFFECTIVE applies only to changed rows, and NULL counts as the load's instant."""
    load_terms = replace(terms(WORDS, 5), dated="a")
    stands = Version("h", "x", "#1", {"a": "2025-01-02"}, DAY, None, "new", "r0", DAY)
    sides = sides_of([stands], [_row("x", date, broken=False)], (), lambda _: True)
    sums = PlanSums()
    sums.add(plan_load(load_terms, sides))
    assert sums.counts[EARLIER_DATE] == (1 if date else 0)
    assert sampled_keys(sums, EARLIER_DATE) == ([date] if date else [])


@pytest.mark.parametrize("date", ["2025-01-01", "2025-01-03"])
def test_a_version_without_an_effective_date_is_effective_from_its_start(date):
    """7.1: NULL in the open version counts as its start."""
    asked = replace(terms(WORDS, 5), dated="a")
    stands = Version("h", "x", "#1", {"a": None}, DAY, None, "new", "r0", DAY)
    sides = sides_of([stands], [_row("x", date, broken=False)], (), lambda _: True)
    sums = PlanSums()
    sums.add(plan_load(asked, sides))
    assert sums.counts[EARLIER_DATE] == (date < "2025-01-02")
