"""A fetch step of a manifest becomes a request to `sources`, and other kinds are reported (O12, 5.2)."""

import pytest
from pydantic import TypeAdapter

from backstory.doors.odf.manifest.events import Fetch
from backstory.doors.odf.polling import check, source_of
from backstory.errors import UsageError
from backstory.sources.source import GlobOfFiles, PathTime, Resource

STEP = TypeAdapter(Fetch)


@pytest.mark.parametrize(
    ("step", "source"),
    [
        ({"kind": "url", "url": "a"}, Resource("a")),
        ({"kind": "Url", "url": "a", "headers": []}, Resource("a")),
        (
            {"kind": "Url", "url": "a", "headers": [{"name": "b", "value": "c"}], "refetch": "always"},
            Resource("a", (("b", "c"),), always=True),
        ),
        (
            {"kind": "Url", "url": "a", "eventTime": "fromMetadata", "cache": "forever"},
            Resource("a", event_time="FromMetadata", once=True),
        ),
        ({"kind": "filesGlob", "path": "*", "order": "byName"}, GlobOfFiles("*")),
        (
            {"kind": "FilesGlob", "path": "*", "order": "ByEventTime", "eventTime": "FromSystemTime"},
            GlobOfFiles("*", "FromSystemTime", by_event_time=True),
        ),
        (
            {
                "kind": "FilesGlob",
                "path": "*",
                "cache": {"kind": "Forever"},
                "eventTime": {"kind": "FromPath", "pattern": "(.)", "timestampFormat": "%Y"},
            },
            GlobOfFiles("*", PathTime("(.)", "%Y"), once=True),
        ),
    ],
)
def test_a_fetch_step_is_read_in_every_spelling(step, source):
    assert source_of(STEP.validate_python(step)) == source


@pytest.mark.parametrize(
    "step",
    [
        {"kind": "Container", "image": "busybox"},
        {"kind": "Mqtt", "host": "h", "port": 1, "topics": [{"path": "a"}], "password": "s3cret"},
        {"kind": "EthereumLogs", "chainId": 1},
        {"kind": "EvmLogs", "nodeUrl": "wss://node/?key=s3cret"},
    ],
)
def test_other_kinds_parse_and_are_refused_at_pull(step):
    parsed = STEP.validate_python(step)
    check(parsed)

    with pytest.raises(UsageError) as caught:
        source_of(parsed)

    assert (caught.value.code, caught.value.exit_code) == ("unsupported-source", 2)
    assert step["kind"] in caught.value.message
    assert "s3cret" not in str(caught.value)


def test_impossible_fetch_steps_are_refused_without_fetching():
    with pytest.raises(UsageError):
        check(STEP.validate_python({"kind": "FilesGlob", "path": "*", "eventTime": "FromMetadata"}))

    for path in ("", ".", "./", "a\0b"):
        with pytest.raises(UsageError, match="names no files"):
            check(STEP.validate_python({"kind": "FilesGlob", "path": path}))
