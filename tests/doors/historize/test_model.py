"""The document of a model and its errors (section 1; R1 to R3, R5, R9, R26)."""

import re
from pathlib import Path

import pytest
from historizing import dataset, document, load_of, model_of
from ruamel.yaml import YAML

from backstory.dialects import DuckDB
from backstory.doors.historize.door import datasets_to_load
from backstory.doors.historize.hist_state import as_yaml
from backstory.doors.historize.model import Model
from backstory.doors.historize.resolve import findings, is_hist, read_model, resolve, schema_of
from backstory.errors import UsageError
from backstory.testing.conformance_bench import Hashes

# Section 1.3 as it is printed there, without `hist_state`.
PRINTED = """\
format: historize/1
environment: dev                   # selects increment policies and pepper variable
dialect: spark_iceberg             # see 5.4
hash_profile: elevata_v1           # or strict_v2, see 2.4
target_schemas:
  - short_name: rawcore
    database_name: lake
    schema_name: rawcore
    surrogate_key_null_token: null_replaced
    surrogate_key_pair_separator: "~"
    surrogate_key_component_separator: "|"
source_datasets:
  - name: crm.customer
    incremental: true
    increment_filter: "ModifiedDate >= {{DELTA_CUTOFF}}"
    increment_policies:
      - {environment: dev, increment_interval_length: 30, increment_interval_unit: day}
target_datasets:
  - target_schema: rawcore
    target_dataset_name: rc_crm_customer
    lineage_key: "rawcore:crm.customer"
    former_names: [rc_crm_client]
    historize: true
    handle_deletes: true
    incremental_strategy: merge
    incremental_source: crm.customer
    target_columns:                # order = ordinal_position; key/technical columns are generated
      - {target_column_name: customer_id, datatype: BIGINT, system_role: business_key, nullable: false,
         input: stage.stg_crm_customer.customer_id}
      - {target_column_name: mandant, datatype: STRING, max_length: 3, system_role: business_key,
         nullable: false, input: stage.stg_crm_customer.mandant}
      - {target_column_name: name, datatype: STRING, input: stage.stg_crm_customer.name}
      - {target_column_name: credit, datatype: DECIMAL, decimal_precision: 10, decimal_scale: 2,
         former_names: [credit_limit], input: stage.stg_crm_customer.credit}
    references:
      - {id: 17, referenced_dataset: rc_crm_region, reference_prefix: home,
         key_components: [{from: region_code, to: region_code}]}
    historization:                 # everything optional
      engine: auto                 # auto | four_step | merge (9.5)
      snapshot: full               # full | partial; partial requires delete_scope
      delete_scope: null           # boolean expression over hist columns, alias h
      max_delete_ratio: null       # e.g. 0.2
      allow_empty_snapshot: false
      duplicate_keys: reject       # reject | collapse_identical
      reappear_state: new
      on_incompatible_type: block  # block | fork (4.4)
"""
# The parts that the printed model leaves to other files: the column of the reference, and the parent.
COLUMN = """\
      - {target_column_name: region_code, datatype: STRING, input: stage.stg_crm_customer.region_code}
    references:
"""
PARENT = """\
  - target_schema: rawcore
    target_dataset_name: rc_crm_region
    input: stage.stg_crm_region
    target_columns:
      - {target_column_name: region_code, datatype: STRING, system_role: business_key, nullable: false}
"""
WHOLE = PRINTED.replace("    references:\n", COLUMN) + PARENT


def loaded(text, folder):
    """The model from a text, as written and resolved."""
    path = Path(folder, "model.yaml")
    path.write_text(text, encoding="utf-8")
    written, yaml_document = read_model(path)
    return written, resolve(written, yaml_document)


def refusal(text, folder):
    with pytest.raises(UsageError) as refused:
        loaded(text, folder)
    assert refused.value.code == "wrong-model"
    return refused.value


# R1


def test_r1_the_printed_model_is_read(tmp_path):
    """R1: The model of section 1.3 resolves to itself. Its reference to an unknown dataset is reported and
    makes no column."""
    path = tmp_path / "model.yaml"
    path.write_text(PRINTED)
    written, _ = read_model(path)
    (customer,) = written.target_datasets
    assert [column.name for column in customer.target_columns] == ["customer_id", "mandant", "name", "credit"]
    assert customer.references[0].column == "home_rc_crm_region_key"
    _, model = loaded(PRINTED, tmp_path)
    assert "home_rc_crm_region_key" not in {each.name for each in model.target_datasets[0].target_columns}
    assert "rc_crm_region" in " ".join(findings(model))
    once = as_yaml(model)
    assert as_yaml(loaded(once, tmp_path)[1]) == once


def test_r1_a_resolved_model_resolves_to_itself(tmp_path):
    """R1: A resolved document that is loaded and resolved again is the same, byte for byte."""
    _, model = loaded(WHOLE, tmp_path)
    once = as_yaml(model)
    _, again = loaded(once, tmp_path)
    assert as_yaml(again) == once
    assert again == model


def test_r1_every_default_is_written_out(tmp_path):
    """R1, 1.1: Layer, dataset and columns get the defaults of section 1.1."""
    text = "format: historize/1\ntarget_schemas: [{short_name: rawcore}]\ntarget_datasets:\n" + PARENT
    _, model = loaded(text, tmp_path)
    (schema,), (region,) = model.target_schemas, model.target_datasets
    assert (schema.schema_name, schema.physical_prefix, schema.default_historize) == ("rawcore", "rc", True)
    assert (schema.incremental_strategy_default, schema.hash_profile) == ("merge", "elevata_v1")
    separators = (schema.surrogate_key_null_token, schema.surrogate_key_pair_separator)
    assert separators == ("null_replaced", "~")
    assert (region.historize, region.incremental_strategy, region.materialization_type) == (
        True,
        "full",
        "table",
    )
    assert (region.lineage_key, region.handle_deletes) == ("rawcore:rc_crm_region", True)
    columns = [(column.name, str(column.system_role or ""), column.input) for column in region.target_columns]
    assert columns == [
        ("rc_crm_region_key", "surrogate_key", None),
        ("region_code", "business_key", "region_code"),
        ("row_hash", "row_hash", None),
        ("load_run_id", "load_run_id", None),
        ("loaded_at", "loaded_at", None),
    ]
    assert "    snapshot: full\n" in as_yaml(model)


@pytest.mark.parametrize(
    ("old", "new", "place", "remedy"),
    [
        ("environment:", "enviroment:", "line 2, enviroment", "Did you mean environment?"),
        (
            "database_name:",
            "databse_name:",
            "line 7, target_schemas[0].databse_name",
            "Did you mean database_name?",
        ),
        (
            "increment_filter:",
            "increment_filtr:",
            "line 15, source_datasets[0].increment_filtr",
            "Did you mean increment_filter?",
        ),
        (
            "increment_interval_unit: day",
            "interval_unit: day",
            "line 17, source_datasets[0].increment_policies[0].interval_unit",
            "Did you mean increment_interval_unit?",
        ),
        (
            "handle_deletes:",
            "handle_delets:",
            "line 24, target_datasets[0].handle_delets",
            "Did you mean handle_deletes?",
        ),
        (
            "datatype: STRING, max_length: 3",
            "datatype: STRING, max_lenght: 3",
            "line 30, target_datasets[0].target_columns[1].max_lenght",
            "Did you mean max_length?",
        ),
        (
            "reference_prefix: home",
            "refernce_prefix: home",
            "line 37, target_datasets[0].references[0].refernce_prefix",
            "Did you mean reference_prefix?",
        ),
        (
            "name: name, datatype: STRING,",
            "name: name, datatype: FLOAT, hash_as: {precison: 9, scale: 2},",
            "line 32, target_datasets[0].target_columns[2].hash_as.precison",
            "Did you mean precision?",
        ),
        (
            "engine: auto",
            "enginee: auto",
            "line 40, target_datasets[0].historization.enginee",
            "Did you mean engine?",
        ),
        (
            "engine: auto",
            "zzz: auto",
            "line 40, target_datasets[0].historization.zzz",
            "Known are allow_empty_snapshot",
        ),
    ],
)
def test_r1_an_unknown_key_is_reported_with_its_place(tmp_path, old, new, place, remedy):
    """R1: The error contains path, line, and the nearest valid name."""
    wrong = refusal(WHOLE.replace(old, new, 1), tmp_path)
    assert wrong.message == f"model.yaml, {place}: there is no such key."
    assert wrong.remedy.startswith(remedy)


# The rules of section 1.1, each with its place

NAME55 = "rc_" + "a" * 52
RULES = [
    ("format: historize/1", "format: historize/2", "line 1, format", "not one of"),
    ("datatype: BIGINT", "datatype: LONG", "line 28, target_datasets[0].target_columns[0].datatype", "'LONG' is not one of"),
    ("short_name: rawcore", "short_name: Rawcore", "line 6, target_schemas[0].short_name", "does not match"),
    (
        "target_dataset_name: rc_crm_customer",
        "target_dataset_name: rc-crm",
        "line 20, target_datasets[0].target_dataset_name",
        "does not match",
    ),
    (
        "target_dataset_name: rc_crm_customer",
        f"target_dataset_name: {NAME55}",
        "line 20, target_datasets[0].target_dataset_name",
        "longer than 54 characters",
    ),
    (
        "target_dataset_name: rc_crm_customer",
        "target_dataset_name: rc_crm_hist",
        "line 20, target_datasets[0].target_dataset_name",
        "the name of a historized base must not end in _hist",
    ),
    ("target_schema: rawcore\n    target_dataset_name: rc_crm_customer", "target_schema: bizcore\n    target_dataset_name: rc_crm_customer", "line 19, target_datasets[0].target_schema", "there is no layer 'bizcore'"),
    ("target_column_name: name,", "target_column_name: row_hash,", "line 32, target_datasets[0].target_columns[2]", "is a reserved name"),
    ("target_column_name: name,", "target_column_name: rc_crm_customer_key,", "line 32, target_datasets[0].target_columns[2]", "is a reserved name"),
    ("target_column_name: name,", "target_column_name: rc_crm_customer_hist_key,", "line 32, target_datasets[0].target_columns[2]", "is a reserved name"),
    ("target_column_name: name,", "target_column_name: home_rc_crm_region_key,", "line 32, target_datasets[0].target_columns[2]", "is a reserved name"),
    ("target_column_name: name,", "target_column_name: mandant,", "line 32, target_datasets[0].target_columns[2]", "mandant is named twice"),
    ("target_column_name: name,", "target_column_name: Name,", "line 32, target_datasets[0].target_columns[2].target_column_name", "does not match"),
    ("decimal_scale: 2", "decimal_scale: 12", "line 33, target_datasets[0].target_columns[3].decimal_scale", "larger than the precision"),
    ("datatype: STRING, max_length: 3", "datatype: DATE, max_length: 3", "line 30, target_datasets[0].target_columns[1].max_length", "a DATE has no length"),
    ("datatype: BIGINT,", "datatype: BIGINT, decimal_scale: 1,", "line 28, target_datasets[0].target_columns[0]", "neither precision nor scale"),
    ("name: name, datatype: STRING,", "name: name, datatype: FLOAT,", "line 32, target_datasets[0].target_columns[2]", "a FLOAT cannot be hashed"),
    ("name: name, datatype: STRING,", "name: name, datatype: STRING, hash_as: 'DECIMAL(9,2)',", "line 32, target_datasets[0].target_columns[2].hash_as", "only for a FLOAT"),
    ("name: name, datatype: STRING,", "name: name, datatype: FLOAT, hash_as: 'DECIMAL',", "line 32, target_datasets[0].target_columns[2].hash_as", ""),
    ("input: stage.stg_crm_customer.name}", "input: stage.other.name}", "line 32, target_datasets[0].target_columns[2].input", "other columns are read from stage.stg_crm_customer"),
    ("input: stage.stg_crm_customer.name}", "input: name}", "line 32, target_datasets[0].target_columns[2].input", "names no column of a table or file"),
    ("input: stage.stg_crm_customer.name}", "input: 'stage.stg_crm_customer.{{ load_run_id }}'}", "line 32, target_datasets[0].target_columns[2]", "a part of '{{ load_run_id }}' looks like a placeholder"),
    ("input: stage.stg_crm_customer.mandant}", "key_name: '{{mandant}}', input: stage.stg_crm_customer.mandant}", "line 30, target_datasets[0].target_columns[1]", "looks like a placeholder"),
    ("incremental_source: crm.customer", "incremental_source: crm.nobody", "line 26, target_datasets[0].incremental_source", "there is no source dataset"),
    ("    incremental_source: crm.customer\n", "", "line 19, target_datasets[0]", "a merge needs business keys and an incremental_source"),
    ("incremental_strategy: merge", "incremental_strategy: append", "line 25, target_datasets[0].incremental_strategy", "is not supported"),
    ("incremental_strategy: merge", "incremental_strategy: snapshot", "line 25, target_datasets[0].incremental_strategy", "is not supported"),
    ("environment: dev  ", "environment: prod  ", "line 26, target_datasets[0].incremental_source", "no active policy for 'prod'"),
    ("{from: region_code, to: region_code}", "{from: nowhere, to: region_code}", "line 38, target_datasets[0].references[0].key_components", "there is no column 'nowhere'"),
    ("{from: region_code, to: region_code}", "{from: region_code, to: nowhere}", "line 38, target_datasets[0].references[0].key_components", "each business key of rc_crm_region (region_code) must be mapped exactly once"),
    ("{from: region_code, to: region_code}", "{from: customer_id, to: region_code}", "line 38, target_datasets[0].references[0].key_components", "customer_id is a BIGINT and region_code a STRING"),
    ("reference_prefix: home", f"reference_prefix: {'h' * 50}", "line 37, target_datasets[0].references[0]", "longer than 63 characters"),
    ("max_delete_ratio: null", "max_delete_ratio: 1.5", "line 43, target_datasets[0].historization.max_delete_ratio", "less than or equal to 1"),
    ("surrogate_key_null_token: null_replaced", 'surrogate_key_null_token: "a,b"', "line 9, target_schemas[0].surrogate_key_null_token", "does not match"),
    ("      - {target_column_name: region_code, datatype: STRING, system_role: business_key, nullable: false}", "      - {target_column_name: region_code, datatype: STRING}", "line 51, target_datasets[1].target_columns", "no column is a business_key"),
    ("    schema_name: rawcore\n", "    schema_name: rawcore\n    surrogate_keys_enabled: false\n", "line 20, target_datasets[0]", "needs surrogate_keys_enabled"),
    ("reappear_state: new", "reappear_state: again", "line 46, target_datasets[0].historization.reappear_state", "'again' is not one of"),
    ("reappear_state: new", "effective_dating: {column: name}", "line 39, target_datasets[0].historization", "effective_dating names no TIMESTAMP or DATE column"),
    ("reappear_state: new", "soft_delete: {column: nowhere}", "line 39, target_datasets[0].historization", "soft_delete names a column that does not exist"),
    ("reappear_state: new", "soft_delete: {column: name, deleted_at: name}", "line 39, target_datasets[0].historization", "deleted_at of soft_delete names no TIMESTAMP or DATE column"),
    ("reappear_state: new", "state_labels: {new: X, changed: X}", "line 39, target_datasets[0].historization", "two states have the same label"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "place", "why"), RULES, ids=[rule[1][:40] for rule in RULES])
def test_every_rule_violation_is_refused_with_its_place(tmp_path, old, new, place, why):
    """R2, R3, R9, R26, 1.1: The error contains path and line when the model is read."""
    assert WHOLE.count(old) >= 1
    message = refusal(WHOLE.replace(old, new, 1), tmp_path).message
    assert message.startswith(f"model.yaml, {place}: ")
    assert why in message


def test_a_repeated_name_is_refused(tmp_path):
    """1.1: Layers, sources and datasets have unique names."""
    assert (
        "target_datasets[2]: rawcore.rc_crm_region is named twice"
        in refusal(WHOLE + PARENT, tmp_path).message
    )
    layer = "  - short_name: rawcore\n"
    twice = WHOLE.replace("source_datasets:\n", f"{layer}source_datasets:\n", 1)
    assert "line 12, target_schemas[1]: rawcore is named twice" in refusal(twice, tmp_path).message


def test_r2_the_longest_names_that_fit(tmp_path):
    """R2: A base name may have 54 letters, and a column 63."""
    text = WHOLE.replace("rc_crm_customer", "rc_" + "a" * 51).replace("name: name,", f"name: {'n' * 63},")
    _, model = loaded(text, tmp_path)
    assert len(model.target_datasets[0].hist_key) == 63


# R3, R5


@pytest.mark.parametrize(
    ("name", "more", "history"),
    [
        ("rc_c", {}, False),
        ("rc_c_hist", {"incremental_strategy": "historize"}, True),
        ("rc_c_hist", {"historize": False}, False),
    ],
)
def test_r3_the_strategy_makes_a_dataset_a_history(name, more, history):
    """R3: Layer and strategy decide. A misleading name is reported, and a history is never historized."""
    model = model_of(document(dataset("k*", name, **more)))
    (target,) = model.target_datasets
    assert is_hist(target) is history
    assert bool(findings(model)) is (name.endswith("_hist") and not history)
    assert [each.name for each in datasets_to_load(model, None)] == (["rc_c"] if name == "rc_c" else [])


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("rc_c", {"incremental_strategy": "historize"}),
        ("rc_c_hist", {"incremental_strategy": "historize", "historize": True}),
    ],
)
def test_r3_a_history_that_contradicts_itself_is_refused(name, more):
    """R3: the suffix and the flags must agree with the strategy."""
    with pytest.raises(UsageError, match="a history has a name that ends in _hist"):
        model_of(document(dataset("k*", name, **more)))


def test_r5_the_order_of_business_keys_changes_nothing():
    """R5: The same values have the same key in any declared order, in Python and in SQL."""
    row, keys, sql = {"b": "1", "a": "2", "c": "3"}, set(), set()
    for columns in ("b* a* c*", "c* b* a*", "a* b* c*"):
        model = model_of(document(dataset(columns)))
        (base,) = model.target_datasets
        schema = schema_of(model, base)
        keys.add(Hashes(schema, "pepper").base_key(base, row))
        sql.add(load_of(model, DuckDB()).base_key("s"))
    assert len(keys) == len(sql) == 1


@pytest.mark.parametrize(
    "more",
    [
        {"hash": False},
        {"hash_as": "DECIMAL(12,4)"},
        {"hash_as": {"precision": 12, "scale": 4}},
        {"active": False},
    ],
)
def test_r9_a_float_that_is_not_hashed_as_a_float_is_accepted(more):
    """R9: `hash_as`, `hash: false` and an inactive column make a float valid."""
    written = document(dataset("k* f:FLOAT"))
    written["target_datasets"][0]["target_columns"][1] |= more
    assert model_of(written).target_datasets[0].name == "rc_c"


def test_r9_a_float_key_is_refused_even_without_hashing():
    """R9: A business key is part of the key, so `hash: false` has no effect."""
    written = document(dataset("k:FLOAT* a"))
    written["target_datasets"][0]["target_columns"][0]["hash"] = False
    with pytest.raises(UsageError, match="a FLOAT cannot be hashed"):
        model_of(written)


# YAML


@pytest.mark.parametrize("word", ["on", "no", "yes", "off", "y", "null_", "true_"])
def test_boolean_words_of_older_yaml_are_names(tmp_path, word):
    """YAML 1.2: `on` and `no` are ordinary names."""
    text = WHOLE.replace("target_column_name: name,", f"target_column_name: {word},")
    written, _ = loaded(text, tmp_path)
    assert written.target_datasets[0].target_columns[2].name == word


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("database_name: lake", "database_name: lake\n    database_name: sea", "line 8: found duplicate key"),
        ("database_name: lake", "database_name: [lake", "line "),
        ("database_name: lake", "database_name: *lake", "line 7: found undefined alias"),
        ("database_name: lake", "database_name: 7", "line 7, target_schemas[0].database_name: "),
        ("database_name: lake", "\tdatabase_name: lake", "line 7: "),
        ("handle_deletes: true", "handle_deletes: maybe", "line 24, target_datasets[0].handle_deletes: "),
        (
            "target_column_name: name,",
            "target_column_name: null,",
            "line 32, target_datasets[0].target_columns[2]",
        ),
        (
            "target_column_name: name,",
            "target_column_name: 12,",
            "line 32, target_datasets[0].target_columns[2]",
        ),
        (
            "target_column_name: name,",
            "target_column_name: true,",
            "line 32, target_datasets[0].target_columns[2]",
        ),
    ],
)
def test_broken_or_ambiguous_yaml_is_refused(tmp_path, old, new, message):
    """1.3: Duplicate keys, unknown aliases and numbers as names are refused with their line."""
    assert message in refusal(WHOLE.replace(old, new, 1), tmp_path).message


def test_a_date_in_yaml_remains_text(tmp_path):
    """A date as a key stays text, although YAML parses dates."""
    text = WHOLE.replace('lineage_key: "rawcore:crm.customer"', "lineage_key: 2025-01-31")
    written, _ = loaded(text, tmp_path)
    assert written.target_datasets[0].lineage_key == "2025-01-31"


@pytest.mark.parametrize("text", ["", "- a\n", "text\n", "# nothing\n", "7\n"])
def test_a_document_without_a_mapping_is_refused(tmp_path, text):
    """1.3: An empty file, a list and a text are refused."""
    assert refusal(text, tmp_path).message.startswith("model.yaml, line 1")


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00format"])
def test_an_unreadable_model_file_is_refused(tmp_path, content):
    """E1: A file that is missing or not text is reported."""
    path = tmp_path / "model.yaml"
    if content:
        path.write_bytes(content)
    with pytest.raises(UsageError) as refused:
        read_model(path)
    assert refused.value.code == "no-model"


def test_yaml_anchors_are_supported(tmp_path):
    """1.3: An anchor and its alias are the same part."""
    text = WHOLE.replace("former_names: [rc_crm_client]", "former_names: &old [rc_crm_client]")
    text = text.replace("former_names: [credit_limit]", "former_names: *old")
    written, _ = loaded(text, tmp_path)
    assert written.target_datasets[0].target_columns[3].former_names == ("rc_crm_client",)


# JSON Schema

TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}
IGNORED = {"title", "description", "default", "$defs"}


def valid(value, schema, root):
    """Whether a JSON Schema accepts a value. Raises KeyError for unknown keywords."""
    laws = {
        "$ref": lambda ref: valid(value, root["$defs"][ref.rpartition("/")[2]], root),
        "anyOf": lambda options: any(valid(value, option, root) for option in options),
        "enum": lambda options: value in options,
        "const": lambda only: value == only,
        "type": lambda name: (
            isinstance(value, TYPES[name]) and (name == "boolean" or not isinstance(value, bool))
        ),
        "pattern": lambda pattern: re.search(pattern, value) is not None,
        "minLength": lambda least: len(value) >= least,
        "maxLength": lambda most: len(value) <= most,
        "minItems": lambda least: len(value) >= least,
        "minimum": lambda least: value >= least,
        "maximum": lambda most: value <= most,
        "exclusiveMinimum": lambda least: value > least,
        "required": lambda names: set(names) <= set(value),
        "items": lambda of: all(valid(each, of, root) for each in value),
        "properties": lambda parts: all(
            valid(value[name], parts[name], root) for name in parts if name in value
        ),
        "additionalProperties": lambda allowed: allowed or set(value) <= set(schema.get("properties", {})),
    }
    if "type" in schema and not laws["type"](schema["type"]):
        return False
    return all(laws[word](rule) for word, rule in schema.items() if word not in IGNORED)


def plain(text):
    return YAML(typ="safe", pure=True).load(text)


SCHEMA = Model.model_json_schema()
# Errors that a schema cannot express, because they concern relations between parts of the document.
BETWEEN = ("longer than", "must not end in", "no layer", "reserved name", "twice", "larger than the", "no length",
           "neither precision", "cannot be hashed", "only for a FLOAT", "are read from", "names no", "no source",
           "a merge needs", "not supported", "no active", "no column", "must be mapped", "is a BIGINT", "no dataset",
           "needs surrogate", "effective_dating", "soft_delete", "the same label", "a placeholder")  # fmt: skip


def test_the_json_schema_accepts_valid_models(tmp_path):
    """R1: The schema accepts the printed and the resolved model."""
    assert valid(plain(PRINTED), SCHEMA, SCHEMA)
    _, model = loaded(WHOLE, tmp_path)
    assert valid(plain(as_yaml(model)), SCHEMA, SCHEMA)


@pytest.mark.parametrize(("old", "new", "place", "why"), RULES, ids=[rule[1][:40] for rule in RULES])
def test_the_json_schema_refuses_errors_within_one_part(old, new, place, why):
    """R1: Editors with the schema show the same errors, except errors between parts."""
    between = any(word in why for word in BETWEEN)
    assert valid(plain(WHOLE.replace(old, new, 1)), SCHEMA, SCHEMA) is between
