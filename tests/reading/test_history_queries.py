"""R51 to R53: Questions about histories in databases, compared with a row-by-row reference."""

from dataclasses import replace
from datetime import datetime
from itertools import groupby, pairwise

import pytest
import sqlglot
from depth import deep
from historizing import Place, dataset, document, second, versions
from hypothesis import given, settings
from hypothesis import strategies as st
from specification.scd2 import BaseRow
from versions_in_python import (
    INSTANTS,
    KEYS,
    MOMENTS,
    answer,
    children,
    differences,
    effective,
    events,
    fill,
    gaps,
    in_dialect,
    labelled,
    lives,
    loaded,
    ordered,
    plain,
    prepare,
    pruned_at,
    stored,
    together,
    valid,
)

from backstory.doors.historize.runs import RegisteredRun
from backstory.errors import Refused, UsageError
from backstory.model.table import Dating, Labels
from backstory.reading import history_queries
from backstory.reading import history_queries as compared
from backstory.reading import history_queries as times
from backstory.reading.history_queries import effective as question
from backstory.reading.history_queries import labeled
from backstory.stores.sql.columns import Datatype, TableColumn
from backstory.stores.sql.dialects import get_dialect
from backstory.upkeep.model_histories import create_views, drop_views

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


def test_as_of_run_uses_the_load_time_of_the_run(place, tables):
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
        rows = place.rows(query.sql)
        gap, hist_key = query.columns.index("gap_before"), query.columns.index("rc_p_hist_key")
        expected = [(v.hist_key, away) for v, away in gaps(history, f"key {key}")]
        assert [(row[hist_key], row[gap]) for row in rows] == expected

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
        chosen_names = None if names == NAMES else names
        assert answer(place, compared.diff(ask, first, then, chosen_names)) == expected

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
        rows = answer(place, history_queries.join_as_of(child, parent, "rc_p_key", at, how))
        joined = [{"child": row["rc_c_hist_key"], "parent": row["parent_rc_p_hist_key"]} for row in rows]
        assert ordered(joined) == ordered(expected)

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
        rows = answer(place, history_queries.join_valid(child, parent, "rc_p_key", since))
        joined = [
            {
                "c": row["rc_c_hist_key"],
                "p": row["parent_rc_p_hist_key"],
                "from": row["valid_from"],
                "to": row["valid_to"],
            }
            for row in rows
        ]
        assert ordered(joined) == ordered(expected)

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


def test_join_valid_on_a_pruned_history_requires_a_start_time():
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
def test_invalid_queries_are_usage_errors(ask, code):
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
def test_queries_can_be_parsed_in_every_dialect(name, watermark):
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


OF_VIEWS = {"duckdb": deep(80, 16), "postgres": deep(25, 5)}
AXES = [("since", "timestamp"), ("day", "date"), ("since", "date"), ("day", "timestamp")]


def dating(column, granularity):
    return Dating(column, granularity)


def row(history, version, begin, end):
    return {**stored(history, version), "effective_from": begin, "effective_to": end}


@pytest.mark.parametrize(("column", "granularity"), AXES)
def test_the_view_equals_its_reference(place, column, granularity):
    """R52: At every known time, the intervals equal the reference's and do not overlap."""
    history = prepare(place)["rc_p"]

    @settings(max_examples=OF_VIEWS[place.name], deadline=None, derandomize=True)
    @given(lives(), st.none() | MOMENTS)
    def law(versions, known):
        fill(place, history, versions)
        rows = answer(place, question(history, dating(column, granularity), known))
        expected = [row(history, *each) for each in effective(versions, column, granularity, known)]
        assert rows == ordered(expected)
        assert_apart(rows)

    law()


def assert_apart(rows):
    """Check that intervals of a record are not empty and do not overlap."""
    by_start = sorted(rows, key=lambda each: (each["k"], each["effective_from"]))
    for _, rows_of_key in groupby(by_start, key=lambda each: each["k"]):
        life = list(rows_of_key)
        assert all(
            each["effective_to"] is None or each["effective_from"] < each["effective_to"] for each in life
        )
        assert all(a["effective_to"] and a["effective_to"] <= b["effective_from"] for a, b in pairwise(life))


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Pacific/Kiritimati"])
@pytest.mark.parametrize(("column", "granularity"), AXES)
def test_days_are_independent_of_the_session_time_zone(place, column, granularity, zone):
    """R52: Days are UTC days in every session time zone."""
    history = prepare(place)["rc_p"]
    versions = []
    for at, since in ((1, 2), (3, 90_000), (5, -86_400)):
        values = {
            "k": "x",
            "a": "p",
            "n": at,
            "since": second(since),
            "day": second(since).date(),
            "doc": None,
        }
        versions = loaded(versions, [BaseRow("key x", str(at), values)], at)
    versions = loaded(versions, [], 200_000)
    fill(place, history, versions)
    place.sql(f"SET TimeZone = '{zone}'")

    rows = answer(place, question(history, dating(column, granularity), second(200_001)))

    assert rows == ordered(row(history, *each) for each in effective(versions, column, granularity, None))
    assert len(rows) == 3


def test_the_effective_view_can_be_recreated_in_the_database(place):
    """R52: The view `_hist_effective` shows the present knowledge, and can be recreated."""
    history = prepare(place, effective_dating={"column": "since"})["rc_p"]

    for _ in range(2):
        for statement in (*drop_views(history), *create_views(history)):
            place.sql(statement)

    @settings(max_examples=10, deadline=None, derandomize=True)
    @given(lives())
    def law(versions):
        fill(place, history, versions)
        query = question(history, history.model.dating)
        listed = ", ".join(query.columns)
        rows = place.rows(f"SELECT {listed} FROM rawcore.rc_p_hist_effective")
        view_rows = ordered(dict(zip(query.columns, map(plain, each), strict=True)) for each in rows)
        assert view_rows == answer(place, query)

    law()


@pytest.mark.parametrize("name", ["spark", "sqlserver", "duckdb", "postgres"])
@pytest.mark.parametrize("known", [None, second(3)])
@pytest.mark.parametrize(("column", "granularity"), AXES)
def test_effective_queries_can_be_parsed_in_every_dialect(name, known, column, granularity):
    """R52: The view is one SELECT in every dialect, including for a pruned history."""
    dialect = get_dialect(name)
    history = in_dialect(dialect)["rc_p"]

    for each in (history, pruned_at(history, second(1))):
        query = question(each, dating(column, granularity), known)
        (parsed,) = sqlglot.parse(query.sql, read=dialect.SQLGLOT_NAME)
        assert tuple(parsed.named_selects) == query.columns


@pytest.mark.parametrize(("policy", "status"), [("reject", "rejected"), ("accept", "success")])
def test_late_effective_rows_are_refused_if_the_policy_is_reject(place, tmp_path, policy, status):
    """R52: With late_policy reject, a changed row must not be effective before its open version."""
    rules = {"effective_dating": {"column": "a", "late_policy": policy}}
    place.use(document(dataset("k* a:TIMESTAMP", input="stage.csv", historization=rules)))
    for run, day in ((1, "2025-01-02"), (2, "2025-01-01")):
        (tmp_path / "stage.csv").write_text(f"k,a\nx,{day} 00:00:00\n")
        (receipt,) = place.loads(f"r{run}", run)

    assert receipt.status == status
    assert (receipt.error and receipt.error.code) == ("LATE_EFFECTIVE" if policy == "reject" else None)
    assert len(place.rows("SELECT 1 FROM rawcore.rc_c_hist")) == (1 if policy == "reject" else 2)


LETTERS = {"new": "N", "changed": "C", "deleted": "D", "reappeared": "R"}


@pytest.mark.parametrize("labels", [LETTERS, {**LETTERS, "reappeared": "N"}, {**LETTERS, "changed": "new"}])
def test_the_view_maps_stored_states(place, labels):
    """R53: The view has the labels, with a separate one for returned records. Stored states do not change."""
    history = prepare(place)["rc_p"]
    words = Labels(**labels)

    @settings(max_examples=OF_VIEWS[place.name], deadline=None, derandomize=True)
    @given(lives())
    def law(life):
        fill(place, history, life)
        expected = [{**stored(history, each), "version_state": word} for each, word in labelled(life, words)]
        assert answer(place, labeled(history, words)) == ordered(expected)

    law()


@pytest.mark.parametrize(("mode", "made"), [("view", 1), ("stored", 0)])
def test_the_labeled_view_is_not_created_for_stored_labels(place, mode, made):
    """R53: `_hist_labeled` exists only in view mode."""
    history = prepare(place, state_labels={**LETTERS, "mode": mode})["rc_p"]
    statements = create_views(history)

    for statement in statements:
        place.sql(statement)

    views = [statement.split()[2] for statement in statements if statement.startswith("CREATE")]
    assert views == ["rawcore.rc_p_hist_labeled"] * made
    assert not made or place.rows("SELECT * FROM rawcore.rc_p_hist_labeled") == []


@pytest.mark.parametrize("name", ["spark", "sqlserver", "duckdb", "postgres"])
def test_labels_can_be_parsed_in_every_dialect(name):
    """R53: The view is one SELECT in every dialect, and labels with quotes are data."""
    dialect = get_dialect(name)
    history = in_dialect(dialect)["rc_p"]
    labels = Labels(new="it's", changed="{{ x }}", deleted='"', reappeared="\\")

    for each in (history, pruned_at(history, second(1))):
        query = labeled(each, labels)
        (parsed,) = sqlglot.parse(query.sql, read=dialect.SQLGLOT_NAME)
        assert tuple(parsed.named_selects) == query.columns


STORED = """
    a 1 [1,2) C r2
    a 2 [2,3) D r3
    a 2 [4,-) R r4
    b 1 [1,-) N r1
"""


@pytest.fixture
def lettered(place, engine):
    """Four loads with stored letters: b stays, and a changes, ends and returns."""
    place.mode(engine, state_labels={**LETTERS, "mode": "stored"})
    for number, base in enumerate(["a:1 b:1", "a:2 b:1", "b:1", "a:2 b:1"], start=1):
        assert place.base(base).load(f"r{number}", number).status == "success"
    return place


def texts(place):
    """The history's lines, without a check of laws, which use canonical states."""
    listed = "k, a, version_started_at, version_ended_at, version_state, load_run_id"
    from historizing import _number

    return sorted(
        f"{k} {a} [{_number(start)},{_number(end)}) {state} {run}"
        for k, a, start, end, state, run in place.rows(f"SELECT {listed} FROM rawcore.rc_c_hist")
    )


def test_stored_labels_are_written(lettered):
    """R53: In stored mode, every step writes and reads the labels, including a returned key's."""
    assert texts(lettered) == versions(STORED)


def test_other_labels_are_refused_without_relabel(lettered, engine):
    """R53: A load with other labels is rejected and writes nothing."""
    before = lettered.dump()
    lettered.mode(engine, state_labels={**LETTERS, "changed": "X", "mode": "stored"})

    receipt = lettered.base("a:3 b:1").load("r5", 5)

    assert (receipt.status, receipt.error["code"]) == ("rejected", "LABELS_CHANGED")
    assert lettered.dump()["rawcore.rc_c_hist"] == before["rawcore.rc_c_hist"]


@pytest.mark.parametrize(
    ("labels", "new_labels"),
    [
        ({**LETTERS, "changed": "X", "mode": "stored"}, {"C": "X", "D": "D", "R": "R", "N": "N"}),
        (
            {**LETTERS, "changed": "D", "deleted": "C", "mode": "stored"},
            {"C": "D", "D": "C", "R": "R", "N": "N"},
        ),
        ({**LETTERS, "reappeared": "N", "mode": "stored"}, {"C": "C", "D": "D", "R": "N", "N": "N"}),
        (None, {"C": "changed", "D": "deleted", "R": "new", "N": "new"}),
    ],
    ids=["one", "swapped", "merged", "none"],
)
def test_relabel_gives_stored_states_the_models_labels(lettered, engine, labels, new_labels):
    """R53: Relabel changes every stored label at once, without new versions. Later loads work."""
    lettered.mode(engine, **({"state_labels": labels} if labels else {}))

    receipt = lettered.load("r5", 5, relabel=True)
    again = lettered.load("r6", 6)

    expected = STORED
    for word in new_labels:
        expected = expected.replace(f") {word} r", f") <{word}> r")
    for word, now in new_labels.items():
        expected = expected.replace(f"<{word}>", now)
    assert texts(lettered) == versions(expected)
    assert (receipt.status, again.status) == ("unchanged", "unchanged")


def test_labels_can_be_stored_later(place, engine):
    """R53: A history with canonical states gets labels only by relabel."""
    place.mode(engine).base("a:1").load("r1", 1)
    place.mode(engine, state_labels={**LETTERS, "mode": "stored"})

    refused = place.base("a:2").load("r2", 2)
    receipt = place.load("r3", 3, relabel=True)

    assert (refused.error["code"], receipt.status) == ("LABELS_CHANGED", "success")
    assert texts(place) == versions("""
        a 1 [1,3) C r3
        a 2 [3,-) C r3
    """)


def test_a_later_relabel_gives_returned_keys_their_own_label(place, engine):
    """R53: Relabel distinguishes returned keys from new ones if the labels do."""
    place.mode(engine)
    for number, base in enumerate(["a:1 b:1", "b:1", "a:1 b:1"], start=1):
        place.base(base).load(f"r{number}", number, allow_empty=True)
    place.mode(engine, state_labels={**LETTERS, "mode": "stored"})

    place.load("r4", 4, relabel=True)

    assert texts(place) == versions("""
        a 1 [1,2) D r2
        a 1 [3,-) R r3
        b 1 [1,-) N r1
    """)


@pytest.mark.parametrize("datatype", ["DATE", "TIMESTAMP"])
def test_without_a_time_a_version_is_effective_from_its_start(place, datatype):
    """7.1: A NULL effective value counts as the start of the version, also for late_policy reject."""
    rules = {"effective_dating": {"column": "a", "late_policy": "reject"}}
    place.use(document(dataset(f"k* a:{datatype}", input="stage.s", historization=rules)))
    statuses = []
    for run, value in enumerate(("'2024-03-01'", "NULL", "'2020-01-01'", "'2025-01-03'", "NULL"), 1):
        place.stage("s", f"k* a:{datatype}", [{"k": "x"}])
        place.sql(f"UPDATE stage.s SET a = {value}")
        (receipt,) = place.loads(f"r{run}", run)
        statuses.append(receipt.error.code if receipt.error else receipt.status)

    assert statuses == ["success", "success", "LATE_EFFECTIVE", "success", "LATE_EFFECTIVE"]


@pytest.mark.parametrize(("datatype", "granularity"), [("DATE", "timestamp"), ("TIMESTAMP", "date")])
def test_infinite_times_are_effective_at_the_end_of_time(place, datatype, granularity):
    """R52: An infinite time is a time, and the view shows it in either granularity."""
    rules = {"effective_dating": {"column": "a", "granularity": granularity}}
    place.use(document(dataset(f"k* a:{datatype}", input="stage.s", historization=rules)))
    for run, value in enumerate(("-infinity", "2025-01-01", "infinity"), 1):
        place.stage("s", f"k* a:{datatype}", [{"k": "x"}])
        place.sql(f"UPDATE stage.s SET a = '{value}'")
        place.loads(f"r{run}", run)

    view = "SELECT substring(CAST(effective_from AS VARCHAR), 1, 10), substring(CAST(effective_to AS VARCHAR)"
    found = place.rows(f"{view}, 1, 10) FROM rawcore.rc_c_hist_effective ORDER BY effective_from")
    assert found == [("-infinity", "2025-01-01"), ("2025-01-01", "infinity"), ("infinity", None)]
