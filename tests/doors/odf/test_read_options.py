"""A read step of a manifest becomes reader options, or an error (section 1.6; R68)."""

import pytest
from odf_files import READ

from backstory.doors.odf.file_rows import read_options
from backstory.errors import UsageError
from backstory.formats.options import CsvOptions, JsonOptions, ParquetOptions, ShapefileOptions
from backstory.formats.values.texts import text_forms


@pytest.mark.parametrize(
    ("read", "option"),
    [
        ({"kind": "Csv", "separator": "||"}, "separator"),
        ({"kind": "Csv", "encoding": "xyz"}, "encoding"),
        ({"kind": "Csv", "nanValue": "-"}, "nanValue"),
        ({"kind": "Csv", "dateFormat": "%Q"}, "dateFormat"),
        ({"kind": "Json", "encoding": "xyz"}, "encoding"),
        ({"kind": "NdJson", "timestampFormat": "YYYY"}, "timestampFormat"),
    ],
)
def test_an_option_that_is_not_supported(read, option):
    """R68: The error names the option."""
    with pytest.raises(UsageError) as refused:
        read_options(READ.validate_python(read))
    assert ("unsupported-option", True) == (refused.value.code, f"`{option}`" in refused.value.message)


FORMS = text_forms("dd.MM.yyyy")


@pytest.mark.parametrize(
    ("read", "options"),
    [
        ({"kind": "Csv"}, CsvOptions(escape="\\", header=False)),
        (
            {
                "kind": "Csv",
                "separator": "\\t",
                "escape": '"',
                "encoding": "latin1",
                "dateFormat": "dd.MM.yyyy",
                "header": True,
                "inferSchema": True,
                "nullValue": "-",
                "unknownFields": "error",
            },
            CsvOptions("\t", encoding="iso8859-1", null="-", forms=FORMS, infer=True, strict=True),
        ),
        ({"kind": "Json", "subPath": "a.b"}, JsonOptions(sub_path="a.b")),
        ({"kind": "NdJson", "dateFormat": "dd.MM.yyyy"}, JsonOptions(lines=True, forms=FORMS)),
        ({"kind": "GeoJson"}, JsonOptions(geo=True)),
        ({"kind": "NdGeoJson", "unknownFields": "error"}, JsonOptions(lines=True, geo=True, strict=True)),
        ({"kind": "EsriShapefile", "subPath": "*.shp"}, ShapefileOptions("*.shp")),
        ({"kind": "Parquet"}, ParquetOptions()),
    ],
)
def test_supported_read_options_are_converted(read, options):
    assert read_options(READ.validate_python(read)) == options
