"""Histories on Spark: one pass, one commit, and the rule's table (decision H2)."""

import random
from collections import Counter
from string import ascii_letters

import pytest
from depth import DEPTH, deep
from historizing import (
    BACK,
    BASE,
    DAY,
    archived_pasts,
    assert_lawful,
    aware,
    dataset,
    document,
    second,
    versions,
)
from historizing_on_spark import SparkPlace
from specification.scd2 import BaseRow, LoadRejected, Rules, Version, historize

from backstory.doors.historize.hist_state import sync_hist
from backstory.doors.historize.load import prepare_load
from backstory.stores.sql.columns import instant_text
from backstory.stores.sql.engine import PEPPER, fill_placeholders
from backstory.strategies.scd2.statements import hist_merge, hist_steps

# Each load has many lives, because a load takes long, not its rows.
KEYS, VALUES = ascii_letters[:36], ["1", "2", "-"]
LOADS = deep(50, 3)
# From this load on, printed SQL makes the loads too. Each of its statements is a commit.
WRITTEN = deep(25, 2)
# The kinds of the first loads. Later kinds are random.
KINDS = ("next", "early", "next")


@pytest.fixture
def place(store, tmp_path):
    place = SparkPlace(store, tmp_path)
    yield place
    place.close()


LISTED = "k, a, row_hash, version_started_at, version_ended_at, version_state, load_run_id, loaded_at"


def stored(place, *tables):
    """The versions of histories in the rule's form, by table."""
    named = (f"SELECT '{table}', {LISTED} FROM rawcore.{table}" for table in tables)
    histories = {table: [] for table in tables}
    for table, k, a, made, start, end, state, run, at in place.rows(" UNION ALL ".join(named)):
        version = Version(
            (k, aware(start)), k, made, {"a": a}, aware(start), end and aware(end), state, run, aware(at)
        )
        histories[table].append(version)
    return {table: sorted(versions, key=repr) for table, versions in histories.items()}


def rows_of(place, words):
    """The base's rows in the rule's form."""
    rows = []
    for word in words:
        key, value = (None if part == "-" else part for part in word.split(":"))
        hashed = place.hashes.row_hash(place.dataset, {"k": key, "a": value})
        rows.append(BaseRow(key, hashed, {"a": value}))
    return rows


def sql_values(place, run, at):
    """The values of the placeholders in printed SQL."""
    text = place.dialect.string_literal
    return {
        "load_timestamp": place.dialect.timestamp_literal(second(at)),
        "load_timestamp_text": text(instant_text(second(at))),
        "load_run_id": text(run),
        PEPPER.strip("{} "): text(place.pepper),
    }


def by_sql(place, table, statements, run, at):
    """Run printed statements on a copy of the history."""
    for statement in statements:
        sql = fill_placeholders(statement.sql, sql_values(place, run, at))
        place.sql(sql.replace("rawcore.rc_c_hist", f"rawcore.{table}"))


def test_random_loads_equal_the_rule_the_four_steps_and_the_merge(place):
    """R29: For small and large random loads on Spark, the four statements, the MERGE and the rule agree."""
    chance = random.Random(26)
    plan = prepare_load(place.model, place.dataset, sync_hist(place.dataset, None, DAY), place.dialect)
    place.put("a 1 [1,2) changed r0\na 2 [2,3) deleted r0\nb 1 [1,-) new r0\nc 1 [2,-) new r0 !hash")
    now, outcomes = 10, Counter()
    before = stored(place, "rc_c_hist")["rc_c_hist"]
    for number in range(LOADS):
        words = [f"{key}:{chance.choice(VALUES)}" for key in KEYS if chance.random() < 0.6]
        kind = chance.choices(["next", "again", "early"], [8, 1, 1])[0]
        kind = KINDS[number] if number < len(KINDS) else kind
        run, at = (
            f"r{number}",
            now if kind == "again" else chance.randint(1, now) if kind == "early" else now + 1,
        )
        now = max(now, at)
        place.in_tasks(always=number % 3 == 0)
        if number == WRITTEN:
            for copy in ("rc_four", "rc_merge"):
                place.sql(f"CREATE TABLE rawcore.{copy} USING iceberg AS SELECT * FROM rawcore.rc_c_hist")
        place.base(" ".join(words))
        try:
            free = Rules(allow_empty=True)
            expected, tally = historize(
                before, rows_of(place, words), second(at), run, lambda k, t: (k, t), free
            )
        except LoadRejected as rejected:
            expected = rejected.code
        receipt = place.load(run, at, allow_empty=True)
        if isinstance(expected, str):
            assert receipt.error["code"] == expected
            assert stored(place, "rc_c_hist")["rc_c_hist"] == before
            outcomes[expected] += 1
            continue
        assert receipt.error is None
        assert receipt.counts == tally.counts
        before, tables = sorted(expected, key=repr), ["rc_c_hist"]
        if number >= WRITTEN:
            by_sql(place, "rc_four", hist_steps(plan.pair), run, at)
            by_sql(place, "rc_merge", [hist_merge(plan.pair)], run, at)
            tables += ["rc_four", "rc_merge"]
        assert stored(place, *tables) == dict.fromkeys(tables, before)
        assert_lawful(place)
        outcomes[kind] += 1
    assert outcomes.total() == LOADS
    assert {"next", "NON_MONOTONIC_TIMESTAMP"} <= set(outcomes)


def test_a_load_makes_at_most_one_commit(place):
    """R17, R30: The single pass makes one commit, or none if nothing changed. Then the run id is free. A
    successful run is recognised by its commit, without a log."""
    place.base("a:1 b:1").load("r1", 1)
    assert place.snapshots("rc_c_hist") == 1
    assert place.base("a:2 c:1").load("r2", 2).counts["changed"] == 1
    assert place.snapshots("rc_c_hist") == 2
    before = place.dump("rawcore.rc_c_hist", "meta.load_run_log")
    receipt = place.load("r3", 3)
    assert (receipt.status, receipt.counts["unchanged"]) == ("unchanged", 2)
    assert place.dump("rawcore.rc_c_hist", "meta.load_run_log") == before
    assert place.snapshots("rc_c_hist") == 2
    original = place.base("a:3 c:1").load("r3", 4)
    assert original.counts["changed"] == 1
    place.base("a:4")
    before = place.dump()
    assert place.load("r3").to_dict() == original.to_dict()
    place.drop("meta.load_run_log")
    assert place.load("r3").to_dict() == original.to_dict()
    assert place.dump() == before
    assert place.history() == versions("""
        a 1 [1,2) changed r2
        a 2 [2,4) changed r3
        a 3 [4,-) changed r3
        b 1 [1,2) deleted r2
        c 1 [2,-) new r2
    """)


def test_the_newest_time_of_a_history_is_read_from_manifests_or_rows(place):
    """Its starts and ends have bounds in manifests. Without these, Spark reads the rows."""
    place.put("a 1 [1,9) deleted r0\nb 1 [2,-) new r0\n")
    assert place.target.newest_instant("rawcore", ["rc_c_hist"]) == second(9)
    place.sql("ALTER TABLE rawcore.rc_c_hist SET TBLPROPERTIES ('write.metadata.metrics.default'='none')")
    place.put("c 1 [3,10) deleted r0\n")
    assert place.target.newest_instant("rawcore", ["rc_c_hist"]) == second(10)


REFUSALS = {
    "NULL_KEY": ("a:1 b:1!key", {}, {}),
    "NULL_ROW_HASH": ("a:1 b:1!hash", {}, {}),
    "DUPLICATE_KEY": ("a:1 b:1 b:2", {"duplicate_keys": "collapse_identical"}, {}),
    "EMPTY_SNAPSHOT": ("", {}, {}),
    "MASS_DELETE": ("a:1", {"max_delete_ratio": 0.4}, {}),
    "NON_MONOTONIC_TIMESTAMP": ("a:2 b:1", {}, {"at": 1}),
}


def both_ways(place, *load, **options):
    """A load without changes, planned by Spark's tasks and by the driver."""
    for always in (True, False):
        place.in_tasks(always=always)
        yield place.load(*load, **options)


def test_unsafe_loads_are_refused(place):
    """R23, R24: P1 to P7 on Spark name keys and write nothing, as do two open versions. Identical rows may
    count once.

    `test_guards_every_way` has these guards in every way of planning.
    """
    place.mode("auto", duplicate_keys="collapse_identical")
    assert place.base("a:1 a:1 b:1").load("r1", 1).counts["new"] == 2
    before = place.dump("rawcore.rc_c_hist")
    keys = {"NULL_KEY": ["b"], "NULL_ROW_HASH": ["b"], "DUPLICATE_KEY": ["b"], "MASS_DELETE": ["b"]}
    for code, (base, options, when) in REFUSALS.items():
        receipt = place.mode("auto", **options).base(base).load(f"r {code}", when.get("at", 2))
        assert (receipt.status, receipt.error["code"]) == ("rejected", code)
        assert receipt.error["keys"] == keys.get(code, ["a"] if code.startswith("NON") else [])
    # Four commits would make intermediate states visible.
    assert place.mode("four_step").load("r2", 2).error["code"] == "wrong-engine"
    assert place.dump("rawcore.rc_c_hist") == before
    place.mode("auto").put("a 2 [2,-) new r0").base("a:2 b:1")
    receipt = place.load("r3", 3)
    assert (receipt.error["code"], receipt.error["keys"]) == ("MULTIPLE_OPEN", ["a"])


DELETED = "DELETE FROM backstory.rawcore.rc_c_hist WHERE k = 'b'"
WIDENED = "ALTER TABLE backstory.rawcore.rc_c_hist ADD COLUMN more STRING"
REWRITTEN = "CALL backstory.system.rewrite_data_files(table => 'rawcore.rc_c_hist')"


@pytest.mark.parametrize(
    ("statements", "words"),
    [([DELETED, WIDENED], ["another program wrote to the table", "more was added"]), ([REWRITTEN], [])],
)
def test_foreign_writes_to_the_history_are_reported_once(place, statements, words):
    """The receipt of the next load reports it, from the driver or from Spark's tasks."""
    place.mode("auto").base("a:1 b:1").load("r1", 1)
    for statement in statements:
        place.sql(statement)
    for receipt in both_ways(place.base("a:2 b:1"), "r2", 2, dry_run=True):
        assert [word in each for word, each in zip(words, receipt.warnings, strict=True)] == [True] * len(
            words
        )
    receipt = place.load("r2", 2)
    assert len(receipt.warnings) == len(words)
    assert place.load("r2").to_dict() == receipt.to_dict()
    assert list(place.base("a:3 b:1").load("r3", 3).warnings) == []


# `test_guards_every_way` covers a delivered record.
@pytest.mark.parametrize("key", ["z", "a"][: deep(2, 1)])
def test_a_version_without_a_start_is_refused(place, key):
    """SQL inserts the row without a start. Its record may be delivered or not."""
    place.mode("auto").base("b:1").load("r1", 1)
    before = place.put(f"{key} 1 [1,-) new r0!start").dump("rawcore.rc_c_hist")
    for receipt in both_ways(place.base("a:2 b:1"), "r2", 2):
        assert (receipt.status, receipt.error["code"]) == ("rejected", "spoilt-table")
        assert receipt.error["keys"] == [key]
    assert place.dump("rawcore.rc_c_hist") == before


def test_a_partial_snapshot_closes_only_keys_in_scope(place):
    """R25: With a scope, only keys in it close. Without one, none do."""
    place.mode("auto", snapshot="partial", delete_scope="a = '1'").base("a:1 b:2 c:1").load("r1", 1)
    for receipt in both_ways(place.base("c:1"), "r2", 2, dry_run=True):
        assert (receipt.counts["deleted"], receipt.keys["deleted"]) == (1, ["a"])
    assert place.load("r2", 2).counts["deleted"] == 1
    place.mode("auto", snapshot="partial").base("b:3")
    assert place.load("r3", 3).counts["deleted"] == 0


def test_a_dry_run_only_reports_the_changes(place):
    """R50: A dry run prints counts and keys by outcome, and makes no commit, log or lock file."""
    place.base("a:1 b:1 c:1").load("r1", 1)
    place.base("a:2 c:1 d:1")
    before, files = place.dump(), sorted(place.folder.iterdir())
    for receipt in both_ways(place, "r2", 2, dry_run=True):
        assert receipt.counts == {"new": 1, "changed": 1, "deleted": 1, "reappeared": 0, "unchanged": 1}
        assert receipt.keys == {"new": ["d"], "changed": ["a"], "deleted": ["b"]}
    assert place.dump() == before
    assert sorted(place.folder.iterdir()) == files


def test_a_hash_change_applies_to_all_records(place):
    """R56, section 7.6: Another profile needs a decision. `rehash` versions only changed records, and
    `version` all. Base rows outside a delta are hashed again too, once."""

    def load(number, profile, *rows, **options):
        (place.folder / "stage.csv").write_text("\n".join(["k,a", *rows, ""]))
        delta = {"incremental_strategy": "merge", "incremental_source": "crm"}
        written = dataset(input="stage.csv", historization={"snapshot": "partial"}, **delta)
        place.use(document(written, hash_profile=profile, source_datasets=[{"name": "crm"}]))
        (receipt,) = place.loads(f"r{number}", number, **options)
        return receipt.error["code"] if receipt.error else receipt.counts["changed"]

    assert load(1, "elevata_v1", "a,1", "b,1", "c,1") == 0
    assert load(2, "strict_v2", "a,1") == "HASH_DEFINITION_CHANGED"
    place.in_tasks(always=True)
    assert load(2, "strict_v2", "a,1", "b,2", dry_run=True, hash_change="rehash") == 1
    place.in_tasks(always=False)
    assert load(2, "strict_v2", "a,1", "b,2", hash_change="rehash") == 1
    assert load(3, "strict_v2", "a,1", "b,2", "c,1") == 0
    if DEPTH == "laws":
        assert load(4, "elevata_v1", "a,1", dry_run=True, hash_change="version") == 3
    assert load(4, "elevata_v1", "a,1", hash_change="version") == 3
    assert load(5, "elevata_v1", "a,1", "b,2", "c,2") == 1


def test_a_flag_closes_and_reopens_a_record(place):
    """R54: A flagged record is closed as deleted. When the flag is cleared, it is new again."""
    place.mode("auto", "k* a f", soft_delete={"column": "f", "deleted_values": ["X"]})

    def base(*rows):
        names = ("k", "a", "f")
        made = [dict(zip(names, row, strict=True)) for row in rows]
        place.base("")
        entity, hashed = place.hashes.base_key, place.hashes.row_hash
        place.insert(
            "rawcore.rc_c",
            [
                {"rc_c_key": entity(place.dataset, row), **row, "row_hash": hashed(place.dataset, row)}
                for row in made
            ],
        )

    base(("a", "1", None), ("b", "1", None))
    place.load("r1", 1)
    base(("a", "1", "X"), ("b", "1", None))
    assert place.load("r2", 2).counts["deleted"] == 1
    base(("a", "1", None), ("b", "1", None))
    assert place.load("r3", 3).counts["reappeared"] == 1
    assert [line.split()[:3] for line in place.history() if line.startswith("a")] == [
        ["a", "1", "[1,2)"],
        ["a", "1", "[3,-)"],
    ]


def test_a_known_record_without_an_open_version_reappears(place):
    """R15, R53, 7.2: A record reappears whatever closed its versions, including archived ones. A healed one
    does not. Other labels need a relabel with the same meaning."""
    archived_pasts(place)
    left_out = {"archived:1", "pruned:1"}
    receipt = place.base(" ".join(word for word in BASE.split() if word not in left_out)).load("r5", 5)
    assert receipt.error is None
    assert receipt.counts == {"new": 1, "changed": 1, "deleted": 0, "reappeared": 2, "unchanged": 1}
    assert set(began(place).values()) == {"new", "changed"}
    assert [k for k, state in began(place).items() if state == "changed"] == ["healed"]
    labels = {"new": "N", "changed": "C", "deleted": "D", "reappeared": "R", "mode": "stored"}
    place.mode("auto", state_labels=labels).base(BASE.replace("pruned:1", ""))
    assert place.load("r6", 6).error["code"] == "LABELS_CHANGED"
    assert place.load("r6", 6, relabel=True).counts["reappeared"] == 1
    back = dict.fromkeys(BACK, "R") | {"fresh": "N", "open": "N", "healed": "C"}
    assert began(place) == {k: state for k, state in back.items() if k != "pruned"}
    receipt = place.base(BASE.replace("fresh:1", "").replace("open:1", "open:2")).load("r7", 7)
    assert receipt.counts == {"new": 0, "changed": 1, "deleted": 1, "reappeared": 1, "unchanged": 4}
    assert began(place) == {k: state for k, state in (back | {"open": "C"}).items() if k != "fresh"}
    ended = f"version_ended_at = {place.literal(second(7))}"
    states = place.rows(f"SELECT k, version_state FROM rawcore.rc_c_hist WHERE {ended}")
    assert dict(states) == {"fresh": "D", "open": "C"}


def began(place):
    """The states of the open versions."""
    return dict(
        place.rows("SELECT k, version_state FROM rawcore.rc_c_hist WHERE version_ended_at IS NULL ORDER BY k")
    )
