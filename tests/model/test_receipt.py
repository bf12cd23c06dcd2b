"""Receipts of every door: errors, exit codes and output."""

import json
from datetime import UTC, datetime
from pathlib import Path

from backstory.doors.historize.receipts import HistoryReceipt, LoadOutcome, refusal, stored_receipt
from backstory.doors.native.receipts import SnapshotPlan, SnapshotReceipt
from backstory.doors.odf.lints import Level, Lint
from backstory.doors.odf.receipts import Added, DatasetReceipt
from backstory.errors import Failed, Refused, TryAgain, UsageError
from backstory.model.receipt import Receipt, exit_code
from backstory.upkeep.maintaining import Maintained

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)
WELL = HistoryReceipt("rc_c", "r1", None, "success")
REFUSED = refusal("rc_c", "r1", AT, Refused("NULL_KEY", "No key.", "Mend it.", ["a"]))


def test_every_receipt_has_the_same_error_fields():
    """It has the fields of its JSON. The exit code is the error's, or 0."""
    fields = {"code": "NULL_KEY", "message": "No key.", "keys": ["a"], "remedy": "Mend it."}
    others = (Added(None, None, "failed", error=REFUSED.error), Maintained("a.b", "", error=REFUSED.error))
    for each in (REFUSED, DatasetReceipt("d", "failed", error=REFUSED.error), *others):
        assert (each.error.code, each.error["keys"], each.exit_code) == ("NULL_KEY", ["a"], 3)
        assert each.to_dict()["error"] == fields
    assert (WELL.exit_code, SnapshotReceipt("a.b", {}).exit_code) == (0, 0)
    ended = [refusal("rc_c", "r1", None, error("x", "y")).status for error in (Failed, TryAgain, UsageError)]
    assert ended == ["failed", "rejected", "rejected"]


def test_a_batch_has_the_exit_code_of_its_most_serious_failure():
    """The most serious failure counts: wrong usage, then 3, then 75, then 1."""
    failed, later, wrong = (
        DatasetReceipt("d", "failed", error=error("x", "y")) for error in (Failed, TryAgain, UsageError)
    )
    batches = [[], [WELL], [WELL, failed], [failed, later], [failed, later, REFUSED, WELL], [REFUSED, wrong]]
    assert list(map(exit_code, batches)) == [0, 0, 1, 75, 3, 2]


def test_a_receipt_prints_its_fields():
    """Instants are in UTC, tuples are lists, and fields for people are left out. Stored receipts can be read
    again."""
    pulled = DatasetReceipt("d", "updated", offsets=(0, 4), watermark=AT, before=AT, notes=("odd",), hint="h")
    assert list(pulled.to_dict()) == [
        "dataset", "status", "counts", "offsets", "watermark", "system_time", "error",
    ]  # fmt: skip
    assert (pulled.to_dict()["offsets"], pulled.to_dict()["watermark"]) == (
        [0, 4],
        "2026-01-31T12:00:00.000000Z",
    )
    planned = SnapshotPlan("a.b", {"new": 1}, keys={"new": ("1",)})
    assert list(planned.to_dict().items())[:4] == [
        ("table", "a.b"), ("counts", {"new": 1}), ("keys", {"new": ["1"]}), ("columns", {}),
    ]  # fmt: skip
    added = Added("d", Path("a.yaml"), "added", (Lint("L1", Level.NOTE, "odd", 1),))
    assert json.loads(json.dumps(added.to_dict()))["lints"][0] == {
        "code": "L1", "level": "note", "message": "odd", "line": 1, "place": "", "remedy": "",
    }  # fmt: skip
    assert (added.to_dict()["file"], list(added.to_dict())[:3]) == ("a.yaml", ["dataset", "file", "status"])
    loaded = HistoryReceipt("rc_c", "r1", "t", "success", LoadOutcome().counts, ("CREATE_TABLE rc_c",))
    assert list(loaded.to_dict())[3:] == ["status", "counts", "schema_changes", "error"]
    assert "keys" in HistoryReceipt("rc_c", "r1", None, "success", keys={}).to_dict()
    more = {**json.loads(json.dumps(loaded.to_dict())), "dataset_key": "rawcore.rc_c"}
    assert stored_receipt(more).to_dict() == loaded.to_dict()


def test_a_receipt_is_one_short_line_and_a_table_in_a_notebook():
    """Empty fields and counts are left out in every receipt, and values are text, not HTML."""
    receipt = SnapshotReceipt("a.<b>", {"new": 2, "closed": 0}, snapshot_id=7)
    assert repr(receipt) == "SnapshotReceipt(table='a.<b>', counts={'new': 2}, snapshot_id=7)"
    assert "<td>a.&lt;b&gt;</td>" in receipt._repr_html_()
    assert "<th>counts</th><td>new 2</td>" in receipt._repr_html_()
    for each in (REFUSED, DatasetReceipt("d", "failed", error=REFUSED.error), Maintained("a.b", "")):
        assert "\n" not in repr(each)
        assert repr(each).startswith(type(each).__name__)
    assert all("__repr__" not in vars(kind) for kind in Receipt.__subclasses__())
