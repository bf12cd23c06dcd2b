"""Files of manifests: several in one file, in folders, and with all defaults (R4, R12, B64)."""

import pytest
from manifesting import dataset_of, manifest, polling, push, refusal, snapshots_of

from backstory.doors.odf.manifest.dataset import find_manifests, json_schema, read_manifests, resolve_defaults
from backstory.errors import UsageError

ONE = manifest(push())
TWO = ONE.replace("name: cities", "name: towns")
OTHER = "apiVersion: v1\nkind: Service\n"

# Section 1.10 as it is printed there.
PRINTED = r"""
kind: DatasetSnapshot
version: 1
content:
  name: demo.city-state
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch:
        kind: FilesGlob
        path: /data/in/state-*.zip
        eventTime: {kind: FromPath, pattern: 'state-(\d+-\d+-\d+)\.zip'}
        order: ByName
      prepare:
        - {kind: Decompress, format: Zip, subPath: state.csv}
      read:
        kind: Csv
        header: true
        schema:
          fields:
            - {name: City, type: String}
            - {name: Population, type: {kind: Option, inner: Int64}}
      preprocess:
        kind: Sql
        engine: spark
        query: select City as city, Population as population from input
      merge: {kind: Snapshot, primaryKey: [city]}
---
kind: DatasetSnapshot
version: 1
content:
  name: demo.city-counts
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read:
        kind: NdJson
        schema:
          fields:
            - {name: taken_on, type: Date}
            - {name: city, type: String}
            - {name: population, type: Int64}
      merge: {kind: Ledger, primaryKey: [taken_on, city]}
    - {kind: SetVocab, eventTimeColumn: taken_on}
    - {kind: SetInfo, description: Counts per day, keywords: [demo]}
    - {kind: SetLicense, shortName: CC0, name: Creative Commons Zero, spdxId: CC0-1.0, websiteUrl: "https://creativecommons.org/publicdomain/zero/1.0/"}
"""


def names(manifests):
    return [snapshot.content.name for _, snapshot in manifests]


# R12


def test_r12_a_file_may_contain_several_manifests(tmp_path):
    assert names(snapshots_of(PRINTED, tmp_path)) == ["demo.city-state", "demo.city-counts"]


def test_r12_empty_documents_are_ignored(tmp_path):
    assert names(snapshots_of(f"---\n{ONE}---\n---\n{TWO}---\n", tmp_path)) == ["cities", "towns"]


def test_line_numbers_count_through_all_documents_of_a_file(tmp_path):
    lines = ONE.count("\n") + 1
    wrong = refusal(f"{ONE}---\n{TWO}".replace("towns", "to wns"), tmp_path)
    assert wrong.message.startswith(f"cities.yaml, line {lines + 4}, content.name: ")
    wrong = refusal(
        f"{ONE}---\n{TWO}".replace("version: 1\ncontent:\n  name: towns", "content:\n  name: towns"), tmp_path
    )
    assert wrong.message == f"cities.yaml, line {lines + 1}, version: this key is missing."


def test_a_named_file_with_another_document_is_refused(tmp_path):
    wrong = refusal(f"{ONE}---\n{OTHER}", tmp_path)
    assert wrong.message == "cities.yaml, line 13, kind: 'Service' is not a kind of manifest."
    wrong = refusal("a: 1\n", tmp_path)
    assert wrong.message == "cities.yaml, line 1, the document: this document is not a manifest."
    assert refusal("just words\n", tmp_path).remedy == "Manifests have kind: DatasetSnapshot."


@pytest.mark.parametrize("text", ["", "---\n", "# nothing\n"])
def test_a_named_file_without_manifests_is_refused(tmp_path, text):
    assert "contains no manifest" in refusal(text, tmp_path, code="no-manifest").message


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot be read") as refused:
        read_manifests(tmp_path / "none.yaml")
    assert refused.value.code == "no-manifest"
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot be read"):
        read_manifests(tmp_path / "bytes.yaml")


def test_a_document_that_contains_itself_is_refused(tmp_path):
    text = "&a\nkind: DatasetSnapshot\nversion: 1\ncontent: *a\n"
    assert "contains itself" in refusal(text, tmp_path).message


def test_r12_b64_only_manifests_are_found_in_a_folder(tmp_path):
    files = {
        "b.yaml": ONE,
        "a/x.yml": TWO,
        "a/deep/z.YAML": ONE.replace("kind: DatasetSnapshot", "kind: datasetSnapshot"),
        "service.yaml": OTHER,
        "chart.yaml": "{{ .Values.x }}: [",
        "empty.yaml": "",
        "list.yaml": "- DatasetSnapshot\n",
        "notes.txt": ONE,
        ".git/c.yaml": ONE,
        ".hidden.yaml": ONE,
        "mixed.yaml": f"{OTHER}---\n{ONE}",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\x00")
    paths = find_manifests(tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in paths] == [
        "b.yaml",
        "mixed.yaml",
        "a/x.yml",
        "a/deep/z.YAML",
    ]
    assert [name for path in paths for name in names(read_manifests(path, recursive=True))] == [
        "cities",
        "cities",
        "towns",
        "cities",
    ]


def test_a_broken_manifest_in_a_folder_is_reported(tmp_path):
    (tmp_path / "a.yaml").write_text(f"{ONE}  x: [\n")
    [path] = find_manifests(tmp_path)
    with pytest.raises(UsageError, match=r"a\.yaml, line"):
        read_manifests(path, recursive=True)


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(UsageError, match="There is no folder"):
        find_manifests(tmp_path / "none")


# R4


def shown(text, folder):
    return resolve_defaults(dataset_of(text, folder))["content"]["metadata"]


def test_r4_the_defaults_of_a_source_are_filled_in(tmp_path):
    assert shown(manifest(polling()), tmp_path) == [
        {
            "kind": "SetPollingSource",
            "fetch": {
                "kind": "Url",
                "url": "https://a.b/c.csv",
                "headers": [],
                "eventTime": {"kind": "FromMetadata"},
            },
            "prepare": [],
            "read": {
                "kind": "Csv",
                "separator": ",",
                "encoding": "utf8",
                "quote": '"',
                "escape": "\\",
                "header": False,
                "inferSchema": False,
                "nullValue": "",
                "dateFormat": "rfc3339",
                "timestampFormat": "rfc3339",
                "multiLine": False,
                "unknownFields": "ignore",
            },
            "merge": {"kind": "Append"},
        },
        {
            "kind": "SetVocab",
            "offsetColumn": "offset",
            "operationTypeColumn": "op",
            "systemTimeColumn": "system_time",
            "eventTimeColumn": "event_time",
        },
    ]


@pytest.mark.parametrize(
    ("part", "field", "defaults"),
    [
        ("{kind: ledger, primaryKey: [a]}", "merge", {"eventTimeInKey": True, "onConflict": "ignore"}),
        ("{kind: snapshot, primaryKey: [a]}", "merge", {"onLateSnapshot": "warn", "encoding": "observed"}),
        ("{kind: upsertStream, primaryKey: [a]}", "merge", {"encoding": "op"}),
        ("{kind: changelogStream, primaryKey: [a]}", "merge", {"encoding": "op", "validation": "strict"}),
        ("{kind: json}", "read", {"dateFormat": "rfc3339", "timestampFormat": "rfc3339", "encoding": "utf8", "unknownFields": "ignore"}),
        ("{kind: ndJson}", "read", {"dateFormat": "rfc3339", "timestampFormat": "rfc3339", "encoding": "utf8", "unknownFields": "ignore"}),
        ("{kind: parquet}", "read", {"unknownFields": "ignore"}),
        ("{kind: sql, query: q}", "preprocess", {"engine": "spark"}),
    ],
)  # fmt: skip
def test_r4_the_defaults_of_each_part_are_filled_in(tmp_path, part, field, defaults):
    event = shown(manifest(push(part) if field == "merge" else push(**{field: part})), tmp_path)[0]
    written = {"primaryKey": ["a"]} if field == "merge" else {"query": "q"} if field == "preprocess" else {}
    assert {name: value for name, value in event[field].items() if name != "kind"} == defaults | written


@pytest.mark.parametrize(
    ("fetch", "time"),
    [
        ("{kind: url, url: 'file:///a'}", "FromMetadata"),
        ("{kind: url, url: 'ftp://a/b'}", "FromSystemTime"),
        ("{kind: filesGlob, path: a}", "FromSystemTime"),
        ("{kind: filesGlob, path: a, eventTime: {kind: fromPath, pattern: (a)}}", "FromPath"),
    ],
)
def test_r4_a_fetch_without_an_event_time_has_a_default(tmp_path, fetch, time):
    """1.4: A fetch without an event time has the default from the table of event times."""
    resolved = shown(manifest(polling(fetch=fetch)), tmp_path)[0]["fetch"]
    assert resolved["eventTime"]["kind"] == time
    assert resolved.get("order") == ("ByName" if resolved["kind"] == "FilesGlob" else None)
    if time == "FromPath":
        assert resolved["eventTime"]["timestampFormat"] == "%Y-%m-%d"


def test_r4_units_and_zones_are_filled_in(tmp_path):
    types = "{name: a, type: timestamp}, {name: b, type: {kind: timestamp, timezone: null}}, {name: c, type: time}"
    text = manifest(f"{{kind: setDataSchema, schema: {{fields: [{types}]}}}}")
    fields = shown(text, tmp_path)[0]["schema"]["fields"]
    assert [field["type"] for field in fields] == [
        {"kind": "Timestamp", "unit": "Millisecond", "timezone": "UTC"},
        {"kind": "Timestamp", "unit": "Millisecond", "timezone": None},
        {"kind": "Time", "unit": "Millisecond"},
    ]


def test_r4_a_resolved_dataset_resolves_to_itself(tmp_path):
    import json

    once = resolve_defaults(dataset_of(manifest(polling("{kind: snapshot, primaryKey: [a]}")), tmp_path))
    assert resolve_defaults(dataset_of(json.dumps(once), tmp_path)) == once


# For editors


def test_the_json_schema_accepts_each_kind_in_three_spellings():
    schema = json_schema()
    assert schema["$defs"]["SetInfo"]["properties"]["kind"]["enum"] == ["SetInfo", "setInfo", "setinfo"]
    assert schema["$defs"]["SetInfo"]["required"] == ["kind"]
    assert schema["$defs"]["SetInfo"]["additionalProperties"] is False
    assert "Decimal" not in schema["$defs"]["DataField"]["properties"]["type"]["anyOf"][0]["enum"]
