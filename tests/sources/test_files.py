"""A local file as the url of a source (B54): its modification time is its state, and it is used in place."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fetch_steps import url_step

from backstory.errors import Failed, UsageError
from backstory.sources import savepoint
from backstory.sources.source import ETAG, LAST_MODIFIED, SourceState, instant_of_nanoseconds, instant_text

MODIFIED = datetime(2024, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
STATE = SourceState(LAST_MODIFIED, "2024-01-02T03:04:05.678Z")


def only(answer):
    [fetched] = answer.deliveries
    return fetched


@pytest.fixture
def cities(tmp_path):
    """A file next to the manifest, modified at `MODIFIED` and some microseconds."""
    path = tmp_path / "my cities.csv"
    path.write_text("A,1000\n")
    touch(path, MODIFIED)
    return path


def touch(path, instant, nanoseconds=123_456):
    then = round(instant.timestamp() * 1000) * 1_000_000 + nanoseconds
    os.utime(path, ns=(then, then))


def test_a_local_file_is_read_in_place(ask, asking, cities):
    fetched = only(ask(cities.as_uri()))

    assert fetched.path == cities
    assert (fetched.name, fetched.event_time, fetched.state) == ("my cities.csv", MODIFIED, STATE)
    assert (fetched.taken_up, fetched.kept) == (None, None)
    assert not asking.cache.exists()


@pytest.mark.parametrize(
    "url",
    [
        "my cities.csv",
        "./my cities.csv",
        "{folder}/my cities.csv",
        "file://{folder}/my%20cities.csv",
        "FILE://localhost{folder}/my%20cities.csv",
        "file:{folder}/my%20cities.csv",
    ],
)
def test_a_file_is_found_under_every_spelling_of_its_address(ask, cities, url):
    assert only(ask(url.format(folder=cities.parent))).path.samefile(cities)


def test_a_template_is_filled_in_the_address(ask, cities):
    fetched = only(ask("${{ env.PLACE }}.csv", environment={"PLACE": "my cities"}))

    assert (fetched.path, fetched.name) == (cities, "${{ env.PLACE }}.csv")


def test_a_missing_file_is_not_found(ask, tmp_path):
    with pytest.raises(Failed) as caught:
        ask("nothing.csv")

    assert (caught.value.code, caught.value.exit_code) == ("not-found", 1)
    assert str(tmp_path / "nothing.csv") in caught.value.message


@pytest.mark.parametrize("url", [".", "my cities.csv/a", "a\0b", "a" * 5000])
def test_an_address_without_a_regular_file_fails(ask, cities, url):
    with pytest.raises(Failed):
        ask(url)


def test_an_error_shows_a_template_without_its_value(ask):
    with pytest.raises(Failed) as caught:
        ask("data/${{ env.TOKEN || 'text' }}.csv", environment={"TOKEN": "s3cret"})

    assert "data/${{ env.TOKEN }}.csv" in caught.value.message
    assert "s3cret" not in str(caught.value)


def test_the_same_modification_is_up_to_date(ask, cities):
    assert ask(cities.as_uri(), state=STATE, asked_before=True).status == "up-to-date"

    touch(cities, MODIFIED, 0)
    assert ask(cities.as_uri(), state=STATE, asked_before=True).status == "up-to-date"


def test_another_modification_is_new(ask, cities):
    touch(cities, MODIFIED, 1_000_000)

    assert only(ask(cities.as_uri(), state=STATE)).state == SourceState(
        LAST_MODIFIED, "2024-01-02T03:04:05.679Z"
    )


def test_an_older_modification_is_new_too(ask, cities):
    touch(cities, datetime(2020, 1, 1, tzinfo=UTC))

    assert ask(cities.as_uri(), state=STATE).status == "new"


def test_a_local_file_is_read_again_each_time(ask, asking, cities):
    """O20: A local file is never cached, so a corrected one is read."""
    ask(cities.as_uri())
    cities.write_text("A,2000\n")

    fetched = only(ask(cities.as_uri()))
    savepoint.forget(fetched, asking)

    assert fetched.path.read_text() == "A,2000\n"
    assert cities.exists()


def test_a_state_of_another_kind_is_ignored(ask, cities):
    assert ask(cities.as_uri(), state=SourceState(ETAG, STATE.value), asked_before=True).status == "new"


def test_a_file_is_never_uncacheable(ask, cities):
    assert ask(cities.as_uri(), asked_before=True).status == "new"


@pytest.mark.parametrize(
    ("event_time", "expected"),
    [
        (None, MODIFIED),
        ("FromMetadata", MODIFIED),
        ("FromSystemTime", datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)),
    ],
)
def test_the_event_time_is_the_modification_or_the_system_time(ask, cities, event_time, expected):
    step = url_step(cities.as_uri(), event_time=event_time)

    assert only(ask(step)).event_time == expected


def test_a_file_on_another_machine_is_unsupported(ask):
    with pytest.raises(UsageError) as caught:
        ask("file://server/share/a.csv")
    assert caught.value.code == "unsupported-source"


def test_modifications_are_rounded_to_milliseconds():
    assert [
        instant_of_nanoseconds(nanoseconds).microsecond for nanoseconds in (499_999, 500_000, 1_499_999)
    ] == [
        0,
        1000,
        1000,
    ]
    assert instant_text(instant_of_nanoseconds(-1)) == "1970-01-01T00:00:00.000Z"


@pytest.mark.parametrize("seconds", [300_000_000_000, -300_000_000_000])
def test_a_modification_time_outside_the_calendar_is_refused(ask, cities, monkeypatch, seconds):
    """File systems store more years than dates have."""
    status = os.stat_result((*cities.stat()[:8], seconds, 0), {"st_mtime_ns": seconds * 10**9})
    monkeypatch.setattr(Path, "stat", lambda *_, **__: status)
    with pytest.raises(Failed, match="is not between the years 1 and 9999"):
        ask(cities.name)


def test_a_state_survives_json():
    state = SourceState(ETAG, 'W/"ä"', "other")

    assert SourceState.from_dict(state.to_dict()) == state
    assert SourceState.from_dict({"kind": ETAG, "value": "1"}) == SourceState(ETAG, "1", "default")
