"""The read step of a manifest in the words of `formats` (section 1.6)."""

from typing import Final

from backstory.doors.odf.manifest.read import (
    Csv,
    EsriShapefile,
    GeoJson,
    Json,
    NdGeoJson,
    NdJson,
    Reading,
    UnknownFields,
)
from backstory.formats.csv.options import CsvOptions, unsupported
from backstory.formats.encoded import encoding
from backstory.formats.json.options import JsonOptions
from backstory.formats.parquet.options import ParquetOptions
from backstory.formats.reading import Options
from backstory.formats.shapefile.options import ShapefileOptions
from backstory.formats.values.texts import text_forms

# Removed from the format, and what they did when they were not set (section 1.6).
_REMOVED: Final = {
    "comment": ("comment", None),
    "enforce_schema": ("enforceSchema", True),
    "ignore_leading_white_space": ("ignoreLeadingWhiteSpace", False),
    "ignore_trailing_white_space": ("ignoreTrailingWhiteSpace", False),
    "empty_value": ("emptyValue", ""),
    "nan_value": ("nanValue", "NaN"),
    "positive_inf": ("positiveInf", "Inf"),
    "negative_inf": ("negativeInf", "-Inf"),
}
_SPELLED: Final = {"\\t": "\t"}


def read_options(read: Reading) -> Options:
    """How the file is read; UsageError that names the option for what is not supported."""
    strict = read.unknown_fields is UnknownFields.ERROR
    match read:
        case Csv():
            return _csv(read, strict=strict)
        case Json() | NdJson():
            return JsonOptions(
                lines=isinstance(read, NdJson),
                sub_path=read.sub_path if isinstance(read, Json) else None,
                encoding=encoding(read.encoding),
                forms=text_forms(read.date_format, read.timestamp_format),
                strict=strict,
            )
        case GeoJson() | NdGeoJson():
            return JsonOptions(lines=isinstance(read, NdGeoJson), geo=True, strict=strict)
        case EsriShapefile():
            return ShapefileOptions(read.sub_path, strict)
        case _:
            return ParquetOptions(strict)


def _csv(read: Csv, *, strict: bool) -> CsvOptions:
    for attribute, (option, default) in _REMOVED.items():
        if getattr(read, attribute) not in {None, default}:
            raise unsupported(option, "it was removed from the format", "Remove it from `read`.")
    return CsvOptions(
        _SPELLED.get(read.separator, read.separator),
        read.quote,
        "" if read.escape == read.quote else read.escape,  # a doubled quote stands for one anyway
        header=read.header,
        encoding=encoding(read.encoding),
        null=read.null_value,
        forms=text_forms(read.date_format, read.timestamp_format),
        infer=read.infer_schema,
        strict=strict,
    )
