"""The plan of a feed gives the rule's rows, whole and in parts by key, without Spark."""

from dataclasses import replace

import pytest
from every_fact import COLUMNS, INSTANTS, KEYS, SCOPES, Scoped, arrivals, events, logged
from feed_lives import settled_before
from feed_plans import NUMBERS, CopyPlace, copied, delivered, differences, planned, stored, terms_of
from hypothesis import given
from hypothesis import strategies as st
from specification.copies import Copy, take
from specification.feeds.copies import take_among
from specification.feeds.remembering import Window
from specification.feeds.rule import OUTCOMES, Event, Feed, apply, remembering
from specification.stored import StoredVersions

from backstory.errors import Refused
from backstory.model.versions_layout import FactKind
from backstory.strategies.feeds.arrival import FAULTS
from backstory.strategies.feeds.terms import FormerLogs

# The plan covers all records at once, or parts of them by key.
PARTS = st.sampled_from([1, 3])


@given(arrivals(), PARTS, st.booleans())
def test_L15_a_planned_feed_among_copies_gives_the_rules_rows(two, parts, whole):
    """The slice from the delivery's first instant on, and the whole table, give the same result."""
    table, log = StoredVersions(COLUMNS, settled=()), _is_log(two[0])
    for number, delivery in enumerate(two[0]):
        if isinstance(delivery, Scoped):
            table = take_among(table, delivery.copy, number, delivery.scope).table
            continue
        applied = apply(table, Feed(tuple(delivery)), number)
        since = None if whole else min(each.at for each in delivery)
        low = min((each.sequence for each in delivery if each.logged), default=(float("inf"), True))
        terms = terms_of(table, number, log=log)
        plan, rows = planned(
            terms, delivered(delivery), stored(table.rows), parts, since, low if log else None
        )
        table = applied.table
        assert differences(rows, stored(table.rows)) == ([], [])
        assert _outcomes(plan) == {name: count for name, count in applied.counts.items() if count}


def _is_log(deliveries):
    all_events = [each for delivery in deliveries if not isinstance(delivery, Scoped) for each in delivery]
    return any(each.logged or not each.sequence for each in all_events)


EVERYTHING = ("v", "w", "i", "o")
KEPT = st.sampled_from(
    [
        {},
        {"ignored": frozenset("i")},
        {"overwritten": frozenset("o")},
        {"ignored": frozenset("i"), "overwritten": frozenset("o")},
    ]
)
CELLS = st.sampled_from(["e", "u", None])


@st.composite
def whole_events(draw, instants=INSTANTS, log=False):
    """Events of four columns, with images before the change, some without a key or a sequence."""
    one = draw(logged(instants) if log else events(instants))
    columns = draw(
        st.sampled_from([EVERYTHING, EVERYTHING, None, ("v",), ("w", "i"), ("v", "o"), ("i",), ()])
    )
    row = {name: draw(CELLS) for name in columns or EVERYTHING}
    image = draw(st.none() | st.fixed_dictionaries(dict.fromkeys(EVERYTHING, CELLS)))
    fields = {"values": row, "columns": columns} if one.kind is FactKind.UPSERT else {}
    if one.kind is not FactKind.TRUNCATE:
        fields["before"] = image
    if draw(st.integers(0, 60)) == 0:
        lacks = [{"sequence": (None,)}, {"sequence": (float("nan"),)}]
        lacks = [{"sequence": (None, True), "logged": True}] if log else lacks
        fields |= draw(st.sampled_from([{"key": None}, *lacks]))
    return replace(one, **fields)


@st.composite
def feeds(draw, log):
    """A delivery, which may restate a window."""
    if draw(st.booleans()):
        drawn_events = draw(st.lists(whole_events(log=log), min_size=1, max_size=6))
        return Feed(tuple(drawn_events), draw(st.booleans()))
    start = draw(INSTANTS)
    end = draw(st.integers(start + 1, 11))
    inside = st.lists(whole_events(st.integers(start, end - 1), log), max_size=4)
    return Feed(tuple(draw(inside)), window=Window(start, end), all_keys=draw(st.booleans()))


@st.composite
def whole_copies(draw):
    """A copy of four columns or fewer, of all records or a scope, which may be a restatement."""
    rows = draw(
        st.dictionaries(st.sampled_from(KEYS), st.fixed_dictionaries(dict.fromkeys(EVERYTHING, CELLS)))
    )
    scope = draw(st.none() | st.sampled_from([*SCOPES, (("k", "m"),)]))
    columns = draw(st.sampled_from([EVERYTHING, EVERYTHING, ("w", "v"), ("w",)]))
    rows = {key: {name: row[name] for name in columns} for key, row in rows.items()}
    if scope is not None:
        rows = {key: row for key, row in rows.items() if {**row, "k": key}[scope[0][0]] == scope[0][1]}
    return Scoped(Copy(draw(INSTANTS), rows, columns, restate=draw(st.booleans())), scope)


@st.composite
def new_logs(draw):
    """The known state of the logs before a new one."""
    last = draw(st.none() | st.tuples(st.integers(1, 9), st.booleans()))
    return FormerLogs(draw(st.integers(0, 6)), draw(st.integers(0, 9)), last)


SERIES = st.booleans().flatmap(
    lambda log: st.tuples(
        st.lists(
            st.one_of(
                feeds(log), feeds(log), whole_copies(), st.integers(0, 6), *([new_logs()] if log else [])
            ),
            min_size=2,
            max_size=9,
        ),
        st.just(log),
    )
)


@given(SERIES, KEPT, st.sampled_from([(), None, (4, 6)]), PARTS)
def test_any_series_gives_the_rows_or_the_refusals_of_the_rule(series, settings, settled, parts):
    """Series contain restatements, settled instants, ties, columns without a history, and images before
    changes."""
    deliveries, log = series
    table = StoredVersions(EVERYTHING, settled=() if settled == () else None, **settings)
    if settled:
        for at in settled:
            table = take(table, Copy(at, {"k": dict.fromkeys(EVERYTHING, str(at))}, EVERYTHING), -1).table
    for number, delivery in enumerate(deliveries):
        table = _after(table, delivery, number, parts, log)


def _wholly(at, *keys, scope=(("w", "u"),)):
    """A restatement of the records of a scope."""
    row = dict.fromkeys(EVERYTHING, "u") | dict(scope)
    return Scoped(Copy(at, dict.fromkeys(keys, row), EVERYTHING, restate=True), scope)


# Deliveries before a restatement of events at 6, which makes the marks of that instant void for its records.
BEFORE = {
    "the same copy": [_wholly(6)],
    "another scope": [_wholly(6), _wholly(6, scope=(("w", "e"),))],
    "a truncate": [_wholly(6), Feed((Event(None, 6, FactKind.TRUNCATE),))],
}


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("keys", ["", "k", "n", "kn"])
@pytest.mark.parametrize("parts", [1, 3])
def test_V72_a_restated_copy_applies_again_to_every_record(before, keys, parts):
    """Its voids are withdrawn for records that it lacks, too. The voids of other marks stay."""
    upsert = Event("k", 6, values=dict.fromkeys(EVERYTHING, "u"))
    restated = Feed((upsert, Event("m", 6, FactKind.DELETE)), window=Window(5, 7))
    table = StoredVersions(EVERYTHING, settled=None)
    for number, delivery in enumerate([*BEFORE[before], restated, _wholly(6, *keys), _wholly(6, *keys)]):
        table = _after(table, delivery, number, parts, False)
    voids = [row for row in table.rows if row.kind is FactKind.VOID and row.is_live]
    assert len(voids) == (0 if before == "the same copy" else 2)


@pytest.mark.parametrize(
    "late",
    [
        Feed((Event("k", 3, FactKind.DELETE),)),
        Feed((Event(None, 3, FactKind.TRUNCATE),)),
        Scoped(Copy(3, {}, ("v",))),
    ],
    ids=["delete", "truncate", "copy"],
)
def test_V18_a_value_under_overwrite_ends_with_its_life(late):
    """A late end of the record removes the value from the version that follows, which never set it."""
    table = StoredVersions(EVERYTHING, settled=None, overwritten=frozenset("o"))
    one, other = (
        Event("k", at, values={"v": value, **more}, columns=("v", *more))
        for at, value, more in [(1, "e", {"o": "u"}), (5, "u", {})]
    )
    for number, delivery in enumerate([Feed((one,)), Feed((other,)), late]):
        table = _after(table, delivery, number, 1, False)
    assert table.as_of("k", 5)["o"] is None


def test_V18_a_restated_copy_keeps_the_values_without_history_that_it_does_not_set():
    """The version stays, with its ignored value, and with the overwritten value that the new copy lacks."""
    table = StoredVersions(EVERYTHING, settled=None, ignored=frozenset("i"), overwritten=frozenset("o"))
    row = {"v": "e", "w": "e", "i": "e", "o": "e"}
    again = {**row, "i": "u"}
    del again["o"]
    copies = [Copy(6, {"k": row}, EVERYTHING), Copy(6, {"k": again}, tuple(again), restate=True)]
    for number, copy in enumerate(copies):
        table = _after(table, Scoped(copy), number, 1, False)
    assert table.as_of("k", 6) == row


def test_V37_a_copy_that_comes_again_leaves_its_voids():
    """Only a restatement withdraws the voids of its mark (V72)."""
    copy = Scoped(Copy(5, {}, EVERYTHING))
    events = (Event("k", 3, values={"v": "e"}, columns=("v",)), Event("k", 5, FactKind.DELETE))
    table = StoredVersions(EVERYTHING, settled=None)
    for number, delivery in enumerate([copy, Feed(events, window=Window(3, 7))]):
        table = _after(table, delivery, number, 1, False)
    assert _after(table, copy, 2, 1, False) is table


@pytest.mark.parametrize(
    ("known", "again", "start", "time"),
    [(4, 5, 4, 5), (5, 4, 4, 4), (3, 5, 4, 3), (5, 5, 4, 5)],
    ids=["later", "earlier", "known before the window", "the same time"],
)
def test_V86_a_restated_truncate_of_a_log_has_its_new_time(known, again, start, time):
    """A truncate that is known before the window is not restated, so it keeps its earliest time (V133)."""
    table = StoredVersions(EVERYTHING, settled=None)
    first, last = (
        Event(None, at, FactKind.TRUNCATE, sequence=(1, True), logged=True) for at in (known, again)
    )
    table = _after(table, Feed((first,)), 0, 1, True)
    table = _after(table, Feed((last,), window=Window(start, 9)), 1, 1, True)
    assert [row.start for row in table.rows if row.is_live] == [time]


def _after(table, delivery, number, parts, log):
    """The table after a delivery. The plan of a feed gives the same, or finds a fault if the rule does."""
    if isinstance(delivery, int):
        return settled_before(table, delivery) if table.settled is not None else table
    if isinstance(delivery, FormerLogs):
        known = table.settled is not None
        return replace(settled_before(table, delivery.until), former=delivery) if known else table
    if isinstance(delivery, Scoped):
        return _after_copy(table, delivery.copy, delivery.scope, number, parts, log)
    events, window = delivered(delivery.events), delivery.window
    terms = terms_of(
        remembering(table),
        number,
        log=log,
        drops=delivery.drops,
        window=window and (window.start, window.end),
        all_keys=delivery.all_keys,
    )
    first = min([each.at for each in delivery.events] + ([window.start] if window else []))
    lows = [each.sequence for each in delivery.events if each.logged and None not in each.sequence]
    low = min(lows, default=(float("inf"), True)) if window is None else (0, False)
    plan, rows = planned(terms, events, stored(table.rows), parts, first, low if log else None)
    try:
        applied = apply(table, delivery, number)
    except Refused:
        assert set(plan.counts) & {*FAULTS}
        return table
    assert differences(rows, stored(applied.table.rows)) == ([], [])
    assert _outcomes(plan) == {name: count for name, count in applied.counts.items() if count}
    assert (applied.table is table) == (not len(plan.added))
    return applied.table


def _after_copy(table, copy, scope, number, parts, log):
    """The table after a copy. Its plan gives the same."""
    try:
        taken = take_among(table, copy, number, scope)
    except Refused as refused:
        if refused.code == "out-of-scope":
            raise
        return table
    known = remembering(table)
    columns = None if set(copy.columns) >= set(EVERYTHING) else tuple(NUMBERS[name] for name in copy.columns)
    place = CopyPlace(copy.at, columns, scope)
    counts, appeared, rows = copied(terms_of(known, number, log=log), place, copy, stored(table.rows), parts)
    assert differences(rows, stored(taken.table.rows)) == ([], [])
    reopened = sum(bool(table.life(key)) for key in appeared)
    names = {"new": len(appeared) - reopened, "reopened": reopened}
    names |= {name: counts[name] for name in ("changed", "closed", "unchanged")}
    assert names == dict(taken.counts)
    return taken.table


def _outcomes(plan):
    return {name: count for name, count in plan.counts.items() if name in OUTCOMES}
