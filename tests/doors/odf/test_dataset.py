"""The fold of a manifest's events, and invalid manifests (R5, R6, R7, R9, R11; O2, O11, O12, O14)."""

from dataclasses import replace

import pytest
from manifesting import dataset_of, manifest, polling, push, refusal

from backstory.documents import validate
from backstory.doors.odf.manifest.dataset import fold, from_document, manifest_document, same_name
from backstory.doors.odf.manifest.events import Append, DatasetSnapshot, encoding_of
from backstory.errors import UsageError
from backstory.strategies.events.terms import EventEncoding

# The fold


def test_a_dataset_without_events_has_the_default_vocabulary(tmp_path):
    dataset = dataset_of(manifest(), tmp_path)
    vocab = dataset.vocab
    assert (dataset.polling, dataset.push, dataset.schema, dataset.polling_disabled) == (
        None,
        {},
        None,
        False,
    )
    assert (vocab.offset_column, vocab.operation_type_column) == ("offset", "op")
    assert (vocab.system_time_column, vocab.event_time_column) == ("system_time", "event_time")


def test_each_event_sets_its_part(tmp_path):
    dataset = dataset_of(
        manifest(
            push(),
            "{kind: setInfo, description: d}",
            "{kind: setLicense, shortName: s, name: n, websiteUrl: w}",
            "{kind: setAttachments, attachments: {kind: embedded, items: []}}",
            "{kind: setVocab, eventTimeColumn: at}",
            "{kind: setDataSchema, schema: {fields: [{name: a, type: string}]}}",
        ),
        tmp_path,
    )
    assert list(dataset.push) == ["default"]
    assert (dataset.vocab.event_time_column, dataset.schema.fields_[0].name) == ("at", "a")


def test_a_newer_event_replaces_an_older_event(tmp_path):
    dataset = dataset_of(
        manifest("{kind: setVocab, eventTimeColumn: a}", "{kind: setVocab, offsetColumn: o}"), tmp_path
    )
    assert (dataset.vocab.event_time_column, dataset.vocab.offset_column) == ("event_time", "o")


def test_a_push_source_that_is_added_again_is_replaced(tmp_path):
    """B44: It has the newer event's position in the document."""
    ledger = "{kind: ledger, primaryKey: [a]}"
    dataset = dataset_of(manifest(push(), push(ledger, "b"), push(ledger)), tmp_path)
    assert [source.merge.kind for source in dataset.push.values()] == ["Ledger", "Ledger"]
    assert [path[-1] for path, _ in dataset.sources()] == [2, 1]


def test_the_account_is_not_part_of_the_name(tmp_path):
    dataset = dataset_of(manifest().replace("name: cities", "name: Me/demo.City-2"), tmp_path)
    assert dataset.name == "demo.City-2"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("demo.City", "demo.city", True),
        ("a/x", "b/X", True),
        ("x", "a/x", True),
        ("a-b", "a.b", False),
        ("ab", "a-b", False),
    ],
)
def test_r7_names_compare_without_case_and_account(one, other, same):
    assert same_name(one, other) is same


@pytest.mark.parametrize(
    ("merge", "encoding"),
    [
        ("{kind: append}", None),
        ("{kind: append, encoding: op}", "op"),
        ("{kind: ledger, primaryKey: [a]}", None),
        ("{kind: ledger, primaryKey: [a], encoding: op}", "op"),
        ("{kind: snapshot, primaryKey: [a]}", "observed"),
        ("{kind: snapshot, primaryKey: [a], encoding: observed}", "observed"),
        ("{kind: snapshot, primaryKey: [a], encoding: op}", "op"),
        ("{kind: upsertStream, primaryKey: [a]}", "op"),
        ("{kind: changelogStream, primaryKey: [a], encoding: op}", "op"),
    ],
)
def test_o2_each_merge_has_its_encoding(tmp_path, merge, encoding):
    assert encoding_of(dataset_of(manifest(polling(merge)), tmp_path).polling.merge) == encoding


# The stored document


def test_a_dataset_is_restored_from_its_document(tmp_path):
    """Templates and the base folder of relative paths are kept."""
    text = manifest(
        polling(fetch="{kind: url, url: '${{ env.A }}', eventTime: fromMetadata}"), "{kind: setInfo}"
    )
    dataset = dataset_of(text, tmp_path)
    again = from_document(dataset.document, tmp_path)
    assert again == dataset
    assert again.document["content"]["metadata"][0]["fetch"]["url"] == "${{ env.A }}"


def test_an_invalid_stored_manifest_is_reported_without_a_line():
    document = {
        "kind": "DatasetSnapshot",
        "version": 1,
        "content": {"name": "x", "kind": "Root", "metadata": [{}]},
    }
    with pytest.raises(UsageError) as refused:
        validate(DatasetSnapshot, manifest_document(document))
    assert refused.value.message == "the manifest of x, content.metadata[0]: this event has no kind."


def test_line_numbers_do_not_affect_the_equality_of_datasets(tmp_path):
    dataset = dataset_of(manifest(push()), tmp_path)
    assert dataset == dataset_of(f"# a comment\n\n{manifest(push())}", tmp_path)
    assert dataset != replace(dataset, name="other")


# Disabling (R5, D31)


def test_r82_a_known_dataset_may_lose_its_polling_source(tmp_path):
    dataset = dataset_of(manifest(polling(), "kind: disablePollingSource"), tmp_path, known=True)
    assert (dataset.polling_disabled, dataset.polling is None) == (True, False)
    assert dataset_of(manifest("kind: disablePollingSource"), tmp_path, known=True).polling_disabled


def test_a_polling_source_that_is_set_again_is_enabled(tmp_path):
    text = manifest(polling(), "kind: disablePollingSource", polling())
    assert not dataset_of(text, tmp_path, known=True).polling_disabled


def test_r82_a_known_dataset_may_lose_a_push_source(tmp_path):
    events = (push(name="a"), push(name="b"), "{kind: disablePushSource, sourceName: a}")
    assert dataset_of(manifest(*events), tmp_path, known=True).disabled_push == {"a"}
    assert dataset_of(manifest(*events, push(name="a")), tmp_path, known=True).disabled_push == set()


# Rules, each with its line

OBSERVED_LEDGER = "{kind: ledger, primaryKey: [a], encoding: observed}"
RULES = [
    ([polling(), push()], "line 11, content.metadata[1]: the dataset has SetPollingSource already, on line 7"),
    ([push(), polling()], "line 11, content.metadata[1]: the dataset has AddPushSource already, on line 7"),
    ([push(), push()], "line 11, content.metadata[1]: this event repeats an earlier one."),
    (["kind: setInfo", "kind: setInfo"], "line 8, content.metadata[1]: this event repeats an earlier one."),
    (["kind: setTransform"], "line 7, content.metadata[0]: SetTransform belongs to derivative datasets."),
    ([push(read="{kind: csv, schema: {fields: []}, ddlSchema: [a INT]}")], "line 9, content.metadata[0].read.ddlSchema: there are both schema and ddlSchema."),
    ([push(read="\n  kind: csv\n  ddlSchema:\n  - a INT\n  - b INTT")], "line 13, content.metadata[0].read.ddlSchema[1]: INTT is not a supported type"),
    ([push(read="\n  kind: csv\n  ddlSchema:\n  - a INT\n  - a DATE")], "line 13, content.metadata[0].read.ddlSchema[1]: the column 'a' is named twice."),
    ([push(read="{kind: csv, schema: {fields: [{name: a, type: date}, {name: a, type: date}]}}")], "line 9, content.metadata[0].read.schema.fields[1]: the column 'a' is named twice."),
    (["kind: setDataSchema\nschema:\n  fields:\n  - {name: a, type: date}\n  - {name: a, type: date}"], "line 11, content.metadata[0].schema.fields[1]: the column 'a' is named twice."),
    ([push(preprocess="{kind: sql, engine: flink, query: q}")], "line 10, content.metadata[0].preprocess.engine: the engine 'flink' is not supported."),
    ([push(preprocess="{kind: sql}")], "line 10, content.metadata[0].preprocess: there is neither query nor queries."),
    ([push(preprocess="{kind: sql, query: q, queries: [{query: q}]}")], "line 10, content.metadata[0].preprocess: there is both query and queries."),
    ([push(preprocess="\n  kind: sql\n  queries:\n  - query: q\n  - query: r")], "line 14, content.metadata[0].preprocess.queries[1]: two steps have no alias."),
    ([push(preprocess="{kind: sql, queries: [{alias: a, query: q}]}")], "line 10, content.metadata[0].preprocess.queries: every step has an alias."),
    ([push(preprocess="{kind: sql, queries: []}")], "line 10, content.metadata[0].preprocess.queries: every step has an alias."),
    ([push(preprocess="\n  kind: sql\n  queries:\n  - {alias: a, query: q}\n  - {alias: a, query: q}\n  - {query: q}")], "line 14, content.metadata[0].preprocess.queries[1].alias: the table 'a' exists already."),
    ([push(preprocess="{kind: sql, queries: [{alias: input, query: q}, {query: q}]}")], "preprocess.queries[0].alias: the table 'input' exists already."),
    ([push(preprocess="{kind: sql, query: q, temporalTables: [{name: a, primaryKey: [b]}]}")], "line 10, content.metadata[0].preprocess.temporalTables: only Flink"),
    ([push(OBSERVED_LEDGER)], "line 10, content.metadata[0].merge.encoding: Ledger does not support the encoding observed."),
    ([push("{kind: append, encoding: observed}")], "line 10, content.metadata[0].merge.encoding: Append does not support the encoding observed."),
    ([push("{kind: upsertStream, primaryKey: [a], encoding: observed}")], "merge.encoding: UpsertStream does not support the encoding observed."),
    ([push("{kind: changelogStream, primaryKey: [a], encoding: observed}")], "merge.encoding: ChangelogStream does not support the encoding observed."),
    ([push("{kind: ledger, primaryKey: [a], onConflict: correct}")], "line 10, content.metadata[0].merge.onConflict: corrections are pairs of rows"),
    ([push("{kind: snapshot, primaryKey: [a], obsvAdded: A}")], "line 10, content.metadata[0].merge.obsvAdded: the column observed holds I, U and D"),
    ([push("{kind: snapshot, primaryKey: [a], observationColumn: seen}")], "merge.observationColumn: the column observed holds"),
    ([push("{kind: snapshot, primaryKey: [a], obsvChanged: u}")], "merge.obsvChanged: the column observed holds"),
    ([push("{kind: snapshot, primaryKey: [a], obsvRemoved: X}")], "merge.obsvRemoved: the column observed holds"),
    (["kind: setVocab\nofsetColumn: a"], "line 8, content.metadata[0].ofsetColumn: there is no such key."),
    (["kind: setVocab\neventTimeColumn: op"], "line 8, content.metadata[0].eventTimeColumn: 'op' is the name of another system column."),
    (["kind: setVocab\noffsetColumn: system_time"], "line 8, content.metadata[0].offsetColumn: 'system_time' is the name of another system column."),
    (["kind: setVocab\noffsetColumn: a\nsystemTimeColumn: a"], "line 9, content.metadata[0].systemTimeColumn: 'a' is the name of another system column."),
    ([push("{kind: snapshot, primaryKey: [a]}"), "kind: setVocab\neventTimeColumn: observed"], "line 12, content.metadata[1].eventTimeColumn: 'observed' is the name of another system column."),
    ([push(), push("{kind: upsertStream, primaryKey: [a]}", "b")], "line 14, content.metadata[1].merge: the push sources 'default' and 'b' write different columns."),
    ([push("{kind: ledger, primaryKey: [a]}"), push("{kind: ledger, primaryKey: [b]}", "b")], "line 14, content.metadata[1].merge: the push sources 'default' and 'b' have different primary keys."),
]  # fmt: skip


@pytest.mark.parametrize(("events", "message"), RULES, ids=[rule[1][-50:] for rule in RULES])
def test_each_rule_violation_is_refused_with_path_and_line(tmp_path, events, message):
    text = refusal(manifest(*events), tmp_path, known=False).message
    assert text.startswith("cities.yaml, line ")
    assert message in text


def test_a_derivative_dataset_is_refused(tmp_path):
    wrong = refusal(manifest().replace("kind: Root", "kind: derivative"), tmp_path)
    assert wrong.message == "cities.yaml, line 5, content.kind: this is a derivative dataset."
    assert "Only root datasets" in wrong.remedy


def test_o12_the_engines_are_listed(tmp_path):
    wrong = refusal(manifest(push(preprocess="{kind: sql, engine: risingwave, query: q}")), tmp_path)
    assert wrong.remedy == "Supported engines are spark, datafusion."


@pytest.mark.parametrize("engine", ["engine: spark, ", "engine: datafusion, ", "engine: Spark, ", ""])
def test_o12_supported_engines_are_accepted(tmp_path, engine):
    text = manifest(
        push(preprocess=f"{{kind: sql, {engine}queries: [{{alias: a, query: q}}, {{query: q}}]}}")
    )
    assert dataset_of(text, tmp_path).push["default"].preprocess.queries[0].alias == "a"


@pytest.mark.parametrize(
    "fetch",
    [
        "{kind: url, url: '${{ A }}'}",
        "{kind: url, url: u, headers: [{name: a, value: '${{ x'}]}",
        "{kind: container, image: '${{}}'}",
        "{kind: container, image: i, args: [a, '${{ || }}']}",
        "{kind: container, image: i, env: [{name: a, value: '${{ env. }}'}]}",
        "{kind: mqtt, host: h, port: 1, topics: [{path: p}], password: '${{ env.A env.B }}'}",
        "{kind: evmLogs, nodeUrl: '${{ env.A | b }}'}",
    ],
)
def test_a_broken_template_is_refused_with_its_line(tmp_path, fetch):
    text = refusal(manifest(polling(fetch=fetch)), tmp_path, code="template-invalid-pattern").message
    assert text.startswith("cities.yaml, line 8, content.metadata[0].fetch.")


def test_a_glob_path_is_not_a_template(tmp_path):
    text = manifest(polling(fetch="{kind: filesGlob, path: '${{ x'}"))
    assert dataset_of(text, tmp_path).polling.fetch.path == "${{ x"


def test_r11_old_fields_with_default_values_are_accepted(tmp_path):
    old = "observationColumn: observed, obsvAdded: I, obsvChanged: U, obsvRemoved: D"
    dataset = dataset_of(manifest(push(f"{{kind: snapshot, primaryKey: [a], {old}}}")), tmp_path)
    assert encoding_of(dataset.push["default"].merge) is EventEncoding.OBSERVED


def test_corrections_are_accepted_with_the_op_encoding(tmp_path):
    text = manifest(push("{kind: ledger, primaryKey: [a], onConflict: correct, encoding: op}"))
    assert dataset_of(text, tmp_path).push["default"].merge.on_conflict == "correct"


def test_observed_can_be_a_column_name_in_other_encodings(tmp_path):
    text = manifest(push(), "{kind: setVocab, eventTimeColumn: observed}")
    assert dataset_of(text, tmp_path).vocab.event_time_column == "observed"


def test_a_manifest_can_be_built_from_objects(tmp_path):
    """Objects that Python creates can also be folded."""
    snapshot = DatasetSnapshot.model_validate(
        {"kind": "DatasetSnapshot", "version": 1, "content": {"name": "a", "kind": "Root", "metadata": []}}
    )
    assert fold(snapshot, tmp_path, known=False).name == "a"
    assert encoding_of(Append()) is None
