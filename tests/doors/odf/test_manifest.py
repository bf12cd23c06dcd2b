"""The document of a manifest: valid forms, spellings and errors (R1, R2, R3, R5)."""

import json

import pytest
from manifesting import manifest, polling, push, refusal, snapshots_of
from ruamel.yaml import YAML

from backstory.doors.odf.manifest.dataset import to_document
from backstory.doors.odf.manifest.events import DatasetSnapshot

# The two manifests of the published page, completed with the lines that it omits.
LEDGER = """\
kind: DatasetSnapshot
version: 1
content:
  name: cities-population
  kind: root
  metadata:
    - kind: setPollingSource
      fetch:
        kind: url
        url: https://a.b/cities.csv
      read:
        kind: csv
        header: true
      merge:
        kind: ledger
        primaryKey:
          - country
          - city
    - kind: setVocab
      eventTimeColumn: year
"""
SNAPSHOT = """\
kind: DatasetSnapshot
version: 1
content:
  name: cities-population
  kind: root
  metadata:
    - kind: setPollingSource
      fetch:
        kind: url
        url: https://a.b/cities.csv
        eventTime:
          kind: fromMetadata
      read:
        kind: csv
        header: true
      merge:
        kind: snapshot
        primaryKey:
          - country
          - city
"""
WORDS = {
    "datasetSnapshot": "DatasetSnapshot",
    "setPollingSource": "SetPollingSource",
    "setVocab": "SetVocab",
    "fromMetadata": "FromMetadata",
    "ledger": "Ledger",
    "snapshot": "Snapshot",
    "root": "Root",
    "url": "Url",
    "csv": "Csv",
}


def cased(text, spelled):
    """The text with each kind in another spelling."""
    for word, proper in WORDS.items():
        text = text.replace(f"kind: {word}\n", f"kind: {spelled(proper)}\n")
    return text


def loaded(text, folder):
    [(_, snapshot)] = snapshots_of(text, folder)
    return snapshot


# R1


@pytest.mark.parametrize("page", [LEDGER, SNAPSHOT], ids=["ledger", "snapshot"])
@pytest.mark.parametrize("spelled", [str, str.lower, str.upper, lambda word: word[0].lower() + word[1:]])
def test_r1_published_manifests_load_equally_in_any_case(tmp_path, page, spelled):
    assert loaded(cased(page, spelled), tmp_path) == loaded(page, tmp_path)


@pytest.mark.parametrize("order", ["ByEventTime", "byEventTime", "byeventtime"])
def test_r1_words_of_enumerations_are_written_in_any_case(tmp_path, order):
    source = polling(fetch=f"{{kind: filesGlob, path: '*.csv', order: {order}}}")
    assert loaded(manifest(source), tmp_path).content.metadata[0].fetch.order == "ByEventTime"


@pytest.mark.parametrize("short", ["FromSystemTime", "fromSystemTime", "{kind: FromSystemTime}"])
def test_r1_an_event_time_may_be_a_word(tmp_path, short):
    source = polling(fetch=f"{{kind: url, url: u, eventTime: {short}, cache: forever}}")
    fetch = loaded(manifest(source), tmp_path).content.metadata[0].fetch
    assert (fetch.event_time.kind, fetch.cache.kind) == ("FromSystemTime", "Forever")


# R2


@pytest.mark.parametrize(
    ("old", "new", "place", "remedy"),
    [
        ("version: 1", "version: 1\nverson: 1", "line 3, verson", "Did you mean version?"),
        ("  name:", "  nmae: x\n  name:", "line 4, content.nmae", "Did you mean name?"),
        ("        url: h", "        headrs: []\n        url: h", "line 10, content.metadata[0].fetch.headrs", "Did you mean headers?"),
        ("        header:", "        heder: 1\n        header:", "line 13, content.metadata[0].read.heder", "Did you mean header?"),
        ("        primaryKey:", "        primary_key:", "line 16, content.metadata[0].merge.primary_key", "Did you mean primaryKey?"),
        ("eventTimeColumn:", "eventTimeColum:", "line 20, content.metadata[1].eventTimeColum", "Did you mean eventTimeColumn?"),
        ("eventTimeColumn:", "zzz:", "line 20, content.metadata[1].zzz", "Known are eventTimeColumn, kind, offsetColumn"),
        ("      merge:\n", "      mege: 1\n      merge:\n", "line 14, content.metadata[0].mege", "Did you mean merge?"),
    ],
)  # fmt: skip
def test_r2_an_unknown_field_is_reported_with_its_place(tmp_path, old, new, place, remedy):
    assert old in LEDGER
    wrong = refusal(LEDGER.replace(old, new, 1), tmp_path)
    assert wrong.message == f"cities.yaml, {place}: there is no such key."
    assert wrong.remedy.startswith(remedy)


def test_r2_a_part_has_only_the_fields_of_its_kind(tmp_path):
    """`subPath` is an option of Json, not of Csv."""
    wrong = refusal(manifest(polling(read="{kind: csv, subPath: a.b}")), tmp_path)
    assert wrong.message == "cities.yaml, line 9, content.metadata[0].read.subPath: there is no such key."
    assert "separator" in wrong.remedy


@pytest.mark.parametrize("more", ["", ", schema: {fields: []}"])
def test_the_older_schema_form_is_refused_with_the_newer_form(tmp_path, more):
    """1.2: rawArrowSchema is not reported as a misspelled key."""
    wrong = refusal(manifest(f"{{kind: setDataSchema, rawArrowSchema: AAAA{more}}}"), tmp_path)
    place = "cities.yaml, line 7, content.metadata[0].rawArrowSchema"
    assert wrong.message == f"{place}: rawArrowSchema, the older form, is not supported."
    assert wrong.remedy.startswith("Write schema: {fields: [")


def test_r2_unknown_fields_deep_in_a_schema_are_reported(tmp_path):
    text = manifest(
        push(read="{kind: csv, schema: {fields: [{name: a, type: {kind: option, iner: string}}]}}")
    )
    wrong = refusal(text, tmp_path)
    assert "content.metadata[0].read.schema.fields[0].type.iner" in wrong.message
    assert wrong.remedy == "Did you mean inner?"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (polling(merge="{kind: ledger}"), "line 10, content.metadata[0].merge.primaryKey: this key is missing."),
        (polling(fetch="{kind: url}"), "line 8, content.metadata[0].fetch.url: this key is missing."),
        (polling(fetch="{kind: url, url: 5}"), "line 8, content.metadata[0].fetch.url: this must be a string; put it in quotes."),
        (polling(merge="{kind: ledger, primaryKey: city}"), "line 10, content.metadata[0].merge.primaryKey: this must be a list."),
        (polling(fetch="{kind: url, url: [u]}"), "line 8, content.metadata[0].fetch.url: this must be a string; put it in quotes."),
        (polling(fetch="{kind: url, url: u, headers: [{name: a}]}"), "line 8, content.metadata[0].fetch.headers[0].value: this key is missing."),
        (polling(read="{kind: csv, header: perhaps}"), "line 9, content.metadata[0].read.header: input should be"),
        (polling(merge="{kind: snapshot, primaryKey: [a], maxRetract: 2}"), "line 10, content.metadata[0].merge.maxRetract: input should be"),
        (polling(merge="{kind: ledger, primaryKey: [a], onConflict: shrug}"), "line 10, content.metadata[0].merge.onConflict: 'shrug' is not one of"),
        (polling(merge="append"), "line 10, content.metadata[0].merge: this merge is not a mapping with a kind."),
        (polling(merge="{primaryKey: [a]}"), "line 10, content.metadata[0].merge: this merge has no kind."),
        (polling(merge="{kind: 5}"), "line 10, content.metadata[0].merge: this merge has no kind."),
        (polling(prepare="[{kind: decompress, format: rar}]"), "line 10, content.metadata[0].prepare[0].format: 'rar' is not one of"),
        (polling(fetch="{kind: mqtt, host: h, port: 1, topics: []}"), "line 8, content.metadata[0].fetch.topics: "),
        (polling(fetch="{kind: evmLogs}"), "line 8, content.metadata[0].fetch: these logs have neither chainId nor nodeUrl."),
        (polling(fetch="{kind: url, url: u, eventTime: fromPath}"), "line 8, content.metadata[0].fetch.eventTime.pattern: this key is missing."),
        (polling(fetch="{kind: url, url: u, eventTime: {kind: fromPath, pattern: 'a'}}"), "eventTime.pattern: the pattern has no group."),
        (polling(fetch="{kind: url, url: u, eventTime: {kind: fromPath, pattern: '(a'}}"), "eventTime.pattern: this is not a regular expression"),
        (push(read="{kind: csv, schema: {fields: [{name: a, type: {kind: decimal, precision: 3, scale: 4}}]}}"), "type.scale: the scale is larger than the precision."),
        ("kind: setVocab\noffsetColumn: ''", "line 8, content.metadata[0].offsetColumn: string should have"),
        ("kind: setLicense\nname: x", "line 7, content.metadata[0].shortName: this key is missing."),
    ],
)  # fmt: skip
def test_r2_a_wrong_part_is_reported_with_its_place(tmp_path, source, message):
    text = refusal(manifest(source), tmp_path).message
    assert text.startswith("cities.yaml, line ")
    assert message in text


@pytest.mark.parametrize(
    ("source", "message", "remedy"),
    [
        (polling(merge="{kind: ledgr, primaryKey: [a]}"), "line 10, content.metadata[0].merge.kind: 'ledgr' is not a kind of merge.", "Did you mean Ledger?"),
        (polling(fetch="{kind: ftp, url: u}"), "line 8, content.metadata[0].fetch.kind: 'ftp' is not a kind of fetch.", "Known are Url, "),
        (polling(fetch="{kind: url, url: u, eventTime: fromSystmTime}"), "fetch.eventTime: 'fromSystmTime' is not a kind of event time.", "Did you mean FromSystemTime?"),
        (push(read="{kind: jsonLines}"), "line 9, content.metadata[0].read.kind: JsonLines was renamed to NdJson.", "Use NdJson."),
        (push(read="{kind: csv, schema: [a INT]}"), "read.schema: a list of columns is the older form of a schema.", "Rename it to ddlSchema."),
        (push(read="{kind: csv, schema: {fields: [{name: a, type: text}]}}"), "fields[0].type: 'text' is not a kind of data type.", "Known are Binary, Bool, "),
        ("kind: setVocabulary", "line 7, content.metadata[0].kind: 'setVocabulary' is not a kind of event.", "Did you mean SetVocab?"),
    ],
)  # fmt: skip
def test_r2_an_unknown_kind_is_reported_with_a_remedy(tmp_path, source, message, remedy):
    wrong = refusal(manifest(source), tmp_path)
    assert message in wrong.message
    assert wrong.remedy.startswith(remedy)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version: 1", "version: 2", "line 2, version: 2 is not one of 1."),
        (
            "kind: root",
            "kind: branch",
            "line 5, content.kind: 'branch' is not one of 'Root' or 'Derivative'.",
        ),
        ("version: 1\n", "", "line 1, version: this key is missing."),
        ("name: cities-population", "name: [", "line "),
        ("  name: cities-population", "  name: a\n  name: b", "line 5: found duplicate key"),
        (
            "name: cities-population",
            "name: 2019",
            "line 4, content.name: this must be a string; put it in quotes.",
        ),
    ],
)
def test_an_invalid_envelope_is_refused_with_its_line(tmp_path, old, new, message):
    assert message in refusal(LEDGER.replace(old, new, 1), tmp_path).message


# Names (R7)


@pytest.mark.parametrize("name", ["a", "A1", "a-b", "a.b", "a.b-c.d", "demo.City-2", "me/a.b", "a-b.c/d"])
def test_r7_names_are_groups_with_single_separators(tmp_path, name):
    assert loaded(LEDGER.replace("cities-population", name), tmp_path).content.name == name


@pytest.mark.parametrize(
    "name", ["-a", "a-", "a--b", "a.-b", "a_b", "a b", ".a", "a/b/c", "/a", "a/", "ä", "''"]
)
def test_r7_other_names_are_refused_with_their_line(tmp_path, name):
    wrong = refusal(LEDGER.replace("cities-population", name), tmp_path)
    assert wrong.message.startswith("cities.yaml, line 4, content.name: ")
    assert "does not match" in wrong.message


# R3

EVENTS = [
    polling(
        merge="{kind: snapshot, primaryKey: [a], compareColumns: [b], encoding: op, maxRetract: 0.5, onLateSnapshot: error}",
        fetch="{kind: url, url: 'https://a/${{ env.A }}', eventTime: fromMetadata, cache: forever, headers: [{name: a, value: b}], refetch: always}",
        prepare="[{kind: decompress, format: zip, subPath: '*.csv'}, {kind: pipe, command: [jq, -c, '.[]']}]",
        read="{kind: csv, separator: ';', header: true, nullValue: '-', unknownFields: error}",
        preprocess="{kind: sql, engine: datafusion, version: '1', queries: [{alias: x, query: q}, {query: r}]}",
    ),
    polling(fetch="{kind: filesGlob, path: '*', eventTime: {kind: fromPath, pattern: '(a)', timestampFormat: yyyy}, order: byName}"),
    polling(fetch="{kind: container, image: i, command: [c], args: [a], env: [{name: N}, {name: M, value: v}]}"),
    polling(fetch="{kind: mqtt, host: h, port: 1883, topics: [{path: p, qos: exactlyOnce}], username: u, password: p}"),
    polling(fetch="{kind: ethereumLogs, chainId: 1, nodeUrl: n, filter: f, signature: s}"),
    polling(fetch="{kind: evmLogs, nodeUrl: n}", merge="{kind: ledger, primaryKey: [a], eventTimeInKey: false, onConflict: error}"),
    push(read="{kind: json, subPath: a.b}", merge="{kind: upsertStream, primaryKey: [a], sequenceColumn: s}"),
    push(read="{kind: geoJson}", merge="{kind: changelogStream, primaryKey: [a], validation: schema}"),
    push(read="{kind: ndGeoJson}"), push(read="{kind: esriShapefile, subPath: 'a.*'}"), push(read="{kind: parquet}"),
    push(read="{kind: csv, ddlSchema: [a INT NOT NULL]}", merge="{kind: snapshot, primaryKey: [a], obsvAdded: I}"),
    "kind: disablePollingSource",
    "{kind: disablePushSource, sourceName: a}",
    "{kind: setVocab, offsetColumn: o, operationTypeColumn: p, systemTimeColumn: s, eventTimeColumn: e}",
    "{kind: setInfo, description: d, keywords: [a, b]}",
    "{kind: setLicense, shortName: a, name: b, spdxId: c, websiteUrl: d}",
    "{kind: setAttachments, attachments: {kind: embedded, items: [{path: README.md, content: 'a\n b'}]}}",
    """{kind: setDataSchema, schema: {extra: {opendatafabric.org/x: {y: null}}, fields: [
      {name: a, type: {kind: option, inner: {kind: decimal, precision: 9, scale: 2}}, extra: {opendatafabric.org/description: d}},
      {name: b, type: {kind: list, itemType: {kind: option, inner: int8}, fixedLength: 3}},
      {name: c, type: {kind: map, keyType: string, valueType: {kind: struct, fields: [{name: x, type: timestamp}]}, keysSorted: true}},
      {name: d, type: {kind: timestamp, unit: nanosecond, timezone: null}}, {name: e, type: {kind: time, unit: second}}]}}""",
]  # fmt: skip


@pytest.mark.parametrize("event", EVENTS, ids=range(len(EVENTS)))
def test_r3_each_event_makes_the_round_trip_without_loss(tmp_path, event):
    """YAML, the object, the stored JSON and the object again are equal, and the JSON has no additional
    fields."""
    written = loaded(manifest(event), tmp_path)
    document = json.loads(json.dumps(to_document(written)))
    assert DatasetSnapshot.model_validate(document) == written
    [stored] = document["content"]["metadata"]
    assert set(stored) == set(YAML(typ="safe").load(event))


def test_r3_only_the_written_fields_are_stored(tmp_path):
    document = to_document(loaded(LEDGER, tmp_path))
    assert document["content"]["metadata"][1] == {"kind": "SetVocab", "eventTimeColumn": "year"}
    assert document["content"]["metadata"][0]["read"] == {"kind": "Csv", "header": True}


# R5


@pytest.mark.parametrize("kind", ["seed", "AddData", "executeTransform"])
def test_r5_events_of_the_system_are_refused_by_name(tmp_path, kind):
    wrong = refusal(manifest("kind: setInfo", f"kind: {kind}\nx: 1"), tmp_path)
    assert wrong.message.startswith("cities.yaml, line 8, content.metadata[1].kind: ")
    name = kind[0].upper() + kind[1:]
    assert wrong.message.endswith(f": {name} is an event that the system writes itself.")


@pytest.mark.parametrize("kind", ["disablePollingSource", "disablePushSource\nsourceName: a"])
def test_r5_a_new_dataset_has_nothing_to_disable(tmp_path, kind):
    wrong = refusal(manifest(push(name="a"), f"kind: {kind}"), tmp_path)
    assert (
        wrong.message == "cities.yaml, line 11, content.metadata[1]: a new dataset has no source to disable."
    )
