"""R53: Labels for states, in a view and stored."""

import pytest
import sqlglot
from depth import deep
from historizing import second, versions
from hypothesis import given, settings
from versions_in_python import answer, fill, in_dialect, labelled, lives, ordered, prepare, pruned_at, stored

from backstory.model.history import Labels
from backstory.reading.databases.history_queries import labeled
from backstory.stores.sql.dialects import get_dialect
from backstory.upkeep.views import create_views

LETTERS = {"new": "N", "changed": "C", "deleted": "D", "reappeared": "R"}
EXAMPLES = {"duckdb": deep(80, 16), "postgres": deep(25, 5)}


@pytest.mark.parametrize("labels", [LETTERS, {**LETTERS, "reappeared": "N"}, {**LETTERS, "changed": "new"}])
def test_the_view_maps_stored_states(place, labels):
    """R53: The view has the labels, with a separate one for returned records. Stored states do not change."""
    history = prepare(place)["rc_p"]
    words = Labels(**labels)

    @settings(max_examples=EXAMPLES[place.name], deadline=None, derandomize=True)
    @given(lives())
    def law(life):
        fill(place, history, life)
        expected = [{**stored(history, each), "version_state": word} for each, word in labelled(life, words)]
        assert answer(place, labeled(history, words)) == ordered(expected)

    law()


@pytest.mark.parametrize(("mode", "made"), [("view", 1), ("stored", 0)])
def test_the_view_stands_where_labels_are_not_stored(place, mode, made):
    """R53: `_hist_labeled` exists only in view mode."""
    history = prepare(place, state_labels={**LETTERS, "mode": mode})["rc_p"]
    statements = create_views(history)

    for statement in statements:
        place.sql(statement)

    assert [statement.split()[2] for statement in statements] == ["rawcore.rc_p_hist_labeled"] * made
    assert not made or place.rows("SELECT * FROM rawcore.rc_p_hist_labeled") == []


@pytest.mark.parametrize("name", ["spark", "sqlserver", "duckdb", "postgres"])
def test_every_dialect_can_be_parsed(name):
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
    ("labels", "told"),
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
def test_relabel_gives_stored_states_the_models_labels(lettered, engine, labels, told):
    """R53: Relabel changes every stored label at once, without new versions. Later loads work."""
    lettered.mode(engine, **({"state_labels": labels} if labels else {}))

    receipt = lettered.load("r5", 5, relabel=True)
    again = lettered.load("r6", 6)

    expected = STORED
    for word in told:
        expected = expected.replace(f") {word} r", f") <{word}> r")
    for word, now in told.items():
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


def test_labels_of_a_returned_key_told_apart_later(place, engine):
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
