"""The rule of intervals follows section 5 and the requirements among 80 to 92 that a rule can show."""

from copy import deepcopy
from itertools import pairwise

import pytest
from histories import (
    COLUMNS,
    KEY,
    KEYS,
    MILLISECOND,
    History,
    Operation,
    batch_of,
    batches,
    table_after,
    wild_batches,
)
from hypothesis import given
from hypothesis import strategies as st
from specification.versions import TMAX, LiveOutcome, apply
from tables_as_text import in_order, instant, table

from backstory.model.layout import ACTIVE, END, START
from backstory.model.values import UNMODIFIED

NAMES = ("id", "v", "n", "_fivetran_synced", START, END, ACTIVE)
EMPTY = "id v n synced start end active"


def after(stored, key=("id",), columns=NAMES, **files) -> LiveOutcome:
    outcome = apply(table(stored), key, columns, **{kind: table(f) for kind, f in files.items()})
    return LiveOutcome(in_order(outcome.rows), outcome.ignored)


def gives(text, ignored=0) -> LiveOutcome:
    return LiveOutcome(in_order(table(text)), ignored)


# The worked examples of section 5.4.

A = {
    "stored": """
        id  v  n  synced  start  end     active
        1   a  1  T1      T100   T200-1  false
        1   b  1  T2      T200   TMAX    true
        2   c  1  T3      T102   TMAX    true
        3   d  1  T4      T103   TMAX    true
        4   e  1  T5      T104   TMAX    true
    """,
    "earliest": """
        id  start
        1   T150
        2   T105
        3   T105
    """,
}
B = {
    "stored": """
        id  v    n  start  end   active  synced
        1   abc  1  T1     T2-1  false   T100
        1   pqr  2  T2     TMAX  true    T101
        2   mno  3  T2     TMAX  true    T103
    """,
    "earliest": """
        id  start
        1   T3
        2   T4
    """,
    "update": """
        id  v    n     start  end   active  synced
        1   xyz  .     T3     T5-1  false   T107
        1   def  .     T5     TMAX  true    T109
        2   .    1000  T4     TMAX  true    T108
    """,
}
C = B | {
    "update": """
        id  v    n  start  end   active  synced
        1   xyz  .  T3     T5-1  false   T107
        1   .    9  T5     TMAX  true    T109
    """,
    "earliest": """
        id  start
        1   T3
    """,
}
D = {
    "stored": """
        id  v    n      start  end   active  synced
        2   old  "999"  T0     TMAX  true    T0
        3   row  "1"    T0     TMAX  true    T0
    """,
    "earliest": """
        id  start
        1   T1
        2   T3
    """,
    "replace": """
        id  v    n      start  end   active  synced
        1   abc  "123"  T1     T4-1  false   T7
        1   ghi  "567"  T4     TMAX  true    T7
        2   pqr  "098"  T4     TMAX  true    T7
    """,
    "update": """
        id  v    n  start  end   active  synced
        2   def  .  T3     T4-1  false   T7
    """,
    "delete": """
        id  v  n  start  end  active  synced
        3   -  -  -      T2   false   T7
    """,
}
E = {
    "stored": """
        id  v    n  start  end   active  synced
        1   abc  1  T1     TMAX  true    T1
    """,
    "earliest": """
        id  start
        1   T3
    """,
    "replace": """
        id  v    n  start  end   active  synced
        1   new  2  T3     TMAX  true    T7
    """,
    "delete": """
        id  v  n  start  end  active  synced
        1   -  -  -      T2   false   T7
    """,
}
I = {  # noqa: E741 - the letters of section 5.4
    "stored": """
        id  v    n  start  end   active  synced
        1   abc  1  T100   TMAX  true    T100
    """,
    "earliest": """
        id  start
        1   T80
    """,
    "update": """
        id  v    n  start  end   active  synced
        1   new  .  T80    TMAX  true    T101
    """,
}


def test_example_a_earliest_start_with_a_late_arrival():
    """80, 81: Versions that start at or after s0 are deleted. A version that reaches s0 ends 1 ms before."""
    expected = """
        id  v  n  synced  start  end     active
        1   a  1  T1      T100   T150-1  false
        2   c  1  T3      T102   T105-1  false
        3   d  1  T4      T103   T105-1  false
        4   e  1  T5      T104   TMAX    true
    """
    assert gives(expected) == after(**A)


def test_example_b_update_chain():
    """80: Updates get unmodified values from the previous version. Old synced times are kept."""
    expected = """
        id  v    n     start  end   active  synced
        1   abc  1     T1     T2-1  false   T100
        1   pqr  2     T2     T3-1  false   T101
        1   xyz  2     T3     T5-1  false   T107
        1   def  2     T5     TMAX  true    T109
        2   mno  3     T2     T4-1  false   T103
        2   mno  1000  T4     TMAX  true    T108
    """
    assert gives(expected) == after(**B)


def test_example_c_chain_that_carries_inside_the_batch():
    """80, 84: The second update is based on the first one, not on the version before the batch."""
    expected = """
        id  v    n  start  end   active  synced
        1   abc  1  T1     T2-1  false   T100
        1   pqr  2  T2     T3-1  false   T101
        1   xyz  2  T3     T5-1  false   T107
        1   xyz  9  T5     TMAX  true    T109
        2   mno  3  T2     TMAX  true    T103
    """
    assert gives(expected) == after(**C)


def test_example_d_mixed_kinds():
    """80, 84: An update is based on the version at its own time, even if a later version exists."""
    expected = """
        id  v    n      start  end   active  synced
        1   abc  "123"  T1     T4-1  false   T7
        1   ghi  "567"  T4     TMAX  true    T7
        2   old  "999"  T0     T3-1  false   T0
        2   def  "999"  T3     T4-1  false   T7
        2   pqr  "098"  T4     TMAX  true    T7
        3   row  "1"    T0     T2    false   T0
    """
    assert gives(expected) == after(**D)


def test_example_e_delete_then_insert_again_in_one_batch():
    """80, 88: The delete ends the version at its own time, not the newest one."""
    expected = """
        id  v    n  start  end   active  synced
        1   abc  1  T1     T2    false   T1
        1   new  2  T3     TMAX  true    T7
    """
    assert gives(expected) == after(**E)


def test_example_f_absent_keys():
    """80, 85: An update and a delete of absent keys are ignored and counted."""
    update = " id v n start end active synced \n 8 new . T1 TMAX true T7"
    delete = " id end synced \n 9 T2 T7"
    assert gives(EMPTY, ignored=2) == after(EMPTY, update=update, delete=delete)
    earliest = " id start \n 8 T1"
    assert gives(EMPTY, ignored=1) == after(EMPTY, earliest=earliest, update=update)


def test_example_g_update_for_a_deleted_key():
    """80, 85: In a gap the record does not exist, so the update is ignored."""
    stored = """
        id  v    n  start  end  active  synced
        1   abc  1  T1     T2   false   T1
    """
    update = " id v n start end active synced \n 1 new . T5 TMAX true T7"
    earliest = " id start \n 1 T5"
    assert gives(stored, ignored=1) == after(stored, earliest=earliest, update=update)


def test_example_h_deleted_key_that_appears_in_the_earliest_file():
    """80: Step 1 closes the version at T2 - 1 ms, and step 4 sets the time of the delete."""
    stored = """
        id  v    n  start  end   active  synced
        1   abc  1  T1     TMAX  true    T1
    """
    expected = """
        id  v    n  start  end  active  synced
        1   abc  1  T1     T2   false   T1
    """
    assert gives(expected) == after(stored, earliest=" id start \n 1 T2", delete=" id end \n 1 T2")


def test_example_i_change_older_than_the_only_version():
    """80, 90: A late update gets its unmodified values from the removed version."""
    expected = """
        id  v    n  start  end   active  synced
        1   new  1  T80    TMAX  true    T101
    """
    assert gives(expected) == after(**I)


@pytest.mark.parametrize("example", [B, C, D, E, I], ids="BCDEI")
def test_example_j_the_same_batch_again(example):
    """80: A repeated batch has the result of one batch."""
    stored, files = table(example["stored"]), {k: table(f) for k, f in example.items()}
    del files["stored"]
    once = apply(stored, ["id"], NAMES, **files)
    twice = apply(once.rows, ["id"], NAMES, **files)
    assert in_order(once.rows) == in_order(twice.rows)
    assert twice.ignored == 0


# Step 1.

ONE = """
    id  v    n  start  end   active  synced
    1   abc  1  T1     TMAX  true    T1
"""


def test_the_earliest_of_several_starts_is_used():
    """H9: s0 is the least start in all earliest rows of the key."""
    expected = """
        id  v    n  start  end   active  synced
        1   abc  1  T1     T2-1  false   T1
    """
    assert gives(expected) == after(ONE, earliest=" id start \n 1 T4 \n 1 T2 \n 1 T3")


def test_a_version_that_starts_at_s0_is_removed():
    """81: A start equal to s0 is removed, and one a millisecond earlier is not."""
    stored = """
        id  v    n  start  end   active  synced
        1   abc  1  T3     TMAX  true    T1
        2   abc  1  T3-1   TMAX  true    T1
    """
    expected = """
        id  v    n  start  end   active  synced
        2   abc  1  T3-1   T3-1  false   T1
    """
    assert gives(expected) == after(stored, earliest=" id start \n 1 T3 \n 2 T3")


def test_a_version_closed_before_s0_keeps_its_end():
    """81: Only active versions, and versions that reach s0, are closed again."""
    stored = """
        id  v    n  start  end   active  synced
        1   abc  1  T1     T2    false   T1
        2   abc  1  T1     T3    false   T1
        3   abc  1  T1     T3-1  false   T1
    """
    expected = """
        id  v    n  start  end   active  synced
        1   abc  1  T1     T2    false   T1
        2   abc  1  T1     T3-1  false   T1
        3   abc  1  T1     T3-1  false   T1
    """
    assert gives(expected) == after(stored, earliest=" id start \n 1 T3 \n 2 T3 \n 3 T3")


def test_an_active_version_is_closed_with_any_end():
    """5.2 step 1: The flag suffices."""
    stored = """
        id  v    n  start  end  active  synced
        1   abc  1  T1     T2   true    T1
        2   abc  1  T1     -    true    T1
    """
    expected = """
        id  v    n  start  end   active  synced
        1   abc  1  T1     T3-1  false   T1
        2   abc  1  T1     T3-1  false   T1
    """
    assert gives(expected) == after(stored, earliest=" id start \n 1 T3 \n 2 T3")


def test_versions_with_null_activity_and_no_later_end_stay_unchanged():
    """Detail i: NULL activity is not active, and a NULL end compares false."""
    stored = """
        id  v    n  start  end  active  synced
        1   abc  1  T1     -    -       T1
        2   abc  1  T1     T2   -       T1
    """
    assert gives(stored) == after(stored, earliest=" id start \n 1 T3 \n 2 T3")


def test_the_start_is_ignored_in_matching_keys():
    """82, F15: This holds even if the request flags it as a key."""
    stored = B["stored"]
    files = {kind: text for kind, text in B.items() if kind != "stored"}
    assert after(stored, **files) == after(stored, key=("id", START), **files)


def test_the_minimum_and_maximum_of_the_calendar_are_valid():
    """F10, F18: No step leaves the calendar at TMAX or in year 1."""
    rows = table(ONE)
    first = rows[0][START].replace(year=1, month=1, day=1)
    rows[0] |= {START: first}
    deleted = apply(rows, ["id"], NAMES, delete=[{"id": 1, END: first}])
    updated = apply(rows, ["id"], NAMES, update=[{"id": 1, "v": "new", START: TMAX, END: TMAX}])
    assert [rows[0] | {END: first, ACTIVE: False}] == deleted.rows
    assert [rows[0], rows[0] | {"v": "new", START: TMAX}] == updated.rows


# Step 2.


def test_replace_rows_are_stored_unchanged():
    """83: End and activity are the file's, even if they contradict each other."""
    replace = """
        id  v    n  start  end   active  synced
        1   abc  -  T1     T9    true    T7
        1   pqr  2  T2     TMAX  false   T8
        2   -    -  T2     -     -       -
    """
    assert gives(replace) == after(EMPTY, replace=replace)


def test_a_replace_row_replaces_the_version_with_its_start():
    """5.2 step 2, H25: This holds without an earliest row too. The last one of two rows is kept."""
    expected = """
        id  v    n  start  end   active  synced
        1   new  -  T1     TMAX  true    T8
    """
    replace = """
        id  v    n  start  end   active  synced
        1   mid  5  T1     TMAX  true    T7
        1   new  -  T1     TMAX  true    T8
    """
    assert gives(expected) == after(ONE, replace=replace)


def test_columns_outside_the_request_are_inherited_null_or_written():
    """Detail a: An update inherits them from its base, a replace row gets NULL, and a file may write them."""
    stored = """
        id  v    extra  start  end   active  synced
        1   abc  kept   T1     TMAX  true    T1
        2   abc  lost   T1     TMAX  true    T1
        3   abc  lost   T1     TMAX  true    T1
    """
    expected = """
        id  v    extra  start  end   active  synced
        1   abc  kept   T1     T3-1  false   T1
        1   new  kept   T3     TMAX  true    T7
        2   new  -      T1     TMAX  true    T7
        3   new  here   T1     TMAX  true    T7
    """
    files = {
        "earliest": table(" id start \n 1 T3"),
        "update": table(" id v start end active synced \n 1 new T3 TMAX true T7"),
        "replace": table(" id v start end active synced \n 2 new T1 TMAX true T7")
        + table(" id v extra start end active synced \n 3 new here T1 TMAX true T7"),
    }
    columns = ("id", "v", "_fivetran_synced", START, END, ACTIVE)
    assert in_order(table(expected)) == in_order(apply(table(stored), ["id"], columns, **files).rows)


def test_a_column_absent_from_a_replace_row_is_null():
    """2.8: A version is complete, so a column that its file lacks is NULL."""
    expected = """
        id  v    n  start  end  active  synced
        1   new  -  T1     -    -       -
    """
    assert gives(expected) == after(EMPTY, replace=" id v start \n 1 new T1")


# Step 3.


def test_updates_are_applied_in_ascending_order_of_start():
    """Detail b: The order of rows in files does not matter."""
    header, first, second = C["update"].strip().splitlines()
    assert after(**C) == after(**C | {"update": f"{header}\n{second}\n{first}"})


def test_updates_of_equal_start_fold_in_the_order_given():
    """Details b and c, H22: The second update is based on the result of the first."""
    expected = """
        id  v    n  start  end   active  synced
        1   abc  1  T1     T3-1  false   T1
        1   new  8  T3     TMAX  true    T9
    """
    update = """
        id  v    n  start  end   active  synced
        1   mid  8  T3     T4    false   T8
        1   new  .  T3     TMAX  true    T9
    """
    assert gives(expected) == after(ONE, earliest=" id start \n 1 T3", update=update)


def test_an_update_merges_with_the_version_of_its_start():
    """Detail c: Its base is the replaced entry, even if the batch created it."""
    expected = """
        id  v    n  start  end   active  synced
        1   new  1  T1     TMAX  true    T8
        2   xyz  5  T2     TMAX  true    T8
    """
    replace = " id v n start end active synced \n 2 xyz 4 T2 TMAX true T7"
    update = """
        id  v    n  start  end   active  synced
        1   new  .  T1     TMAX  true    T8
        2   .    5  T2     TMAX  true    T8
    """
    assert gives(expected) == after(ONE, replace=replace, update=update)


def test_a_version_with_the_updates_start_is_a_base_with_any_end():
    """Detail c, 5.2 rule 1: With an equal start, the end does not matter."""
    stored = """
        id  v    n  start  end   active  synced
        1   abc  1  T3     T2    false   T1
    """
    expected = """
        id  v    n  start  end   active  synced
        1   new  1  T3     TMAX  true    T8
    """
    update = " id v n start end active synced \n 1 new . T3 TMAX true T8"
    assert gives(expected) == after(stored, update=update)


def test_null_in_an_update_sets_null():
    """5.2 step 3: NULL is a value, unmodified is not, and absent is unmodified."""
    expected = """
        id  v    n  start  end   active  synced
        1   abc  1  T1     T3-1  false   T1
        1   -    1  T3     TMAX  true    -
    """
    files = {
        "earliest": " id start \n 1 T3",
        "update": " id v start end active synced \n 1 - T3 TMAX true -",
    }
    assert gives(expected) == after(ONE, **files)


def test_a_base_ends_at_most_a_millisecond_before_the_update():
    """5.2 rule 1: An end at t - 1 ms or later is contiguous, and an earlier one is a gap."""
    stored = """
        id  v    n  start  end     active  synced
        1   abc  1  T1     T3-1    false   T1
        2   abc  1  T1     T3-1.1  false   T1
    """
    expected = """
        id  v    n  start  end     active  synced
        1   abc  1  T1     T3-1    false   T1
        1   new  1  T3     TMAX    true    T7
        2   abc  1  T1     T3-1.1  false   T1
    """
    update = """
        id  v    n  start  end   active  synced
        1   new  .  T3     TMAX  true    T7
        2   new  .  T3     TMAX  true    T7
    """
    assert gives(expected, ignored=1) == after(stored, update=update)


def test_a_record_alive_before_the_batch_is_updated_across_a_gap():
    """F16: The version that reached s0 is a base, although the batch leaves a gap after it."""
    expected = """
        id  v    n  start  end   active  synced
        1   abc  1  T1     T3-1  false   T1
        1   new  1  T5     TMAX  true    T7
    """
    files = {
        "earliest": " id start \n 1 T3",
        "update": " id v n start end active synced \n 1 new . T5 TMAX true T7",
    }
    assert gives(expected) == after(ONE, **files)


def test_an_update_in_a_gap_without_an_earliest_row_is_ignored():
    """F16: Without s0, a gap stays a gap."""
    stored = """
        id  v    n  start  end   active  synced
        1   abc  1  T1     T3-1  false   T1
    """
    update = " id v n start end active synced \n 1 new . T5 TMAX true T7"
    assert gives(stored, ignored=1) == after(stored, update=update)


def test_a_removed_version_replaces_a_base_that_ends_before_the_gap():
    """5.2 rule 2: If the version of the time does not reach, the removed one supplies the values."""
    stored = """
        id  v      n  start  end    active  synced
        1   older  1  T1     T2     false   T1
        1   first  2  T6     T7-1   false   T1
        1   last   3  T7     TMAX   true    T1
    """
    expected = """
        id  v      n  start  end    active  synced
        1   older  1  T1     T2     false   T1
        1   new    2  T5     TMAX   true    T9
    """
    files = {
        "earliest": " id start \n 1 T5",
        "update": " id v n start end active synced \n 1 new . T5 TMAX true T9",
    }
    assert gives(expected) == after(stored, **files)


def test_the_synced_time_may_be_absent_from_an_update():
    """Detail e: Absent and unmodified synced times are inherited, like user columns."""
    expected = """
        id  v    n  start  end   active  synced
        1   abc  1  T1     T3-1  false   T1
        1   new  1  T3     TMAX  true    T1
    """
    earliest = " id start \n 1 T3"
    absent = " id v start end active \n 1 new T3 TMAX true"
    unmodified = " id v start end active synced \n 1 new T3 TMAX true ."
    assert gives(expected) == after(ONE, earliest=earliest, update=absent)
    assert gives(expected) == after(ONE, earliest=earliest, update=unmodified)


@pytest.mark.parametrize("active", ["true", "false"])
@pytest.mark.parametrize("end", ["T9", "TMAX"])
def test_the_activity_in_an_update_is_used(end, active):
    """5.2 step 3: Activity is the update's, even if it contradicts the end."""
    update = f"id v n start end active synced \n 1 new 1 T3 {end} {active} T7"
    assert gives(ONE + update.splitlines()[1]) == after(ONE, update=update)


@pytest.mark.parametrize(("end", "active"), [("TMAX", True), ("T9", False)])
@pytest.mark.parametrize("given_as", [{}, {ACTIVE: None}, {ACTIVE: UNMODIFIED}])
def test_an_update_without_activity_is_active_when_it_never_ends(end, active, given_as):
    """Detail e: Activity is true exactly if the end is TMAX."""
    row = {"id": 1, "v": "new", START: instant("T3"), END: table(f"end \n {end}")[0][END]}
    rows = apply(table(ONE), ["id"], NAMES, update=[row | given_as]).rows
    assert [True, active] == [version[ACTIVE] for version in rows]


def test_an_update_with_only_an_end_closes_a_version():
    """Detail d, 7.11: Without a start and a change, an end is the end of a delete."""
    expected = """
        id  v    n  start  end  active  synced
        1   abc  1  T1     T5   false   T1
    """
    assert gives(expected) == after(ONE, update=" id end \n 1 T5")
    assert gives(expected) == after(ONE, update=" id v start end synced \n 1 . - T5 T9")
    assert gives(expected) == after(ONE, update=" id v n start end active \n 1 . . . T5 true")


def test_closing_updates_are_sorted_together_with_deletes():
    """Detail d: All are applied in ascending order of end, so the earlier one ends the version."""
    delete, update = " id end \n 1 T6", " id end \n 1 T5"
    expected = """
        id  v    n  start  end  active  synced
        1   abc  1  T1     T5   false   T1
    """
    assert gives(expected, ignored=1) == after(ONE, delete=delete, update=update)
    assert gives(expected) == after(ONE, delete=" id end \n 1 T5", update=update)
    nothing = after(EMPTY, delete=delete, update=update)
    assert gives(EMPTY, ignored=2) == nothing


def test_an_update_without_content_is_ignored():
    """Detail d: An update without version, change or end is only counted."""
    says_nothing = """
        id  v  start  end   active  synced
        1   .  -      -     false   T9
        1   .  -      .     .       .
        1   .  .      TMAX  true    T9
    """
    assert gives(ONE, ignored=3) == after(ONE, update=says_nothing)
    assert gives(ONE, ignored=1) == after(ONE, update=" id \n 1")


@pytest.mark.parametrize("value", ["new", "-"])
def test_an_update_with_changes_but_no_start_is_refused(value):
    """Detail d, E1: The time of such a change is unknown."""
    with pytest.raises(ValueError, match=START):
        after(ONE, update=f" id v end \n 1 {value} T5")


# Step 4.


def test_a_delete_sets_end_and_activity_only():
    """86, 87: Nothing else in a delete row is read, whatever its form."""
    expected = """
        id  v    n  start  end  active  synced
        1   abc  1  T1     T5   false   T1
    """
    tester = " id v n start end active synced \n 1 - - - T5 false T9"
    claims = " id v n start end active synced \n 1 x 7 T4 T5 true T9"
    bare = " id end \n 1 T5"
    outcomes = [after(ONE, delete=shape) for shape in (tester, claims, bare)]
    assert [gives(expected)] * 3 == outcomes


def test_a_delete_finds_its_version_by_milliseconds():
    """Detail g: A later start in the delete's millisecond counts. The greatest of several is used."""
    stored = """
        id  v    n  start    end      active  synced
        1   abc  1  T1       T3-1     false   T1
        1   pqr  2  T3+0.2   T3+0.2   false   T1
        1   xyz  3  T3+0.9   TMAX     true    T1
        2   abc  1  T1       T3       false   T1
        2   xyz  3  T3+1     TMAX     true    T1
    """
    expected = """
        id  v    n  start    end      active  synced
        1   abc  1  T1       T3-1     false   T1
        1   pqr  2  T3+0.2   T3+0.2   false   T1
        1   xyz  3  T3+0.9   T3+0.5   false   T1
        2   abc  1  T1       T3+0.5   false   T1
        2   xyz  3  T3+1     TMAX     true    T1
    """
    assert gives(expected) == after(stored, delete=" id end \n 1 T3+0.5 \n 2 T3+0.5")


def test_a_delete_of_a_closed_version_is_ignored():
    """85: A version that ended more than a millisecond earlier is unchanged."""
    stored = """
        id  v    n  start  end     active  synced
        1   abc  1  T1     T3-1    false   T1
        2   abc  1  T1     T3-1.1  false   T1
        3   abc  1  T1     -       false   T1
        4   abc  1  T4     TMAX    true    T1
    """
    expected = """
        id  v    n  start  end     active  synced
        1   abc  1  T1     T3      false   T1
        2   abc  1  T1     T3-1.1  false   T1
        3   abc  1  T1     -       false   T1
        4   abc  1  T4     TMAX    true    T1
    """
    delete = " id end \n 1 T3 \n 2 T3 \n 3 T3 \n 4 T3"
    assert gives(expected, ignored=3) == after(stored, delete=delete)


def test_a_delete_sent_again_is_not_ignored():
    """Detail g: Setting an existing end counts as done."""
    stored = """
        id  v    n  start  end  active  synced
        1   abc  1  T1     T5   false   T1
    """
    assert gives(stored) == after(stored, delete=" id end \n 1 T5")


def test_deletes_are_applied_in_ascending_order_of_end():
    """Detail g: The first delete ends the version, so a later one has no effect."""
    expected = """
        id  v    n  start  end  active  synced
        1   abc  1  T1     T5   false   T1
    """
    assert gives(expected, ignored=1) == after(ONE, delete=" id end \n 1 T7 \n 1 T5")


def test_a_delete_needs_no_earliest_file():
    """89: Deletes work without an earliest file."""
    expected = """
        id  v    n  start  end  active  synced
        1   abc  1  T1     T5   false   T1
    """
    assert gives(expected) == after(ONE, delete=" id end synced \n 1 T5 T9")


# Refused rows, and damaged tables.


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        ("earliest", "id \n 1"),
        ("earliest", "id start \n 1 -"),
        ("replace", "id v end active \n 1 a TMAX true"),
        ("replace", "id v start end active \n 1 a - TMAX true"),
        ("replace", "id v start end active \n 1 a . TMAX true"),
        ("replace", "id v start end active \n 1 . T3 TMAX true"),
        ("update", "id v start active \n 1 a T3 true"),
        ("update", "id v start end \n 1 a T3 ."),
        ("update", "id v start end \n 1 a T3 -"),
        ("update", "id v start end \n 8 a T3 -"),
        ("delete", "id \n 1"),
        ("delete", "id end \n 1 -"),
        ("earliest", "start \n T3"),
        ("replace", "v start end \n a T3 TMAX"),
        ("update", "id v start end \n . a T3 TMAX"),
        ("delete", "end \n T3"),
    ],
)
def test_rows_without_key_or_times_are_refused(kind, row):
    """Detail f, E1: The version of such a row is never guessed."""
    with pytest.raises(ValueError):
        after(ONE, **{kind: row})


def test_a_stored_row_without_a_start_stays():
    """Detail h: Step 1 closes it. It is never removed, never a base and never a target."""
    stored = """
        id  v    n  start  end   active  synced
        1   abc  1  -      TMAX  true    T1
        2   abc  1  -      TMAX  true    T1
        3   abc  1  -      T2    false   T1
    """
    expected = """
        id  v    n  start  end   active  synced
        1   abc  1  -      T3-1  false   T1
        1   new  2  T3     TMAX  true    T7
        2   abc  1  -      TMAX  true    T1
        3   abc  1  -      T2    false   T1
    """
    files = {
        "earliest": " id start \n 1 T3 \n 3 T3",
        "replace": " id v n start end active synced \n 1 new 2 T3 TMAX true T7",
        "update": " id v n start end active synced \n 2 new . T3 TMAX true T7",
        "delete": " id end \n 2 T5",
    }
    assert gives(expected, ignored=2) == after(stored, **files)


TWINS = """
    id  v    n  start  end   active  synced
    1   abc  1  T1     TMAX  true    T1
    1   pqr  2  T1     TMAX  true    T2
"""


def test_stored_twins_stay_until_a_row_replaces_them():
    """Detail i: A replace row at their start replaces all of them. Other keys change nothing."""
    expected = """
        id  v    n  start  end   active  synced
        1   new  9  T1     TMAX  true    T7
    """
    files = {"replace": " id v n start end active synced \n 1 new 9 T1 TMAX true T7"}
    assert gives(TWINS) == after(TWINS)
    assert gives(expected) == after(TWINS, **files)


def test_the_last_of_stored_twins_is_base_and_target():
    """Detail i: Step 1 closes each of them, step 3 uses the last as base, and step 4 ends the last."""
    updated = """
        id  v    n  start  end   active  synced
        1   abc  1  T1     T3-1  false   T1
        1   pqr  2  T1     T3-1  false   T2
        1   new  2  T3     TMAX  true    T7
    """
    merged = """
        id  v    n  start  end   active  synced
        1   new  2  T1     TMAX  true    T7
    """
    deleted = """
        id  v    n  start  end   active  synced
        1   abc  1  T1     TMAX  true    T1
        1   pqr  2  T1     T5    false   T2
    """
    at = " id v n start end active synced \n 1 new . {} TMAX true T7".format
    assert gives(updated) == after(TWINS, earliest=" id start \n 1 T3", update=at("T3"))
    assert gives(merged) == after(TWINS, update=at("T1"))
    assert gives(merged) == after(TWINS, earliest=" id start \n 1 T1", update=at("T1"))
    assert gives(deleted) == after(TWINS, delete=" id end \n 1 T5")


# Laws on random batches.


def key_of(row) -> tuple:
    return tuple(row[column] for column in KEY)


def sent(stored, batch) -> list[dict]:
    return in_order(apply(stored, KEY, COLUMNS, **batch).rows)


def assert_well_formed(rows) -> None:
    """Check invariants 1 to 4 of section 5.5."""
    for key in map(key_of, rows):
        versions = sorted((r for r in rows if key_of(r) == key), key=lambda r: r[START])
        assert sum(version[ACTIVE] for version in versions) <= 1
        assert all(version[ACTIVE] == (version[END] == TMAX) for version in versions)
        assert all(before[END] < following[START] for before, following in pairwise(versions))


@given(batches())
def test_the_table_equals_the_history_of_the_source(history):
    """91: After each batch, the table is well formed and the source's own history. A replay changes nothing."""
    rows = in_order(history.stored)
    for batch, expected in zip(history.batches, history.tables, strict=True):
        once = apply(rows, KEY, COLUMNS, **batch)
        twice = apply(once.rows, KEY, COLUMNS, **batch)
        rows = in_order(once.rows)
        assert_well_formed(rows)
        assert in_order(expected) == rows == in_order(twice.rows)
        assert (once.ignored, twice.ignored) == (0, 0)


@given(batches() | wild_batches())
def test_rows_with_other_keys_than_the_batch_stay_unchanged(history):
    """91: Invariant 5: Other keys and the input are unchanged."""
    batch, before = history.batches[0], deepcopy(history)
    mentioned = {key_of(row) for rows in batch.values() for row in rows}
    rest = [row for row in history.stored if key_of(row) not in mentioned]
    assert in_order(rest) == [r for r in sent(history.stored, batch) if key_of(r) not in mentioned]
    assert before == history


@given(batches(), st.randoms(use_true_random=False))
def test_order_of_rows_and_columns_changes_nothing(history, random):
    """91: Invariant 7: For a sender's rows, with one version per key and start, order does not matter."""
    rows = history.stored
    for batch in history.batches:
        mixed = {kind: [_mixed(row, random) for row in file] for kind, file in batch.items()}
        for file in mixed.values():
            random.shuffle(file)
        assert sent(rows, batch) == sent(rows, mixed)
        rows = sent(rows, batch)


def _mixed(row, random) -> dict:
    return dict(random.sample([*row.items()], len(row)))


@given(wild_batches())
def test_no_batch_gives_twins_or_incomplete_rows(history):
    """Invariant 1 holds for any batch, every row has every column, and counts are within bounds."""
    outcome = apply(history.stored, KEY, COLUMNS, **history.batches[0])
    places = [(key_of(row), row[START]) for row in outcome.rows]
    assert len(places) == len(set(places))
    assert all({*COLUMNS} <= {*row} for row in outcome.rows)
    sent_rows = sum(len(history.batches[0][kind]) for kind in ("update", "delete"))
    assert 0 <= outcome.ignored <= sent_rows


def literal(stored, earliest, replace, update, delete) -> list[dict]:
    """The guide's rules, literally (section 5.1)."""
    rows = [dict(row) for row in stored]
    for first in earliest:
        mine = [row for row in rows if key_of(row) == key_of(first)]
        rows = [row for row in rows if row not in mine or row[START] < first[START]]
        for row in rows:
            if row in mine and row[ACTIVE]:
                row |= {ACTIVE: False, END: first[START] - MILLISECOND}
    last = {key_of(row): row for row in stored if row[ACTIVE]}
    rows += [dict(row) for row in replace]
    for row in update:
        changed = {column: cell for column, cell in row.items() if cell is not UNMODIFIED}
        rows.append(last[key_of(row)] | changed)
    for gone in delete:
        for row in rows:
            if key_of(row) == key_of(gone) and row[ACTIVE]:
                row |= {ACTIVE: False, END: gone[END]}
    return rows


@st.composite
def simple_batches(draw) -> History:
    """Records with two versions, and then at most one operation on each."""
    before, now = [], []
    for place, key in enumerate(KEYS):
        at = instant(f"T{10 * place}")
        before.append(Operation("upsert", key, at, {"a": "p", "b": 1}))
        before.append(Operation("upsert", key, at + MILLISECOND, {"a": "q", "b": place}))
        kind = draw(st.sampled_from(["upsert", "update", "delete", None]))
        values = {"upsert": {"a": "r", "b": None}, "update": {"b": 7}}.get(kind, {})
        if kind:
            now.append(Operation(kind, key, at + draw(st.integers(2, 9)) * MILLISECOND, values))
    return History(table_after(before), [batch_of(now)])


@given(simple_batches())
def test_simple_batches_follow_the_literal_guide(history):
    """92: If each key occurs once, is active and older than s0, both readings agree."""
    batch = history.batches[0]
    assert in_order(literal(history.stored, **batch)) == sent(history.stored, batch)
