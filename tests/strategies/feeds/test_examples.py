"""Feeds into a table of layout `versions`: the worked examples of native.md."""

from dataclasses import replace
from itertools import permutations

import pytest
from feed_lives import Life, forgetful, known, now, rewound_to, settled_before
from specification.copies import Copy, take
from specification.feeds.copies import take_among
from specification.feeds.rule import Event, Feed, Window, apply
from specification.stored import StoredVersions

from backstory.model.versions_layout import FactKind
from backstory.strategies.feeds.terms import FormerLogs


def test_E1_events_in_order_begin_and_end_versions():
    life = Life()
    for text, shown in {
        "k:a10": "a[10,)",
        "k:b20": "a[10,20) b[20,)",
        "k:-30": "a[10,20) b[20,30)",
        "k:c40": "a[10,20) b[20,30) c[40,)",
    }.items():
        life.feed(text)
        assert life.shown("k") == shown
    assert (life.commits, life.rows(None, "fact", "past")) == (4, (3, 1, 0))


def test_E2_events_in_another_order_give_the_same_versions():
    life = Life()
    for text, shown in {
        "k:c40": "c[40,)",
        "k:a10": "a[10,40) c[40,)",
        "k:-30": "a[10,30) c[40,)",
        "k:b20": "a[10,20) b[20,30) c[40,)",
    }.items():
        life.feed(text)
        assert life.shown("k") == shown
    assert life.rows(None, "fact", "past") == (3, 1, 1)
    ends = {(row.role, row.end, row.end_before) for row in life.table.rows if row.values.get("v") == "a"}
    assert ends == {(None, 20, 30), ("past", 10, 40)}


def test_E3_late_events_apply_before_known_deletes():
    life = Life()
    life.feed("k:a10")
    assert life.feed("k:-30 m:-20") == {"ended": 1, "silent": 1}
    assert life.feed("k:b20 m:x10") == {"began": 2, "late": 2}
    assert (life.shown("k"), life.shown("m")) == ("a[10,20) b[20,30)", "x[10,20)")


def test_E4_events_without_new_values_are_remembered():
    life = Life()
    for text in ("k:A5", "k:A10", "k:A15", "k:C20", "k:B12"):
        life.feed(text)
    assert life.shown("k") == "A[5,12) B[12,15) A[15,20) C[20,)"
    assert life.rows("fact", "past") == (2, 1)


def test_E5_two_events_at_one_instant_need_different_sequences():
    life = Life()
    life.feed("k:a10 m:a10.1")
    assert life.feed("k:a10") == {"duplicate": 1}
    assert life.commits == 1
    assert life.refused(life.feed, "k:b10") == "sequence-conflict"
    assert life.refused(life.feed, "k:-10") == "sequence-conflict"
    assert life.feed("m:b10.2") == {"began": 1}
    assert life.shown("m") == "b[10,)"
    assert life.refused(life.feed, "n:x10 n:y10") == "sequence-conflict"


def test_E6_a_late_base_completes_a_sparse_update():
    life = Life("v", "w")
    assert life.feed("k:_/rome20") == {"began": 1, "partial": 1}
    assert life.shown("k") == "~/rome[20,)"
    life.feed("k:ann/oslo10")
    assert life.shown("k") == "ann/oslo[10,20) ann/rome[20,)"
    life.feed("k:bob/_15")
    assert life.shown("k") == "ann/oslo[10,15) bob/oslo[15,20) bob/rome[20,)"


def test_E7_null_and_unmodified_differ():
    life = Life("v", "w")
    life.feed("k:ann/oslo10 k:~/rome20 m:ann/oslo10 m:_/rome20")
    assert life.shown("k") == "ann/oslo[10,20) ~/rome[20,)"
    assert life.shown("m") == "ann/oslo[10,20) ann/rome[20,)"


def test_E8_late_events_before_a_truncate_end_with_it():
    life = Life()
    life.feed("k:a10 m:a10")
    assert life.feed("*30") == {"ended": 1}
    life.feed("k:b20 n:x25")
    assert [life.shown(key) for key in "kmn"] == ["a[10,20) b[20,30)", "a[10,30)", "x[25,30)"]
    life.feed("m:c35")
    assert life.shown("m") == "a[10,30) c[35,)"
    assert life.feed("*30") == {"duplicate": 1}
    assert life.refused(life.feed, "k:q30") == "sequence-conflict"
    assert life.refused(life.feed, "*35") == "sequence-conflict"


def test_E9_a_full_copy_corrects_a_feed_and_limits_late_events():
    life = Life()
    life.feed("k:a10 m:a10 p:a10")
    assert life.copy(30, "k:a m:b n:x") == {"new": 1, "changed": 1, "closed": 1, "unchanged": 1}
    assert [life.shown(key) for key in "kmnp"] == ["a[10,)", "a[10,30) b[30,)", "x[30,)", "a[10,30)"]
    life.feed("k:z20 m:b20 p:-25")
    shown = ["a[10,20) z[20,30) a[30,)", "a[10,20) b[20,)", "x[30,)", "a[10,25)"]
    assert [life.shown(key) for key in "kmnp"] == shown


def test_E10_a_late_copy_applies_until_the_next_event():
    life = Life()
    life.feed("k:a10 n:a10 n:c40")
    life.feed("k:b30")
    life.copy(20, "k:x m:y")
    shown = ["a[10,20) x[20,30) b[30,)", "y[20,)", "a[10,20) c[40,)"]
    assert [life.shown(key) for key in "kmn"] == shown


def test_E11_a_record_moves_between_copies_of_two_scopes_at_one_instant():
    life = Life("v", "w")
    life.copy(10, "k:ann/e m:bob/u n:cy/e")
    life.copy(20, "k:ann/e", "w=e")
    assert life.shown("n") == "cy/e[10,20)"
    assert life.refused(life.copy, 20, "k:ann/e") == "same-instant"
    assert life.refused(life.copy, 20, "n:cy/e", "w=u") == "out-of-scope"
    assert life.refused(life.copy, 20, "k:ann/u", "w=u") == "same-instant"
    life.copy(20, "m:bob/u n:cy/u", "w=u")
    shown = ["ann/e[10,)", "bob/u[10,)", "cy/e[10,20) cy/u[20,)"]
    assert [life.shown(key) for key in "kmn"] == shown


def test_E12_a_feed_follows_copies_and_cannot_change_settled_times():
    life = Life()
    life.copy(10, "k:a m:a")
    life.copy(20, "k:b m:a")
    life.table = forgetful(life.table)
    life.feed("k:c25")
    assert life.table.settled == (10, 20)
    assert (life.shown("k"), life.shown("m")) == ("a[10,20) b[20,25) c[25,)", "a[10,)")
    assert life.refused(life.feed, "m:z15") == "settled"
    assert life.feed("m:z15", late="drop") == {"too_late": 1}
    assert life.feed("k:o5 m:a7") == {"began": 2, "late": 2}
    assert (life.shown("k"), life.shown("m")) == ("o[5,10) a[10,20) b[20,25) c[25,)", "a[7,)")


def test_E13_earlier_states_stay_known():
    life = Life()
    for text in ("k:a10", "k:b20", "k:c15"):
        life.feed(text)
    versions = {
        (row.values["v"], row.start, row.end, row.recorded, row.role, row.ended_at, row.end_before)
        for row in life.table.rows
    }
    assert versions == {
        ("a", 10, 15, 2, None, 3, 20),
        ("c", 15, 20, 3, None, None, None),
        ("b", 20, None, 2, None, None, None),
        ("a", 10, 10, 1, "past", 2, None),
    }
    assert all(known(life.table, recorded) == versions for recorded, versions in life.states.items())


def test_E14_a_rewind_undoes_commits_and_keeps_earlier_states_known():
    life = Life()
    for text in ("k:a10", "k:x20", "m:y20"):
        life.feed(text)
    life.table = rewound_to(life.table, 1, 4)
    life.states[4] = now(life.table)
    assert (life.shown("k"), life.shown("m")) == ("a[10,)", "")
    life.feed("k:b20")
    assert life.shown("k") == "a[10,20) b[20,)"
    assert all(known(life.table, recorded) == versions for recorded, versions in life.states.items())
    versions = [(key, start, values["v"]) for key, start, _, values in life.table.statements_at(3)]
    assert sorted(versions) == [("k", 10, "a"), ("k", 20, "x"), ("m", 20, "y")]


def test_E15_a_restatement_replaces_the_events_of_its_window():
    life = Life()
    life.feed("k:a10 k:b20 k:c30 m:a10")
    assert life.feed("k:x12 k:c25", window=(12, 30)) == {"began": 2, "late": 2}
    assert (life.shown("k"), life.shown("m")) == ("a[10,12) x[12,25) c[25,)", "a[10,)")
    assert life.rows("fact") == (1,)
    assert life.refused(life.feed, "k:x40", window=(12, 30)) == "outside-restatement"
    commits = life.commits
    life.feed("k:x12 k:c25", window=(12, 30))
    assert life.commits == commits


def test_E17_settling_keeps_the_facts_that_may_still_matter():
    life = Life()
    life.feed("k:a10 k:-30 m:A5 m:A10 m:A15")
    life.table = settled_before(life.table, 20)
    assert life.rows("fact") == (1,)
    life.feed("k:b25")
    assert life.shown("k") == "a[10,25) b[25,30)"
    assert life.refused(life.feed, "m:B12") == "settled"
    assert life.feed("m:B12", late="drop") == {"too_late": 1}
    assert life.shown("m") == "A[5,)"


def test_E19_repeated_deliveries_change_nothing_and_a_restated_copy_replaces():
    life = Life()
    life.feed("k:a10 k:b20")
    assert life.feed("k:b20 k:a10") == {"duplicate": 2}
    assert life.copy(30, "k:b") == {"unchanged": 1}
    assert known(life.table, 2) == now(life.table)
    assert life.copy(30, "k:b") == {"unchanged": 1}
    assert life.refused(life.copy, 30, "k:c") == "same-instant"
    life.copy(30, "k:c", restate=True)
    assert life.shown("k") == "a[10,20) b[20,30) c[30,)"
    assert (life.commits, life.rows("fact")) == (3, (1,))


def test_E20_a_table_rewound_to_before_its_feed_accepts_copies_again():
    copies = [Copy(at, {"k": {"v": value}}, ("v",)) for at, value in ((10, "a"), (20, "b"))]
    life = Life()
    life.table = StoredVersions(("v",))
    for number, each in enumerate(copies):
        life.table = take(life.table, each, number + 1).table
        life.states[number + 1] = now(life.table)
    life.feed("k:x25 k:y5")
    assert life.shown("k") == "y[5,10) a[10,20) b[20,25) x[25,)"
    life.table = replace(rewound_to(life.table, 1, 4), settled=None, newest=10)
    assert life.shown("k") == "a[10,)"
    table = take(life.table, Copy(20, {"k": {"v": "c"}}, ("v",)), 5).table
    life.table = table
    assert life.shown("k") == "a[10,20) c[20,)"
    assert life.refused(take, table, copies[0], 6) == "time-backwards"
    assert take(table, Copy(30, {"k": {"v": "c"}}, ("v",)), 6).table is table


def test_V25_V58_V64_each_outcome_of_an_event_is_counted():
    life = Life("v", "w")
    assert life.feed("k:_/e10") == {"began": 1, "partial": 1}
    assert life.feed("k:a/_10.5") == {"began": 1}
    assert life.feed("k:-20 k:-30 m:-5") == {"ended": 1, "silent": 2}
    event = Event("k", 15, values={"v": "c", "w": "e"}, before={"v": "b"})
    assert {
        name: number for name, number in apply(life.table, Feed((event,)), 9).counts.items() if number
    } == {
        "began": 1,
        "late": 1,
        "mismatched": 1,
    }


def test_V72_a_restatement_cancels_marks_only_for_its_own_keys():
    life = Life()
    life.feed("k:a10 m:a10")
    life.copy(20, "k:b m:b")
    life.feed("*30")
    life.feed("k:x15", window=(12, 40))
    assert (life.shown("k"), life.shown("m")) == ("a[10,15) x[15,)", "a[10,20) b[20,30)")
    life.feed("k:z25 m:z25")
    assert (life.shown("k"), life.shown("m")) == ("a[10,15) x[15,25) z[25,)", "a[10,20) b[20,25) z[25,30)")
    life.copy(20, "k:c m:c", restate=True)
    assert life.shown("k") == "a[10,15) x[15,20) c[20,25) z[25,)"
    life.feed("*30", window=(30, 31))
    assert life.shown("k") == "a[10,15) x[15,20) c[20,25) z[25,30)"
    life.feed("", window=(12, 40), all_keys=True)
    assert (life.shown("k"), life.shown("m")) == ("a[10,)", "a[10,)")


def test_V138_repeated_events_from_before_a_new_column_are_duplicates():
    life = Life("v")
    life.feed("k:a10")
    life.table = replace(life.table, columns=("v", "w"))
    assert life.feed("k:a/_10") == {"duplicate": 1}
    assert life.refused(life.feed, "k:a/e10") == "sequence-conflict"
    life.feed("k:a/e5")
    assert life.shown("k") == "a/e[5,)"


LOGS = """
a read that is stamped late, at a position before the change's          | k:a40#157r k:b10#900               | b[10,)
a read that is stamped late of a record that is gone since              | k:a40#157r k:-10#900               |
a read at the position of the change                                    | k:a40#900r k:b10#900               | b[10,)
a read that is stamped before the change                                | k:a5#157r k:b10#900                | a[5,10) b[10,)
a statement that is older than the commit before it                     | k:a30#500 k:b10#900                | b[30,)
a clock that is set back, and runs on                                   | k:a30#1 k:b10#2 k:c20#3 k:d40#4    | c[30,40) d[40,)
a delete whose clock is behind                                          | k:a30#1 k:-10#2                    |
a record that comes back behind it                                      | k:a30#1 k:-10#2 k:b20#3            | b[30,)
equal times, in the order of their positions                            | k:b10#2 k:a10#1                    | b[10,)
a truncate whose clock is behind a record's                             | k:a30#1 *10#2 k:b20#3              | b[30,)
a truncate between changes of one record, and before those of another   | k:a10#1 *20#2 k:b5#3               | a[10,20) b[20,)
two reads, of which the later one is raised by the earlier one          | k:a40#1r k:b30#2r                  | b[40,)
two reads before a change whose clock is behind                         | k:a40#1r k:b30#2r k:c10#3          | c[10,)
a read without a position meets the rest by its time                    | k:a20#1 k:r10 k:b30#2              | r[10,20) a[20,30) b[30,)
"""


@pytest.mark.parametrize(
    ("text", "shown"),
    [[part.strip() for part in line.split("|")[1:]] for line in LOGS.strip().splitlines()],
    ids=[line.split("|")[0].strip() for line in LOGS.strip().splitlines()],
)
def test_V131_the_log_order_decides_for_any_order_of_arrival(text, shown):
    """The result is the same for all facts at once and for each order of arrival."""
    whole = Life()
    whole.feed(text)
    assert whole.shown("k") == shown
    for order in permutations(text.split()):
        life = Life()
        for each in order:
            life.feed(each)
        assert life.shown("k") == shown
        assert all(known(life.table, recorded) == versions for recorded, versions in life.states.items())


def test_V132_copies_do_not_change_the_times_of_log_events_or_copies():
    """A copy at 20 is unchanged, whatever is before or after it."""
    life = Life()
    life.feed("k:a30#500 m:a10#400")
    life.copy(20, "k:x m:y")
    assert (life.shown("k"), life.shown("m")) == ("x[20,30) a[30,)", "a[10,20) y[20,)")
    assert life.feed("k:b10#900 m:z25#300") == {"began": 1, "silent": 1, "late": 1, "raised": 1}
    assert (life.shown("k"), life.shown("m")) == ("x[20,30) b[30,)", "y[20,25) a[25,)")


def test_V133_a_repeated_event_keeps_its_earliest_time():
    life = Life()
    assert life.feed("k:a30#500 k:b10#900") == {"began": 1, "silent": 1, "raised": 1}
    assert life.feed("k:a20#500") == {"duplicate": 1}
    assert life.shown("k") == "b[20,)"
    commits = life.commits
    assert life.feed("k:a25#500") == {"duplicate": 1}
    assert (life.shown("k"), life.commits) == ("b[20,)", commits)
    assert life.refused(life.feed, "k:c20#500") == "sequence-conflict"
    assert life.refused(life.feed, "k:-20#500") == "sequence-conflict"
    assert life.refused(life.feed, "*20#500") == "sequence-conflict"


def test_V134_a_late_low_position_rewrites_only_the_rest_of_its_record():
    life = Life()
    life.feed("k:a1#100 k:b5#300 m:a1#150 m:b5#350")
    before = [row for row in life.table.rows if row.key == "m"]
    assert life.feed("k:c9#200") == {"silent": 1, "late": 1}
    assert life.shown("k") == "a[1,9) b[9,)"
    assert [row for row in life.table.rows if row.key == "m"] == before


def test_V135_settling_keeps_the_last_position_of_each_record():
    """This includes deleted records. A message at or before the place is too late, whatever its time."""
    life = Life()
    life.feed("k:a5#100 k:a6#200 m:a5#110 m:-7#210")
    life.table = settled_before(life.table, 10)
    for late in ("k:x20#150", "k:x20#200", "m:x20#205", "k:x9#300"):
        assert life.refused(life.feed, late) == "settled"
        assert life.feed(late, late="drop") == {"too_late": 1}
    life.feed("k:b20#300 m:b20#220 n:b20#1")
    assert [life.shown(key) for key in "kmn"] == ["a[5,20) b[20,)", "a[5,7) b[20,)", "b[20,)"]


def test_V135_a_settled_position_survives_an_event_without_a_position():
    """This includes a delete without an effect. A message at or before it in the log stays too late."""
    life = Life()
    life.feed("k:-1#5 k:e1")
    life.table = settled_before(life.table, 5)
    life.feed("k:u7")
    assert life.shown("k") == "u[7,)"
    assert life.refused(life.feed, "k:x8#4") == "settled"


def test_V135_a_truncate_settled_for_a_record_is_refused_with_its_events():
    life = Life()
    life.feed("k:a2#3 m:a2#1")
    life.table = settled_before(life.table, 2)
    assert life.refused(life.feed, "*9#2 k:b9#5") == "settled"
    assert life.feed("*9#2 k:b9#5", late="drop")


def test_V135_a_settled_truncate_settles_earlier_messages_of_its_log():
    """An earlier change with a later time would otherwise raise it, and restore deleted records."""
    life = Life()
    life.feed("k:a10 *10#500")
    life.table = settled_before(life.table, 10)
    for text in ("k:b20#400", "m:b20#400", "m:b20#400r", "*20#400"):
        assert life.refused(life.feed, text) == "settled"
        assert life.feed(text, late="drop") == {"too_late": 1}
    life.feed("k:b20#600 m:c20")
    assert [life.shown(key) for key in "km"] == ["b[20,)", "c[20,)"]


def test_V135_a_restatement_selects_events_by_their_own_times():
    life = Life()
    life.feed("k:a30#500 k:b10#900")
    life.feed("k:c31#600", window=(30, 40))
    assert life.shown("k") == "b[31,)"
    life.feed("", window=(30, 40), all_keys=True)
    assert life.shown("k") == "b[10,)"


def test_V136_messages_of_a_former_log_are_settled():
    """Known and later messages of the old log are settled. A clock that is set back belongs to the new log."""
    life = Life()
    life.feed("k:a10#500 k:b20#900")
    life.table = replace(settled_before(life.table, 29), former=FormerLogs(29, 20, (1900, True)))
    life.feed("k:c30#1004")
    for late in (
        "k:a10#1500",
        "k:b20#1900",
        "k:x15#1003",
        "k:x25#1901",
        "m:x19#1001",
        "k:-20#1900",
        "*20#1900",
    ):
        assert life.refused(life.feed, late) == "settled"
        assert life.feed(late, late="drop") == {"too_late": 1}
    mixed = "k:a10#1500 k:d25#1005 k:b20#1900"
    assert life.feed(mixed, late="drop") == {"began": 1, "too_late": 2, "raised": 1}
    assert life.shown("k") == "a[10,20) b[20,30) d[30,)"


def test_V138_a_later_column_is_unmodified_in_earlier_events():
    """The order and the split of the deliveries do not matter."""
    for texts in (["k:a/_10", "k:a/e5"], ["k:a/e5", "k:a/_10"], ["k:a/_10 k:a/e5"]):
        life = Life("v", "w")
        for text in texts:
            life.feed(text)
        assert life.shown("k") == "a/e[5,)"


def overwriting(*copies):
    """A table whose column `o` keeps no history, with full copies, some without it."""
    table = StoredVersions(("v", "o"), settled=(), overwritten=frozenset({"o"}))
    for number, (at, values) in enumerate(copies):
        table = take_among(table, Copy(at, {"m": values}, tuple(values)), number).table
    return table


def newest(table):
    return [(row.values["o"], row.start, row.end) for row in table.life("m")]


def test_V18_a_restatement_without_facts_keeps_columns_without_history():
    """V78: The state before the window is the stored version's, whose values are already folded."""
    table = overwriting((2, {"v": "e", "o": "e"}), (1, {"v": "e"}))
    assert newest(table) == [("e", 1, None)]
    table = apply(table, Feed((), window=Window(2, 3), all_keys=True), 2).table
    assert newest(table) == [("e", 1, None)]


def test_V80_a_copy_rewrites_no_record_that_stays_absent():
    table = overwriting((7, {"v": "e", "o": "e"}), (5, {"v": "e"}))
    event = Event("m", 6, FactKind.UPSERT, {"v": "e"}, ("v",), (1,))
    table = apply(table, Feed((event,), window=Window(6, 8)), 2).table
    before = [row for row in table.rows if row.key == "m"]
    after = take_among(table, Copy(1, {}, ("v", "o")), 3).table
    assert [row for row in after.rows if row.key == "m"] == before
    assert newest(after) == [("e", 5, None)]
