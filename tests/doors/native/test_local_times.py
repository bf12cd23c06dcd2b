"""A local time that a zone repeats or skips is refused, or read on the specified side (B.1)."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from backstory.doors.native.feeds.events import instants_of, local_times
from backstory.errors import BackstoryError, Refused, UsageError
from backstory.formats.memory import Memory
from backstory.formats.values.exactly import cast_exactly
from backstory.warehouse import Warehouse

PARIS = "to_utc_timestamp(at, 'Europe/Paris')"
CASES = """
    2026-10-25 02:50  Europe/Paris         repeated  00:50  01:50
    2026-10-25 02:00  Europe/Paris         repeated  00:00  01:00
    2026-10-25 03:00  Europe/Paris         02:00     02:00  02:00
    2026-10-25 01:59  Europe/Paris         23:59     23:59  23:59
    2026-03-29 02:30  Europe/Paris         skipped   01:00  01:00
    2026-03-29 02:00  Europe/Paris         skipped   01:00  01:00
    2026-03-29 03:00  Europe/Paris         01:00     01:00  01:00
    2026-04-05 01:45  Australia/Lord_Howe  repeated  14:45  15:15
    2026-10-04 02:15  Australia/Lord_Howe  skipped   15:30  15:30
    2026-10-25 02:50  UTC                  02:50     02:50  02:50
    2026-10-25 02:50  +02:00               00:50     00:50  00:50
"""


def outcome(times, zone, side):
    expression = f"to_utc_timestamp(at, '{zone}'{side and f', {side!r}'})"
    try:
        return instants_of(times, expression, counted=True)[0].as_py().strftime("%H:%M")
    except Refused as stop:
        return stop.code.removesuffix("-time")


@pytest.mark.parametrize("form", ["utc", "naive", "text", "nanoseconds"])
@pytest.mark.parametrize("case", [line.split() for line in CASES.strip().split("\n")])
def test_a_local_time_is_converted_by_its_zone_or_refused(case, form):
    """The specified side decides for every form of a source."""
    day, clock, zone, *expected = case
    time = datetime.fromisoformat(f"{day}T{clock}:00")
    times = {
        "utc": pa.array([time.replace(tzinfo=UTC)], pa.timestamp("us", "UTC")),
        "naive": pa.array([time], pa.timestamp("us")),
        "text": pa.array([f"{day}T{clock}:00"]),
        "nanoseconds": pa.array([time], pa.timestamp("ns")),
    }[form]
    assert [outcome(pa.chunked_array([times]), zone, side) for side in ("", "earlier", "later")] == expected


def test_an_ambiguous_local_time_is_refused_with_row_and_expression():
    times = pa.chunked_array([pa.array([None, datetime(2026, 7, 1), datetime(2026, 10, 25, 2, 10)])])
    with pytest.raises(Refused) as stop:
        instants_of(times.cast(pa.timestamp("us")), PARIS, counted=True)
    assert stop.value.message.startswith("Row 3 of the source")
    assert "to_utc_timestamp(at, 'Europe/Paris', 'earlier')" in stop.value.remedy


@pytest.mark.parametrize(
    "expression",
    [
        "coalesce(to_utc_timestamp(at, 'Europe/Paris'), other)",
        "TO_UTC_TIMESTAMP(at, zone)",
        "to_utc_timestamp(at, 'Europe/Paris') + f(b, 'c')",
        "to_utc_timestamp(at, 'Europe/Paris', 'first')",
    ],
)
def test_local_times_within_other_expressions_are_refused(expression):
    """Spark would guess the instant."""
    with pytest.raises(UsageError):
        local_times(expression)


def test_an_unknown_zone_is_named():
    with pytest.raises(UsageError, match="Nowhere"):
        outcome(pa.chunked_array([pa.array([datetime(2026, 1, 1)])]), "Nowhere", "")


@pytest.mark.parametrize("zone", ["Europe/Paris", "America/New_York", "UTC"])
def test_instants_of_the_repeated_hour_are_accepted_in_nanoseconds(zone):
    """A time with a zone is one instant. Only digits below a microsecond are cut off."""
    minutes = pa.array([1_761_437_400_000_000_000 + each * 60 * 10**9 + 999 for each in range(720)])
    instants = cast_exactly(minutes.cast(pa.timestamp("ns", zone)), pa.field("at", pa.timestamp("us", "UTC")))
    assert [each.value for each in instants] == [each.as_py() // 1000 for each in minutes]


@pytest.mark.parametrize("way", ["driver", "tasks"])
def test_a_feed_refuses_ambiguous_times_and_accepts_the_side_later(store, tmp_path, way):
    """The remedy works: the table accepts the missing side later, and further columns order the changes."""
    warehouse = Warehouse(store if way == "driver" else replace(store, memory=Memory(0)), embedded=False)
    name = f"local.{way}"

    def apply(times, *sequence):
        path = tmp_path / "f.csv"
        lines = [f"1,{time},{n},v{n}" for n, time in enumerate(times, 1)]
        path.write_text("\n".join(["id,at,n,v", *lines]))
        return warehouse.apply(path, into=name, key="id", sequence_by=[*sequence])

    apply(["2026-07-01 12:00:00"], PARIS, "n")
    for times, code in (("2026-10-25 02:50:00", "repeated-time"), ("2027-03-28 02:30:00", "skipped-time")):
        with pytest.raises(BackstoryError) as stop:
            apply([times, times], PARIS, "n")
        assert stop.value.code == code, json.dumps(stop.value.to_dict())
    side = PARIS.replace(")", ", 'later')")
    apply(["2026-10-25 02:50:00", "2026-10-25 02:50:00"], side, "n")
    (row,) = warehouse.table(name).current().collect()
    assert (row.v, row.valid_from.astimezone(UTC).hour) == ("v2", 1)
    with pytest.raises(BackstoryError) as stop:
        apply(["2026-11-01 12:00:00"], PARIS.replace(")", ", 'earlier')"), "n")
    assert stop.value.code == "settings-changed"
