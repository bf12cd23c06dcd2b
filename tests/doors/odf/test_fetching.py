"""A fetch step of a manifest is read in every spelling, and other kinds are reported (O12, 5.2)."""

import json

import pytest
from fetch_steps import from_path, glob_step, url_step
from manifesting import dataset_of, manifest, polling
from pydantic import TypeAdapter

from backstory.doors.odf.manifest.events import Fetch
from backstory.doors.odf.polling import IngestRequest, PollContext, ask, check_manifest
from backstory.doors.odf.receipts import Head
from backstory.doors.odf.registry import KnownDataset
from backstory.errors import UsageError
from backstory.model.table import TableName
from backstory.sources.fetching import check

STEP = TypeAdapter(Fetch)


@pytest.mark.parametrize(
    ("step", "source"),
    [
        ({"kind": "url", "url": "a"}, url_step("a")),
        ({"kind": "Url", "url": "a", "headers": []}, url_step("a")),
        (
            {"kind": "Url", "url": "a", "headers": [{"name": "b", "value": "c"}], "refetch": "always"},
            url_step("a", (("b", "c"),), always=True),
        ),
        (
            {"kind": "Url", "url": "a", "eventTime": "fromMetadata", "cache": "forever"},
            url_step("a", event_time="FromMetadata", once=True),
        ),
        ({"kind": "filesGlob", "path": "*", "order": "byName"}, glob_step("*")),
        (
            {"kind": "FilesGlob", "path": "*", "order": "ByEventTime", "eventTime": "FromSystemTime"},
            glob_step("*", "FromSystemTime", by_event_time=True),
        ),
        (
            {
                "kind": "FilesGlob",
                "path": "*",
                "cache": {"kind": "Forever"},
                "eventTime": {"kind": "FromPath", "pattern": "(.)", "timestampFormat": "%Y"},
            },
            glob_step("*", from_path("(.)", "%Y"), once=True),
        ),
    ],
)
def test_a_fetch_step_is_read_in_every_spelling(step, source):
    assert STEP.validate_python(step) == source


@pytest.mark.parametrize(
    "step",
    [
        {"kind": "Container", "image": "busybox"},
        {"kind": "Mqtt", "host": "h", "port": 1, "topics": [{"path": "a"}], "password": "s3cret"},
        {"kind": "EthereumLogs", "chainId": 1},
        {"kind": "EvmLogs", "nodeUrl": "wss://node/?key=s3cret"},
    ],
)
def test_other_kinds_parse_and_are_refused_at_pull(step, tmp_path):
    dataset = dataset_of(manifest(polling(fetch=json.dumps(step))), tmp_path)
    known = KnownDataset(dataset, TableName("odf", "cities"))
    check_manifest(dataset, [])

    with pytest.raises(UsageError) as caught:
        ask(known, PollContext(Head(), tmp_path, list, lambda: None), IngestRequest().begin())

    assert (caught.value.code, caught.value.exit_code) == ("unsupported-source", 2)
    assert step["kind"] in caught.value.message
    assert "s3cret" not in str(caught.value)


def test_impossible_fetch_steps_are_refused_without_fetching():
    with pytest.raises(UsageError):
        check(STEP.validate_python({"kind": "FilesGlob", "path": "*", "eventTime": "FromMetadata"}))

    for path in ("", ".", "./", "a\0b"):
        with pytest.raises(UsageError, match="names no files"):
            check(STEP.validate_python({"kind": "FilesGlob", "path": path}))
