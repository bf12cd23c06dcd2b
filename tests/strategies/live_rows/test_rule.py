"""The rule of live rows follows section 2.8 and the requirements among 64 to 79 that a rule can show."""

from copy import deepcopy

import pytest
from histories import KEY, LEFT_OVER, LIVE_COLUMNS, live_batches
from hypothesis import given
from hypothesis import strategies as st
from specification.live_rows import LiveOutcome, apply
from tables_as_text import in_order, table

COLUMNS = ("id", "v", "n", "_fivetran_synced")
STORED = """
    id  v    n  synced
    1   abc  1  T1
    2   pqr  2  T2
"""


def after(stored, key=("id",), columns=COLUMNS, **files) -> LiveOutcome:
    outcome = apply(table(stored), key, columns, **{kind: table(f) for kind, f in files.items()})
    return LiveOutcome(in_order(outcome.rows), outcome.ignored)


def gives(text, ignored=0) -> LiveOutcome:
    return LiveOutcome(in_order(table(text)), ignored)


def test_replace_inserts_new_keys_and_replaces_whole_rows():
    """64, 75: A replace row becomes the row of its key, with the file's synced time."""
    expected = """
        id  v    n  synced
        1   new  -  T5
        2   pqr  2  T2
        3   xyz  9  T5
    """
    replace = """
        id  v    n  synced
        1   new  -  T5
        3   xyz  9  T5
    """
    assert gives(expected) == after(STORED, replace=replace)


def test_a_column_absent_from_a_replace_file_becomes_null():
    """2.8: A column in the request but not in the file is NULL, in new and in matched rows."""
    expected = """
        id  v    n  synced
        1   new  -  -
        2   pqr  2  T2
        3   xyz  -  -
    """
    replace = """
        id  v
        1   new
        3   xyz
    """
    assert gives(expected) == after(STORED, replace=replace)


def test_update_changes_only_columns_with_a_value():
    """65, 75: An unmodified cell keeps its value, NULL sets NULL, and synced is the file's."""
    expected = """
        id  v    n  synced
        1   abc  -  T5
        2   new  2  T6
    """
    update = """
        id  v    n  synced
        1   .    -  T5
        2   new  .  T6
    """
    assert gives(expected) == after(STORED, update=update)


def test_a_column_absent_from_an_update_file_is_unmodified():
    """2.8: A column that an update file lacks is unmodified, including synced."""
    expected = """
        id  v    n  synced
        1   new  1  T1
        2   pqr  2  T2
    """
    update = """
        id  v
        1   new
    """
    assert gives(expected) == after(STORED, update=update)


def test_every_update_row_of_an_absent_key_is_ignored_and_counted():
    """66, F7: An update never creates a record, and each such row is counted."""
    update = """
        id  v    n  synced
        8   new  .  T5
        8   .    7  T6
        9   new  .  T5
    """
    assert gives(STORED, ignored=3) == after(STORED, update=update)


def test_soft_delete_of_an_absent_key_is_ignored():
    """67: An update that only sets the flag needs an existing record."""
    stored = """
        id  _fivetran_deleted
        1   false
    """
    update = """
        id  _fivetran_deleted
        1   true
        2   true
    """
    expected = """
        id  _fivetran_deleted
        1   true
    """
    columns = ("id", "_fivetran_deleted")
    assert gives(expected, ignored=1) == after(stored, columns=columns, update=update)


def test_delete_removes_by_key_only():
    """68: Only the key of a delete row is read."""
    expected = """
        id  v    n  synced
        2   pqr  2  T2
    """
    delete = """
        id  v      n  synced
        1   other  .  -
    """
    assert gives(expected) == after(STORED, delete=delete)


def test_delete_of_an_absent_key_counts_each_key_once():
    """68, F7: Deleting an absent record changes nothing. Distinct keys are counted."""
    delete = """
        id
        8
        8
        9
    """
    assert gives(STORED, ignored=2) == after(STORED, delete=delete)


def test_the_same_key_deleted_twice_is_deleted_once():
    """2.8: Delete rows are reduced to distinct keys, so the second one is not counted as ignored."""
    expected = """
        id  v    n  synced
        2   pqr  2  T2
    """
    delete = """
        id
        1
        1
    """
    assert gives(expected) == after(STORED, delete=delete)


def test_keyless_tables_match_on_their_row_id():
    """69: `_fivetran_id` is an ordinary key."""
    stored = """
        _fivetran_id  v
        k1            abc
        k2            pqr
    """
    expected = """
        _fivetran_id  v
        k1            new
        k3            xyz
    """
    outcome = after(
        stored,
        key=("_fivetran_id",),
        columns=("_fivetran_id", "v"),
        replace=" _fivetran_id v \n k3 xyz",
        update=" _fivetran_id v \n k1 new",
        delete=" _fivetran_id \n k2",
    )
    assert gives(expected) == outcome


def test_keys_match_exactly_and_null_equals_null():
    """70: Case, trailing spaces and NULL in a part of a key distinguish records."""
    stored = """
        id  part  v
        1   "a"   one
        1   "A"   two
        1   "a "  three
        1   ""    four
        1   -     five
        -   -     six
    """
    expected = """
        id  part  v
        1   "a"   one
        1   "A"   TWO
        1   ""    four
        1   -     FIVE
        -   -     SIX
    """
    outcome = after(
        stored,
        key=("id", "part"),
        columns=("id", "part", "v"),
        replace=' id part v \n - - SIX \n 1 "A" TWO',
        update=" id part v \n 1 - FIVE",
        delete=' id part \n 1 "a "',
    )
    assert gives(expected) == outcome


def test_replaces_updates_and_deletes_are_applied_in_this_order():
    """71: The order of kinds is fixed, whatever the source did first."""
    expected = """
        id  v    n  synced
        1   new  7  T6
    """
    files = {
        "replace": " id v n synced \n 1 new 3 T5 \n 2 new 3 T5 \n 3 new 3 T5",
        "update": " id v n synced \n 1 . 7 T6 \n 2 . 7 T6 \n 3 . 7 T6",
        "delete": " id \n 2 \n 3",
    }
    assert gives(expected) == after(STORED, **files)


def test_the_last_of_repeated_replaces_wins():
    """72: Earlier rows of the same key have no effect."""
    expected = """
        id  v    n  synced
        1   new  -  T6
        2   pqr  2  T2
    """
    replace = """
        id  v    n  synced
        1   old  9  T5
        1   new  -  T6
    """
    assert gives(expected) == after(STORED, replace=replace)


def test_earlier_replaces_leave_no_trace_in_columns_outside_the_request():
    """2.8: Rows are reduced to the last one of each key before any is written."""
    stored = """
        id  v    extra
        1   abc  kept
    """
    expected = """
        id  v    extra
        1   new  kept
    """
    rows = table(" id v extra \n 1 old lost") + table(" id v \n 1 new")
    assert LiveOutcome(table(expected), 0) == apply(table(stored), ["id"], ["id", "v"], replace=rows)


def test_repeated_updates_fold_in_order():
    """72: A later value overrides an earlier one, but an unmodified cell does not."""
    expected = """
        id  v    n  synced
        1   new  -  T7
        2   pqr  2  T2
    """
    update = """
        id  v    n  synced
        1   mid  8  T5
        1   new  .  T6
        1   .    -  T7
    """
    assert gives(expected) == after(STORED, update=update)


def test_columns_outside_the_request_keep_their_value_on_matched_rows():
    """76: If the table has more columns than the request, they are NULL in inserted rows and kept in matched
    rows."""
    stored = """
        id  v    extra
        1   abc  kept
        2   pqr  kept
    """
    expected = """
        id  v    extra
        1   new  kept
        2   new  kept
        3   new  -
    """
    replace = " id v \n 1 new \n 3 new"
    update = " id v \n 2 new"
    assert gives(expected) == after(stored, columns=("id", "v"), replace=replace, update=update)


def test_a_file_column_outside_the_request_is_written():
    """2.8: A column in the file and the table is written, even if it is not in the request."""
    stored = """
        id  v    extra
        1   abc  old
        2   pqr  old
    """
    expected = """
        id  v    extra
        1   new  here
        2   pqr  there
        3   new  -
    """
    replace = " id v extra \n 1 new here \n 3 new -"
    update = " id extra \n 2 there"
    assert gives(expected) == after(stored, columns=("id", "v"), replace=replace, update=update)


def test_a_record_replaced_in_the_batch_has_a_row_to_update():
    """71: An update applies to rows of the same batch."""
    expected = """
        id  v    n  synced
        5   new  7  T6
    """
    replace = " id v n synced \n 5 new 3 T5"
    update = " id v n synced \n 5 . 7 T6"
    assert gives(expected) == after("id", replace=replace, update=update)


def test_an_empty_batch_changes_nothing():
    """74: Without rows, nothing changes and nothing is ignored."""
    assert gives(STORED) == after(STORED)


def test_the_resulting_rows_are_copies():
    """Changes of the result do not affect the input."""
    stored = table(STORED)
    for row in apply(stored, ["id"], COLUMNS).rows:
        row.clear()
    assert table(STORED) == stored


def test_a_row_without_its_key_is_refused():
    """E1: An absent or unmodified key identifies no record."""
    for rows in (table(" v \n new"), table(" id v \n . new")):
        for kind in ("replace", "update", "delete"):
            with pytest.raises(ValueError):
                apply(table(STORED), ["id"], COLUMNS, **{kind: rows})


def test_a_replace_row_with_an_unmodified_cell_is_refused():
    """E1: A whole row has no former value for an unmodified cell."""
    with pytest.raises(ValueError, match="whole row"):
        after(STORED, replace=" id v n synced \n 1 . 3 T5")


def test_all_stored_rows_with_the_same_key_change():
    """A table with a repeated key loses no row that the batch does not name."""
    stored = """
        id  v    extra
        1   one  first
        1   two  last
        2   one  first
        2   two  last
        3   one  first
        3   two  last
        4   one  first
        4   two  last
    """
    expected = """
        id  v    extra
        1   new  last
        2   new  first
        2   new  last
        4   one  first
        4   two  last
    """
    files = {"replace": " id v \n 1 new", "update": " id v \n 2 new", "delete": " id \n 3"}
    assert gives(expected) == after(stored, columns=("id", "v"), **files)


def sent(stored, batch) -> list[dict]:
    """The rows after a batch. An empty table has LEFT_OVER only after a file contains it."""
    rows = apply(stored, KEY, LIVE_COLUMNS, **batch).rows
    return in_order({LEFT_OVER: None} | row for row in rows)


@given(live_batches())
def test_the_same_batch_twice_equals_once(history):
    """78: A repeated batch changes nothing."""
    once = sent(history.stored, history.batches[0])
    assert once == sent(once, history.batches[0])


@given(live_batches(), st.sampled_from([("replace",), ("replace", "update")]))
def test_a_batch_repeated_after_an_interruption_equals_one_batch(history, done):
    """79: Any prefix of the three kinds, followed by the whole batch, equals the whole batch."""
    part = {kind: history.batches[0][kind] for kind in done}
    half = sent(history.stored, part)
    assert sent(history.stored, history.batches[0]) == sent(half, history.batches[0])


@given(live_batches())
def test_the_resulting_rows_are_complete_and_have_unique_keys(history):
    """Keys are unique, every row has every column, and the inputs are unchanged."""
    given_before = deepcopy(history)
    rows = sent(history.stored, history.batches[0])
    keys = [tuple(row[column] for column in KEY) for row in rows]
    assert len(keys) == len(set(keys))
    assert all({*LIVE_COLUMNS} <= {*row} for row in rows)
    assert given_before == history


@given(live_batches())
def test_rows_with_other_keys_than_the_batch_stay_unchanged(history):
    """Rows with other keys are unchanged."""
    named = {tuple(r[c] for c in KEY) for rows in history.batches[0].values() for r in rows}
    rest = [row for row in history.stored if tuple(row[c] for c in KEY) not in named]
    rows = sent(history.stored, history.batches[0])
    other_rows = [row for row in rows if tuple(row[c] for c in KEY) not in named]
    assert in_order(rest) == other_rows
