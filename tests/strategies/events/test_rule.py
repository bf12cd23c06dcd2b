"""The worked tables of odf-ingest.md, section 2, and of the decisions, with the rule."""

import pytest
from specification.event_log import Arrival, Event, LogRejected, state
from specification.events import ingest

from backstory.strategies.events.terms import EventEncoding, EventTerms, Moment, OnConflict, Op, Strategy

SYMBOLS = {op.symbol: op for op in Op}


class Log:
    """A growing log. Rows are written as `A 1000`, events as `0 +A e1 A 1000`."""

    def __init__(self, terms, columns):
        self.terms, self.columns, self.events, self.watermark = terms, columns.split(), [], None
        self.counts = None

    def take(self, text, number):
        """The events for the rows of a text. `@e2` is an event time, and `-R` before a row deletes."""
        moment = Moment(f"s{number}", f"e{number}", self.watermark, len(self.events))
        made = ingest(
            self.events, [self.row(line) for line in text.splitlines() if line.strip()], self.terms, moment
        )
        self.events += made.events
        self.watermark, self.counts = made.watermark, +made.counts
        return [self.text_of(event) for event in made.events]

    def row(self, line):
        cells = line.split()
        op, time = Op.APPEND, None
        if cells[0] in SYMBOLS:
            op = SYMBOLS[cells.pop(0)]
        if cells[0].startswith("@"):
            time = cells.pop(0)[1:]
        values = [None if cell == "-" else cell for cell in cells]
        return Arrival(time, dict(zip(self.columns, values, strict=True)), op)

    def text_of(self, event):
        values = " ".join("-" if value is None else str(value) for value in event.values.values())
        return f"{event.offset} {event.op.symbol} {event.time} {values}"


def refused(log, text, number, code):
    with pytest.raises(LogRejected) as stopped:
        log.take(text, number)
    assert stopped.value.code == code
    return stopped.value.keys


def snapshot(columns="city population", key=("city",), **more):
    return Log(EventTerms(Strategy.SNAPSHOT, key, encoding=EventEncoding.OP, **more), columns)


def ledger(columns="country city population", key=("country", "city"), **more):
    return Log(EventTerms(Strategy.LEDGER, key, **more), columns)


def upsert(columns="k v", key=("k",), **more):
    return Log(EventTerms(Strategy.UPSERT, key, encoding=EventEncoding.OP, **more), columns)


def changelog(columns="k v", key=("k",), **more):
    return Log(EventTerms(Strategy.CHANGELOG, key, encoding=EventEncoding.OP, **more), columns)


def test_append_keeps_every_row():  # section 2.2, R25
    log = Log(EventTerms(Strategy.APPEND), "city population")
    assert log.take("A 1000\nB 2000", 1) == ["0 +A e1 A 1000", "1 +A e1 B 2000"]
    assert log.take("A 1000", 2) == ["2 +A e2 A 1000"]


def test_the_snapshot_of_section_2_4_gives_the_specified_events():  # R35
    log = snapshot()
    assert log.take("B 2000\nA 1000\nC 3000", 1) == ["0 +A e1 A 1000", "1 +A e1 B 2000", "2 +A e1 C 3000"]
    assert log.take("B 2500\nC 3000\nD 4000", 2) == [
        "3 -R e1 A 1000",
        "4 -C e1 B 2000",
        "5 +C e2 B 2500",
        "6 +A e2 D 4000",
    ]
    assert log.take("B 2500\nC 3000\nD 4000", 3) == []
    assert log.take("A 1000\nB 2500\nC 3000\nD 4000", 4) == ["7 +A e4 A 1000"]
    assert log.take("", 5) == ["8 -R e4 A 1000", "9 -R e2 B 2500", "10 -R e1 C 3000", "11 -R e2 D 4000"]
    assert log.take("", 6) == []


def test_only_changes_of_compared_columns_give_events():  # R41
    log = snapshot("id ver val", ("id",), compare=("ver",), compare_time=False)
    assert log.take("1 1 a", 1) == ["0 +A e1 1 1 a"]
    assert log.take("1 1 A", 2) == []
    assert log.take("1 2 A!!", 3) == ["1 -C e1 1 1 a", "2 +C e3 1 2 A!!"]


def test_only_delivered_event_times_are_compared():  # R40
    log = snapshot()
    log.take("@t5 A 1", 1)
    assert log.take("A 1", 2) == []
    assert log.take("@t4 A 1", 3) == ["1 -C t5 A 1", "2 +C t4 A 1"]


def test_records_with_only_a_key_are_appended_and_retracted():  # R42
    log = snapshot("city")
    log.take("A\nB", 1)
    assert log.take("B\nC", 2) == ["2 -R e1 A", "3 +A e2 C"]


def test_records_with_only_null_are_appended_and_retracted():  # R43
    log = snapshot()
    assert log.take("A -", 1) == ["0 +A e1 A -"]
    assert log.take("", 2) == ["1 -R e1 A -"]


def test_null_to_value_and_back_are_changes():  # R39
    log = snapshot()
    log.take("A -", 1)
    assert log.take("A 1", 2) == ["1 -C e1 A -", "2 +C e2 A 1"]
    assert log.take("A -", 3) == ["3 -C e2 A 1", "4 +C e3 A -"]


@pytest.mark.parametrize("value", ["1000", "5"])
def test_retracted_records_are_appended_again(value):  # R44
    log = snapshot()
    log.take("A 1000", 1)
    log.take("", 2)
    assert log.take(f"A {value}", 3) == [f"2 +A e3 A {value}"]


def test_identical_rows_of_a_key_count_once_and_conflicting_rows_are_refused():  # R47, O8
    log = snapshot()
    assert log.take("A 1\nA 1", 1) == ["0 +A e1 A 1"]
    assert refused(log, "A 1\nA 2", 2, "conflicting-rows") == [("A",)]
    assert refused(log, "- 1\nB 2", 2, "null-key") == [(None,)]


def test_a_guard_stops_mass_retraction():  # R46
    log = snapshot(max_retract=0.5)
    log.take("A 1\nB 1\nC 1\nD 1", 1)
    refused(log, "A 1", 2, "too-many-retracted")
    assert log.take("A 1\nB 1", 2) == ["4 -R e1 C 1", "5 -R e1 D 1"]


def test_the_observed_encoding_has_one_row_per_change():  # O3
    log = Log(EventTerms(Strategy.SNAPSHOT, ("city",), encoding=EventEncoding.OBSERVED), "city population")
    log.take("A 1\nB 1", 1)
    assert log.take("A 2", 2) == ["2 +C e2 A 2", "3 -R e2 B 1"]
    assert log.take("A 2\nB 1", 3) == ["4 +A e3 B 1"]


def test_a_record_identified_by_its_time_keeps_its_time():  # R44, R48, O19
    """A `D` identifies the removed record, which is removed once and returns with an `I`."""
    log = Log(EventTerms(Strategy.SNAPSHOT, ("city",), 1, encoding=EventEncoding.OBSERVED), "city")
    log.take("@e1 A\n@e2 A", 1)
    assert log.take("@e1 A", 2) == ["2 -R e2 A"]
    assert log.take("@e1 A", 3) == []
    assert log.take("@e1 A\n@e2 A", 4) == ["3 +A e2 A"]


@pytest.mark.parametrize(("place", "cities"), [(0, "BA"), (1, "AB")])
def test_records_are_in_the_order_of_the_key(place, cities):  # R24, section 2.1 step 7
    """The event time is part of the order if the key lists it."""
    log = Log(EventTerms(Strategy.SNAPSHOT, ("city",), place, encoding=EventEncoding.OP), "city")
    assert [line[-1] for line in log.take("@e2 A\n@e1 B", 1)] == list(cities)


def test_each_outcome_of_a_snapshot_is_counted():  # O16
    log = snapshot()
    log.take("A 1\nB 1\nC 1", 1)
    log.take("A 1\nB 2\nD 1", 2)
    assert log.counts == {"unchanged": 1, "corrected": 1, "retracted": 1, "appended": 1}


def test_the_published_ledger_appends_only_new_rows():  # SEED, R29, O4
    log = ledger(time_at=1)
    assert log.take("@2019 CA Vancouver 2581000\n@2019 US Seattle 3433000", 1) == [
        "0 +A 2019 CA Vancouver 2581000",
        "1 +A 2019 US Seattle 3433000",
    ]
    again = "@2019 CA Vancouver 2581000\n@2019 US Seattle 3433000\n@2020 CA Vancouver 2606000"
    assert log.take(again, 2) == ["2 +A 2020 CA Vancouver 2606000"]
    assert log.events[-1].system_time == "s2"


def test_conflicts_of_a_literal_key_are_counted():  # R28, O13
    log = ledger()
    log.take("@2019 CA Vancouver 2581000\n@2019 US Seattle 3433000", 1)
    again = "@2019 CA Vancouver 2581000\n@2019 US Seattle 3433000\n@2020 CA Vancouver 2606000"
    assert log.take(again, 2) == []
    assert log.counts == {"unchanged": 2, "conflicts": 1}


def test_conflicting_rows_of_a_literal_key_in_a_first_pull_are_refused():  # section 2.7
    refused(ledger(), "@2019 CA Vancouver 1\n@2020 CA Vancouver 2", 1, "conflicting-rows")


def test_a_ledger_never_retracts():  # R26, R27, B3
    log = ledger("year city population", ("year", "city"))
    log.take("2020 vancouver 1\n2020 seattle 2\n2020 kyiv 3", 1)
    assert log.take("2020 seattle 2", 2) == []
    assert log.take("2020 seattle 2\n2021 seattle 2", 3) == ["3 +A e3 2021 seattle 2"]


def test_a_late_row_gets_the_next_offset_and_keeps_the_watermark():  # R34
    log = ledger("city", ("city",))
    log.take("@t5 A", 1)
    assert log.take("@t3 B", 2) == ["1 +A t3 B"]
    assert log.watermark == "t5"
    assert log.counts == {"appended": 1, "late": 1}


def test_ledger_conflicts_are_refused_or_corrected():  # R30, O9
    failing = ledger("city v", ("city",), on_conflict=OnConflict.ERROR)
    failing.take("@t1 A 1", 1)
    assert refused(failing, "@t1 A 2", 2, "ledger-conflict") == [("A",)]
    correcting = ledger("city v", ("city",), on_conflict=OnConflict.CORRECT, encoding=EventEncoding.OP)
    correcting.take("@t1 A 1", 1)
    assert correcting.take("@t2 A 2", 2) == ["1 -C t1 A 1", "2 +C t2 A 2"]
    assert correcting.take("@t2 A 2", 3) == []


def test_rows_of_a_new_ledger_key_are_checked_too():  # R31, R32
    log = ledger("city v", ("city",))
    assert log.take("A 1\nA 1", 1) == ["0 +A e1 A 1"]
    assert refused(log, "B 1\nB 2", 2, "conflicting-rows") == [("B",)]
    assert refused(log, "- 1", 2, "null-key") == [(None,)]


def test_a_ledger_row_without_a_time_is_identified_by_its_key():  # O13
    log = ledger("city v", ("city",), time_at=1)
    log.take("A 1\n@t9 A 2", 1)
    assert log.take("A 1\n@t9 A 2", 2) == []
    assert log.counts == {"unchanged": 2}


def test_the_upsert_stream_of_section_2_5_gives_the_specified_events():  # R52
    log = upsert()
    assert log.take("1 a\n2 b\n1 a2\n-R 9 -", 1) == ["0 +A e1 1 a2", "1 +A e1 2 b"]
    assert log.take("1 a3\n2 b\n-R 77 -", 2) == ["2 -C e1 1 a2", "3 +C e2 1 a3"]
    assert log.take("-R 2 -", 3) == ["4 -R e1 2 b"]
    assert log.take("-R 2 -", 4) == []
    assert log.take("2 b", 5) == ["5 +A e5 2 b"]
    assert log.take("1 x\n-R 1 -", 6) == ["6 -R e2 1 a3"]
    assert log.take("-R 2 -\n2 b", 7) == []
    assert log.take("-R 2 -\n2 B", 8) == ["7 -C e5 2 b", "8 +C e8 2 B"]


def test_a_delete_retracts_the_stored_row_and_not_its_own_values():  # B13a
    log = upsert("city v", ("city",))
    log.take("seattle 2", 1)
    assert log.take("-R seattle 0", 2) == ["1 -R e1 seattle 2"]


@pytest.mark.parametrize("op", [2, 4, -1, None])
def test_an_upsert_refuses_other_operations(op):  # R56
    log = upsert()
    with pytest.raises(LogRejected, match="wrong-op"):
        ingest([], [Arrival(None, {"k": 1, "v": 1}, op)], log.terms, Moment("s", "e"))


def test_a_sequence_column_overrides_the_order_of_arrival():
    log = upsert("k seq v", sequence="seq")
    assert log.take("1 2 new\n1 1 old", 1) == ["0 +A e1 1 2 new"]


def test_a_changelog_keeps_the_order_of_arrival():  # section 2.6, R59
    log = changelog()
    assert log.take("+A k1 1\n-C k1 1\n+C k1 2", 1) == ["0 +A e1 k1 1", "1 -C e1 k1 1", "2 +C e1 k1 2"]
    assert log.take("-R k1 2\n+A k1 9", 2) == ["3 -R e1 k1 2", "4 +A e2 k1 9"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("-R k7 1", "not-present"),  # V4
        ("-C k7 1\n+C k7 2", "not-present"),
        ("-R k1 1\n-R k1 1", "not-present"),
        ("+A k1 5", "already-present"),  # V3
        ("+A n 1\n+A n 2", "already-present"),
        ("-R k1 5", "unlike-current"),  # V4
        ("-C k1 9\n+C k1 2", "unlike-current"),
        ("-R @t9 k1 1", "unlike-current"),  # V4, the event time included
        ("-C k1 1", "unpaired-correction"),  # V5
        ("+C k1 2", "unpaired-correction"),  # V5
        ("-C k1 1\n+A k2 1\n+C k1 2", "unpaired-correction"),  # V5, O22
        ("-C k1 1\n+A k1 2", "unpaired-correction"),
        ("+A - 1", "null-key"),  # V2
    ],
)
def test_a_strict_changelog_refuses_impossible_events(text, code):  # R58
    log = changelog()
    log.take("+A k1 1", 1)
    refused(log, text, 2, code)


def test_a_changelog_by_schema_accepts_any_events():  # R60
    assert len(changelog(strict=False).take("-R k7 1\n+A k1 1\n+A k1 1", 1)) == 3


def test_an_exported_snapshot_is_a_strict_changelog():  # R61
    source, copy = snapshot(), changelog("city population", ("city",))
    for number, text in enumerate(["A 1\nB 2", "A 2\nC 3", "", "A 1"], 1):
        events = source.take(text, number)
        exported = "\n".join("{1} @{2} {3} {4}".format(*event.split()) for event in events)
        assert copy.take(exported, number + 10) == events


def test_the_state_has_the_last_event_of_each_key_unless_retracted():  # B6
    log = changelog(strict=False)
    log.take("+A van 1\n+A sea 2\n-C van 1\n+C van 3\n+A kyiv 4\n-R sea 2\n-C kyiv 4\n+C kyiv 1", 1)
    states = {key: (event.op, event.values["v"]) for key, event in state(log.events, log.terms).items()}
    assert states == {("van",): (Op.CORRECT_TO, "3"), ("kyiv",): (Op.CORRECT_TO, "1")}


def test_a_snapshot_without_event_times_is_compared_without_them():  # B8
    terms = EventTerms(Strategy.SNAPSHOT, ("city",), encoding=EventEncoding.OP)
    stored = [
        Event(place, Op.APPEND, "s0", 2020, {"city": city, "population": number})
        for place, (city, number) in enumerate([("vancouver", 1), ("seattle", 2), ("kyiv", 3)])
    ]
    rows = [
        Arrival(None, {"city": city, "population": n})
        for city, n in [("seattle", 2), ("kyiv", 4), ("odessa", 5)]
    ]
    made = ingest(stored, rows, terms, Moment("s1", 2021, 2020, 3)).events
    assert [(e.op.symbol, e.time, e.values["city"], e.values["population"]) for e in made] == [
        ("-C", 2020, "kyiv", 3),
        ("+C", 2021, "kyiv", 4),
        ("+A", 2021, "odessa", 5),
        ("-R", 2020, "vancouver", 1),
    ]
