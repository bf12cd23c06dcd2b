"""Reader options for CSV, JSON, Parquet and shapefiles, checked before a file is read (section 1.6, D23)."""

from dataclasses import dataclass, field
from typing import Final

from backstory.errors import UsageError
from backstory.formats.values.texts import TextForms

_NEWLINES: Final = {"\r", "\n"}


@dataclass(frozen=True, slots=True)
class CsvOptions:
    """The format of a CSV file, where it differs from RFC 4180. Raises UsageError for an invalid option.

    Attributes:
        separator: one ASCII character.
        quote: one ASCII character, or empty if no value is quoted; a doubled quote means one quote.
        escape: the character before a literal quote within quotes, or empty if there is none.
        header: whether the first row names the columns.
        encoding: Python's name of the text's encoding.
        null: the string that means NULL, or None if there is no such string.
        quoted_null: whether the string of `null` also means NULL in quotes.
        forms: the formats of numbers, dates and times.
        unmodified: the content of cells that leave their column unchanged, or None. An extra
            boolean column flags these cells.
        infer: whether undeclared columns have the type that fits all their cells; otherwise they are text.
        strict: whether undeclared columns are refused.
    """

    separator: str = ","
    quote: str = '"'
    escape: str = ""
    header: bool = True
    encoding: str = "utf-8"
    null: str | None = ""
    quoted_null: bool = False
    forms: TextForms = field(default_factory=TextForms)
    unmodified: str | None = None
    infer: bool = False
    strict: bool = False

    def __post_init__(self) -> None:
        named = {"separator": self.separator, "quote": self.quote, "escape": self.escape}
        for option, letter in named.items():
            if len(letter) > 1 or not letter.isascii() or letter in _NEWLINES:
                raise unsupported_option(
                    option, "it must be one ASCII character", "Use one, such as `;` or `|`."
                )
        if not self.separator:
            raise unsupported_option("separator", "it is empty", "Use one ASCII character.")
        if self.separator in {self.quote, self.escape}:
            raise unsupported_option(
                "separator", "it is also the quote or the escape", "Use another character."
            )


def unsupported_option(option: str, why: str, remedy: str) -> UsageError:
    """The error for an unknown option or an unsupported value."""
    return UsageError("unsupported-option", f"The option `{option}` of the reader: {why}.", remedy)


@dataclass(frozen=True, slots=True)
class JsonOptions:
    """Options for a JSON file, which is an array of objects or has one object per line.

    Attributes:
        lines: whether each line is a row.
        geo: whether rows are the features of GeoJSON.
        sub_path: the dotted path to the array, or None for the root or the features.
        encoding: Python's name of the text's encoding.
        forms: the formats of numbers, dates and times.
        strict: whether undeclared keys are refused.
        keeps: whether an extra boolean column flags the rows that lack a column (V138).
    """

    lines: bool = False
    geo: bool = False
    sub_path: str | None = None
    encoding: str = "utf-8"
    forms: TextForms = field(default_factory=TextForms)
    strict: bool = False
    keeps: bool = False


@dataclass(frozen=True, slots=True)
class ParquetOptions:
    """Options for a Parquet file.

    Attributes:
        strict: whether undeclared columns are refused.
        naive: whether undeclared times without a zone stay without one; otherwise they are UTC.
    """

    strict: bool = False
    naive: bool = False


@dataclass(frozen=True, slots=True)
class ShapefileOptions:
    """Options for a zip file with shapefiles. `strict` refuses undeclared columns."""

    sub_path: str | None = None
    strict: bool = False
