"""How a CSV is written: the options of doors, checked before the file is read (section 1.6, D23).

How a JSON file is laid out (section 1.6).

How a Parquet file is read (section 1.6).

Which shapefile of a zip is read (section 1.6).
"""

from dataclasses import dataclass, field
from typing import Final

from backstory.errors import UsageError
from backstory.formats.values.texts import TextForms

_NEWLINES: Final = {"\r", "\n"}


@dataclass(frozen=True, slots=True)
class CsvOptions:
    """A file as RFC 4180 has it, but for what is said otherwise; UsageError for what cannot be read.

    Attributes:
        separator: one ASCII letter.
        quote: one ASCII letter, empty where no value is quoted; a doubled one stands for itself.
        escape: what may stand before a quote within quotes; empty where nothing does.
        header: whether the first row names the columns.
        encoding: Python's name of the text's encoding.
        null: the text that stands for NULL; None where none does.
        quoted_null: whether it does in quotes, too.
        forms: how numbers, dates and times are written.
        unmodified: the text of cells that leave their column as it was; None where there is none. A column
            beside says of each such column which cells these are.
        infer: whether columns that nobody declares are what all their cells are, else they are texts.
        strict: whether columns that nobody declares are refused.
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
                "separator", "it is the quote or the escape too", "Use another character."
            )


def unsupported_option(option: str, why: str, remedy: str) -> UsageError:
    """The error for an option that no reader has, or not with this value."""
    return UsageError("unsupported-option", f"The option `{option}` of the reader: {why}.", remedy)


@dataclass(frozen=True, slots=True)
class JsonOptions:
    """An array of objects, or one a line.

    Attributes:
        lines: whether a row stands on a line of its own.
        geo: whether rows are the features of GeoJSON.
        sub_path: the dotted path to the array; None: the root, or the features.
        encoding: Python's name of the text's encoding.
        forms: how numbers, dates and times are written.
        strict: whether keys that nobody declares are refused.
        keeps: whether a column beside another one says which rows do not have it (V138).
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
    """A Parquet file.

    Attributes:
        strict: whether columns that nobody declares are refused.
        naive: whether times without a zone, of columns that nobody declares, stay so; else they are UTC.
    """

    strict: bool = False
    naive: bool = False


@dataclass(frozen=True, slots=True)
class ShapefileOptions:
    """A zip with one shapefile, or one that `sub_path` chooses; `strict` is as for other formats."""

    sub_path: str | None = None
    strict: bool = False
