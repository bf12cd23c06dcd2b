"""Repairs of damaged lives, each in one line. Repaired lives always keep the laws."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from specification.laws import HashedRow, broken_memory, terms_of_layout, violations

from backstory.model.layout import Layout
from backstory.upkeep.laws import mending
from backstory.upkeep.laws.terms import Law, RecordRow

FAR = Layout.FIVETRAN_HISTORY.span.far
FIVETRAN = terms_of_layout(Layout.FIVETRAN_HISTORY)
MODEL = terms_of_layout(Layout.HIST)
NATIVE = terms_of_layout(Layout.VERSIONS, newest=60)
UNMENDED = {Law.FOLD}
TOLD = replace(NATIVE, tracked=("v",), numbers={"v": 2})


def mended(rows, terms):
    """The rows after a repair of the broken laws."""
    judged = [replace(row, broken=frozenset(broken_memory([row], terms))) for row in rows]
    return mending.mend_rows(judged, terms, violations(rows, terms))


def life(*spans, **more):
    return [
        RecordRow(place, *span, written=1, flag=span[1] is None, **more) for place, span in enumerate(spans)
    ]


def spans(rows):
    return [(row.start, row.end) for row in sorted(rows, key=lambda row: row.start)]


def test_the_oldest_of_identical_rows_is_kept():
    """A copy is younger than its original, whichever is read first."""
    rows = [replace(row, twin="same") for row in life((10, None), (10, None), (10, None))]
    numbered = [replace(row, row_id=row_id) for row, row_id in zip(rows, (8, 3, 5), strict=True)]

    assert [row.place for row in mended(rows, NATIVE)] == [0]
    assert [row.place for row in mended(numbered, NATIVE)] == [1]


def test_the_last_written_version_with_the_same_start_is_kept():
    first, last = life((10, 20), (10, 30))

    assert mended([replace(first, written=5), last], NATIVE) == [replace(first, written=5)]


def test_repair_ends_a_version_where_the_next_version_begins():
    assert spans(mended(life((10, None), (20, 40), (30, None)), NATIVE)) == [(10, 20), (20, 30), (30, None)]
    assert spans(mended(life((10_000, FAR), (20_000, FAR)), FIVETRAN)) == [(10_000, 19_000), (20_000, FAR)]


def test_a_healthy_history_is_unchanged():
    rows = life((10, 20), (20, None))

    assert mended(rows, NATIVE) == rows


def test_repaired_states_match_the_ends():
    rows = life((10, None), (20, None), state="new")

    assert [row.state for row in mended(rows, MODEL)] == ["changed", "new"]
    assert [row.state for row in mended(life((10, 20), state="new"), MODEL)] == ["deleted"]


def test_overlapping_past_statements_are_removed():
    rows = life((10, 20), (20, None))
    past = RecordRow(2, 10, 10, flag=False, written=1, role="past", ended_at=5)

    assert [row.place for row in mended([*rows, past], NATIVE)] == [0, 1]


def test_a_healthy_past_statement_is_kept_in_a_damaged_history():
    rows = [replace(row, written=5) for row in life((10, 20), (15, None))]
    past = RecordRow(2, 10, 10, flag=False, written=1, role="past", ended_at=5)

    assert [row.place for row in mended([*rows, past], NATIVE)] == [0, 1, 2]


def test_v133_repair_keeps_one_fact_for_each_position_of_a_log():
    """The instants of such facts may differ. The fact recorded last is kept."""
    (version,) = life((10, None), kind="upsert", sequence=(1,), time=10)
    first, last = (
        RecordRow(
            place, at, at, flag=False, written=place, role="fact", kind="upsert", sequence=(5,), time=at
        )
        for place, at in ((1, 20), (2, 30))
    )

    assert violations([version, first, last], NATIVE) == {Law.ONE_FACT: 1}
    assert mended([version, first, last], NATIVE) == [version, last]


TIMES = st.integers(0, 8).map(lambda number: number * 5_000)
ENDS = st.one_of(st.none(), TIMES)


@given(st.lists(st.tuples(TIMES, st.one_of(TIMES, st.just(FAR)), st.booleans()), max_size=6))
def test_repaired_fivetran_rows_are_healthy(versions):
    rows = [RecordRow(place, *span, flag=flag, written=place) for place, (*span, flag) in enumerate(versions)]

    assert not violations(mended(rows, FIVETRAN), FIVETRAN)


@given(st.lists(st.tuples(TIMES, ENDS, st.sampled_from(["new", "changed", "deleted", None])), max_size=6))
def test_repaired_model_rows_are_healthy(versions):
    rows = [
        HashedRow(place, *span, state=state, written=place, hash="erased")
        for place, (*span, state) in enumerate(versions)
    ]

    assert not violations(mended(rows, MODEL), MODEL)


RECORDED = st.one_of(st.none(), st.integers(1, 70))
ROLES = st.sampled_from([None, None, None, "past", "fact"])


@given(
    st.lists(
        st.tuples(TIMES, ENDS, RECORDED, RECORDED, ENDS, ROLES, st.booleans(), st.booleans()), max_size=6
    )
)
def test_repaired_native_rows_break_no_repairable_law(versions):
    rows = [
        RecordRow(
            place,
            start,
            end,
            keyed=keyed,
            flag=flag,
            written=written,
            ended_at=ended,
            end_before=before,
            role=role,
        )
        for place, (start, end, written, ended, before, role, flag, keyed) in enumerate(versions)
    ]

    after = mended(rows, NATIVE)

    assert not set(violations(after, NATIVE)) - UNMENDED
    assert mended(after, NATIVE) == after


def lived(facts):
    """The rows of a record's events, `(instant, value or None for a delete)`, each in one row (V4, V24)."""
    rows, now = [], None
    for at, value in sorted(facts.items()):
        if value == now:
            kind = "delete" if value is None else "upsert"
            rows.append(
                RecordRow(0, at, at, flag=False, written=1, role="fact", kind=kind, values={"v": value})
            )
            continue
        rows = [replace(row, end=at, flag=False) if row.end is None else row for row in rows]
        row = RecordRow(0, at, None, flag=True, written=1, kind="upsert", values={"v": value})
        if value is None:
            row = replace(row, end=at, flag=False, role="fact", kind="delete")
        rows.append(row)
        now = value
    return [replace(row, place=place) for place, row in enumerate(rows)]


@given(
    st.dictionaries(st.integers(1, 20), st.sampled_from([None, "a", "b"]), max_size=6),
    st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(1, 25))), max_size=3),
)
def test_v117_a_history_that_contradicts_its_facts_is_rebuilt(facts, ends):
    """Moved ends are restored from the facts, because each version is a fact."""
    rows = lived(facts)
    spoilt = list(rows)
    for place, end in ends:
        if place < len(rows) and rows[place].role is None and (end is None or end > rows[place].start):
            spoilt[place] = replace(rows[place], end=end, flag=end is None)

    assert not violations(rows, TOLD)
    assert sorted(mended(spoilt, TOLD), key=lambda row: row.place) == rows


def test_v117_a_silent_event_begins_a_new_version_after_an_altered_value():
    """A changed value is restored from the next fact on."""
    before, silent = lived({10: "a", 15: "a"})
    spoilt = [replace(before, values={"v": "x"}), silent]

    after = mended(spoilt, TOLD)

    assert [(row.start, row.end, row.role, row.values) for row in after] == [
        (10, 15, None, {"v": "x"}),
        (15, None, None, {"v": "a"}),
    ]
    assert not violations(after, TOLD)


def test_v117_an_unrepairable_history_is_kept_and_reported():
    """A copy found the record there, but the start is unknown."""
    copied = replace(TOLD, marks=(RecordRow(0, 30, keyed=False, kind="copy"),))
    rows = [RecordRow(0, 10, 40, flag=False, written=1, kind="upsert", values={"v": "a"})]
    rows.append(RecordRow(1, 20, 20, flag=False, written=1, role="fact", kind="delete", values={"v": None}))

    assert mended(rows, copied) == rows
    assert violations(rows, copied)[Law.FOLD]
