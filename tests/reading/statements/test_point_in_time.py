"""R51: Point-in-time queries in databases, compared with a row-by-row reference."""

from dataclasses import replace
from datetime import datetime

import pytest
import sqlglot
from depth import deep
from historizing import Place, second
from hypothesis import given, settings
from hypothesis import strategies as st
from versions_in_python import (
    INSTANTS,
    KEYS,
    MOMENTS,
    answer,
    children,
    differences,
    events,
    fill,
    gaps,
    in_dialect,
    lives,
    ordered,
    prepare,
    pruned_at,
    stored,
    together,
    valid,
)

from backstory.doors.historize.runs import RegisteredRun
from backstory.errors import Refused, UsageError
from backstory.reading.databases import history_queries
from backstory.reading.databases import history_queries as compared
from backstory.reading.databases import history_queries as times
from backstory.stores.sql.columns import Datatype, TableColumn
from backstory.stores.sql.dialects import get_dialect

EXAMPLES = {"duckdb": deep(100, 20), "postgres": deep(30, 6)}
NAMES = ["a", "n", "since", "day", "doc"]


@pytest.fixture
def tables(place):
    return prepare(place)


def holds(place: Place, law, *histories):
    """Check that the law holds for random histories."""
    settings(max_examples=EXAMPLES[place.name], deadline=None, derandomize=True)(given(*histories)(law))()


def test_as_of(place, tables):
    """R51: as_of returns the versions whose half-open interval contains the time."""

    def law(history, at):
        fill(place, tables["rc_p"], history)
        expected = ordered(stored(tables["rc_p"], version) for version in valid(history, at))
        assert answer(place, times.as_of(tables["rc_p"], at)) == expected

    holds(place, law, lives(), MOMENTS)


def test_as_of_a_run_is_as_of_its_instant(place, tables):
    """R51: as_of_run is as_of the run's load timestamp. A failed run is refused."""
    ask = tables["rc_p"]

    assert times.as_of_run(ask, "r3", RegisteredRun(second(3), 1, {})) == times.as_of(ask, second(3))
    for known in (None, RegisteredRun(second(3), 1)):
        with pytest.raises(UsageError) as refused:
            times.as_of_run(ask, "r3", known)
        assert refused.value.code == "unknown-run"


def test_current(place, tables):
    """R51: current returns the open versions."""

    def law(history):
        fill(place, tables["rc_p"], history)
        expected = ordered(stored(tables["rc_p"], v) for v in history if v.ended is None)
        assert answer(place, times.current(tables["rc_p"])) == expected

    holds(place, law, lives())


def test_timeline(place, tables):
    """R51: timeline returns a record's versions in order, each with the gap before it."""

    def law(history, key):
        fill(place, tables["rc_p"], history)
        query = times.timeline(tables["rc_p"], key)
        found = place.rows(query.sql)
        gap, hist_key = query.columns.index("gap_before"), query.columns.index("rc_p_hist_key")
        expected = [(v.hist_key, away) for v, away in gaps(history, f"key {key}")]
        assert [(row[hist_key], row[gap]) for row in found] == expected

    holds(place, law, lives(), st.sampled_from(KEYS))


def test_changes(place, tables):
    """R51: changes returns every event of (after, until], with the attributes before and after."""
    ask = tables["rc_p"]

    def row(kind, at, old, new):
        one = new or old
        attributes = {f"old_{name}": old and old.values[name] for name in NAMES}
        attributes |= {f"new_{name}": new and new.values[name] for name in NAMES}
        return {"change": kind, "changed_at": at, "rc_p_key": one.key, "k": one.values["k"], **attributes}

    def law(history, one, other):
        fill(place, ask, history)
        after, until = sorted((one, other))
        expected = ordered(row(*event) for event in events(history, after, until))
        assert answer(place, compared.changes(ask, after, until)) == expected

    holds(place, law, lives(), MOMENTS, MOMENTS)


def test_diff(place, tables):
    """R51: diff returns each attribute that differs between two times, in either direction."""
    ask = tables["rc_p"]

    def text(value):
        if isinstance(value, datetime):
            return value.strftime("%Y-%m-%d %H:%M:%S.%f")
        return None if value is None else str(value)

    def row(change, version, name, old, new):
        key = {"rc_p_key": version.key, "k": version.values["k"]}
        return {"change": change, **key, "column_name": name, "old_value": text(old), "new_value": text(new)}

    def law(history, first, then, names):
        fill(place, ask, history)
        expected = ordered(row(*each) for each in differences(history, first, then, names))
        asked = None if names == NAMES else names
        assert answer(place, compared.diff(ask, first, then, asked)) == expected

    columns = st.just(NAMES) | st.lists(st.sampled_from(NAMES), max_size=2, unique=True)
    holds(place, law, lives(), MOMENTS, MOMENTS, columns)


def test_join_as_of(place, tables):
    """R51: join_as_of adds to each child its parent at that time, or NULLs, or omits the child."""
    child, parent = tables["rc_c"], tables["rc_p"]

    def law(young, old, at, how):
        fill(place, child, young)
        fill(place, parent, old)
        parents = {version.key: version for version in valid(old, at)}
        pairs = [(version, parents.get(version.values["rc_p_key"])) for version in valid(young, at)]
        expected = [{"child": v.hist_key, "parent": p and p.hist_key} for v, p in pairs if p or how == "left"]
        found = answer(place, history_queries.join_as_of(child, parent, "rc_p_key", at, how))
        told = [{"child": row["rc_c_hist_key"], "parent": row["parent_rc_p_hist_key"]} for row in found]
        assert ordered(told) == ordered(expected)

    holds(place, law, children(), lives(), MOMENTS, st.sampled_from(["left", "inner"]))


def test_join_valid(place, tables):
    """R51: join_valid returns the non-empty intersections of the intervals of child and parent."""
    child, parent = tables["rc_c"], tables["rc_p"]

    def law(young, old, since):
        fill(place, child, young)
        fill(place, parent, old)
        expected = [
            {"c": v.hist_key, "p": p.hist_key, "from": start, "to": end}
            for v, p, start, end in together(young, old)
            if since is None or end is None or end > since
        ]
        found = answer(place, history_queries.join_valid(child, parent, "rc_p_key", since))
        told = [
            {
                "c": row["rc_c_hist_key"],
                "p": row["parent_rc_p_hist_key"],
                "from": row["valid_from"],
                "to": row["valid_to"],
            }
            for row in found
        ]
        assert ordered(told) == ordered(expected)

    holds(place, law, children(), lives(), st.none() | MOMENTS)


DUCK = in_dialect(get_dialect("duckdb"))
QUESTIONS = {
    "as_of": lambda history, at: times.as_of(history, at),
    "as_of_run": lambda history, at: times.as_of_run(history, "r", RegisteredRun(at, 1, {})),
    "changes": lambda history, at: compared.changes(history, at, second(9)),
    "diff from": lambda history, at: compared.diff(history, at, second(9)),
    "diff to": lambda history, at: compared.diff(history, second(9), at),
    "join_as_of": lambda history, at: history_queries.join_as_of(DUCK["rc_c"], history, "rc_p_key", at),
    "join_valid": lambda history, at: history_queries.join_valid(DUCK["rc_c"], history, "rc_p_key", at),
}


@pytest.mark.parametrize("ask", QUESTIONS.values(), ids=QUESTIONS)
def test_times_before_the_watermark_are_refused(ask):
    """R51, R55: A time before the prune watermark is refused. The watermark itself is accepted."""
    history = pruned_at(DUCK["rc_p"], second(5))

    with pytest.raises(Refused) as refused:
        ask(history, second(4.999999))

    assert refused.value.code == "PRUNED"
    assert ask(history, second(5)).sql


@pytest.mark.parametrize("ask", [each for name, each in QUESTIONS.items() if name != "as_of_run"])
def test_naive_times_are_refused(ask):
    """R51: A datetime without a zone is wrong usage."""
    with pytest.raises(UsageError) as refused:
        ask(DUCK["rc_p"], datetime(2025, 1, 2))

    assert refused.value.code == "naive-time"


def test_all_intersections_of_a_pruned_history_are_refused():
    """R51, R55: For a pruned table, join_valid needs a time from which it is complete."""
    with pytest.raises(UsageError) as refused:
        history_queries.join_valid(DUCK["rc_c"], pruned_at(DUCK["rc_p"], second(5)), "rc_p_key")

    assert refused.value.code == "since-needed"


@pytest.mark.parametrize(
    ("ask", "code"),
    [
        (lambda: times.timeline(DUCK["rc_p"], {"k": "x", "b": 1}), "other-key"),
        (lambda: times.timeline(DUCK["rc_p"], b"x"), "wrong-key"),
        (lambda: compared.diff(DUCK["rc_p"], INSTANTS[0], INSTANTS[1], ["b"]), "unknown-column"),
        (
            lambda: history_queries.join_as_of(DUCK["rc_c"], DUCK["rc_p"], "k", INSTANTS[0]),
            "unknown-reference",
        ),
        (lambda: times.as_of(DUCK["rc_p"], "yesterday"), "unreadable-time"),
    ],
)
def test_questions_without_sense_are_usage_errors(ask, code):
    """R51: An unknown key column, attribute, reference or time is refused before any SQL."""
    with pytest.raises(UsageError) as refused:
        ask()

    assert refused.value.code == code


def queries(history, child):
    """Each kind of query, once."""
    return [
        times.as_of(history, second(1)),
        times.current(history),
        times.timeline(history, "o'x\\"),
        compared.changes(history, second(7), second(8)),
        compared.diff(history, second(7), second(8)),
        history_queries.join_as_of(child, history, "rc_p_key", second(8)),
        history_queries.join_valid(child, history, "rc_p_key", second(8)),
    ]


@pytest.mark.parametrize("name", ["spark", "sqlserver", "duckdb", "postgres"])
@pytest.mark.parametrize("watermark", [None, second(1)])
def test_every_dialect_can_be_parsed(name, watermark):
    """R51: Each query is one SELECT in every dialect, with exactly its named columns."""
    dialect = get_dialect(name)
    tables = in_dialect(dialect)
    history = pruned_at(tables["rc_p"], watermark) if watermark else tables["rc_p"]

    for query in queries(history, tables["rc_c"]):
        (parsed,) = sqlglot.parse(query.sql, read=dialect.SQLGLOT_NAME)
        assert tuple(parsed.named_selects) == query.columns
        assert len(set(query.columns)) == len(query.columns)


def test_names_in_results_are_distinct(tmp_path):
    """R51: A user's column with the name of a result's column is not hidden."""
    place = Place("duckdb", "duckdb://", tmp_path)
    history = in_dialect(place.dialect)["rc_p"]
    column = TableColumn("gap_before", Datatype.STRING)

    query = times.timeline(replace(history, columns=(*history.columns, column)), "x")

    assert query.columns[-2:] == ("gap_before", "gap_before_2")
    place.close()
