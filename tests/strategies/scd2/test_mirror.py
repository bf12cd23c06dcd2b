"""3.7: A base mirrors its stage, and invalid rows are reported with keys, in memory, whole and in parts."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstory.model.layout import FILE, POSITION, ROW_HASH
from backstory.strategies.keys import key_parts
from backstory.strategies.part_plan import PlanSums
from backstory.strategies.scd2.plan import (
    ADDED_KEYS,
    BASE,
    BASE_ADDED,
    BASE_REMOVED,
    BASE_TWICE,
    FLAGGED,
    IN_SCOPE,
    LIVE,
    LONG,
    NULL,
    REMOVED_KEYS,
    STAGE_TWICE,
    UNSEEN,
    Flag,
    LoadTerms,
    counted_match,
    plan_base,
    sampled_keys,
)

NOW = datetime(2025, 1, 2, tzinfo=UTC)
COLUMNS = ("key", "k", "a", "gone", ROW_HASH)
ROWS = pa.schema([(name, pa.string()) for name in COLUMNS])


def terms(**more):
    mirrored = {"k": "k", "a": "a"}
    return LoadTerms("key", ("k",), mirrored, NOW, "r1", compared=("k", "a", "gone", ROW_HASH), **more)


def row(word):
    """`x:1`, or `x:1:X` if flagged as deleted. The hash does not include the flag."""
    key, value, flag = f"{word}::".split(":")[:3]
    key, value = (None if part == "-" else part for part in (key, value))
    return {"key": f"#{key}", "k": key, "a": value, "gone": flag or None, ROW_HASH: f"#{value}"}


def table(rows):
    return pa.Table.from_pylist(rows, ROWS).append_column(
        LIVE, pa.array([each["gone"] is None for each in rows], pa.bool_())
    )


def staged(text):
    return table([row(word) for word in text.split()])


def stored(text, scope=lambda _: True):
    rows = table([row(word) for word in text.split()])
    places = {FILE: pa.repeat("f", len(rows)), POSITION: pa.array(range(len(rows)), pa.int64())}
    for name, values in places.items():
        rows = rows.append_column(name, values)
    return rows.append_column(IN_SCOPE, pa.array([scope(k) for k in rows["k"].to_pylist()], pa.bool_()))


def summed(parts):
    """The counts and samples of all parts."""
    sums = PlanSums()
    for part in parts:
        sums.add(part)
    return sums


def after(before, parts):
    """The base after all parts."""
    gone = {place for part in parts for place in part.rows[BASE_REMOVED][POSITION].to_pylist()}
    stays = [each for each in before.to_pylist() if each[POSITION] not in gone]
    came = [
        each
        for part in parts
        for name in (BASE_ADDED, FLAGGED)
        for each in part.rows.get(name, ROWS.empty_table()).to_pylist()
    ]
    return sorted(({name: each[name] for name in COLUMNS} for each in [*stays, *came]), key=repr)


RECORDS = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(["1", "2", "-", "1:X"]))


@given(RECORDS, RECORDS, st.booleans(), st.integers(1, 3), st.sampled_from(["", "abc"]))
def test_a_base_has_the_rows_of_its_stage_and_rows_out_of_scope(now, before, flags, parts, spared):
    """Missing rows are deleted or flagged. The live rows are the base's unflagged rows."""
    texts = [" ".join(f"{k}:{value}" for k, value in rows.items()) for rows in (now, before)]
    stage, base = staged(texts[0]), stored(texts[1], lambda k: k not in spared)
    load_terms = terms(flag=Flag({"gone": "X"}) if flags else None)
    if flags:  # a row that already has the flag is out of scope
        dead = base.column_names.index(IN_SCOPE)
        known = [
            scope and live
            for scope, live in zip(*(base[n].to_pylist() for n in (IN_SCOPE, LIVE)), strict=True)
        ]
        base = base.set_column(dead, IN_SCOPE, pa.array(known, pa.bool_()))
    sides = [
        [rows.filter(pa.array(key_parts(rows, ["key"], parts) == part)) for rows in (stage, base)]
        for part in range(parts)
    ]
    planned = [plan_base(load_terms, *each) for each in sides]
    gone = {k for k in before if k not in now and k not in spared}
    wanted = [row(f"{k}:{value}") for k, value in now.items()]
    for k, value in before.items():
        if k in now or (k in gone and not flags):
            continue
        wanted.append(row(f"{k}:{value}") | ({"gone": "X"} if k in gone else {}))
    assert after(base, [part for part, _ in planned]) == sorted(wanted, key=repr)
    live = sorted(each["k"] for _, rows in planned for each in rows.to_pylist())
    assert live == sorted(each["k"] for each in wanted if each["gone"] is None)
    match = counted_match(BASE, summed(part for part, _ in planned).counts)
    assert match.appeared == len(now.keys() - before.keys())
    assert match.changed + match.vanished + match.kept + match.same == len(before)


REFUSED = [
    ("a:1 -:1 -:2", "", {"needed": ("k",)}, {NULL + "k": (2, ["NULL"]), STAGE_TWICE: (2, ["NULL"])}),
    ("a:ÄÖÜ b:ÄÖ c:-", "", {"lengths": {"a": 2}}, {LONG + "a": (1, ["a"])}),
    ("a:1 a:1 b:1", "", {}, {STAGE_TWICE: (2, ["a"])}),
    ("a:1 a:2 b:1 b:1", "", {"collapses": True}, {STAGE_TWICE: (2, ["a"])}),
    ("a:1", "b:1 b:2", {}, {BASE_TWICE: (2, ["b"])}),
]


@pytest.mark.parametrize(("stage", "base", "rules", "faults"), REFUSED)
def test_invalid_bases_are_reported_with_their_keys(stage, base, rules, faults):
    part, live = plan_base(terms(**rules), staged(stage), stored(base))
    assert live is None
    sums = summed([part])
    assert {fault: (count, sampled_keys(sums, fault)) for fault, count in sums.counts.items()} == faults


def test_live_rows_take_precedence_over_flagged_rows_of_the_same_key():
    """P3, 7.3: Rows of one key are one if all live ones have one hash, whatever the flagged ones have."""
    stage = staged("x:1:X x:1 x:2:X y:1:Z y:1:Y")
    part, live = plan_base(terms(collapses=True), stage, stored(""))
    added_rows = [(each["k"], each["a"], each["gone"]) for each in part.rows[BASE_ADDED].to_pylist()]
    assert sorted(added_rows) == [("x", "1", None), ("y", "1", "Y")]
    assert live["k"].to_pylist() == ["x"]


def test_stored_rows_without_a_key_are_removed_like_missing_rows():
    """They match no row, and are not duplicates of each other."""
    base = stored("a:1 b:1 c:1")
    keys = pa.array([None, None, "#c"], pa.string())
    base = base.set_column(base.column_names.index("key"), "key", keys)
    part, live = plan_base(terms(), staged("c:1"), base)
    assert (part.rows[BASE_REMOVED][POSITION].to_pylist(), live["k"].to_pylist()) == ([0, 1], ["c"])


def test_keys_of_added_and_missing_records_are_reported_after_the_first_load():
    """KEYS_CHANGED is decided on all parts. Each reports the business keys of added and of missing records."""
    sides = staged("a:1 b:1"), stored("b:1 c:1 d:1", lambda k: k != "d")
    part, _ = plan_base(terms(), *sides)
    assert (part.rows[ADDED_KEYS]["k"].to_pylist(), part.rows[REMOVED_KEYS]["k"].to_pylist()) == (
        ["a"],
        ["c", "d"],
    )
    first, _ = plan_base(terms(first=True), *sides)
    assert (len(first.rows[ADDED_KEYS]), len(first.rows[REMOVED_KEYS])) == (0, 0)


@pytest.mark.parametrize(
    ("now", "before", "counts"),
    [(1.004, 1.0, {}), (1.006, 1.0, {UNSEEN + "f": 1}), (None, 1.0, {UNSEEN + "f": 1})],
)
def test_changes_under_an_equal_hash_are_counted_by_their_hashed_digits(now, before, counts):
    """Section 2.4: A float differs if its hashed text differs."""
    load_terms = terms(unsure={"k": None, "f": 2})
    stage, base = staged("a:1"), stored("a:2")
    place = stage.column_names.index(ROW_HASH)
    sides = [
        rows.set_column(place, ROW_HASH, pa.array(["#"])).append_column("f", pa.array([value], pa.float64()))
        for rows, value in ((stage, now), (base, before))
    ]
    part, _ = plan_base(load_terms, *sides)
    assert {name: count for name, count in part.counts.items() if name.startswith(UNSEEN)} == counts
