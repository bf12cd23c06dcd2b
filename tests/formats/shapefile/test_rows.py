"""ESRI shapefiles in a zip (section 1.6)."""

import io
import json
import zipfile
from datetime import date

import pyarrow as pa
import pytest
import shapefile
from odf_files import ddl, refusal, table_of
from structlog.testing import capture_logs

SQUARE = [[0, 0], [0, 10], [10, 10], [10, 0], [0, 0]]
LARGEST_GAP = [[1, 1], [2, 1], [2, 2], [1, 2], [1, 1]]
ISLAND = [[20, 20], [20, 21], [21, 21], [20, 20]]
AROUND = [[-9, -9], [-9, 19], [19, 19], [19, -9], [-9, -9]]
MOAT = [[-5, -5], [15, -5], [15, 15], [-5, 15], [-5, -5]]
TOUCHING = [[0, 5], [4, 4], [4, 6], [0, 5]]
CORNER = [[-1, -1], [-1, 11], [11, 11], [11, 10.5], [-0.5, 10.5], [-0.5, -1], [-1, -1]]


def high(ring, height):
    """The ring with a height or a measure."""
    return [[*point, height] for point in ring]


def written(
    kind=shapefile.POINT,
    shapes=(("point", 1.5, 2),),
    records=(("Kyiv", 1, 2.5, date(2020, 1, 2), True),),
    encoding="utf-8",
):
    """The parts of a shapefile."""
    parts = {suffix: io.BytesIO() for suffix in ("shp", "shx", "dbf")}
    with shapefile.Writer(**parts, shapeType=kind, encoding=encoding) as writer:
        writer.field("name", "C", 20)
        writer.field("count", "N", 9, 0)
        writer.field("share", "N", 12, 4)
        writer.field("day", "D")
        writer.field("good", "L")
        for (method, *arguments), record in zip(shapes, records, strict=True):
            getattr(writer, method)(*arguments)
            writer.record(*record)
    return {suffix: part.getvalue() for suffix, part in parts.items()}


@pytest.fixture
def zipped(tmp_path):
    def zipped(**shapes):
        path = tmp_path / "a.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for name, parts in shapes.items():
                for suffix, content in parts.items():
                    archive.writestr(f"{name}.{suffix}", content)
        return path

    return zipped


def test_fields_become_columns_and_the_geometry_becomes_geojson(zipped):
    table = table_of(zipped(cities=written()), kind="EsriShapefile")

    assert [pa.string(), pa.int64(), pa.float64(), pa.date32(), pa.bool_(), pa.string()] == table.schema.types
    assert {
        "name": "Kyiv", "count": 1, "share": 2.5, "day": date(2020, 1, 2), "good": True,
        "geometry": '{"type":"Point","coordinates":[1.5,2.0]}',
    } == table.to_pylist()[0]  # fmt: skip


def test_blanks_are_null(zipped):
    path = zipped(a=written(shapes=[["null"]], records=[("", None, None, None, None)]))

    assert [None] * 6 == list(table_of(path, kind="EsriShapefile").to_pylist()[0].values())


@pytest.mark.parametrize(
    ("kind", "shape", "geojson", "coordinates"),
    [
        ("POINT", ("point", 0.1, -2), "Point", [0.1, -2]),
        ("POINT", ("point", 1 / 3, 123456789.123456789), "Point", [1 / 3, 123456789.123456789]),
        ("POINTZ", ("pointz", 1, 2, 3), "Point", [1, 2, 3]),
        ("POINTM", ("pointm", 1, 2, 3), "Point", [1, 2]),
        ("MULTIPOINT", ("multipoint", [[1, 2], [3, 4]]), "MultiPoint", [[1, 2], [3, 4]]),
        ("MULTIPOINTZ", ("multipointz", [[1, 2, 9], [3, 4, 9]]), "MultiPoint", [[1, 2, 9], [3, 4, 9]]),
        ("POLYLINE", ("line", [[[1, 2], [3, 4]]]), "LineString", [[1, 2], [3, 4]]),
        (
            "POLYLINE",
            ("line", [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]),
            "MultiLineString",
            [[[1, 2], [3, 4]], [[5, 6], [7, 8]]],
        ),
        ("POLYLINEZ", ("linez", [[[1, 2, 9], [3, 4, 9]]]), "LineString", [[1, 2, 9], [3, 4, 9]]),
        ("POLYLINEM", ("linem", [[[1, 2, 9], [3, 4, 9]]]), "LineString", [[1, 2], [3, 4]]),
        ("POLYGON", ("poly", [SQUARE]), "Polygon", [SQUARE]),
        ("POLYGONM", ("polym", [high(SQUARE, 7)]), "Polygon", [SQUARE]),
        ("POLYGONZ", ("polyz", [high(SQUARE, 7)]), "Polygon", [high(SQUARE, 7)]),
    ],
)
def test_o24_geometry_is_geojson(zipped, kind, shape, geojson, coordinates):
    """O24: Numbers keep their digits. Heights are kept, and measures are not."""
    path = zipped(a=written(getattr(shapefile, kind), [shape]))
    [text] = table_of(path, ddl("geometry STRING"), kind="EsriShapefile")["geometry"].to_pylist()

    assert {"type": geojson, "coordinates": coordinates} == json.loads(text)
    assert " " not in text


@pytest.mark.parametrize("height", [None, 7])
@pytest.mark.parametrize(
    ("rings", "polygons"),
    [
        ([SQUARE, LARGEST_GAP], [[SQUARE, LARGEST_GAP]]),
        ([LARGEST_GAP, SQUARE], [[SQUARE, LARGEST_GAP]]),
        ([SQUARE, ISLAND], [[SQUARE], [ISLAND]]),
        ([ISLAND, SQUARE, LARGEST_GAP], [[ISLAND], [SQUARE, LARGEST_GAP]]),
        # A square in the hole of another, with its own hole. Each hole belongs to the ring directly around
        # it.
        ([AROUND, MOAT, SQUARE, LARGEST_GAP], [[AROUND, MOAT], [SQUARE, LARGEST_GAP]]),
        # A hole that touches its outer ring from within, at the hole's outermost point.
        ([SQUARE, TOUCHING, ISLAND], [[SQUARE, TOUCHING], [ISLAND]]),
        # Inside the bounds of two outer rings, but inside only one of the rings.
        ([CORNER, SQUARE, LARGEST_GAP], [[CORNER], [SQUARE, LARGEST_GAP]]),
        # No ring is around it, so it is not a hole, although it runs the wrong way.
        ([SQUARE, ISLAND[::-1]], [[SQUARE], [ISLAND[::-1]]]),
        ([SQUARE[::-1]], [[SQUARE[::-1]]]),
    ],
)
def test_o24_holes_belong_to_their_outer_ring(zipped, rings, polygons, height):
    """O24: This holds for any order of the rings."""
    kind = shapefile.POLYGON if height is None else shapefile.POLYGONZ
    shape = ("poly", rings) if height is None else ("polyz", [high(ring, height) for ring in rings])
    wanted = [[ring if height is None else high(ring, height) for ring in rings] for rings in polygons]
    [text] = table_of(zipped(a=written(kind, [shape])), ddl("geometry STRING"), kind="EsriShapefile")[
        "geometry"
    ].to_pylist()
    geometry = json.loads(text)

    assert wanted == ([geometry["coordinates"]] if geometry["type"] == "Polygon" else geometry["coordinates"])


def test_o24_the_geometry_text_equals_the_geojson_readers(zipped, tmp_path):
    path = tmp_path / "a.geojson"
    shape = '{"type":"Polygon","coordinates":[[[0.0,0.0],[0.0,10.25],[10.0,10.0],[0.0,0.0]]]}'
    features = f'{{"type":"Feature","properties":null,"geometry":{shape}}}'
    path.write_text(f'{{"type":"FeatureCollection","features":[{features}]}}')
    ring = [[0, 0], [0, 10.25], [10, 10], [0, 0]]
    zip_ = zipped(a=written(shapefile.POLYGON, [("poly", [ring])]))

    wanted = table_of(path, ddl("geometry STRING"), kind="GeoJson")

    assert wanted.equals(table_of(zip_, ddl("geometry STRING"), kind="EsriShapefile"))


@pytest.mark.parametrize(
    ("kind", "shape", "why"),
    [
        ("POINT", ("point", float("nan"), 1), "not JSON compliant"),
        ("MULTIPATCH", ("multipatch", [high(SQUARE, 1)], [2]), "GeoJSON has no MULTIPATCH"),
    ],
)
def test_shapes_without_a_geojson_form_are_refused(zipped, kind, shape, why):
    error = refusal(zipped(a=written(getattr(shapefile, kind), [shape])), kind="EsriShapefile")

    assert ("malformed-row", True) == (error.code, "a.zip/a.shp, row 1: " in error.message)
    assert why in error.message


def test_a_schema_selects_and_coerces_columns(zipped):
    table = table_of(
        zipped(a=written()),
        ddl("count STRING NOT NULL", "share DECIMAL(10,4)", "name STRING"),
        kind="EsriShapefile",
    )

    assert ["count", "share", "name"] == table.column_names
    assert "1" == table["count"][0].as_py()


@pytest.mark.parametrize("sub_path", ["lines/rapid_transit_line.shp", "*rapid_transit_line.*", "lines/*.shp"])
def test_sub_path_is_exact_or_a_glob(zipped, sub_path):
    other = written(records=[("other", 1, 1, None, None)])
    path = zipped(**{"stations": other, "lines/rapid_transit_line": written()})

    assert ["Kyiv"] == table_of(path, kind="EsriShapefile", subPath=sub_path)["name"].to_pylist()


@pytest.mark.parametrize("sub_path", [None, "*", "b*", "none.shp"])
def test_an_ambiguous_or_missing_entry_is_refused_with_candidates(zipped, sub_path):
    path = zipped(b=written(), b2=written())
    error = refusal(path, kind="EsriShapefile", **({"subPath": sub_path} if sub_path else {}))

    assert "no-entry" == error.code
    assert "`b.shp`, `b2.shp`" in error.message


def test_a_zip_without_a_shapefile_is_refused(zipped):
    assert "`a.csv`" in refusal(zipped(a={"csv": b"x"}), kind="EsriShapefile").message


@pytest.mark.parametrize(
    ("cpg", "codec"),
    [
        (b"UTF-8", "utf-8"),
        (b"ISO-8859-1\r\n", "latin-1"),
        (b"1251", "cp1251"),
        (b"ANSI 1251", "cp1251"),
        (b"65001", "utf-8"),
        (b"8859_1", "latin-1"),
        (b"88591", "latin-1"),
        (b"windows-1251", "cp1251"),
        (b"ISO 88591", "latin-1"),
        (b"ISO88591", "latin-1"),
    ],
)
def test_texts_have_the_encoding_of_the_cpg(zipped, cpg, codec):
    name = "Київ" if codec != "latin-1" else "Zürich"
    parts = written(records=[(name, 1, 1, None, None)], encoding=codec) | {"cpg": cpg}

    assert [name] == table_of(zipped(a=parts), kind="EsriShapefile")["name"].to_pylist()


def test_texts_without_a_cpg_are_utf8_or_latin1(zipped):
    """The encoding is UTF-8 if valid, otherwise Latin-1 with a warning."""
    with capture_logs() as logs:
        assert ["Київ"] == table_of(
            zipped(a=written(records=[("Київ", 1, 1, None, None)])), kind="EsriShapefile"
        )["name"].to_pylist()
    assert [] == logs
    latin = written(records=[("Zürich", 1, 1, None, None)], encoding="latin-1")
    with capture_logs() as logs:
        assert ["Zürich"] == table_of(zipped(a=latin), kind="EsriShapefile")["name"].to_pylist()
    assert ("warning", "a.zip/a.shp") == (logs[0]["log_level"], logs[0]["file"])


def speaking(language, name, codec):
    """A shapefile without a .cpg, with this language driver id in the header of its .dbf."""
    parts = written(records=[(name, 1, 1, None, None)], encoding=codec)
    return parts | {"dbf": parts["dbf"][:29] + bytes([language]) + parts["dbf"][30:]}


@pytest.mark.parametrize(
    ("language", "codec", "name"),
    [
        (0xC9, "cp1251", "Київ"),
        (0xC8, "cp1250", "Łódź"),
        (0x65, "cp866", "рай"),  # also valid UTF-8
        (0x4D, "gbk", "联通"),
        (0x03, "cp1252", "Œuf"),
        (0x57, "cp1252", "Œuf"),
        (0x57, "utf-8", "Київ"),
        (0x02, "cp850", "Zürich"),
        (0x01, "cp437", "Zürich"),
        (0x68, "utf-8", "Київ"),
    ],
)
def test_texts_without_a_cpg_have_the_encoding_of_the_header(zipped, language, codec, name):
    """It is named there by its language driver id. Tables with 0x57 or an unknown id may be UTF-8."""
    with capture_logs() as logged:
        table = table_of(zipped(a=speaking(language, name, codec)), kind="EsriShapefile")
    assert ([name], []) == (table["name"].to_pylist(), logged)


def test_an_unknown_encoding_is_refused(zipped):
    unknown = speaking(0x68, "Plzeň", "cp852")
    assert "language id 0x68" in refusal(zipped(a=unknown), kind="EsriShapefile").message
    assert "`klingon`" in refusal(zipped(a=written() | {"cpg": b"klingon"}), kind="EsriShapefile").message


def test_a_text_outside_the_encoding_is_refused(zipped):
    parts = written(records=[("Zürich", 1, 1, None, None)], encoding="latin-1") | {"cpg": b"UTF-8"}

    assert "row 1, column `name`" in refusal(zipped(a=parts), kind="EsriShapefile").message


@pytest.mark.parametrize(
    ("old", "new", "column"),
    [
        (b"        1", b"      1,5", "count"),
        (b"        1", b"      abc", "count"),
        (b"20200102", b"20200230", "day"),
        (b"      2.5000", b"      2.5e99999"[-12:], "share"),
    ],
)
def test_an_unreadable_value_is_refused_with_row_and_column(zipped, old, new, column):
    parts = written()
    assert old in parts["dbf"]
    parts["dbf"] = parts["dbf"].replace(old, new)
    error = refusal(zipped(a=parts), kind="EsriShapefile")

    assert "unreadable-value" == error.code
    assert f"a.zip/a.shp, row 1, column `{column}`" in error.message


def test_stars_are_null_and_deleted_rows_are_skipped(zipped):
    rows = [("A", 1, 1, None, None), ("B", 2, 1, None, None)]
    parts = written(shapes=[("point", 1, 1), ("point", 2, 2)], records=rows)
    parts["dbf"] = parts["dbf"].replace(b" A ", b"*A ").replace(b"        2", b"*********")

    assert [("B", None, '{"type":"Point","coordinates":[2.0,2.0]}')] == [
        (row["name"], row["count"], row["geometry"])
        for row in table_of(zipped(a=parts), kind="EsriShapefile").to_pylist()
    ]


@pytest.mark.parametrize(
    ("part", "damage"),
    [
        ("dbf", lambda whole: whole[:-15]),
        ("dbf", lambda whole: whole[:10]),
        ("dbf", lambda whole: whole[:0]),
        ("shp", lambda whole: whole[:-10]),
        ("shp", lambda whole: whole[:50]),
        ("shp", lambda whole: whole[:0] + b"text" * 50),
        ("shp", lambda whole: whole[:100]),
        ("shp", lambda whole: whole + whole[100:]),
    ],
)
def test_broken_parts_are_refused(zipped, part, damage):
    parts = written()
    parts[part] = damage(parts[part])
    error = refusal(zipped(a=parts), kind="EsriShapefile")

    assert ("malformed-row", True) == (error.code, "a.zip/a.shp" in error.message)


def test_a_shapefile_without_its_dbf_is_refused(zipped):
    parts = written()
    del parts["dbf"]

    assert "its .dbf is missing" in refusal(zipped(a=parts), kind="EsriShapefile").message


def test_suffixes_of_the_parts_may_be_upper_case(zipped):
    parts = {suffix.upper(): content for suffix, content in written().items()}

    assert 1 == len(table_of(zipped(a=parts), kind="EsriShapefile"))


def test_a_file_other_than_a_zip_is_refused(tmp_path):
    path = tmp_path / "a.zip"
    path.write_bytes(b"text")

    assert "broken-archive" == refusal(path, kind="EsriShapefile").code


def test_missing_and_unknown_columns_are_refused(zipped):
    path = zipped(a=written())

    assert "missing-column" == refusal(path, ddl("Name STRING"), kind="EsriShapefile").code
    assert (
        "unknown-fields"
        == refusal(path, ddl("name STRING"), kind="EsriShapefile", unknownFields="error").code
    )


def test_nulls_in_a_required_column_are_refused(zipped):
    path = zipped(a=written(records=[("", 1, 1, None, None)]))

    assert (
        "Column `name` contains 1 null values"
        in refusal(path, ddl("name STRING NOT NULL"), kind="EsriShapefile").message
    )


def test_nothing_is_left_on_disk(zipped, tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    table_of(zipped(**{"../../a": written()}), kind="EsriShapefile")
    refusal(zipped(a=written() | {"cpg": b"klingon"}), kind="EsriShapefile")

    assert [] == list(folder.iterdir())
    assert {"a.zip", "temporary"} == {each.name for each in tmp_path.iterdir()}
