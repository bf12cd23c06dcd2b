"""A rewind in plain Python: its result, and the states that stay known (native.md V84, L9)."""

import random

from depth import deep
from specification.rewind import live_rows_at, rewound
from stored_versions import life, n, random_life, shown, t, version

WRONG = [version(1, "a", 10, 20), version(1, "x", 20), version(2, "y", 20)]


def now(rows):
    return shown(live_rows_at(rows, t(99)))


def test_E14_a_rewind_undoes_commits_and_keeps_earlier_states_known():
    rows = life([version(1, "a", 10)], WRONG)
    rows = rewound(rows, t(1), t(4), ("id",))
    assert now(rows) == ["1 a [10,)"]
    assert shown(live_rows_at(rows, t(3))) == ["1 a [10,20)", "1 x [20,)", "2 y [20,)"]
    assert shown(live_rows_at(rows, t(1))) == ["1 a [10,)"]


def test_a_rewind_can_be_undone_by_a_rewind():
    rows = life([version(1, "a", 10)], WRONG)
    rows = rewound(rewound(rows, t(1), t(4), ("id",)), t(3), t(5), ("id",))
    assert now(rows) == ["1 a [10,20)", "1 x [20,)", "2 y [20,)"]
    assert shown(live_rows_at(rows, t(4))) == ["1 a [10,)"]


def test_E20_a_rewind_keeps_only_the_first_copy_before_a_feed():
    feed = [version(1, "y", 5, 10, kind="upsert"), version(1, "a", 10, 20), version(1, "b", 20, 25)]
    rows = life(
        [version(1, "a", 10)],
        [version(1, "a", 10, 20), version(1, "b", 20)],
        [*feed, version(1, "x", 25, kind="upsert")],
    )
    rows = rewound(rows, t(1), t(4), ("id",))
    assert now(rows) == ["1 a [10,)"]
    assert len(shown(live_rows_at(rows, t(3)))) == 4


def test_rewinds_remove_and_restore_marks_and_remembered_deletes():
    mark, gone = (
        version(None, None, 30, role="fact", kind="copy"),
        version(1, None, 30, role="fact", kind="delete"),
    )
    rows = life([version(1, "a", 10)], [version(1, "a", 10, 30), gone, mark])
    rows = rewound(rows, t(1), t(3), ("id",))
    assert now(rows) == ["1 a [10,)"]
    rows = rewound(rows, t(2), t(4), ("id",))
    assert now(rows) == ["1 None 30 fact delete", "1 a [10,30)", "None None 30 fact copy"]


def test_a_repeated_rewind_changes_nothing():
    rows = rewound(life([version(1, "a", 10)], WRONG), t(1), t(4), ("id",))
    again = rewound(rows, t(4), t(5), ("id",))
    assert again == rows


def test_a_rewind_to_before_the_first_commit_empties_the_table():
    rows = rewound(life([version(1, "a", 10)]), t(0), t(2), ("id",))
    assert now(rows) == []
    assert shown(live_rows_at(rows, t(1))) == ["1 a [10,)"]


def test_a_rewind_keeps_the_values_of_columns_without_history():
    """V18: A version whose end is undone keeps the present value of an overwritten column."""
    versions = [{**version(1, "a", 10), "w": "old"}]
    rows = life(versions, [{**version(1, "a", 10, 20), "w": "old"}])
    rows = [{**row, "w": "new"} for row in rows]
    rows = rewound(rows, t(1), t(3), ("id",), ("w",))
    assert [row["w"] for row in rows if row["is_current"]] == ["new"]


def test_L9_a_rewound_table_equals_the_earlier_state_and_keeps_all_others():
    for seed in range(deep(2000, 150)):
        chance = random.Random(seed)
        folds = random_life(chance)
        rows, states = life(*folds), {number: shown(fold) for number, fold in enumerate(folds, 1)}
        for number in range(len(folds) + 1, len(folds) + 4):
            known = chance.randint(0, number - 1)
            rows = rewound(rows, t(known), t(number), ("id",))
            states[number] = states.get(known, [])
            for each, then in states.items():
                assert shown(live_rows_at(rows, t(each))) == then, (seed, number, known, each)
        assert all(row["is_current"] is (row["valid_to"] is None) for row in rows)
        assert n(max(row["recorded_at"] for row in rows)) <= number if rows else True
