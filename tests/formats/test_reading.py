"""A type that a format cannot express is refused before a file is read (section 1.6; R68)."""

import pytest
from odf_files import declared, optional

from backstory.errors import UsageError
from backstory.formats.options import CsvOptions, JsonOptions, ParquetOptions, ShapefileOptions
from backstory.formats.reading import refuse_unwritable

BYTES, BYTE_LIST = "Binary", {"kind": "List", "itemType": optional("Binary")}


@pytest.mark.parametrize(
    "options", [CsvOptions(), JsonOptions(), JsonOptions(lines=True), ShapefileOptions()]
)
def test_types_without_a_text_form_are_refused(options):
    """This holds for any format. JSON formats also have lists of text types."""
    for type_, name in ((BYTES, "`a`"), (BYTE_LIST, "`a")):
        with pytest.raises(UsageError) as refused:
            refuse_unwritable(options, declared(a=type_))
        assert ("no-text-form", True) == (refused.value.code, name in refused.value.message)
    refuse_unwritable(options, declared(a="Time", b=optional("Timestamp")))
    if isinstance(options, JsonOptions):
        pairs = {"kind": "Map", "keyType": "String", "valueType": {"kind": "List", "itemType": "Date"}}
        refuse_unwritable(options, declared(a={"kind": "Struct", "fields": [{"name": "b", "type": pairs}]}))


def test_parquet_supports_all_types():
    refuse_unwritable(ParquetOptions(), declared(a=BYTE_LIST))
