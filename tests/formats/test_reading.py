"""What a reader refuses before there is a file (section 1.6; R68)."""

import pytest
from odf_files import READ, declared, optional

from backstory.errors import UsageError
from backstory.formats.reading import refuse_unsupported

BYTES, BYTE_LIST = "Binary", {"kind": "List", "itemType": optional("Binary")}


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
    """R68: refused by its name."""
    with pytest.raises(UsageError) as refused:
        refuse_unsupported(READ.validate_python(read))
    assert ("unsupported-option", True) == (refused.value.code, f"`{option}`" in refused.value.message)


@pytest.mark.parametrize("kind", ["Csv", "Json", "NdJson", "GeoJson", "NdGeoJson", "EsriShapefile"])
def test_a_type_that_text_has_no_form_for(kind):
    """Whatever the format is; those of JSON have lists of what text has a form for."""
    read = READ.validate_python({"kind": kind})
    for type_, name in ((BYTES, "`a`"), (BYTE_LIST, "`a")):
        with pytest.raises(UsageError) as refused:
            refuse_unsupported(read, declared(a=type_))
        assert ("no-text-form", True) == (refused.value.code, name in refused.value.message)
    refuse_unsupported(read, declared(a="Time", b=optional("Timestamp")))
    if "Json" in kind:
        pairs = {"kind": "Map", "keyType": "String", "valueType": {"kind": "List", "itemType": "Date"}}
        refuse_unsupported(read, declared(a={"kind": "Struct", "fields": [{"name": "b", "type": pairs}]}))


@pytest.mark.parametrize(
    "read",
    [
        {"kind": "Csv", "separator": "\\t", "encoding": "latin1", "dateFormat": "dd.MM.yyyy"},
        {"kind": "Parquet"},
        {"kind": "GeoJson"},
    ],
)
def test_what_is_supported(read):
    refuse_unsupported(READ.validate_python(read))
    if read["kind"] == "Parquet":
        refuse_unsupported(READ.validate_python(read), declared(a=BYTE_LIST))
