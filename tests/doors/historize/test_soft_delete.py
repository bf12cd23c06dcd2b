"""R54: Complete loads with base rows flagged as deleted, compared with the rule."""

import random
from datetime import UTC

import pytest
from depth import deep
from historizing import aware, dataset, document, model_of, second, versions
from specification.scd2 import BaseRow, Rules, historize

from backstory.errors import UsageError

LOADS = {"duckdb": deep(40, 12), "postgres": deep(20, 6)}
COLUMNS = "k* a gone"
# Each flag, and whether it is one of the deleted values.
FLAGS = {"X": True, "true": True, "": False, "no": False, "x": False}


@pytest.fixture
def soft(place, engine):
    """A model whose base has the flag `gone`."""
    return using(place, engine)


def using(place, engine, columns=COLUMNS, **more):
    rules = {"column": "gone", "deleted_values": ["X", "true"], **more}
    historization = {"engine": engine, "soft_delete": rules, "allow_empty_snapshot": True}
    place.use(document(dataset(columns, input="stage.csv", historization=historization)))
    return place


def load(place, number, rows, header="k,a,gone"):
    """Fill the stage from `x 1 X` (key, attribute and flag), and load it."""
    lines = [",".join("" if word == "-" else word for word in line.split()) for line in rows]
    (place.folder / "stage.csv").write_text("\n".join([header, *lines]) + "\n")
    (receipt,) = place.loads(f"r{number}", number)
    assert receipt.error is None
    return {name: count for name, count in receipt.counts.items() if count}


def test_a_set_flag_closes_and_a_cleared_flag_reopens_a_record(soft):
    """R54: A set flag closes as deleted, and a cleared flag begins a new version. NULL and other values are
    live."""
    counts = [
        load(soft, number, [f"x 1 {flag}", "y 1 no"]) for number, flag in enumerate(["-", "X", "X", "no"], 1)
    ]

    assert soft.history() == versions("""
        x 1 [1,2) deleted r2
        x 1 [4,-) new r4
        y 1 [1,-) new r1
    """)
    assert counts == [
        {"new": 2},
        {"deleted": 1, "unchanged": 1},
        {"unchanged": 1},
        {"reappeared": 1, "unchanged": 1},
    ]


def test_a_record_flagged_from_the_start_has_no_version(soft):
    """R54: A record that was always flagged has no version, even if it changes."""
    for number, value in enumerate("123", start=1):
        load(soft, number, [f"x {value} X", "y 1 -"])

    assert soft.history() == versions("y 1 [1,-) new r1")


@pytest.mark.parametrize("order", [("X", None), (None, None), ("X", "X", None)], ids=str)
def test_a_flagged_and_removed_record_closes_once(soft, order):
    """R54: A record that is flagged, removed or both is closed once, by the first."""
    load(soft, 1, ["x 1 -", "y 1 -"])
    for number, flag in enumerate(order, start=2):
        load(soft, number, [*([f"x 1 {flag}"] if flag else []), "y 1 -"])

    assert soft.history() == versions("""
        x 1 [1,2) deleted r2
        y 1 [1,-) new r1
    """)


def test_the_flag_is_not_a_change(soft):
    """R54: The flag and deleted_at are not hashed. A change while flagged is visible at the return."""
    using(soft, soft.dataset.historization.engine, f"{COLUMNS} went:TIMESTAMP", deleted_at="went")
    header = "k,a,gone,went"
    load(soft, 1, ["x 1 - -", "y 1 - -"], header)
    load(soft, 2, ["x 1 no 2025-01-02T00:00:01", "y 1 X 2025-01-02T00:00:01"], header)
    load(soft, 3, ["x 1 - -", "y 2 X -"], header)
    load(soft, 4, ["x 1 - -", "y 2 - -"], header)

    assert soft.history() == versions("""
        x 1 [1,-) new r1
        y 1 [1,2) deleted r2
        y 2 [4,-) new r4
    """)


def test_a_boolean_flag_matches_its_canonical_text(place, engine):
    """R54: The deleted value `true` means a true BOOLEAN in every database."""
    using(place, engine, "k* a gone:BOOLEAN")
    load(place, 1, ["x 1 false", "y 1 -"])
    load(place, 2, ["x 1 true", "y 1 false"])

    assert place.history() == versions("""
        x 1 [1,2) deleted r2
        y 1 [1,-) new r1
    """)


@pytest.mark.parametrize(
    ("flag", "value", "form"),
    [
        ("BOOLEAN", "TRUE", "true"),
        ("BOOLEAN", "1", "true"),
        ("INTEGER", "01", "12"),
        ("INTEGER", "true", "12"),
        ("DECIMAL(4,1)", "1", "12.0"),
        ("DECIMAL(4,0)", "1.0", "12"),
        ("DATE", "2025-1-31", "2025-01-31"),
        ("TIME", "09:30:00", "09:30:00.000000"),
        ("TIMESTAMP", "2025-01-31T09:30:00Z", "2025-01-31 09:30:00.000000"),
        ("BINARY", "0AFF", "0aff"),
        ("UUID", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ],
)
def test_deleted_values_that_match_no_row_are_refused(flag, value, form):
    """R54: One deleted value must be a canonical text of the flag's type, because texts are compared."""
    rules = {"soft_delete": {"column": "gone", "deleted_values": [value]}}
    with pytest.raises(UsageError, match="soft_delete has the deleted values") as refused:
        model_of(document(dataset(f"k* gone:{flag}", historization=rules)))
    assert form in refused.value.remedy
    rules["soft_delete"]["deleted_values"] = [value, form]
    model_of(document(dataset(f"k* gone:{flag}", historization=rules)))


def test_a_base_can_flag_missing_rows(place, engine):
    """R54: With on_delete flag, a row missing from the stage is flagged at T and kept. It can return."""
    using(place, engine, f"{COLUMNS} went:TIMESTAMP", deleted_at="went", on_delete="flag")
    header = "k,a,gone,went"
    counts = [load(place, 1, ["x 1 - -", "y 1 - -"], header), load(place, 2, ["y 1 - -"], header)]
    flagged = place.rows("SELECT k, gone, went FROM rawcore.rc_c ORDER BY k")
    counts += [load(place, 3, ["y 1 - -"], header), load(place, 4, ["x 1 - -", "y 1 - -"], header)]

    assert [(k, flag, when and aware(when).astimezone(UTC)) for k, flag, when in flagged] == [
        ("x", "X", second(2)),
        ("y", None, None),
    ]
    assert place.history() == versions("""
        x 1 [1,2) deleted r2
        x 1 [4,-) new r4
        y 1 [1,-) new r1
    """)
    assert counts[2] == {"unchanged": 1}


def test_random_loads_equal_the_rule(soft):
    """R54: Any run of flags, changes and deletions equals the rule over unflagged rows."""
    chance, expected = random.Random(7), []
    for number in range(1, LOADS[soft.name] + 1):
        keys = chance.sample("uvxyz", chance.randint(0, 5))
        rows = {key: (chance.choice("123"), chance.choice(list(FLAGS))) for key in keys}
        load(soft, number, [f"{key} {value} {flag or '-'}" for key, (value, flag) in rows.items()])
        base = [BaseRow(key, value, {"a": value}) for key, (value, flag) in rows.items() if not FLAGS[flag]]
        expected, _ = historize(
            expected, base, number, f"r{number}", lambda key, at: (key, at), Rules(allow_empty=True)
        )

    assert soft.history() == sorted(
        f"{v.key} {v.values['a']} [{v.started},{'-' if v.ended is None else v.ended}) {v.state} {v.run}"
        for v in expected
    )
