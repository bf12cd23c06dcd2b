"""R52: The history by effective time in databases, compared with a row-by-row reference."""

from itertools import groupby, pairwise

import pytest
import sqlglot
from depth import deep
from historizing import dataset, document, second
from hypothesis import given, settings
from hypothesis import strategies as st
from versions_in_python import (
    MOMENTS,
    answer,
    effective,
    fill,
    in_dialect,
    lives,
    loaded,
    ordered,
    plain,
    prepare,
    pruned_at,
    stored,
)

from backstory.model.history import Dating
from backstory.reading.databases.history_queries import effective as question
from backstory.stores.sql.dialects import get_dialect
from backstory.testing.rule import BaseRow
from backstory.upkeep.views import create_views, drop_views

EXAMPLES = {"duckdb": deep(80, 16), "postgres": deep(25, 5)}
AXES = [("since", "timestamp"), ("day", "date"), ("since", "date"), ("day", "timestamp")]


def dating(column, granularity):
    return Dating(column, granularity)


def row(history, version, begin, end):
    return {**stored(history, version), "effective_from": begin, "effective_to": end}


@pytest.mark.parametrize(("column", "granularity"), AXES)
def test_the_view_equals_its_reference(place, column, granularity):
    """R52: At every known time, the intervals equal the reference's and do not overlap."""
    history = prepare(place)["rc_p"]

    @settings(max_examples=EXAMPLES[place.name], deadline=None, derandomize=True)
    @given(lives(), st.none() | MOMENTS)
    def law(versions, known):
        fill(place, history, versions)
        found = answer(place, question(history, dating(column, granularity), known))
        expected = [row(history, *each) for each in effective(versions, column, granularity, known)]
        assert found == ordered(expected)
        assert_apart(found)

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
def test_the_session_has_no_say_in_days(place, column, granularity, zone):
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

    found = answer(place, question(history, dating(column, granularity), second(200_001)))

    assert found == ordered(row(history, *each) for each in effective(versions, column, granularity, None))
    assert len(found) == 3


def test_the_view_stands_in_the_database(place):
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
        found = place.rows(f"SELECT {listed} FROM rawcore.rc_p_hist_effective")
        told = ordered(dict(zip(query.columns, map(plain, each), strict=True)) for each in found)
        assert told == answer(place, query)

    law()


@pytest.mark.parametrize("name", ["spark", "sqlserver", "duckdb", "postgres"])
@pytest.mark.parametrize("known", [None, second(3)])
@pytest.mark.parametrize(("column", "granularity"), AXES)
def test_every_dialect_can_be_parsed(name, known, column, granularity):
    """R52: The view is one SELECT in every dialect, including for a pruned history."""
    dialect = get_dialect(name)
    history = in_dialect(dialect)["rc_p"]

    for each in (history, pruned_at(history, second(1))):
        query = question(each, dating(column, granularity), known)
        (parsed,) = sqlglot.parse(query.sql, read=dialect.SQLGLOT_NAME)
        assert tuple(parsed.named_selects) == query.columns


@pytest.mark.parametrize(("policy", "status"), [("reject", "rejected"), ("accept", "success")])
def test_late_effective_rows_are_refused_where_the_model_says_so(place, tmp_path, policy, status):
    """R52: With late_policy reject, a changed row must not be effective before its open version."""
    rules = {"effective_dating": {"column": "a", "late_policy": policy}}
    place.use(document(dataset("k* a:TIMESTAMP", input="stage.csv", historization=rules)))
    for run, day in ((1, "2025-01-02"), (2, "2025-01-01")):
        (tmp_path / "stage.csv").write_text(f"k,a\nx,{day} 00:00:00\n")
        (receipt,) = place.loads(f"r{run}", run)

    assert receipt.status == status
    assert (receipt.error and receipt.error.code) == ("LATE_EFFECTIVE" if policy == "reject" else None)
    assert len(place.rows("SELECT 1 FROM rawcore.rc_c_hist")) == (1 if policy == "reject" else 2)
