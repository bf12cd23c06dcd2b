"""The laws of native.md (section 9.1) for feeds and copies in one table: the rule keeps them on random
arrivals."""

from contextlib import suppress
from dataclasses import replace

from every_fact import COLUMNS, COPIES, EVENTS, KEYS, ORDERED, EveryFact, Scoped, arrivals
from feed_lives import judged, known, now, rewound_to, settled_before
from hypothesis import given
from hypothesis import strategies as st
from specification.copies import take as take_copy
from specification.feeds.copies import take_among
from specification.feeds.remembering import Window
from specification.feeds.rule import Feed, apply
from specification.stored import StoredVersions

from backstory.errors import Refused
from backstory.model.versions_layout import FactKind

WINDOWS = st.integers(0, 8).flatmap(
    lambda start: st.integers(start + 1, 10).map(lambda end: Window(start, end))
)
EMPTY = StoredVersions(COLUMNS, settled=())


def take(table, delivery, recorded):
    if isinstance(delivery, Scoped):
        return take_among(table, delivery.copy, recorded, delivery.scope).table
    return apply(table, Feed(tuple(delivery)), recorded).table


def taken(deliveries, table=EMPTY, since=0):
    for number, each in enumerate(deliveries):
        table = take(table, each, since + number + 1)
    return table


@given(arrivals())
def test_L1_L2_any_order_and_split_give_the_versions_of_all_facts(two):
    oracle = EveryFact()
    for delivery in two[0]:
        oracle.take(delivery)
    for deliveries in two:
        assert now(taken(deliveries)) == oracle.versions()


@given(arrivals())
def test_every_prefix_of_arrivals_gives_the_versions_of_its_facts(two):
    """The table is correct after each commit, not only at the end."""
    oracle, table = EveryFact(), EMPTY
    for number, delivery in enumerate(two[0]):
        oracle.take(delivery)
        table = take(table, delivery, number + 1)
        assert now(table) == oracle.versions()


@given(arrivals())
def test_L3_recorded_states_stay_known(two):
    table, states = EMPTY, {}
    for number, delivery in enumerate(two[0]):
        table = take(table, delivery, number + 1)
        states[number + 1] = now(table)
        assert all(known(table, recorded) == versions for recorded, versions in states.items())


@given(arrivals(), st.data())
def test_L5_a_repeated_delivery_changes_nothing(two, data):
    table = taken(two[0])
    for again in data.draw(st.permutations(two[0])):
        assert take(table, again, 100) is table


@given(arrivals())
def test_L6_the_state_at_the_time_of_a_copy_is_the_copy(two):
    table = taken(two[0])
    for each in (each for each in two[0] if isinstance(each, Scoped)):
        for key in KEYS:
            state = table.as_of(key, each.copy.at)
            inside = state is not None and all(state[name] == value for name, value in each.scope or ())
            listed = each.copy.rows.get(key)
            assert (listed is None) == (not inside)
            assert listed is None or all(state[name] == listed[name] for name in each.copy.columns)


@given(arrivals(), st.integers(0, 10), st.data())
def test_L10_settling_changes_neither_versions_nor_later_deliveries(two, instant, data):
    first, later = _parted(two[0], lambda at: at <= instant)
    some = data.draw(st.integers(0, len(later)))
    table = taken([*first, *later[:some]])
    settled = settled_before(table, instant)
    assert now(settled) == now(table)
    for number, each in enumerate(later[some:], 50):
        try:
            settled = take(settled, each, number)
        except Refused:  # a message of a log, at or before a settled position
            continue
        table = take(table, each, number)
        assert now(settled) == now(table)
        assert judged(settled, number) == {}


@given(arrivals(), st.integers(0, 10))
def test_L14_later_deliveries_change_no_settled_instant(two, instant):
    first, later = _parted(two[0], lambda at: at <= instant)
    table = settled_before(taken(first), instant)
    after = table
    for number, each in enumerate(later, 50):
        with suppress(Refused):  # a message of a log, at or before a settled position
            after = take(after, each, number)
    for at in range(instant + 1):
        assert [table.as_of(key, at) for key in KEYS] == [after.as_of(key, at) for key in KEYS]


@given(ORDERED)
def test_L16_open_versions_are_the_last_events(events):
    """Without sparse updates, type 1 and type 2 agree."""
    events = [each for each in events if each.kind is not FactKind.UPSERT or each.columns == COLUMNS]
    last = {}
    for each in sorted(events, key=lambda each: (each.at, each.sequence)):
        for key in KEYS if each.key is None else each.key:
            last[key] = each.values if each.kind is FactKind.UPSERT else None
    table = taken([[each] for each in events])
    open_ = {row.key: row.values for row in table.versions if row.end is None}
    assert open_ == {key: values for key, values in last.items() if values is not None}


@given(st.lists(st.tuples(COPIES, st.booleans()), max_size=3))
def test_a_table_of_only_copies_has_the_rows_of_the_copy_rule(series):
    """This holds for all records and columns, in any order, with restatements."""
    one = other = EMPTY
    for number, (parts, restates) in enumerate(series):
        for each in (each.copy for group in parts for each in group if each.scope is None):
            rows = {key: {**dict.fromkeys(COLUMNS), **row} for key, row in each.rows.items()}
            copy = replace(each, rows=rows, columns=COLUMNS, restate=restates)
            try:
                one = take_copy(one, copy, number).table
            except Refused:
                continue
            other = take_among(other, copy, number).table
            assert sorted(map(repr, one.rows)) == sorted(map(repr, other.rows))


@given(arrivals(), WINDOWS, st.booleans(), EVENTS)
def test_L8_check_holds_after_every_commit(two, window, all_keys, restated):
    """This includes restatements and later deliveries."""
    table, log = EMPTY, _are_of_log(each for each in two[0] if not isinstance(each, Scoped))
    some = [each for each in restated if window.has(each.at) and log in {None, _is_of_log(each)}]
    for number, delivery in enumerate(
        [*two[0], Feed(tuple(some), window=window, all_keys=all_keys), *two[1]]
    ):
        feed = delivery if isinstance(delivery, Feed) else None
        try:
            table = apply(table, feed, number + 1).table if feed else take(table, delivery, number + 1)
        except Refused:  # a repeated delivery may contradict the restated facts
            continue
        assert judged(table, number + 1) == {}


@given(arrivals(), st.data())
def test_L9_a_rewound_table_equals_the_earlier_table(two, data):
    deliveries = two[0]
    point = data.draw(st.integers(0, len(deliveries)))
    then, whole = taken(deliveries[:point]), taken(deliveries)
    states = [now(taken(deliveries[:number])) for number in range(len(deliveries) + 1)]
    back = rewound_to(whole, point, 50)
    assert now(back) == now(then)
    assert [known(back, number) for number in range(len(states))] == states
    later = data.draw(st.permutations(deliveries[point:]))
    assert now(taken(later, back, 50)) == now(taken(later, then, 50))
    assert judged(back, 50) == {}


@given(EVENTS, WINDOWS, st.booleans(), EVENTS)
def test_L11_a_restatement_replaces_all_facts_of_its_window(events, window, all_keys, restated):
    """V133: In a log, only messages without another known own time outside the window are restated."""
    stay = {(each.key, each.sequence) for each in events if each.logged and not window.has(each.at)}
    log = _are_of_log([events])
    some = [each for each in restated if window.has(each.at) and log in {None, _is_of_log(each)}]
    some = [each for each in some if not each.logged or (each.key, each.sequence) not in stay]
    named = {each.key for each in some}
    after = apply(taken([events]), Feed(tuple(some), window=window, all_keys=all_keys), 9).table
    marks = {(each.logged or each.at, each.sequence) for each in some if each.key is None}
    oracle = EveryFact()
    for each in events:
        for key in KEYS if each.key is None else each.key:
            gone = window.has(each.at) and (all_keys or key in named)
            if not gone and (each.logged or each.at, each.sequence) not in marks:
                oracle.events.append(replace(each, key=key))
    oracle.take(some)
    assert now(after) == oracle.versions()
    assert apply(after, Feed(tuple(some), window=window, all_keys=all_keys), 10).table is after


def _are_of_log(deliveries):
    """Whether the events are messages of a log, which holds for all or none of a table. None without events."""
    return next((_is_of_log(each) for delivery in deliveries for each in delivery), None)


def _is_of_log(event):
    return event.logged or not event.sequence


def _parted(deliveries, early):
    """Deliveries divided by the instants of their facts."""
    parts = [], []
    for each in deliveries:
        if isinstance(each, Scoped):
            parts[not early(each.copy.at)].append(each)
        else:
            for place, of in enumerate((True, False)):
                if some := [one for one in each if early(one.at) is of]:
                    parts[place].append(some)
    return parts
