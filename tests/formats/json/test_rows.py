"""JSON as a document or one row per line, and GeoJSON (section 1.6, B15, B22, B24)."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from depth import deep
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from odf_files import ddl, declared, optional, refusal, table_of

from backstory.formats.json.rows import Number, ValueKinds, infer_schema, json_rows
from backstory.formats.options import JsonOptions

CITIES = [{"city": "A", "population": 1000}, {"city": "B", "population": None}, {"city": "C"}]


@pytest.fixture
def file(tmp_path):
    def file(content):
        path = tmp_path / "a.json"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return file


def lines(*rows):
    return "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n"


def only(table):
    return table.column(0).to_pylist()


@pytest.mark.parametrize("schema", [None, ddl("city STRING", "population BIGINT")])
@pytest.mark.parametrize(
    ("text", "read"),
    [
        (json.dumps({"result": {"cities": CITIES}}, indent=1), {"kind": "Json", "subPath": "result.cities"}),
        (json.dumps(CITIES), {"kind": "Json"}),
        (lines(*CITIES), {"kind": "NdJson"}),
        (lines("", *CITIES, "  \r"), {"kind": "NdJson"}),
    ],
)
def test_b22_documents_and_lines_give_the_same_rows(file, text, read, schema):
    """B22: Both forms give the same rows, and a missing key is NULL."""
    table = table_of(file(text), schema, **read)

    assert [("A", 1000), ("B", None), ("C", None)] == [tuple(row.values()) for row in table.to_pylist()]
    assert [pa.string(), pa.int64()] == table.schema.types
    assert all(field.nullable for field in table.schema)


def test_columns_have_the_order_of_the_file(file):
    table = table_of(file(lines({"b": 1}, {"c": 1, "a": 1, "b": 2})), kind="NdJson")

    assert ["b", "c", "a"] == table.column_names


def test_new_columns_of_a_dataset_keep_the_order_of_the_file(file):
    """New columns are in the order of the file, before the columns that the dataset has."""
    names = [*"zyxwvutsr"]
    document = file(json.dumps([{"id": 1, **dict.fromkeys(names, 1)}]))
    rows = json_rows(document, "a.json", JsonOptions(), None, {"id": pa.field("id", pa.int64())})

    assert [*names, "id"] == rows.schema.names


def test_r67_unusual_column_names_are_kept(file):
    names = ["with space", "a.b", "a[0]", 'quo"te', "UPPER", "upper", "größe", "`tick`", "x,y", "日本", ""]
    row = {name: place for place, name in enumerate(names)}

    assert [row] == table_of(file(lines(row)), kind="NdJson").to_pylist()
    schema = declared(**dict.fromkeys(names[:-1], "Int32"))
    assert [*row.values()][:-1] == [
        *table_of(file(lines(row)), schema, kind="NdJson").to_pylist()[0].values()
    ]


def feature(**properties):
    return {
        "type": "Feature",
        "properties": properties,
        "geometry": {"type": "Point", "coordinates": [-123.1, 49.25]},
    }


FEATURES = [feature(zipcode="00101", name="A", id=1), feature(zipcode="00202", name="B", id=2)]
POINT = '{"type":"Point","coordinates":[-123.1,49.25]}'


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (json.dumps({"type": "FeatureCollection", "features": FEATURES}), "GeoJson"),
        (lines(*FEATURES), "NdGeoJson"),
    ],
)
def test_b24_columns_of_geojson_are_inferred(file, text, kind):
    """B24: Columns are in alphabetical order, and the geometry is compact JSON."""
    table = table_of(file(text), kind=kind)

    assert (
        pa.schema(
            [("geometry", pa.string()), ("id", pa.int64()), ("name", pa.string()), ("zipcode", pa.string())]
        )
        == table.schema
    )
    assert {"geometry": POINT, "id": 1, "name": "A", "zipcode": "00101"} == table.to_pylist()[0]


def test_a_schema_selects_the_columns_of_geojson(file):
    """B23 in its declared form: Columns are in the schema's order."""
    schema = ddl("id INT NOT NULL", "geometry STRING", "missing STRING")
    table = table_of(
        file(lines(*FEATURES, {"type": "Feature", "properties": {"id": 3}, "geometry": None})),
        schema,
        kind="NdGeoJson",
    )

    assert [1, 2, 3] == only(table)
    assert [POINT, POINT, None] == table["geometry"].to_pylist()
    assert [None] * 3 == table["missing"].to_pylist()


def test_a_geometry_keeps_its_digits(file):
    text = '{"type":"Feature","properties":null,"geometry":{"type":"Point","coordinates":[1.10, 2.00000000000000000001]}}'

    assert ['{"type":"Point","coordinates":[1.10,2.00000000000000000001]}'] == only(
        table_of(file(text), kind="NdGeoJson")
    )


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        ("Int64", "9223372036854775807", (1 << 63) - 1),
        ("Int64", "-9007199254740993", -9007199254740993),
        ("Int32", "1.0", 1),
        ("Int32", "1e3", 1000),
        ("Int32", '"12"', 12),
        ("UInt8", "255", 255),
        ("UInt64", "18446744073709551615", Decimal((1 << 64) - 1)),
        ("Float64", "0.1", 0.1),
        ("Float64", "1", 1.0),
        (
            {"kind": "Decimal", "precision": 38, "scale": 20},
            "0.10000000000000000001",
            Decimal("0.10000000000000000001"),
        ),
        ({"kind": "Decimal", "precision": 5, "scale": 0}, "1e4", Decimal(10000)),
        ("Bool", "true", True),
        ("Bool", '"False"', False),
        ("String", '"text"', "text"),
        ("String", "1.10", "1.10"),
        ("String", "true", "true"),
        ("String", '{"b": [1.0, null, "ä\\n"], "a": {}}', '{"b":[1.0,null,"ä\\n"],"a":{}}'),
        ("String", "[]", "[]"),
        ("Date", '"2022-09-25"', date(2022, 9, 25)),
        ("Timestamp", '"2022-09-25T01:02:03+01:00"', datetime(2022, 9, 25, 0, 2, 3, tzinfo=UTC)),
        ("Timestamp", '"9999-12-31T23:59:59.999999Z"', datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)),
        ("Time", '"12:30:00.250"', 45_000_250),
        ("Time", "45000250", 45_000_250),
        ({"kind": "Duration", "unit": "Second"}, "-5", -5),
        ({"kind": "List", "itemType": "Int32", "fixedLength": 2}, "[1, 2]", [1, 2]),
        ({"kind": "List", "itemType": "Int32"}, "[1, 2]", [1, 2]),
        ({"kind": "List", "itemType": optional("Date")}, '[null, "2022-09-25"]', [None, date(2022, 9, 25)]),
        (
            {"kind": "Map", "keyType": "String", "valueType": "Int32"},
            '{"b": 1, "a": 2}',
            [("b", 1), ("a", 2)],
        ),
        (
            {
                "kind": "Struct",
                "fields": [{"name": "x.y", "type": "Int32"}, {"name": "z", "type": optional("String")}],
            },
            '{"x.y": 1, "other": 2}',
            {"x.y": 1, "z": None},
        ),
    ],
)
def test_json_values_are_read_as_declared_types(file, type_, text, value):
    """Numbers are exact, and NULL has no required parts."""
    path = file(f'{{"a": {text}}}\n{{"a": null}}\n{{"a": {text}}}\n')

    assert [value, None, value] == only(table_of(path, declared(a=optional(type_)), kind="NdJson"))


def test_two_escapes_of_a_surrogate_pair_are_one_character(file):
    assert [{"😀": "😀"}] == table_of(
        file('{"\\ud83d\\ude00": "\\uD83D\\uDE00"}\n'), kind="NdJson"
    ).to_pylist()


def test_nested_lists_and_structs_are_read_and_checked(file):
    inner = {
        "kind": "List",
        "itemType": {
            "kind": "Struct",
            "fields": [{"name": "n", "type": {"kind": "List", "itemType": "UInt8"}}],
        },
    }
    rows = [[{"n": [1, 2]}, {"n": []}], [], [{"n": [3]}]]
    path = file(lines(*({"a": row} for row in rows)))

    assert rows == only(table_of(path, declared(a=inner), kind="NdJson"))
    error = refusal(
        file(lines({"a": rows[0]}, {"a": [{"n": [1]}, {"n": [2, 300]}]})), declared(a=inner), kind="NdJson"
    )
    assert "line 2, column `a.element.n.element`: `300` is not of type UInt8" in error.message


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        (["1", "2.5", "null"], pa.float64()),
        (["true", "null"], pa.bool_()),
        (["null", "null"], pa.null()),
        (['"2022-09-25"'], pa.string()),
        (["[1]", "[]", "[null]"], pa.list_(pa.int64())),
        (["[]"], pa.list_(pa.null())),
        (["0.30000000000000004", "0.10000000000000001", "5e-324", "-0.0"], pa.float64()),
        (
            ['{"b": 1}', '{"a": {"c": 1.5}}'],
            pa.struct([("b", pa.int64()), ("a", pa.struct([("c", pa.float64())]))]),
        ),
        (["9007199254740993"], pa.int64()),
    ],
)
def test_types_are_inferred_from_json_values(file, values, type_):
    path = file("".join(f'{{"a": {value}}}\n' for value in values))

    assert pa.schema([("a", type_)]) == table_of(path, kind="NdJson").schema


@pytest.mark.parametrize(
    "values",
    [
        ["1", '"a"'],
        ["true", "1"],
        ["{}", "[]"],
        ["9223372036854775808"],
        ["0.5", "9007199254740993"],
        ['{"b": 1}', '{"b": "x"}'],
        ["1.2345678901234567890123"],
        ["0.5", "12345678901234567.89"],
        ["1e99999999999999999999"],
        ["1e-400"],
    ],
)
def test_mixed_values_need_a_schema(file, values):
    path = file("".join(f'{{"a": {value}}}\n' for value in values))
    error = refusal(path, kind="NdJson")

    assert "mixed-types" == error.code
    assert "a.json: the values of `a" in error.message
    assert "`schema`" in error.remedy
    assert len(values) == len(table_of(path, ddl("a STRING"), kind="NdJson"))


@pytest.mark.parametrize(
    ("values", "type_", "expected"),
    [
        (["{}", "null"], pa.string(), ["{}", None]),
        (["[{}]"], pa.list_(pa.string()), [["{}"]]),
        (['{"b": {}}'], pa.struct([("b", pa.string())]), [{"b": "{}"}]),
    ],
)
def test_a_column_of_empty_objects_is_text(file, values, type_, expected):
    """No table can store a struct without fields, and `{}` is not NULL."""
    table = table_of(file("".join(f'{{"a": {value}}}\n' for value in values)), kind="NdJson")

    assert (type_, expected) == (table.schema.field("a").type, only(table))


@pytest.mark.parametrize(
    ("stored", "value", "type_"),
    [
        (pa.date32(), {}, pa.date32()),
        (pa.struct([("b", pa.int64())]), {}, pa.struct([("b", pa.int64())])),
        (pa.struct([("b", pa.timestamp("us"))]), {"b": {}}, pa.struct([("b", pa.timestamp("us"))])),
        (
            pa.struct([("b", pa.int64()), ("c", pa.binary())]),
            {"b": Number("5")},
            pa.struct([("b", pa.int64()), ("c", pa.binary())]),
        ),
    ],
)
def test_an_empty_object_leaves_the_stored_type(stored, value, type_):
    """Text in a column of dates is refused later, and parts that no value has keep their types."""
    kinds = ValueKinds()
    kinds.look(value)
    schema = infer_schema({"a": kinds}, "a.json", {"a": pa.field("a", stored)}, sort=False)
    assert schema.field("a").type == type_


NESTED = {depth: "[" * depth + "]" * depth for depth in (20, 21, 300, 600, 900)}


@pytest.mark.parametrize("kind", ["Json", "NdJson"])
@pytest.mark.parametrize("depth", [21, 600, 900])
def test_values_nested_too_deeply_for_a_column_are_refused(file, kind, depth):
    """The error contains file, line and column, before Python's recursion limit."""
    text = (
        f'[{{"a": 1}},\n{{"b": {NESTED[depth]}}}]' if kind == "Json" else f'{{}}\n{{"b": {NESTED[depth]}}}\n'
    )
    error = refusal(file(text), kind=kind)

    assert "malformed-row" == error.code
    assert "a.json, line 2: the values of `b` are nested more than 20 deep" in error.message
    assert "String" in error.remedy
    table_of(file(text.replace(NESTED[depth], NESTED[20])), kind=kind)


def test_deep_values_in_a_text_are_kept_or_refused(file):
    """A text that Python can serialise is kept, and any other is refused with its line."""
    text = f'{{}}\n{{"a": {NESTED[300]}}}\n'

    assert [None, NESTED[300]] == only(table_of(file(text), ddl("a STRING"), kind="NdJson"))
    error = refusal(file(text.replace(NESTED[300], NESTED[900])), ddl("a STRING"), kind="NdJson")
    assert "a.json, line 2, column `a`: its values are nested too deeply" in error.message
    error = refusal(file(text.replace(NESTED[300], NESTED[900])), ddl("a INT"), kind="NdJson")
    assert "a.json, line 2, column `a`: `list: its values are nested" in error.message
    geometry = f'{{"type": "Feature", "geometry": {{"x": {NESTED[900]}}}}}'
    assert "line 1: its values are nested too deeply" in refusal(file(geometry), kind="NdGeoJson").message


def test_inference_reads_all_rows_and_batches_are_bounded(file):
    path = file(lines(*({"a": number} for number in range(70_000)), {"a": 0.5}))
    table = table_of(path, kind="NdJson")

    assert [1 << 16, 70_001 - (1 << 16)] == [len(batch) for batch in table.to_batches()]
    assert pa.float64() == table.schema.field("a").type


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ("Int32", "1.5"),
        ("Int32", "1e99"),
        ("Int32", "1e9999999999"),
        ("Int64", "1e99999999999999999999"),
        ("Int64", "1e-99999999999999999999"),
        ("Time", '"24:00:00"'),
        ("Time", "86400000"),
        ({"kind": "Time", "unit": "Second"}, '"12:30:00.5"'),
        ({"kind": "List", "itemType": "Int32", "fixedLength": 2}, "[1, 2, 3]"),
        ({"kind": "List", "itemType": {"kind": "List", "itemType": "Bool", "fixedLength": 1}}, "[[]]"),
        ("Int32", "true"),
        ("Int32", "2147483648"),
        ("UInt8", "256"),
        ("Int32", '""'),
        ("Float64", "1e400"),
        ("Float64", "[]"),
        ("Bool", "1"),
        ("Bool", '"yes"'),
        ("Date", '"2023-02-30"'),
        ("Date", "20230201"),
        ("Timestamp", '"9/25/2022 1:02:03"'),
        ("Timestamp", "1664067723"),
        ({"kind": "Decimal", "precision": 5, "scale": 1}, "0.15"),
        ("String", '"\\ud800"'),
        ({"kind": "List", "itemType": "Int32"}, '{"a": 1}'),
        ({"kind": "List", "itemType": "Int32"}, "[1, null]"),
        ({"kind": "Struct", "fields": [{"name": "b", "type": "Int32"}]}, "[1]"),
        ({"kind": "Struct", "fields": [{"name": "b", "type": "Int32"}]}, "{}"),
        ({"kind": "Map", "keyType": "String", "valueType": "Int32"}, '{"b": "x"}'),
    ],
)
@pytest.mark.parametrize("kind", ["NdJson", "Json"])
def test_b15_an_unreadable_value_is_refused_with_its_place(file, type_, text, kind):
    """B15: The error contains file, line and column, including in a document."""
    good = '{"b": 1}'
    text = (
        f'{good}\n\n{{"a": {text}}}\n{good}\n'
        if kind == "NdJson"
        else f'[{good},\n\n {{"a": {text}}},\n {good}]'
    )
    error = refusal(file(text), declared(a=optional(type_)), kind=kind)

    assert ("unreadable-value", 3) == (error.code, error.exit_code)
    assert "a.json, line 3" in error.message
    assert "`a" in error.message


def test_errors_below_the_root_of_a_document_have_the_line(file):
    text = '{"other": [1,\n2], "a": {"x": {}, "b": [\n{"n": 1},\n{"n":\n"x"}]}}'
    error = refusal(file(text), ddl("n INT"), kind="Json", subPath="a.b")

    assert "a.json, line 4, column `n`: `x` is not of type Int32" in error.message


def test_missing_required_values_are_refused(file):
    error = refusal(file(lines({"a": 1}, {}, {"a": None})), ddl("a INT NOT NULL"), kind="NdJson")

    assert "a.json, line 2: Column `a` contains 2 null values while none were expected" in error.message


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"a": 1', "it is not JSON"),
        ('{"a": 1} {"a": 2}', "it is not JSON"),
        ("{'a': 1}", "it is not JSON"),
        ('{"a": 01}', "it is not JSON"),
        ('{"a": NaN}', "`NaN` is not a JSON number"),
        ('{"a": -Infinity}', "`-Infinity` is not a JSON number"),
        ('{"a": 1, "b": 2, "a": 3}', "the key `a` twice"),
        ('{"b": [{"a": 1, "a": 1}]}', "the key `a` twice"),
        ("[1]", "`[1]` is not an object"),
        ("null", "`null` is not an object"),
        ('{"a": "\t"}', "it is not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[" * 900 + "]" * 900, "nested too deeply"),
        ('{"\\ud800": 1}', r"the key `\ud800`, which is not valid Unicode"),
        ('{"b": [{"x\\uDC00": 1}]}', "which is not valid Unicode"),
        ('["\\ud800"]', r'`["\ud800"]` is not an object'),
    ],
)
@pytest.mark.parametrize("schema", [None, ddl("a INT")])
def test_a_malformed_line_is_refused(file, line, why, schema):
    error = refusal(file(lines({"a": 1}, line)), schema, kind="NdJson")

    assert "malformed-row" == error.code
    assert "a.json, line 2" in error.message
    assert why in error.message


@pytest.mark.parametrize(
    ("text", "read", "why"),
    [
        ('[{"a": 1},\n{"a" 2}]', {}, "line 2: it is not JSON"),
        ('{"a": [1]}', {}, "its root is not an array"),
        ('{"a": {"b": 1}}', {"subPath": "a.b"}, "`b` is not an array"),
        ('{"a": {"b": 1}}', {"subPath": "a.c"}, "`a` has no `c`; its keys are b"),
        ("[1]", {"subPath": "a"}, "its root has no `a`"),
        ('[{"a": 1},\n1]', {}, "line 2: `1` is not an object"),
        ('{"a": 1, "a": [{}]}', {"subPath": "a"}, "the key `a` twice"),
        ("", {}, "it is empty"),
        ("{}", {"kind": "GeoJson"}, "not a FeatureCollection"),
        ('{"type": "FeatureCollection"}', {"kind": "GeoJson"}, "its root has no `features`"),
        (
            '{"type": "FeatureCollection", "features": [\n{}]}',
            {"kind": "GeoJson"},
            "line 2: `{}` is not a Feature",
        ),
        ('{"type": "Point"}', {"kind": "NdGeoJson"}, 'line 1: `{"type":"Point"}` is not a Feature'),
        ('{"type": "Feature", "geometry": 1}', {"kind": "NdGeoJson"}, "must be objects"),
        ('{"type": "Feature", "properties": {"geometry": 1}}', {"kind": "NdGeoJson"}, "the name `geometry`"),
    ],
)
def test_a_malformed_document_is_refused(file, text, read, why):
    error = refusal(file(text), ddl("a INT"), **{"kind": "Json", **read})

    assert "malformed-row" == error.code
    assert why in error.message


@pytest.mark.parametrize("kind", ["Json", "NdJson", "NdGeoJson"])
def test_b34_an_empty_file_has_no_columns(file, kind):
    assert pa.schema([]) == table_of(file(""), kind=kind).schema


def test_encodings_and_date_formats_apply_to_json(file):
    text = lines({"ä": "25.09.2022", "t": "9/25/2022 1:02:03"})
    options = {"dateFormat": "dd.MM.yyyy", "timestampFormat": "%m/%d/%Y %H:%M:%S"}
    schema = ddl("`ä` DATE", "t TIMESTAMP")

    for encoding in ("latin1", "utf-16"):
        table = table_of(file(text.encode(encoding)), schema, kind="NdJson", encoding=encoding, **options)
        assert (date(2022, 9, 25), datetime(2022, 9, 25, 1, 2, 3, tzinfo=UTC)) == tuple(
            table.to_pylist()[0].values()
        )
    document = f"[{text}]".encode("utf-8-sig")
    assert 1 == len(table_of(file(document), schema, kind="Json", **options))


@pytest.mark.parametrize("kind", ["Json", "NdJson", "NdGeoJson"])
def test_text_in_another_encoding_than_utf8_is_refused(file, kind):
    error = refusal(
        file(b'[{"a": 1},\n{"a": "\xfc"}]' if kind == "Json" else b'{"type": "Feature"}\n{"a": "\xfc"}'),
        kind=kind,
    )

    assert "line 2: the text from here on is not UTF-8" in error.message


@pytest.mark.parametrize("option", ["encoding", "dateFormat", "timestampFormat"])
@pytest.mark.parametrize("kind", ["Json", "NdJson"])
def test_an_unsupported_option_is_named(file, kind, option):
    error = refusal(file("[]"), kind=kind, **{option: "klingon"})

    assert (2, True) == (error.exit_code, f"`{option}`" in error.message)


def test_unknown_fields_are_refused_with_the_option(file):
    nested = declared(a={"kind": "Struct", "fields": [{"name": "b", "type": "Int32"}]})
    path = file(lines({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}))

    assert 2 == len(table_of(path, nested, kind="NdJson"))
    error = refusal(path, nested, kind="NdJson", unknownFields="error")
    assert ("unknown-fields", ["a.c"], True) == (error.code, error.keys, "line 2" in error.message)
    error = refusal(
        file('[{"a": {"b": 1}},\n{"a": {"b": 1}, "d": 1}]'), nested, kind="Json", unknownFields="error"
    )
    assert (["d"], True) == (error.keys, "line 2" in error.message)


SCALARS = (
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.text(st.characters(codec="utf-8"))
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(
    max_examples=deep(80, 20),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
)
@given(st.lists(VALUES, min_size=1, max_size=5))
def test_a_text_column_keeps_any_value(file, values):
    path = file("".join(json.dumps({"a": value}) + "\n" for value in values))
    texts = only(table_of(path, ddl("a STRING"), kind="NdJson"))

    assert values == [
        value if text == value or text is None else json.loads(text)
        for text, value in zip(texts, values, strict=True)
    ]
