"""Options of the caller for the format of a source's files, where it differs from the default."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from backstory.errors import UsageError, option
from backstory.model.types import ColumnType

if TYPE_CHECKING:
    from backstory.formats.options import CsvOptions

_DECIMALS: Final = (".", ",")
_SPELLED: Final = {"tab": "\t", "\\t": "\t"}
_OF_JSON: Final = frozenset({"encoding", "type"})


@dataclass(frozen=True, slots=True)
class FileOptions:
    """The options that describe files; None keeps the reader's default.

    Attributes:
        separator: one ASCII character between cells, or `tab`.
        encoding: Python's name of the text encoding.
        decimal: the decimal separator of numbers, a point or a comma.
        null: the text that means NULL.
        quote: one ASCII character around values; empty if no value is quoted.
        type: types of columns by their names in the file.
    """

    separator: str | None = None
    encoding: str | None = None
    decimal: str | None = None
    null: str | None = None
    quote: str | None = None
    type: Mapping[str, ColumnType] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.decimal not in {None, *_DECIMALS}:
            raise UsageError(
                "bad-option",
                f"`decimal=` is {self.decimal!r}.",
                "Use a point or a comma: '.' or ','.",
            )
        if any(getattr(self, name) is not None for name in ("separator", "encoding", "quote")):
            self.csv()

    def csv(self) -> "CsvOptions":
        """Return the options of a CSV; raise UsageError for a value that the reader does not support."""
        from backstory.formats.options import CsvOptions
        from backstory.formats.values.texts import TextForms

        values: dict[str, Any] = {name: getattr(self, name) for name in ("null", "quote")}
        if self.separator is not None:
            values["separator"] = _SPELLED.get(self.separator, self.separator)
        return CsvOptions(
            encoding=self.text_encoding,
            forms=TextForms(decimal=self.decimal or "."),
            infer=True,
            **{name: value for name, value in values.items() if value is not None},
        )

    @property
    def text_encoding(self) -> str:
        """Python's name of the encoding; UsageError for an unknown one."""
        from backstory.formats.encoded import UTF8, encoding

        return UTF8 if self.encoding is None else encoding(self.encoding)

    def refuse_all(self, what: str, but: frozenset[str] = frozenset()) -> None:
        """Raise UsageError if an option is set that does not apply to `what`; `but` lists the exceptions."""
        for name in self.__slots__:
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
