"""P1 to P10: Each refuses a load with its code and keys, and changes no byte (R19, R23)."""

import pytest
from historizing import dataset, document, versions


@pytest.fixture(params=["four_step", "merge"])
def loaded(request, place):
    """A history with two open versions that began at 1."""
    return place.mode(request.param).put("a 1 [1,-) new r1\nb 1 [1,-) new r1").base("a:1 b:1")


@pytest.fixture(params=["four_step", "merge"])
def mode(request):
    return request.param


def refused(place, run="r2", at=2, **options):
    """The error of a load that must be refused without changes of the tables."""
    before = place.dump()
    receipt = place.load(run, at, **options)
    assert place.dump() == before
    assert (receipt.status, receipt.exit_code) == ("rejected", 3)
    assert not any(receipt.counts.values())
    assert receipt.error["remedy"]
    return receipt.error


def many(template, count=12):
    return " ".join(template.format(n=n) for n in range(10, 10 + count))


FIRST_TEN = [f"k{n}" for n in range(10, 20)]


def test_a29_p1_a_row_without_key(loaded):
    """P1, A29: Base rows without a surrogate key are refused, with at most ten business keys."""
    error = refused(loaded.base(f"a:1 {many('k{n}:1!key')}"))

    assert (error["code"], error["keys"]) == ("NULL_KEY", FIRST_TEN)


def test_p2_a_row_without_hash(loaded):
    """P2: A base row without a hash is refused, because a change of it could not be detected."""
    error = refused(loaded.base(f"a:1 {many('k{n}:1!hash')}"))

    assert (error["code"], error["keys"]) == ("NULL_ROW_HASH", FIRST_TEN)


def test_a28_p3_different_rows_of_one_key(loaded):
    """P3, A28: Two different rows with one key are refused."""
    error = refused(loaded.base(f"a:1 {many('k{n}:1')} {many('k{n}:2')}"))

    assert (error["code"], error["keys"]) == ("DUPLICATE_KEY", FIRST_TEN)


def test_p3_identical_rows_of_one_key(loaded):
    """P3: Without collapse_identical, identical rows are refused too."""
    error = refused(loaded.base("a:1 a:1 b:1"))

    assert (error["code"], error["keys"]) == ("DUPLICATE_KEY", ["a"])


def test_p3_collapsing_still_refuses_different_rows(place, mode):
    """R24: collapse_identical refuses a key with different rows, even if two of three are equal."""
    place.mode(mode, duplicate_keys="collapse_identical").base("a:1 b:1").load("r1", 1)
    error = refused(place.base("a:2 a:2 b:1 b:2 b:2"))

    assert (error["code"], error["keys"]) == ("DUPLICATE_KEY", ["b"])


def test_p3_a_row_flagged_as_deleted_is_not_a_duplicate(place, mode):
    """P3, 7.3: Only rows that are not flagged as deleted count, whatever the flag's case."""
    place.mode(mode, soft_delete={"column": "a", "deleted_values": ["r.i.p.", "{{ x }}"]})
    place.base("a:1 a:r.i.p. b:r.i.p. b:r.i.p.").load("r1", 1)

    assert place.history() == versions("a 1 [1,-) new r1")


def test_p4_two_open_versions(loaded):
    """P4: A history with two open versions of a key must be repaired first."""
    loaded.put("\n".join(f"k{n} {at} [{at},-) new r0" for n in range(10, 22) for at in (0, 1)))
    error = refused(loaded)

    assert (error["code"], error["keys"]) == ("MULTIPLE_OPEN", FIRST_TEN)


def test_a_version_without_a_beginning(loaded):
    """An open version without a start, which no door writes, is refused."""
    loaded.put("z 9 [1,-) new r0!start")
    error = refused(loaded)

    assert (error["code"], error["keys"]) == ("spoilt-table", ["z"])


@pytest.mark.parametrize("at", [1, 0.5])
def test_a30_p5_closing_at_or_before_the_start(loaded, at):
    """P5, A30: A version never closes at or before its own start."""
    assert refused(loaded.base("a:2 b:1"), at=at)["keys"] == ["a"]
    error = refused(loaded.base("a:1"), "r3", at=at)
    assert (error["code"], error["keys"]) == ("NON_MONOTONIC_TIMESTAMP", ["b"])


def test_p5_beginning_inside_a_closed_version(place, mode):
    """P5: A version never begins before the end of an earlier one, but may begin at it."""
    place.mode(mode).put("a 1 [1,5) deleted r5").base("a:1")
    error = refused(place, at=4)
    assert (error["code"], error["keys"]) == ("NON_MONOTONIC_TIMESTAMP", ["a"])

    place.load("r5", 5)
    assert place.history() == versions("a 1 [1,5) deleted r5\na 1 [5,-) new r5")


def test_p5_a_key_is_not_versioned_twice_at_one_instant(loaded):
    """P5: Another base at the same instant is another load, and is refused under any run id."""
    loaded.base("a:2 b:1").load("r2", 2)
    error = refused(loaded.base("a:3 b:1"), "r3", 2)

    assert (error["code"], error["keys"]) == ("NON_MONOTONIC_TIMESTAMP", ["a"])


def test_p5_versions_out_of_scope_are_ignored(place, mode):
    """P5: An open version that this load would not close may begin later."""
    place.mode(mode, snapshot="partial", delete_scope="h.a = '1'")
    place.put("a 2 [9,-) new r0\nb 1 [1,-) new r0").base("c:1")
    place.load("r2", 2)

    assert place.history() == versions("a 2 [9,-) new r0\nb 1 [1,2) deleted r2\nc 1 [2,-) new r2")


def test_p6_an_empty_base(loaded):
    """P6, R27: An empty base closes nothing, unless this run allows it."""
    assert refused(loaded.base(""))["code"] == "EMPTY_SNAPSHOT"
    receipt = loaded.load("r3", 3, allow_empty=True)

    assert receipt.counts["deleted"] == 2
    assert loaded.history() == versions("a 1 [1,3) deleted r3\nb 1 [1,3) deleted r3")


def test_p6_the_model_may_allow_an_empty_base(place, mode):
    """R27: allow_empty_snapshot in the model allows an empty base."""
    place.mode(mode, allow_empty_snapshot=True).base("a:1").load("r1", 1)

    assert place.base("").load("r2", 2).counts["deleted"] == 1


def test_p6_an_empty_base_of_an_empty_history(place, mode):
    """P6: If no version is open, an empty base is accepted."""
    place.mode(mode).base("").load("r1", 1)

    assert place.load("r2", 2).status == "unchanged"


def test_p7_mass_deletes_are_refused(place, mode):
    """P7, R27: Closing more than the ratio of the open versions is refused, unless this run allows more."""
    place.mode(mode, max_delete_ratio=0.5).base("a:1 b:1 c:1 d:1").load("r1", 1)
    assert refused(place.base("a:2"))["code"] == "MASS_DELETE"

    assert place.base("a:1 b:1").load("r3", 3).counts["deleted"] == 2
    assert refused(place.base("a:1"), "r4", 4, max_delete_ratio=0.25)["code"] == "MASS_DELETE"
    assert place.load("r5", 5, max_delete_ratio=1.0).counts["deleted"] == 1


def test_p8_a_history_without_a_required_column_is_refused(loaded):
    """P8, R43: A history that lacks a required column is not loaded."""
    loaded.sql("ALTER TABLE rawcore.rc_c_hist DROP COLUMN version_state")
    receipt = loaded.base("a:2").load("r2", 2)

    assert receipt.status == "rejected"
    assert receipt.error["code"] == "HIST_COLUMNS"
    assert "version_state" in receipt.error["message"]
    assert "version_state" not in loaded.target.columns("rawcore", "rc_c_hist")


def test_p10_a_base_without_input(place, mode):
    """P10: Without a stage input, neither the base nor its history is loaded."""
    place.mode(mode).base("a:1")
    before = place.dump("rawcore.rc_c", "rawcore.rc_c_hist")
    receipt = place.load("r1", 1, skip_base=False)

    assert receipt.error["code"] == "BASE_NOT_LOADED"
    assert before == place.dump("rawcore.rc_c", "rawcore.rc_c_hist")


def test_p10_datasets_with_a_failed_input_are_skipped(place, mode):
    """P10, R28: A dataset whose direct or indirect input failed is not loaded."""
    chain = {"rc_first": "stage.s", "rc_second": "rawcore.rc_first", "rc_third": "rawcore.rc_second"}
    chain["rc_alone"] = "stage.other"
    sets = [
        dataset(name=name, input=source, historization={"engine": mode}) for name, source in chain.items()
    ]
    place.use(document(*sets))
    place.stage("s", "k* a", [{"k": "a", "a": "1"}])
    place.stage("other", "k* a", [{"k": "a", "a": "1"}])
    assert [each.status for each in place.loads("r1", 1)] == ["success"] * 4
    place.insert("stage.s", [{"k": "a", "a": "2"}])
    place.sql("UPDATE stage.other SET a = '2'")
    tables = [f"rawcore.rc_{name}{end}" for name in ("first", "second", "third") for end in ("", "_hist")]
    before = place.dump(*tables)
    receipts = place.loads("r2", 2)

    assert [each.error and each.error["code"] for each in receipts] == [
        "DUPLICATE_KEY", "BASE_NOT_LOADED", "BASE_NOT_LOADED", None,
    ]  # fmt: skip
    assert before == place.dump(*tables)
    blocked = (
        "SELECT target_dataset, status, mode, blocked_by FROM meta.load_run_log WHERE status = 'skipped'"
    )
    assert sorted(place.rows(blocked)) == [
        ("rc_second_hist", "skipped", "orchestration", "rawcore.rc_first"),
        ("rc_third_hist", "skipped", "orchestration", "rawcore.rc_first"),
    ]


def test_a_rejection_is_registered_and_logged(loaded):
    """R46, 6.1: A load that preflight refuses has a row in registry, run log and step log."""
    loaded.base("a:1 a:2").load("r2", 2)

    assert loaded.registered("status", "error_code", "closed_changed", "receipt", run="r2") == [
        ("rejected", "DUPLICATE_KEY", None, None)
    ]
    log = "SELECT status, status_reason, attempt_no, rows_affected FROM meta.load_run_log"
    assert loaded.rows(log) == [("error", "DUPLICATE_KEY", 1, None)]
    steps = "SELECT step, rows_affected, status, error_code FROM meta.hist_step_log"
    assert loaded.rows(steps) == [("preflight", 0, "error", "DUPLICATE_KEY")]


def test_a_refused_run_can_be_repeated_after_a_fix(loaded):
    """3.5: The next attempt of a refused run has the same instant and is its second attempt."""
    first = loaded.base("a:1 a:2").load("r2")
    again = loaded.base("a:2 b:1").load("r2")

    assert first.load_timestamp == again.load_timestamp
    assert again.status == "success"
    assert loaded.registered("status", "attempt_no", "error_code", run="r2") == [("success", 2, None)]
