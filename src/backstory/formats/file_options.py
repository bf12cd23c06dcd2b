"""The caller's options for a source's files, for formats that differ from the default."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from attrs import field, fields, frozen

from backstory.errors import UsageError, option
from backstory.model.types import ColumnType, type_named

if TYPE_CHECKING:
    from backstory.formats.options import CsvOptions

_DECIMALS: Final = (".", ",")
_SEPARATORS: Final = {"tab": "\t", "\\t": "\t"}
_OF_JSON: Final = frozenset({"encoding", "type"})


def parse_types(words: Mapping[str, str | ColumnType] | None) -> dict[str, ColumnType]:
    """The types of columns, from names such as `DECIMAL(18,2)`. Raises UsageError for an unknown type."""
    return {name: _type(name, word) for name, word in (words or {}).items()}


@frozen(kw_only=True)
class FileOptions:
    """The options that describe files. None means the default.

    Attributes:
        separator: Character between the cells of a CSV file; `tab` for a tab. Default: a comma.
        encoding: Encoding of CSV or JSON files, such as latin-1 or cp1252. Default: UTF-8.
        decimal: Decimal separator of numbers in a CSV file, a point or a comma. Default: a point.
        null: Text for NULL in a CSV file, such as NA. Default: an empty cell.
        quote: Character around values of a CSV file, empty for none. Default: a double quote.
        type: Types of columns in CSV or JSON files, by column name in the file. Default: the type that fits
            all values.
    """

    separator: str | None = None
    encoding: str | None = None
    decimal: str | None = None
    null: str | None = None
    quote: str | None = None
    type: Mapping[str, ColumnType] = field(factory=dict, converter=parse_types)

    def __attrs_post_init__(self) -> None:
        if self.decimal not in {None, *_DECIMALS}:
            raise UsageError(
                "bad-option", f"`decimal=` is {self.decimal!r}.", "Use a point or a comma: '.' or ','."
            )
        if any(getattr(self, name) is not None for name in ("separator", "encoding", "quote")):
            self.csv()

    def csv(self) -> "CsvOptions":
        """The options of a CSV. Raises UsageError for a value that the reader does not support."""
        from backstory.formats.options import CsvOptions
        from backstory.formats.values.texts import TextForms

        values: dict[str, Any] = {name: getattr(self, name) for name in ("null", "quote")}
        if self.separator is not None:
            values["separator"] = _SEPARATORS.get(self.separator, self.separator)
        return CsvOptions(
            encoding=self.text_encoding,
            forms=TextForms(decimal=self.decimal or "."),
            infer=True,
            **{name: value for name, value in values.items() if value is not None},
        )

    @property
    def text_encoding(self) -> str:
        """Python's name for the encoding. Raises UsageError if the encoding is unknown."""
        from backstory.formats.encoded import UTF8, encoding

        return UTF8 if self.encoding is None else encoding(self.encoding)

    def refuse_all(self, what: str, but: frozenset[str] = frozenset()) -> None:
        """Raise UsageError if an option is set that does not apply to `what`.

        `but` lists options that are exempt.
        """
        for name in FILE_OPTIONS:
            value = getattr(self, name)
            if value not in (None, {}) and name not in but:
                raise UsageError(
                    "bad-option",
                    f"{option(name, value if isinstance(value, str) else '')} does not apply to {what}.",
                    "Leave it out; it describes how a CSV file is written.",
                )

    def refuse_misplaced(self, format_: str) -> None:
        """Raise UsageError if an option is set that does not apply to the format."""
        if format_ == "parquet":
            self.refuse_all("Parquet files")
        elif format_ != "csv":
            self.refuse_all("JSON files", _OF_JSON)


AS_EXPECTED: Final = FileOptions()
FILE_OPTIONS: Final = tuple(option.name for option in fields(FileOptions))


def _type(name: str, word: str | ColumnType) -> ColumnType:
    if isinstance(word, ColumnType):
        return word
    try:
        return type_named(word)
    except ValueError:
        raise UsageError(
            "bad-option",
            f"There is no type {word} for column {name}.",
            "The types are BOOLEAN, INT, BIGINT, FLOAT, DOUBLE, DECIMAL(18,2), STRING, BINARY, DATE, "
            "TIMESTAMP (an instant) and TIMESTAMP_NTZ (a time without a zone).",
        ) from None
