"""WriteHistoryBatch: the worked examples of section 5.4 by name, through the server (requirement 80)."""

import pytest
from destination import Place, gives

HISTORY = "id:LONG* v n synced start* end active"


@pytest.fixture
def history(sender, store, schema):
    def of(stored=(), columns=HISTORY):
        return Place.made(sender, store, schema, columns, stored)

    return of


def after(place, expected, **files):
    """J: The batch produces the table, and so does the repeated batch."""
    place.write(**files)
    assert gives(expected) == place.rows()
    commits = len(place.snapshots())
    place.write(**files)
    assert gives(expected) == place.rows()
    assert len(place.snapshots()) == commits


def test_example_a_earliest_start_with_a_late_arrival(history):
    """A, 81: Versions that start at or after s0 are deleted. A version that reaches s0 ends 1 ms before."""
    place = history(
        """
        id  v  n  synced  start  end     active
        1   a  x  T1      T100   T200-1  false
        1   b  x  T2      T200   TMAX    true
        2   c  x  T3      T102   TMAX    true
        3   d  x  T4      T103   TMAX    true
        4   e  x  T5      T104   TMAX    true
        """
    )
    after(
        place,
        """
        id  v  n  synced  start  end     active
        1   a  x  T1      T100   T150-1  false
        2   c  x  T3      T102   T105-1  false
        3   d  x  T4      T103   T105-1  false
        4   e  x  T5      T104   TMAX    true
        """,
        earliest="id start \n 1 T150 \n 2 T105 \n 3 T105",
    )


B = """
    id  v    n    start  end   active  synced
    1   abc  "1"  T1     T2-1  false   T100
    1   pqr  "2"  T2     TMAX  true    T101
    2   mno  "3"  T2     TMAX  true    T103
"""


def test_example_b_update_chain(history):
    """B: Updates get unmodified values from the previous version. Old synced times are kept."""
    after(
        history(B),
        """
        id  v    n       start  end   active  synced
        1   abc  "1"     T1     T2-1  false   T100
        1   pqr  "2"     T2     T3-1  false   T101
        1   xyz  "2"     T3     T5-1  false   T107
        1   def  "2"     T5     TMAX  true    T109
        2   mno  "3"     T2     T4-1  false   T103
        2   mno  "1000"  T4     TMAX  true    T108
        """,
        earliest="id start \n 1 T3 \n 2 T4",
        update="""
        id  v    n       start  end   active  synced
        1   xyz  .       T3     T5-1  false   T107
        1   def  .       T5     TMAX  true    T109
        2   .    "1000"  T4     TMAX  true    T108
        """,
    )


def test_example_c_chain_that_carries_inside_the_batch(history):
    """C, 84: The second update is based on the first one, not on the version before the batch."""
    after(
        history(B),
        """
        id  v    n    start  end   active  synced
        1   abc  "1"  T1     T2-1  false   T100
        1   pqr  "2"  T2     T3-1  false   T101
        1   xyz  "2"  T3     T5-1  false   T107
        1   xyz  "9"  T5     TMAX  true    T109
        2   mno  "3"  T2     TMAX  true    T103
        """,
        earliest="id start \n 1 T3",
        update="""
        id  v    n    start  end   active  synced
        1   xyz  .    T3     T5-1  false   T107
        1   .    "9"  T5     TMAX  true    T109
        """,
    )


@pytest.mark.tables_on("memory", laws="iceberg")
def test_example_d_mixed_kinds(history):
    """D, 84: An update is based on the version at its own time, even if a later version exists."""
    after(
        history(
            """
            id  v    n      start  end   active  synced
            2   old  "999"  T0     TMAX  true    T0
            3   row  "1"    T0     TMAX  true    T0
            """
        ),
        """
        id  v    n      start  end   active  synced
        1   abc  "123"  T1     T4-1  false   T7
        1   ghi  "567"  T4     TMAX  true    T7
        2   old  "999"  T0     T3-1  false   T0
        2   def  "999"  T3     T4-1  false   T7
        2   pqr  "098"  T4     TMAX  true    T7
        3   row  "1"    T0     T2    false   T0
        """,
        earliest="id start \n 1 T1 \n 2 T3",
        replace="""
        id  v    n      start  end   active  synced
        1   abc  "123"  T1     T4-1  false   T7
        1   ghi  "567"  T4     TMAX  true    T7
        2   pqr  "098"  T4     TMAX  true    T7
        """,
        update="id v n start end active synced \n 2 def . T3 T4-1 false T7",
        delete="id v n start end active synced \n 3 - - - T2 false T7",
    )


ONE = """
    id  v    n    start  end   active  synced
    1   abc  "1"  T1     TMAX  true    T1
"""


def test_example_e_delete_then_insert_again_in_one_batch(history):
    """E, 88: The delete ends the version at its own time, not the newest one."""
    after(
        history(ONE),
        """
        id  v    n    start  end   active  synced
        1   abc  "1"  T1     T2    false   T1
        1   new  "2"  T3     TMAX  true    T7
        """,
        earliest="id start \n 1 T3",
        replace='id v n start end active synced \n 1 new "2" T3 TMAX true T7',
        delete="id v n start end active synced \n 1 - - - T2 false T7",
    )


def test_example_f_absent_keys(history):
    """F, 85: An update and a delete of absent keys are ignored, without a commit."""
    place = history()
    after(
        place,
        [],
        earliest="id start \n 8 T1",
        update="id v n start end active synced \n 8 new . T1 TMAX true T7",
        delete="id end synced \n 9 T2 T7",
    )
    assert place.snapshots() == []


def test_example_g_update_for_a_deleted_key(history):
    """G, 85: In a gap the record does not exist, so the update is ignored."""
    stored = 'id v n start end active synced \n 1 abc "1" T1 T2 false T1'
    after(
        history(stored),
        stored,
        earliest="id start \n 1 T5",
        update="id v n start end active synced \n 1 new . T5 TMAX true T7",
    )


def test_example_h_deleted_key_that_appears_in_the_earliest_file(history):
    """H: Step 1 closes the version at T2 - 1 ms, and step 4 sets the time of the delete."""
    after(
        history(ONE),
        'id v n start end active synced \n 1 abc "1" T1 T2 false T1',
        earliest="id start \n 1 T2",
        delete="id end \n 1 T2",
    )


def test_example_i_change_older_than_the_only_version(history):
    """I, 90: A late update gets its unmodified values from the removed version."""
    after(
        history('id v n start end active synced \n 1 abc "1" T100 TMAX true T100'),
        'id v n start end active synced \n 1 new "1" T80 TMAX true T101',
        earliest="id start \n 1 T80",
        update="id v n start end active synced \n 1 new . T80 TMAX true T101",
    )
