"""Loads as small tables: the scenarios of sections 3, 8 and 9.1 (R14 to R18).

Each runs on DuckDB and PostgreSQL, with the four steps and with the single MERGE.
"""

import pytest
from historizing import BACK, BASE, PASTS, VERSION, archived_pasts, second, versions
from specification.scd2 import BaseRow, Rules, Version, historize

from backstory.doors.historize.hist_state import sync_hist
from backstory.doors.historize.load import prepare_load
from backstory.doors.historize.runs import LoadRun
from backstory.strategies.scd2.statements import hist_steps

A23 = """
    a 1 [1,-) new r1
    b 1 [1,-) new r1
"""
A24 = """
    a 1 [1,2) changed r2
    a 2 [2,-) changed r2
    b 1 [1,2) deleted r2
"""
A25 = A24 + "b 1 [3,-) new r3"


@pytest.fixture
def loaded(place, engine):
    """The history of A23."""
    place.mode(engine).base("a:1 b:1").load("r1", 1)
    return place


def counts(receipt):
    """The nonzero counts of a receipt, as text."""
    return " ".join(f"{name}={count}" for name, count in receipt.counts.items() if count)


def test_a23_every_key_of_the_first_load_is_new(place, engine):
    """R14, A23: Every key begins at the load's instant, not at an earlier time."""
    receipt = place.mode(engine).base("a:1 b:1").load("r1", 1)

    assert place.history() == versions(A23)
    assert (receipt.status, counts(receipt)) == ("success", "new=2")


def test_a24_changed_and_deleted_keys(loaded):
    """R14, A24: A changed key gets a new version, and a missing one ends. The close overwrites state and run."""
    receipt = loaded.base("a:2").load("r2", 2)

    assert loaded.history() == versions(A24)
    assert counts(receipt) == "changed=1 deleted=1"


def test_a25_a_key_that_returns_is_new_again(loaded):
    """R15, A25: A returning key gets one open version with state new and start T. Earlier rows are unchanged."""
    loaded.base("a:2").load("r2", 2)
    receipt = loaded.base("a:2 b:1").load("r3", 3)

    assert loaded.history() == versions(A25)
    assert counts(receipt) == "reappeared=1 unchanged=1"


def test_changes_of_a_returned_key_are_versioned(loaded):
    """R15, 3.4: Later changes and deletions of a returned key are detected."""
    loaded.base("a:2").load("r2", 2)
    for second_, base in enumerate(("a:2 b:1", "a:2 b:7", "a:2", "a:2 b:7"), start=3):
        loaded.base(base).load(f"r{second_}", second_)

    assert loaded.history() == versions(
        A24
        + """
        b 1 [3,4) changed r4
        b 7 [4,5) deleted r5
        b 7 [6,-) new r6
        """
    )


@pytest.mark.parametrize("forgotten", [False, True])
def test_a26_a_rerun_of_a_success_changes_nothing(loaded, forgotten):
    """R17, A26: With the registry, the rerun returns the stored counts. Without it, it returns zero changes."""
    first = loaded.base("a:2").load("r2", 2)
    before = loaded.dump()
    if forgotten:
        loaded.sql("DROP TABLE meta.hist_run")
    again = loaded.load("r2", 2)

    assert before == loaded.dump()
    assert loaded.history() == versions(A24)
    assert counts(again) == ("unchanged=1" if forgotten else counts(first))


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4])
def test_a27_a_load_that_stopped_after_any_step_is_completed_by_its_rerun(loaded, engine, steps):
    """R18, A27: After a crash at any of the four statements, the same run and T end as if undisturbed."""
    loaded.base("a:2 c:1")
    four = prepare_load(
        loaded.model, loaded.dataset, sync_hist(loaded.dataset, None, second(2)), loaded.dialect
    )
    run = LoadRun(loaded.dataset, "rawcore", "r2", second(2), second(2))
    values = run.values(loaded.target.dialect, loaded.target._pepper)
    for statement in hist_steps(four.pair)[:steps]:
        loaded.target._engine.run(statement.sql, values)
    receipt = loaded.load("r2", 2)

    assert loaded.history() == versions(A24 + "c 1 [2,-) new r2")
    assert receipt.status == ("unchanged" if steps == 4 else "success")


def test_an_unchanged_base_makes_no_version(loaded):
    """R30, 9.1: Equal hashes write nothing, and the receipt reports this."""
    before = loaded.dump()
    receipt = loaded.load("r2", 2)

    assert before == loaded.dump()
    assert (receipt.status, counts(receipt)) == ("unchanged", "unchanged=2")


def test_every_row_of_the_action_table(loaded):
    """9.1: Distinct, equal, r alone and v alone occur in one load."""
    loaded.base("a:2 b:1 c:1").load("r2", 2)
    loaded.base("b:1 c:2 d:-").load("r3", 3)

    assert loaded.history() == versions("""
        a 1 [1,2) changed r2
        a 2 [2,3) deleted r3
        b 1 [1,-) new r1
        c 1 [2,3) changed r3
        c 2 [3,-) changed r3
        d - [3,-) new r3
    """)


def test_a_healed_key_is_changed_not_new(place, engine):
    """9.1: A key that an interrupted load closed at T as changed continues as changed."""
    place.mode(engine).put("a 1 [1,2) changed r2").base("a:2 b:1").load("r2", 2)

    assert place.history() == versions("""
        a 1 [1,2) changed r2
        a 2 [2,-) changed r2
        b 1 [2,-) new r2
    """)


def test_a_key_closed_as_changed_by_another_load_is_new(place, engine):
    """3.4: A version closed at an earlier T does not affect this load."""
    place.mode(engine).put("a 1 [1,2) changed r2").base("a:1").load("r3", 3)

    assert place.history() == versions("""
        a 1 [1,2) changed r2
        a 1 [3,-) new r3
    """)


def test_an_open_version_without_hash_is_versioned_once(place, engine):
    """R22, 3.6: An open row without a hash differs from every hash, once."""
    place.mode(engine).put("a 1 [1,-) new r1 !hash").base("a:1").load("r2", 2)
    place.load("r3", 3)

    assert place.history() == versions("""
        a 1 [1,2) changed r2
        a 1 [2,-) changed r2
    """)


def test_null_and_the_empty_attribute_are_different(place, engine):
    """R22: A value that becomes NULL, and returns, changes each time."""
    place.mode(engine).base("a:1").load("r1", 1)
    place.base("a:-").load("r2", 2)
    place.base("a:1").load("r3", 3)

    assert place.history() == versions("""
        a 1 [1,2) changed r2
        a - [2,3) changed r3
        a 1 [3,-) changed r3
    """)


def test_loads_within_a_second(place, engine):
    """R21, 3.5: T has microseconds, so loads a microsecond apart are separate loads."""
    for number, at in enumerate(("1", "1.000001", "1.000002"), start=1):
        place.mode(engine).base(f"a:{number}").load(f"r{number}", at)

    assert place.history() == versions("""
        a 1 [1,1.000001) changed r2
        a 2 [1.000001,1.000002) changed r3
        a 3 [1.000002,-) changed r3
    """)


def test_a_partial_snapshot_closes_only_keys_in_scope(place, engine):
    """R25: A partial snapshot closes only keys in its scope. NULL is out of scope."""
    place.mode(engine, snapshot="partial", delete_scope="h.a = '1'")
    place.base("a:1 b:2 c:- d:1").load("r1", 1)
    receipt = place.base("d:1").load("r2", 2)

    assert place.history() == versions("""
        a 1 [1,2) deleted r2
        b 2 [1,-) new r1
        c - [1,-) new r1
        d 1 [1,-) new r1
    """)
    assert counts(receipt) == "deleted=1 unchanged=1"


def test_a_partial_snapshot_without_scope_closes_nothing(place, engine):
    """R25: Without a scope, step 2 is skipped, but changes are still detected."""
    place.mode(engine, snapshot="partial").base("a:1 b:1").load("r1", 1)
    place.base("a:2").load("r2", 2)

    assert place.history() == versions("""
        a 1 [1,2) changed r2
        a 2 [2,-) changed r2
        b 1 [1,-) new r1
    """)


def test_identical_duplicates_collapse(place, engine):
    """R24: With collapse_identical, identical rows count once."""
    place.mode(engine, duplicate_keys="collapse_identical").base("a:1 a:1 b:1").load("r1", 1)
    receipt = place.base("a:2 a:2 b:1 b:1").load("r2", 2)

    assert place.history() == versions("""
        a 1 [1,2) changed r2
        a 2 [2,-) changed r2
        b 1 [1,-) new r1
    """)
    assert counts(receipt) == "changed=1 unchanged=1"


def test_a_close_changes_three_columns_of_open_rows(loaded):
    """R12, R13: A close changes only end, state and run of open rows."""
    (names, *_), *_ = loaded.dump("rawcore.rc_c_hist").values()
    before = {row[0]: dict(zip(names, row, strict=True)) for row in _rows(loaded)}
    loaded.base("a:2").load("r2", 2)
    loaded.base("a:3 b:1").load("r3", 3)
    after = {row[0]: dict(zip(names, row, strict=True)) for row in _rows(loaded)}

    for made, row in before.items():
        other = {name for name in names if row[name] != after[made][name]}
        assert other == {"version_ended_at", "version_state", "load_run_id"}
    assert set(before) < set(after)


def _rows(place):
    return place.dump("rawcore.rc_c_hist")["rawcore.rc_c_hist"][1:]


def test_the_columns_of_a_new_version(place, engine):
    """R11: Columns and order follow 2.1. The base's own load columns are not copied."""
    place.mode(engine).base("a:1").load("r1", 1)
    ((names, row),) = place.dump("rawcore.rc_c_hist").values()

    assert names == (
        "rc_c_hist_key", "rc_c_key", "k", "a", "row_hash",
        "version_started_at", "version_ended_at", "version_state", "load_run_id", "loaded_at",
    )  # fmt: skip
    values = dict(zip(names, row, strict=True))
    assert values["loaded_at"] == values["version_started_at"]
    assert values["load_run_id"] == "r1"


def test_many_loads_on_one_key(place, engine):
    """R16: A key that changes in every load has as many consecutive versions."""
    place.mode(engine)
    for number in range(1, 8):
        place.base(f"a:{number}").load(f"r{number}", number)

    assert place.history() == versions(
        "\n".join(f"a {n} [{n},{n + 1}) changed r{n + 1}" for n in range(1, 7)) + "\na 7 [7,-) changed r7"
    )


@pytest.mark.parametrize("stored", [False, True])
def test_a_known_record_without_an_open_version_reappears(place, engine, stored):
    """R15, 7.2: A record reappears whatever closed its versions, including archived ones. A healed record
    does not."""
    labels = {"new": "N", "changed": "changed", "deleted": "D", "reappeared": "R", "mode": "stored"}
    place.mode(engine, **({"state_labels": labels} if stored else {}))
    archived_pasts(place)
    receipt = place.base(BASE).load("r5", 5, relabel=stored)
    assert receipt.error is None
    assert receipt.counts == {"new": 1, "changed": 1, "deleted": 0, "reappeared": 4, "unchanged": 1}
    began = place.rows("SELECT k, version_state FROM rawcore.rc_c_hist WHERE version_ended_at IS NULL")
    states = dict.fromkeys(BACK, "R") | {"fresh": "N", "open": "N", "healed": "changed"}
    assert dict(began) == {k: state if stored or k == "healed" else "new" for k, state in states.items()}


def test_relabelling_finds_reappeared_records(place, engine):
    """R53, 7.2: Labels that are stored later have the same meaning."""
    place.mode(engine)
    archived_pasts(place)
    place.base(BASE).load("r5", 5)
    labels = {"new": "N", "changed": "C", "deleted": "D", "reappeared": "R", "mode": "stored"}
    place.mode(engine, state_labels=labels)
    assert place.load("r6", 6, relabel=True).error is None
    opened = place.rows("SELECT k, version_state FROM rawcore.rc_c_hist WHERE version_ended_at IS NULL")
    assert dict(opened) == dict.fromkeys(BACK, "R") | {"fresh": "N", "open": "N", "healed": "C"}


def test_the_rule_finds_reappeared_records():
    """R15, 7.2: The rule and all engines agree on these pasts."""
    lines = [VERSION.fullmatch(line) for line in versions(PASTS)]
    gone = [
        past["key"] == "archived" or (past["key"], past["state"]) == ("pruned", "changed") for past in lines
    ]
    made = [
        Version((t["key"], t["start"]), t["key"], t["value"], {}, int(t["start"]),
                None if t["end"] == "-" else int(t["end"]), t["state"], t["run"], 1)
        for t in lines
    ]  # fmt: skip
    history = [version for version, away in zip(made, gone, strict=True) if not away]
    archived = {version.key for version, away in zip(made, gone, strict=True) if away}
    rows = [BaseRow(*word.split(":")) for word in BASE.split()]
    _, tally = historize(history, rows, 5, "r5", lambda *key: key, Rules(archived=archived))
    assert tally.counts == {"new": 1, "changed": 1, "deleted": 0, "reappeared": 4, "unchanged": 1}
    assert tally.rows == {"close_changed": 0, "close_deleted": 0, "insert_changed": 1, "insert_new": 5}
