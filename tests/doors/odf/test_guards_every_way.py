"""Every guard refuses rows of a dataset alike, in every way of merging, before one is written (law 8)."""

from dataclasses import replace

import pytest
from datasets import Dataset
from structlog.testing import capture_logs

from backstory.doors.odf import delivery
from backstory.engine.runner import IN_TASKS
from backstory.errors import MAX_KEYS
from backstory.formats.memory import CLEAR_TEXT_SHARE, Memory

# Rows in addition to the invalid ones, more than a part holds. A changelog adds other records each time.
BESIDE = " ".join(f"f{number:02},1" for number in range(30))
ADDED = " ".join(f"0,f{number:02},1" for number in range(30))
OTHERS = ADDED.replace("f", "g")
PLACED = " ".join(f"0,f{number:02},1,1" for number in range(30))

# For each merge: its columns, the stored rows, and the refused rows by their code.
GUARDS = {
    "{kind: ledger, primaryKey: [k], onConflict: error}": (
        "k STRING, v STRING",
        f"A,1 {BESIDE}",
        {
            "null-key": f",1 {BESIDE}",
            "conflicting-rows": f"N,1 {BESIDE} N,2",
            "ledger-conflict": f"A,2 {BESIDE}",
        },
    ),
    "{kind: snapshot, primaryKey: [k], maxRetract: 0.5}": (
        "k STRING, v STRING",
        f"A,1 {BESIDE}",
        {
            "null-key": f",1 {BESIDE}",
            "conflicting-rows": f"A,1 {BESIDE} A,2",
            "too-many-retracted": "A,2",
        },
    ),
    "{kind: upsertStream, primaryKey: [k], sequenceColumn: n}": (
        "op INT, k STRING, v STRING, n INT",
        f"0,A,1,1 {PLACED}",
        {
            "null-key": f"0,,1,1 {PLACED}",
            "wrong-op": f"2,A,1,1 {PLACED}",
            "null-sequence": f"0,A,1, {PLACED}",
        },
    ),
    "{kind: changelogStream, primaryKey: [k]}": (
        "op INT, k STRING, v STRING",
        f"0,A,1 {ADDED}",
        {
            "null-key": f"0,,1 {OTHERS}",
            "wrong-op": f"4,A,1 {OTHERS}",
            "already-present": f"0,A,2 {OTHERS}",
            "not-present": f"1,N,1 {OTHERS}",
            "unlike-current": f"1,A,2 {OTHERS}",
            "unpaired-correction": f"2,A,1 {OTHERS} 3,A,2",
        },
    ),
}
# Guards of queries and times, which run before a way is chosen, and functions that raise PROBLEMS.
BEFOREHAND = {"refuse_late", "refuse_lost_order"}
OF_PROBLEMS, OF_RETRACTIONS = "refuse_problems", "refuse_retractions"
IN_PARTS = "more rows than driver-memory holds: planned in parts"
WAYS = {"whole": (None, None), "parts": (800, IN_PARTS), "tasks": (0, IN_TASKS)}


def test_every_guard_of_a_dataset_is_listed():
    """If the code gets a new guard, this test fails until the guard has a row here."""
    own = {
        name
        for name, value in vars(delivery).items()
        if getattr(value, "__module__", "") == delivery.__name__
    }
    guards = {name for name in own if name.startswith("refuse_")}
    assert guards - BEFOREHAND == {OF_PROBLEMS, OF_RETRACTIONS}
    tried = {code for _, _, wrong in GUARDS.values() for code in wrong}
    assert tried == {*delivery.PROBLEMS, "too-many-retracted"}


@pytest.mark.parametrize("merge", GUARDS)
def test_a_dataset_has_the_same_refusals_in_every_way_of_planning(store, tmp_path, merge):
    """Code, sentence and keys are equal in every way. The log is unchanged."""
    columns, stored, wrong = GUARDS[merge]
    errors = {}
    for way, (held, logged) in WAYS.items():
        life = Dataset(store, tmp_path / way, merge, columns, namespace="odf_guards_every_way")
        life.push(stored)
        if held is not None:
            life.store = replace(store, memory=Memory(CLEAR_TEXT_SHARE * held))
        for code, rows in wrong.items():
            with capture_logs() as logs:
                error = life.refused(rows, code=code)
            planned = {each["event"] for each in logs} & {IN_PARTS, IN_TASKS}
            assert planned == {logged} - {None}, (way, code)
            assert error.keys
            keys = error.keys if len(error.keys) < MAX_KEYS else MAX_KEYS  # each way names some of more keys
            errors.setdefault(code, []).append(error.to_dict() | {"keys": keys})
    assert errors == {code: [refusals[0]] * len(WAYS) for code, refusals in errors.items()}
