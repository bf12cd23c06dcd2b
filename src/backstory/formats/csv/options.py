"""The options of a CSV, looked at before the file is (section 1.6, D23)."""

from dataclasses import dataclass

from backstory.doors.odf.manifest.read import Csv
from backstory.errors import UsageError
from backstory.formats.encoded import encoding
from backstory.formats.values.texts import TimeFormats, time_formats

# Removed from the format, and what they did when they were not set (section 1.6).
_REMOVED = {
    "comment": ("comment", None),
    "enforce_schema": ("enforceSchema", True),
    "ignore_leading_white_space": ("ignoreLeadingWhiteSpace", False),
    "ignore_trailing_white_space": ("ignoreTrailingWhiteSpace", False),
    "empty_value": ("emptyValue", ""),
    "nan_value": ("nanValue", "NaN"),
    "positive_inf": ("positiveInf", "Inf"),
    "negative_inf": ("negativeInf", "-Inf"),
}
_SPELLED = {"\\t": "\t"}
_NEWLINES = {"\r", "\n"}


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a file is written; `quote` and `escape` are empty where there is none."""

    separator: str
    quote: str
    escape: str
    encoding: str
    null: str
    times: TimeFormats


def dialect(how: Csv) -> Dialect:
    """The file's dialect; UsageError that names the option for what is not supported."""
    for attribute, (option, default) in _REMOVED.items():
        if getattr(how, attribute) not in {None, default}:
            raise _unsupported(option, "it was removed from the format", "Take it out of `read`.")
    separator = _SPELLED.get(how.separator, how.separator)
    escape = "" if how.escape == how.quote else how.escape  # a doubled quote stands for one anyway
    named = {"separator": separator, "quote": how.quote, "escape": escape}
    for option, letter in named.items():
        if len(letter) > 1 or not letter.isascii() or letter in _NEWLINES:
            raise _unsupported(option, "it has to be one ASCII letter", "")
    if not separator:
        raise _unsupported("separator", "it is empty", "Write one ASCII letter.")
    if separator in {how.quote, escape}:
        raise _unsupported("separator", "it is the quote or the escape too", "Write another letter.")
    return Dialect(
        separator,
        how.quote,
        escape if how.quote else "",
        encoding(how.encoding),
        how.null_value,
        time_formats(how.date_format, how.timestamp_format),
    )


def _unsupported(option: str, why: str, remedy: str) -> UsageError:
    return UsageError("unsupported-option", f"The option `{option}` of the reader: {why}.", remedy)
