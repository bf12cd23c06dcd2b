"""Types of Open Data Fabric, of the older DDL, and of Arrow (sections 1.6 and 1.9; D25)."""

import json

import pyarrow as pa
import pytest

from backstory.doors.odf.columns import (
    ANY_TYPE,
    arrow_schema,
    data_schema_of,
    declared_schema,
    type_document,
)
from backstory.doors.odf.manifest.data_schema import DataSchema, ddl_field, ddl_schema
from backstory.doors.odf.manifest.events import Csv, NdJson
from backstory.errors import BackstoryError, Refused, UsageError

MICROS = pa.timestamp("us", "UTC")
TYPES = [
    ("Bool", pa.bool_()),
    ("Int8", pa.int32()),
    ("Int16", pa.int32()),
    ("Int32", pa.int32()),
    ("Int64", pa.int64()),
    ("UInt8", pa.int32()),
    ("UInt16", pa.int32()),
    ("UInt32", pa.int64()),
    ("UInt64", pa.decimal128(20, 0)),
    ("Float16", pa.float32()),
    ("Float32", pa.float32()),
    ("Float64", pa.float64()),
    ("Date", pa.date32()),
    ("Time", pa.int64()),
    ("Duration", pa.int64()),
    ("String", pa.string()),
    ("Binary", pa.binary()),
    ("Timestamp", MICROS),
    ({"kind": "Decimal", "precision": 9, "scale": 2}, pa.decimal128(9, 2)),
    ({"kind": "Timestamp", "unit": "Nanosecond", "timezone": None}, MICROS),
    ({"kind": "Timestamp", "unit": "Second", "timezone": "Asia/Kolkata"}, MICROS),
    ({"kind": "Time", "unit": "Second"}, pa.int64()),
    ({"kind": "Binary", "fixedLength": 4}, pa.binary()),
    ({"kind": "List", "itemType": "UInt8", "fixedLength": 2}, pa.list_(pa.field("element", pa.int32(), nullable=False))),
    ({"kind": "List", "itemType": {"kind": "Option", "inner": "String"}}, pa.list_(pa.field("element", pa.string()))),
    (
        {"kind": "Map", "keyType": "String", "valueType": {"kind": "Option", "inner": "Date"}},
        pa.map_(pa.string(), pa.field("value", pa.date32())),
    ),
    (
        {"kind": "Struct", "fields": [{"name": "a", "type": "Int8"}, {"name": "b", "type": {"kind": "Option", "inner": "Bool"}}]},
        pa.struct([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.bool_())]),
    ),
]  # fmt: skip


def schema_of(*types):
    fields = [{"name": f"c{number}", "type": each} for number, each in enumerate(types)]
    return DataSchema.model_validate({"fields": fields})


@pytest.mark.parametrize(("written", "arrow"), TYPES, ids=[str(each[0]) for each in TYPES])
def test_each_type_maps_to_an_arrow_type(written, arrow):
    """1.9: Only an Option makes a type nullable."""
    plain, optional = arrow_schema(schema_of(written, {"kind": "Option", "inner": written}))
    assert (plain.type, plain.nullable) == (arrow, False)
    assert (optional.type, optional.nullable) == (arrow, True)


def test_the_null_type_is_stored_as_nullable_text():
    [field] = arrow_schema(schema_of("Null"))
    assert (field.type, field.nullable) == (pa.string(), True)
    assert data_schema_of(pa.schema([field]))["fields"][0]["type"] == {"kind": "Null"}


def test_nested_options_become_a_single_option():
    [field] = arrow_schema(schema_of({"kind": "Option", "inner": {"kind": "Option", "inner": "Int8"}}))
    assert (field.type, field.nullable) == (pa.int32(), True)


@pytest.mark.parametrize("written", [each[0] for each in TYPES], ids=[str(each[0]) for each in TYPES])
@pytest.mark.parametrize("optional", [False, True])
def test_a_type_survives_in_the_fields_metadata(written, optional):
    """The metadata restores the declared schema, whatever the table's type."""
    written = {"kind": "Option", "inner": written} if optional else written
    schema = schema_of(written)
    assert DataSchema.model_validate(data_schema_of(arrow_schema(schema))) == schema


EMPTY = {"kind": "Struct", "fields": []}


@pytest.mark.parametrize(
    "written",
    [
        EMPTY,
        {"kind": "Option", "inner": EMPTY},
        {"kind": "List", "itemType": EMPTY},
        {"kind": "Map", "keyType": "String", "valueType": {"kind": "Option", "inner": EMPTY}},
        {"kind": "Struct", "fields": [{"name": "a", "type": EMPTY}]},
    ],
)
def test_a_struct_without_fields_is_refused(written):
    """No table can store a struct without fields, at any depth."""
    with pytest.raises(UsageError, match="c0 is declared as a Struct without fields") as refused:
        arrow_schema(schema_of(written))
    assert (refused.value.code, refused.value.keys) == ("empty-struct", ["c0"])
    assert "String" in refused.value.remedy


def test_the_metadata_are_compact_json():
    [field] = arrow_schema(schema_of({"kind": "Option", "inner": {"kind": "Time", "unit": "Second"}}))
    assert field.metadata[b"odf"] == b'{"kind":"Option","inner":{"kind":"Time","unit":"Second"}}'


def test_attributes_of_a_field_are_kept_unchanged():
    extra = {"opendatafabric.org/description": "Größe", "x": {"y": None}}
    schema = DataSchema.model_validate({"fields": [{"name": "a", "type": "Int8", "extra": extra}]})
    [field] = arrow_schema(schema)
    assert json.loads(field.metadata[b"odf-extra"]) == extra
    assert data_schema_of(pa.schema([field])) == {
        "fields": [{"name": "a", "type": {"kind": "Int8"}, "extra": extra}]
    }


def test_a_column_made_nullable_is_described_as_optional():
    """The field itself decides, because a widened column keeps its comment."""
    [field] = arrow_schema(schema_of("UInt8"))
    schema = data_schema_of(pa.schema([field.with_nullable(True)]))
    assert schema["fields"][0]["type"] == {"kind": "Option", "inner": {"kind": "UInt8"}}


@pytest.mark.parametrize(
    ("arrow", "kind"),
    [
        (pa.int8(), {"kind": "Int8"}),
        (pa.decimal128(5, 1), {"kind": "Decimal", "precision": 5, "scale": 1}),
        (pa.timestamp("ns"), {"kind": "Timestamp", "unit": "Nanosecond", "timezone": None}),
        (pa.timestamp("ms", "UTC"), {"kind": "Timestamp"}),
        (pa.time64("us"), {"kind": "Time", "unit": "Microsecond"}),
        (pa.duration("s"), {"kind": "Duration", "unit": "Second"}),
        (pa.list_(pa.int8()), {"kind": "List", "itemType": {"kind": "Option", "inner": {"kind": "Int8"}}}),
        (
            pa.map_(pa.string(), pa.int8()),
            {"kind": "Map", "keyType": {"kind": "String"}, "valueType": {"kind": "Option", "inner": {"kind": "Int8"}}},
        ),
        (
            pa.struct([pa.field("a", pa.int8(), nullable=False)]),
            {"kind": "Struct", "fields": [{"name": "a", "type": {"kind": "Int8"}}]},
        ),
    ],
)  # fmt: skip
def test_arrow_types_are_described_without_metadata(arrow, kind):
    document = data_schema_of(pa.schema([pa.field("a", arrow, nullable=False)]))
    assert document == {"fields": [{"name": "a", "type": kind}]}
    assert DataSchema.model_validate(document)


def test_an_arrow_type_without_a_name_is_refused():
    with pytest.raises(Refused, match="The column a has the type month_day_nano_interval"):
        data_schema_of(pa.schema([("a", pa.month_day_nano_interval())]))


def test_a_types_document_has_no_defaults():
    assert type_document(ANY_TYPE.validate_python({"kind": "timestamp", "unit": "millisecond"})) == {
        "kind": "Timestamp"
    }


# The older form


@pytest.mark.parametrize(
    ("text", "name", "kind"),
    [
        ("a STRING", "a", "String"),
        ("a varchar(10)", "a", "String"),
        ("a CHAR(1)", "a", "String"),
        ("a INT", "a", "Int32"),
        ("a integer", "a", "Int32"),
        ("a BIGINT", "a", "Int64"),
        ("a SMALLINT", "a", "Int16"),
        ("a TINYINT", "a", "Int8"),
        ("a FLOAT", "a", "Float32"),
        ("a REAL", "a", "Float32"),
        ("a DOUBLE", "a", "Float64"),
        ("a DOUBLE  PRECISION", "a", "Float64"),
        ("a BOOLEAN", "a", "Bool"),
        ("a DATE", "a", "Date"),
        ("a TIMESTAMP", "a", "Timestamp"),
        ("a BINARY", "a", "Binary"),
        ("a DECIMAL", "a", {"kind": "Decimal", "precision": 10, "scale": 0}),
        ("a NUMERIC(5)", "a", {"kind": "Decimal", "precision": 5, "scale": 0}),
        ("a decimal( 9 , 2 )", "a", {"kind": "Decimal", "precision": 9, "scale": 2}),
        ("`two words` INT", "two words", "Int32"),
        ("`a``b` INT", "a`b", "Int32"),
        ('"a""b" INT', 'a"b', "Int32"),
        ("`NOT NULL` INT", "NOT NULL", "Int32"),
        ("  größe.m2   INT  ", "größe.m2", "Int32"),
        ("a INT NULL", "a", "Int32"),
    ],
)
def test_d25_a_column_is_optional_without_not_null(text, name, kind):
    field = ddl_field(text)
    inner = ANY_TYPE.validate_python(kind)
    assert (field.name, field.type) == (name, ANY_TYPE.validate_python({"kind": "Option", "inner": inner}))
    if not text.endswith("NULL"):
        assert ddl_field(f"{text} not  null").type == inner


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a", "'a' is not a column definition"),
        ("", "'' is not a column definition"),
        ("a INT PRIMARY KEY", "is not a column definition"),
        ("a INT,", "is not a column definition"),
        ("`a INT", "is not a column definition"),
        ("a b INT", "is not a column definition"),
        ("a INTT", "INTT is not a supported type"),
        ("a ARRAY<INT>", "is not a column definition"),
        ("a INT(4)", "INT takes no number in parentheses"),
        ("a VARCHAR(1, 2)", "VARCHAR takes no numbers in parentheses"),
        ("a DECIMAL(39, 2)", "there is no DECIMAL(39, 2)"),
        ("a DECIMAL(3, 4)", "there is no DECIMAL(3, 4)"),
        ("a DECIMAL(1, 2, 3)", "is not a column definition"),
    ],
)
def test_invalid_column_definitions_are_refused(text, message):
    with pytest.raises(BackstoryError) as refused:
        ddl_schema(["ok INT", text])
    assert isinstance(refused.value, UsageError)
    assert message in refused.value.message
    assert refused.value.remedy


def test_a_reader_accepts_both_schema_forms():
    new = NdJson.model_validate({"kind": "NdJson", "schema": {"fields": [{"name": "a", "type": "Int32"}]}})
    old = Csv.model_validate({"kind": "Csv", "ddlSchema": ["a INT NOT NULL"]})
    assert declared_schema(new) == declared_schema(old)
    assert declared_schema(Csv()) is None
    assert declared_schema(Csv.model_validate({"ddlSchema": []})) == schema_of()
