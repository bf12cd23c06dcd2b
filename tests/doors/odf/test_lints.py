"""The lints: ten manifests with findings, and ten without (R10; 2.11)."""

import pyarrow as pa
import pytest
from manifesting import dataset_of, manifest, polling, push

from backstory.doors.odf.lints import Level, lints, refuse_errors
from backstory.doors.odf.manifest.dataset import from_document
from backstory.errors import UsageError

FIELDS = "{name: city, type: string}, {name: year, type: int32}, {name: at, type: timestamp}, {name: note, type: {kind: option, inner: string}}"
READ = f"{{kind: csv, schema: {{fields: [{FIELDS}]}}}}"
AT = "{kind: setVocab, eventTimeColumn: at}"
SQL = "{kind: sql, query: q}"
TIMED = "{kind: url, url: u, eventTime: fromMetadata}"


def findings(folder, *events, output=None):
    """The findings as `code line`."""
    return [
        f"{each.code} {each.line}" for each in lints(dataset_of(manifest(*events), folder), lambda *_: output)
    ]


def key(*names, kind="ledger", more=""):
    return f"{{kind: {kind}, primaryKey: [{', '.join(names)}]{more}}}"


LINTED = [
    ("L1 10", [push(key("city", more=", eventTimeInKey: false"), read=READ), AT]),
    ("L2 10", [push(key("town"), read=READ)]),
    ("L3 10", [push(key(), read=READ)]),
    ("L4 10", [polling(key("city", kind="snapshot", more=", compareColumns: [city, note]"), read=READ, fetch=TIMED)]),
    ("L5 10", [push(key("city", kind="snapshot"), read=READ)]),
    ("L6 10", [push(key("note"), read=READ)]),
    ("L7 7", [push(key("city"), read="{kind: csv, schema: {fields: [{name: city, type: string}, {name: event_time, type: bool}]}}")]),
    ("L8 8", [polling(key("city", kind="snapshot"), read=READ)]),
    ("L9 9", [push(read="{kind: csv, ddlSchema: [a INT]}")]),
    ("L10 9", [push(read="{kind: csv, schema: {fields: [{name: offset, type: int64}]}}")]),
]  # fmt: skip

SILENT = [
    [push(key("city", more=", eventTimeInKey: true"), read=READ), AT],
    [push(key("city", "at", more=", eventTimeInKey: false"), read=READ), AT],
    [push(key("town"), read=READ, preprocess=SQL)],
    [polling(key("city", kind="snapshot", more=", compareColumns: [note]"), read=READ, fetch=TIMED)],
    [push(key("city", kind="upsertStream", more=", sequenceColumn: year"), read=READ)],
    [push(key("city"), read=READ), "{kind: setVocab, eventTimeColumn: year}"],
    [polling(key("city"), read=READ)],
    [push(read="{kind: csv, multiLine: true, schema: {fields: [{name: observed, type: string}]}}")],
    [push(key("k", kind="upsertStream"), read="{kind: ndJson, schema: {fields: [{name: k, type: int64}, {name: op, type: int32}]}}")],
    [push(read="{kind: csv, schema: {fields: [{name: offset, type: int64}]}}"), "{kind: setVocab, offsetColumn: place}"],
]  # fmt: skip


@pytest.mark.parametrize(("finding", "events"), LINTED, ids=[each[0] for each in LINTED])
def test_r10_ten_manifests_have_one_finding_each(tmp_path, finding, events):
    assert findings(tmp_path, *events) == [finding]


@pytest.mark.parametrize("events", SILENT, ids=range(len(SILENT)))
def test_r10_ten_manifests_have_no_finding(tmp_path, events):
    assert findings(tmp_path, *events) == []


@pytest.mark.parametrize(
    ("fetch", "line", "what"),
    [
        ("{kind: url, url: 'https://bob:hunter2@a.b/c.csv'}", 8, "a password"),
        ("{kind: url, url: 'https://${NAME}:hunter2@a.b/c.csv'}", 8, "a password"),
        ("{kind: url, url: 'ftp://bob:hunter2@a.b/c.csv'}", 8, "a password"),
        ("{kind: url, url: \"https://x:${{ env.PW || 'hunter2' }}@a.b/c.csv\"}", 8, "a password"),
        ("{kind: url, url: 'https://ghp_1234@a.b/c.csv'}", 8, "a user without a password"),
        ("{kind: url, url: 'https://a.b/c.csv?x=1&access_token=hunter2'}", 8, "the value of access_token"),
        ("{kind: url, url: 'https://a.b/c.csv?apikey=hunter2'}", 8, "the value of apikey"),
        ("{kind: url, url: 'https://a.b/c.csv?X-Amz-Signature=hunter2'}", 8, "the value of X-Amz-Signature"),
        ("{kind: url, url: 'https://a.b/c.csv?key=hunter2hunter2hunter2'}", 8, "the value of key"),
        (
            "\n  kind: url\n  url: u\n  headers:\n  - name: Authorization\n    value: Bearer hunter2",
            13,
            "the value of Auth",
        ),
        ("{kind: url, url: u, headers: [{name: X-Api-Key, value: hunter2}]}", 8, "the value of X-Api-Key"),
        ("{kind: url, url: u, headers: [{name: cookie, value: 'a=hunter2'}]}", 8, "the value of cookie"),
        ("{kind: mqtt, host: h, port: 1, topics: [{path: a}], password: hunter2}", 8, "a password"),
        (
            "{kind: container, image: i, env: [{name: DB_PASSWORD, value: hunter2}]}",
            8,
            "the value of DB_PASSWORD",
        ),
        ("{kind: evmLogs, nodeUrl: 'https://x:hunter2@a.b'}", 8, "a password"),
    ],
)
def test_l11_a_secret_in_a_manifest_is_refused_with_file_and_line(tmp_path, fetch, line, what):
    """The error names the place but not the secret."""
    [lint] = lints(dataset_of(manifest(polling(fetch=fetch)), tmp_path))

    assert (lint.code, lint.level, lint.line) == ("L11", Level.ERROR, line)
    assert lint.message.startswith(f"the manifest contains {what}")
    assert "${NAME}" in lint.remedy
    assert "hunter2" not in str(lint)
    with pytest.raises(UsageError, match=f"cities.yaml, line {line}, content") as refused:
        refuse_errors([lint])
    assert refused.value.code == "lint-L11"


@pytest.mark.parametrize(
    "fetch",
    [
        "{kind: url, url: 'https://a.b/c.csv?q=1&key=population&session=44'}",
        "{kind: url, url: 'https://${USER}:${PW}@a.b/c.csv?token=${T}'}",
        "{kind: url, url: \"https://${{ env.USER || 'bob' }}:${{ env.PW }}@a.b/c.csv\"}",
        "{kind: url, url: '${ALL}'}",
        "{kind: url, url: 'ftp://anonymous:me@home.org@a.b/c.csv'}",
        "{kind: url, url: 'ftp://bob@a.b/c.csv'}",
        "{kind: url, url: 'https://me@a.b/c.csv?sort_key=population_density_2020&pageToken=1'}",
        "{kind: url, url: 'https://a.b/c.csv?key=D.USD.EUR.SP00.A&api_key=DEMO_KEY'}",
        "{kind: url, url: u, headers: [{name: X-Idempotency-Key, value: 0123456789abcdef}]}",
        "{kind: url, url: u, headers: [{name: Authorization, value: 'Bearer ${T}'}, {name: Accept, value: text/csv}]}",
        "{kind: url, url: u, headers: [{name: X-Token, value: '${{ env.T }}'}]}",
        "{kind: filesGlob, path: 'a@b:c/*.csv'}",
        "{kind: container, image: i, env: [{name: DB_PASSWORD}, {name: MODE, value: fast}]}",
    ],
)
def test_l11_placeholders_and_harmless_values_are_not_secrets(tmp_path, fetch):
    assert findings(tmp_path, polling(fetch=fetch)) == []


def test_l11_a_replaced_source_is_also_checked(tmp_path):
    older = polling(fetch="{kind: url, url: 'https://bob:hunter2@a.b/c.csv'}")

    assert findings(tmp_path, older, polling()) == ["L11 8"]


def test_each_lint_has_its_level(tmp_path):
    levels = {}
    for _, events in LINTED:
        for lint in lints(dataset_of(manifest(*events), tmp_path)):
            levels.setdefault(lint.level, []).append(lint.code)
    assert levels == {
        Level.ERROR: ["L2", "L3", "L7", "L10"],
        Level.WARNING: ["L1", "L4", "L5", "L6", "L9"],
        Level.NOTE: ["L8"],
    }


# Findings about a batch

OUTPUT = pa.schema([("city", pa.string()), ("at", MICROS := pa.timestamp("us", "UTC"))])


def test_the_known_output_of_preprocess_is_checked(tmp_path):
    source = push(key("town", "city"), read=READ, preprocess=SQL)
    [lint] = lints(dataset_of(manifest(source), tmp_path), lambda *_: OUTPUT)
    assert (lint.code, lint.message) == ("L2", "there is no column 'town' in the output of preprocess")
    assert lint.place.endswith("cities.yaml, line 11, content.metadata[0].merge.primaryKey[0]")
    assert lint.remedy == "Known are city, at."


def test_l1_is_reported_for_a_batch(tmp_path):
    source = push(key("city", more=", eventTimeInKey: false"))
    assert findings(tmp_path, source, AT, output=OUTPUT) == ["L1 10"]
    assert findings(tmp_path, source, AT) == []


@pytest.mark.parametrize(
    ("merge", "line"),
    [
        (key("Town", kind="snapshot", more=", compareColumns: [x]"), ["L2 10", "L2 10"]),
        (key("city", kind="upsertStream", more=", sequenceColumn: x"), ["L2 10"]),
        (key("city", kind="changelogStream"), ["L2 10"]),
        (key("City"), ["L2 10"]),
        ("{kind: append}", []),
    ],
)
def test_l2_every_column_of_a_merge_is_checked(tmp_path, merge, line):
    """Names are case-sensitive, and a changelog needs the column `op`."""
    assert [each for each in findings(tmp_path, push(merge), output=OUTPUT) if "L5" not in each] == line


def test_l2_the_schema_of_the_dataset_defines_known_columns(tmp_path):
    """O22: The dataset's schema may list system columns, without a finding of L10."""
    own = "{kind: setDataSchema, schema: {fields: [{name: offset, type: int64}, {name: city, type: string}]}}"
    assert findings(tmp_path, push(key("town")), own) == ["L2 10"]
    assert findings(tmp_path, push(key("city")), own) == []
    assert findings(tmp_path, push(key("city", "event_time", kind="changelogStream")), own) == []


def test_a_batch_with_a_repeated_name_has_no_finding(tmp_path):
    """A repeated name is checked elsewhere."""
    output = pa.schema([("event_time", pa.string()), ("event_time", pa.bool_())])
    assert findings(tmp_path, push(), output=output) == []


def test_l3_a_repeated_name_is_reported_at_its_second_place(tmp_path):
    source = push("\n  kind: ledger\n  primaryKey:\n  - city\n  - city")
    assert findings(tmp_path, source) == ["L3 14"]


def test_l6_an_optional_event_time_is_reported(tmp_path):
    read = "{kind: csv, schema: {fields: [{name: at, type: {kind: option, inner: date}}]}}"
    assert findings(tmp_path, push(read=read), AT) == ["L6 10"]


@pytest.mark.parametrize(
    ("column", "optional"), [("a INT", True), ("a INT NULL", True), ("a INT NOT NULL", False)]
)
def test_l6_a_column_of_the_older_form_is_optional_without_not_null(tmp_path, column, optional):
    """1.6, D25: This applies to the key and the event time."""
    read = f"{{kind: csv, ddlSchema: [{column}]}}"
    vocab = "{kind: setVocab, eventTimeColumn: a}"
    assert findings(tmp_path, push(key("a"), read=read)) == ["L6 10"] * optional + ["L9 9"]
    assert findings(tmp_path, push(read=read), vocab) == ["L6 10"] * optional + ["L9 9"]


def test_l6_columns_filled_in_by_a_query_have_no_finding(tmp_path):
    """Only declared columns, and the query's output, determine optional columns."""
    source = push(key("note", "city"), read=READ, preprocess=SQL)
    made = [pa.field("note", pa.string()), pa.field("city", pa.string())]
    assert findings(tmp_path, source) == []
    assert findings(tmp_path, source, output=pa.schema(made)) == ["L6 11"]
    assert findings(tmp_path, source, output=pa.schema([made[0].with_nullable(False), made[1]])) == []
    assert findings(tmp_path, push(key("city")), output=OUTPUT) == []


def test_an_empty_list_of_compared_columns_has_no_finding(tmp_path):
    """1.8: An empty list is the default, which means all columns outside the key."""
    merge = key("city", kind="snapshot", more=", compareColumns: []")
    assert findings(tmp_path, polling(merge, read=READ, fetch=TIMED)) == []


@pytest.mark.parametrize(
    ("type_", "can"),
    [
        (pa.date32(), True),
        (MICROS, True),
        (pa.timestamp("ns"), True),
        (pa.int32(), True),
        (pa.string(), True),
        (pa.null(), True),
        (pa.bool_(), False),
        (pa.float64(), False),
        (pa.decimal128(10, 2), False),
        (pa.binary(), False),
        (pa.list_(pa.date32()), False),
        (pa.struct([("a", pa.date32())]), False),
        (pa.duration("s"), False),
        (pa.time32("s"), False),
        (pa.month_day_nano_interval(), False),
    ],
)
def test_l7_o5_times_years_and_texts_can_be_event_times(tmp_path, type_, can):
    output = pa.schema([("event_time", type_)])
    assert findings(tmp_path, push(), output=output) == ([] if can else ["L7 7"])


@pytest.mark.parametrize(
    ("type_", "can"), [("time", False), ("duration", False), ("uInt64", True), ("int8", True)]
)
def test_l7_the_declared_type_decides(tmp_path, type_, can):
    read = f"{{kind: csv, schema: {{fields: [{{name: event_time, type: {type_}}}]}}}}"
    assert findings(tmp_path, push(read=read)) == ([] if can else ["L7 7"])


def test_l8_a_snapshot_without_metadata_time_has_no_finding(tmp_path):
    for fetch in ("{kind: url, url: u, eventTime: fromSystemTime}", "{kind: filesGlob, path: '*'}"):
        assert findings(tmp_path, polling(key("city", kind="snapshot"), fetch=fetch)) == []


def test_l9_every_old_option_is_reported_with_a_remedy(tmp_path):
    removed = "comment: '#', enforceSchema: true, ignoreLeadingWhiteSpace: false, ignoreTrailingWhiteSpace: true, emptyValue: '', nanValue: NaN, positiveInf: Inf, negativeInf: -Inf"
    old = key(
        "city",
        kind="snapshot",
        more=", observationColumn: observed, obsvAdded: I, obsvChanged: U, obsvRemoved: D",
    )
    reported = lints(
        dataset_of(manifest(polling(old, fetch=TIMED, read=f"{{kind: csv, {removed}}}")), tmp_path)
    )
    assert [lint.code for lint in reported] == ["L9"] * 12
    assert all(lint.remedy for lint in reported)
    assert "comment was removed from Csv" in [lint.message for lint in reported]


@pytest.mark.parametrize(
    ("merge", "reserved"),
    [
        ("{kind: append}", {"offset", "system_time", "op"}),
        ("{kind: append, encoding: op}", {"offset", "system_time", "op"}),
        (key("k"), {"offset", "system_time", "op"}),
        (key("k", kind="snapshot"), {"offset", "system_time", "op", "observed"}),
        (key("k", kind="snapshot", more=", encoding: op"), {"offset", "system_time", "op"}),
        (key("k", kind="upsertStream"), {"offset", "system_time"}),
        (key("k", kind="changelogStream"), {"offset", "system_time"}),
    ],
)
def test_l10_o11_the_reserved_names_of_each_merge(tmp_path, merge, reserved):
    names = ["k", "offset", "system_time", "op", "observed", "event_time", "Offset"]
    output = pa.schema([(name, pa.string()) for name in names])
    reported = lints(dataset_of(manifest(polling(merge, fetch=TIMED)), tmp_path), lambda *_: output)
    assert {lint.message.split("'")[1] for lint in reported if lint.code == "L10"} == reserved


def test_l10_follows_the_vocabulary(tmp_path):
    vocab = "{kind: setVocab, offsetColumn: a, systemTimeColumn: b, operationTypeColumn: c}"
    output = pa.schema([(name, pa.string()) for name in ("a", "b", "c", "offset", "op", "system_time")])
    assert findings(tmp_path, push(), vocab, output=output) == ["L10 7"] * 3


def test_l10_input_columns_of_a_query_have_no_finding(tmp_path):
    read = "{kind: csv, schema: {fields: [{name: offset, type: int64}]}}"
    assert findings(tmp_path, push(read=read, preprocess=SQL)) == []


# Findings


def test_each_source_has_its_findings(tmp_path):
    dataset = dataset_of(manifest(push(key(), name="a"), push(key(), name="b")), tmp_path)
    assert [lint.line for lint in lints(dataset)] == [10, 14]


def test_a_stored_dataset_has_findings_without_lines(tmp_path):
    stored = from_document(dataset_of(manifest(push(key())), tmp_path).document, tmp_path)
    [lint] = lints(stored)
    assert (lint.code, lint.line) == ("L3", None)
    assert lint.place == "the manifest of cities, content.metadata[0].merge.primaryKey"


def test_an_error_ends_the_command_with_its_code_and_line(tmp_path):
    with pytest.raises(UsageError) as refused:
        refuse_errors(lints(dataset_of(manifest(push(key("town"), read=READ)), tmp_path)))
    assert (refused.value.code, refused.value.exit_code) == ("lint-L2", 2)
    assert (
        "cities.yaml, line 10, content.metadata[0].merge.primaryKey[0]: there is no column 'town'"
        in refused.value.message
    )
    assert refused.value.remedy == "Known are city, year, at, note."


def test_warnings_and_notes_do_not_end_the_command(tmp_path):
    refuse_errors(lints(dataset_of(manifest(polling(key("note", kind="snapshot"), read=READ)), tmp_path)))
