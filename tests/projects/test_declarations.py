"""A project file declares the tables, and its errors have line and column, before anything runs."""

import json
from datetime import timedelta

import pytest

from backstory.errors import UsageError
from backstory.projects.declarations import read_project, select, upstream_of
from backstory.projects.entries import GroupEntry, Histories, json_schema
from backstory.projects.files import fill_in

HEAD = "format: histories/1\n"
MODEL = """format: historize/1
target_schemas: [{short_name: rawcore, schema_name: rawcore}]
target_datasets:
  - target_schema: rawcore
    target_dataset_name: customer
    input: table:crm.customer
    historize: true
    target_columns:
      - {target_column_name: id, datatype: BIGINT, system_role: business_key}
      - {target_column_name: name, datatype: STRING}
"""


@pytest.fixture
def project(tmp_path):
    """Read a text as a project file."""

    def read(text):
        (tmp_path / "histories.yaml").write_text(HEAD + text)
        return read_project(tmp_path / "histories.yaml")

    return read


def by_name(project):
    return {each.name: each for each in project.declarations}


def test_table_options_override_group_options_and_defaults(project):
    read = by_name(
        project(
            """
defaults: {max_delete_ratio: 0.1, max_null_ratio: 0.2, tags: all}
groups:
  daily: {max_delete_ratio: 0.3, source: "exports/{schema}/{table}.csv", tags: [nightly], expect: every 26h}
tables:
  crm.customer: {group: daily, key: "a, b", max-delete-ratio: 0.4}
  crm.order: {source: orders.csv, key: id}
"""
        )
    )
    customer, order = read["crm.customer"], read["crm.order"]
    assert customer.source == "exports/crm/customer.csv"
    assert customer.options == {"max_delete_ratio": 0.4, "max_null_ratio": 0.2, "key": ("a", "b")}
    assert (customer.tags, customer.expect) == (frozenset({"all", "nightly"}), timedelta(hours=26))
    assert (order.options["max_delete_ratio"], order.expect) == (0.1, None)


def test_a_sequence_or_envelope_declares_a_feed_without_snapshot_defaults(project):
    read = by_name(
        project(
            """
defaults: {max_delete_ratio: 0.1}
tables:
  crm.feed: {source: "f/*.jsonl", key: id, sequence_by: "ts, f(a, b)"}
  crm.debezium: {source: d.jsonl, key: id, envelope: debezium}
"""
        )
    )
    assert {each.kind for each in read.values()} == {"apply"}
    assert read["crm.feed"].options == {"key": ("id",), "sequence_by": ("ts", "f(a, b)")}


@pytest.mark.parametrize(
    ("text", "place", "remedy"),
    [
        (
            "tables: {a.b: {sorce: x.csv}}",
            "line 2, column 16, tables.a.b.sorce: there is no such key",
            "source",
        ),
        ("table: {}", "line 2, column 1, table: there is no such key", "tables"),
        ("tables:\n  a.b: {key: id}", "line 3, column 3, tables.a.b: source is missing", "database"),
        ("tables: {ab: {source: x.csv}}", "tables.ab: 'ab' does not name a table", "schema.table"),
        (
            "tables:\n  2026.10: {source: x.csv}",
            "line 3, column 3, tables.2026.1: YAML reads",
            "name in quotes",
        ),
        ("groups: {null: {key: id}}\ntables: {}", "line 2, column 10, groups.None: YAML reads", "in quotes"),
        ("tables: {a.b: {source: x.csv, group: dayly}}\ngroups: {daily: {}}", "no group dayly", "daily"),
        ("tables: {a.b: {source: x.csv, expect: sometimes}}", "'sometimes' is not a time", "every 26h"),
        *(
            (f"tables: {{a.b: {{source: x.csv, expect: every {count}}}}}", "is not a time", "365000d")
            for count in ("9" * 90 + "d", "999999999w", "0h", "365001d")
        ),
        ('tables: {"a\\0.b": {source: x.csv}}', "does not name a table", "schema.table"),
        ("tables: {a.b: {source: x.csv, max_delete_ratio: 3}}", "must be between 0 and 1", "0.8"),
        ("tables: {a.b: {source: x.csv, late: drop}}", "late is an option of feeds", "sequence_by"),
        *(
            (f"tables: {{a.b: {{source: x.csv, restart: true, {partial}}}}}", "all records", "restart: false")
            for partial in ("sequence_by: t", "deletes: ignore", "scope: {region: EU}")
        ),
        ("tables: {a.b: {source: x.csv, at: yesterday}}", "line 2, column 31, tables.a.b.at", ""),
        ("tables: {a.b: {source: x.csv, at: transaction}}", "This source has no transaction", "at: file"),
        ("tables: {a.b: {source: 'x-{at:%Q}.csv'}}", "%Q has no meaning", "%Y"),
        ("tables: {a.b: {source: x.csv, sequence_by: t, at: file}}", "A feed has no `at`", "Leave it out"),
        ("tables: {a.b: {source: x.csv, key: a, key: b}}", "line 2", ""),
        ("tables: {a.b: {source: x.csv, max-null-ratio: 1, max_null_ratio: 0}}", "two spellings", ""),
        ("tables: {a.b: {source: x.csv, after: c.e}, c.d: {source: y.csv}}", "`after` names c.e", "c.d"),
        ("models: [m.yaml]", "line 2, column 10, models[0]: The model", "existing YAML"),
    ],
)
def test_errors_in_a_project_file_have_place_and_remedy(project, text, place, remedy):
    with pytest.raises(UsageError) as wrong:
        project(text)
    assert place in wrong.value.message
    assert remedy in wrong.value.remedy


@pytest.mark.parametrize(
    "text",
    [
        "tables: {a.b: {source: 'postgresql://me:canary@db/crm?table=t'}}",
        "groups: {g: {source: 'postgresql://me:canary@db/crm?table={table}'}}",
        "models: [{file: m.yaml, url: 'postgresql://me:canary@db/crm'}]",
    ],
)
def test_a_literal_secret_in_the_file_is_refused(project, text):
    with pytest.raises(UsageError) as wrong:
        project(text)
    assert wrong.value.code == "literal-secret"
    assert "canary" not in str(wrong.value)


def test_variables_are_filled_in_late_and_their_values_never_shown(project, monkeypatch):
    read = by_name(project("tables: {a.b: {source: 'postgresql://me:${PW}@db/crm?table={table}'}}"))["a.b"]
    assert read.source == "postgresql://me:${PW}@db/crm?table=b"
    monkeypatch.setenv("PW", "canary")
    assert "me:canary@" in fill_in(read.source)
    monkeypatch.delenv("PW")
    with pytest.raises(UsageError, match=r"tables\.a\.b: .*PW is not set"):
        fill_in(read.source, read.place)


def test_readers_of_a_table_wait_for_its_writers(project, tmp_path):
    (tmp_path / "m.yaml").write_text(MODEL)
    read = project(
        """
models: [{file: m.yaml, tags: [core]}]
tables:
  mart.names: {source: "table:rawcore.customer_hist", key: id}
  crm.customer: {source: c.csv, key: id, tags: core}
  crm.order: {source: o.csv, key: id, after: mart.names}
"""
    )
    upstream = upstream_of(read)
    assert upstream == {
        "crm.customer": frozenset(),
        "m.yaml": frozenset({"crm.customer"}),
        "mart.names": frozenset({"m.yaml"}),
        "crm.order": frozenset({"mart.names"}),
    }

    def names(*words):
        return {each.name for each in select(read, upstream, words)}

    assert names() == set(upstream)
    assert names("tag:core") == {"m.yaml", "crm.customer"}
    assert names("crm.*") == {"crm.customer", "crm.order"}
    assert names("+m.yaml") == {"m.yaml", "crm.customer"}
    assert names("m.yaml+") == {"m.yaml", "mart.names", "crm.order"}
    assert names("+tag:core+") == set(upstream)
    with pytest.raises(UsageError, match=r"crm\.customers selects nothing.*Did you mean crm\.customer\?"):
        names("crm.customers")


def test_circular_dependencies_and_double_writers_are_refused(project, tmp_path):
    ring = "tables: {a.b: {source: 'table:a.c', key: id}, a.c: {source: 'table:a.b', key: id}}"
    with pytest.raises(UsageError, match=r"wait for each other: a\.[bc] -> a\.[bc] -> a\.[bc]"):
        upstream_of(project(ring))
    (tmp_path / "m.yaml").write_text(MODEL)
    doubled = "models: [m.yaml]\ntables: {rawcore.customer: {source: c.csv, key: id}}"
    with pytest.raises(UsageError, match=r"models\[0\]: rawcore.customer is written by two declarations"):
        project(doubled)


def test_the_editor_schema_describes_every_key():
    schema = json_schema()
    assert schema["required"] == ["format"]
    properties = schema["$defs"]["TableEntry"]["properties"]
    assert {"source", "key", "sequence_by", "max_delete_ratio", "expect"} <= properties.keys()
    assert all(each.get("description") for each in properties.values())
    assert json.loads(json.dumps(schema)) == schema
    assert Histories.model_fields.keys() == schema["properties"].keys()
    assert GroupEntry.model_fields.keys() < properties.keys()
