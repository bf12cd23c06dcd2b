"""How the files of a source are written, where a reader would expect otherwise."""

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
    """The options that describe files; None where the caller says nothing, and the reader's default holds.

    Attributes:
        separator: one ASCII letter between cells; `tab` is one, too.
        encoding: the encoding of the text, as Python names it.
        decimal: the decimal point of numbers, a point or a comma.
        null: the text that stands for NULL.
        quote: one ASCII letter around values, empty where no value is quoted.
        type: types of columns, by the names that the file has for them.
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
        """The options of a CSV; UsageError for what no reader takes."""
        from backstory.formats.options import CsvOptions
        from backstory.formats.values.texts import TextForms

        given: dict[str, Any] = {name: getattr(self, name) for name in ("null", "quote")}
        if self.separator is not None:
            given["separator"] = _SPELLED.get(self.separator, self.separator)
        return CsvOptions(
            encoding=self.text_encoding,
            forms=TextForms(decimal=self.decimal or "."),
            infer=True,
            **{name: value for name, value in given.items() if value is not None},
        )

    @property
    def text_encoding(self) -> str:
        """Python's name of the encoding; UsageError for none."""
        from backstory.formats.encoded import UTF8, encoding

        return UTF8 if self.encoding is None else encoding(self.encoding)

    def refuse_all(self, what: str, but: frozenset[str] = frozenset()) -> None:
        """Raise UsageError where an option is given that `what` does not have."""
        for name in self.__slots__:
            value = getattr(self, name)
            if value not in (None, {}) and name not in but:
                raise UsageError(
                    "bad-option",
                    f"{option(name, value if isinstance(value, str) else '')} does not apply to {what}.",
                    "Leave it out; it describes how a CSV file is written.",
                )

    def refuse_misplaced(self, format_: str) -> None:
        """Raise UsageError where an option is given that files of a format do not have."""
        if format_ == "parquet":
            self.refuse_all("Parquet files")
        elif format_ != "csv":
            self.refuse_all("JSON files", _OF_JSON)


AS_EXPECTED: Final = FileOptions()
