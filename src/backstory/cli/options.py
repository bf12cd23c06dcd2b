"""Options that several commands share, and how their words are parsed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from backstory.cli.output import Output, choose_output
from backstory.errors import UsageError
from backstory.formats.file_options import FileOptions
from backstory.model.table import Shape
from backstory.model.types import type_named
from backstory.model.values import key_of_words, split_list
from backstory.reading.selection import Selection
from backstory.settings import Settings, load
from backstory.table import Table

FILES = Group("Files in other forms", sort_key=5)
REMARK = Group("About the commit", sort_key=8)
COMMON = Group("Common options", sort_key=9)
NOT_NEGATIVE = Number(gte=0)
Limit = Annotated[int | None, Parameter(validator=NOT_NEGATIVE)]
Names = Annotated[tuple[str, ...], Parameter(consume_multiple=False, negative="", show_default=False)]
NamesOrAll = Annotated[
    tuple[str, ...] | None,
    Parameter(consume_multiple=True, negative="", show_default=False, allow_leading_hyphen=False),
]
Key = Annotated[
    tuple[str, ...],
    Parameter(consume_multiple=True, negative="", show_default=False, allow_leading_hyphen=False),
]
Flag = Annotated[bool, Parameter(negative="", show_default=False)]
_Text = Annotated[str | None, Parameter(show_default=False)]


@Parameter(name="*", group=COMMON)
@dataclass(frozen=True)
class Options:
    """The warehouse, the output, and how much is printed.

    Attributes:
        warehouse: Folder of the embedded warehouse. Default: BACKSTORY_WAREHOUSE, or ./warehouse.
        config: Configuration file. Default: BACKSTORY_CONFIG, or ./backstory.toml if it exists.
        output: Output as table, json or csv. Default: table on a terminal, else json.
        wide: Print whole values, even beyond the width of the terminal.
        quiet: Print only the result and errors.
        verbose: Print the log of Spark, and the stack trace of an error.
    """

    warehouse: Path | None = None
    config: Path | None = None
    output: Output | None = None
    wide: Annotated[bool, Parameter(negative="", show_default=False)] = False
    quiet: Annotated[bool, Parameter(negative="", alias="-q", show_default=False)] = False
    verbose: Annotated[bool, Parameter(negative="", alias="-v", show_default=False)] = False

    @property
    def output_format(self) -> Output:
        """The output, with its default."""
        return choose_output(self.output)

    def settings(self) -> Settings:
        """The settings of this run."""
        return load(self.warehouse, self.config)


@Parameter(name="*", group=REMARK)
@dataclass(frozen=True)
class RemarkFlags:
    """A note and an author of the commit; `log` and the explorer show them.

    Attributes:
        note: Reason for the commit.
        author: Author of the commit.
    """

    note: _Text = None
    author: _Text = None

    def arguments(self) -> dict[str, Any]:
        """The options as keyword arguments of Python calls."""
        return {"note": self.note, "author": self.author}


@Parameter(name="*", group=FILES)
@dataclass(frozen=True)
class FileFlags:
    """The form of CSV and JSON files, if it is not the usual one.

    Attributes:
        separator: Character between the cells of a CSV file; `tab` for a tab. Default: a comma.
        encoding: Encoding of CSV or JSON files, such as latin-1 or cp1252. Default: UTF-8.
        decimal: Decimal separator of numbers in a CSV file, a point or a comma. Default: a point.
        null: Text for NULL in a CSV file, such as NA. Default: an empty cell.
        quote: Character around values of a CSV file, empty for none. Default: a double quote.
        type: Column types of CSV or JSON files, as zip=STRING. Default: the type that fits all values.
    """

    separator: _Text = None
    encoding: _Text = None
    decimal: _Text = None
    null: _Text = None
    quote: _Text = None
    type: Names = ()

    def arguments(self) -> dict[str, Any]:
        """The options as keyword arguments of Python calls."""
        return {**vars(self), "type": parse_pairs(self.type, "--type column=TYPE")}

    def options(self) -> FileOptions:
        """The options for readers of files; UsageError for an unknown type."""
        types = {name: type_named(word) for name, word in self.arguments()["type"].items()}
        return FileOptions(**{**vars(self), "type": types})


@dataclass(frozen=True, slots=True)
class SelectionFlags:
    """The words of `--key` and `--columns`: one record, and some of its columns."""

    key: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def selection(self, shape: Shape) -> Selection:
        """The selection from a table of this shape."""
        return Selection(key_of_words(shape.source_key, self.key) if self.key else None, self.names)

    def arguments(self, table: Table) -> Mapping[str, Any]:
        """The selection as keyword arguments of the methods of `Table`."""
        return {"key": parse_key(table, self.key) if self.key else None, "columns": self.names}

    @property
    def names(self) -> list[str]:
        """The columns."""
        return parse_names(self.columns)


DEFAULTS = Options()
NO_REMARK = RemarkFlags()
AS_EXPECTED = FileFlags()


def parse_names(options: tuple[str, ...]) -> list[str]:
    """The names of an option, separated by commas or given in repeated options."""
    return [name.strip() for text in options for name in text.split(",") if name.strip()]


def names_or_none(options: tuple[str, ...]) -> list[str] | None:
    """The names of an option; None if it was not given."""
    return parse_names(options) or None


def parse_parts(options: tuple[str, ...]) -> list[str]:
    """The parts of an option, separated by commas outside of parentheses."""
    return [part for text in options for part in split_list(text)]


def parse_pairs(options: tuple[str, ...], form: str) -> dict[str, str]:
    """The pairs of an option, such as `name=value`; `form` describes the option in errors."""
    pairs = {}
    for part in parse_parts(options):
        name, equals, word = part.partition("=")
        if not (name and equals and word):
            lacks = "a name or a value" if equals else "'='"
            message = f"{form.partition(' ')[0]} {part} has no {lacks}."
            raise UsageError("bad-option", message, f"Write {form}.")
        pairs[name] = word
    return pairs


def require_key(words: tuple[str, ...]) -> None:
    """Raise UsageError if no key is given."""
    if not words:
        remedy = "Write its value, or a=1 b=2 for a key of several columns."
        raise UsageError("no-key", "No key is given.", remedy)


def parse_key(table: Table, words: tuple[str, ...]) -> str | dict[str, str]:
    """The words of a key as a value, or as values by column for a key of several columns."""
    from backstory.stores.iceberg.store import existing

    return key_of_words(existing(table.store, table.name).shape.source_key, words)


def parse_named_key(words: tuple[str, ...]) -> dict[str, str]:
    """The words of a key in a database, by column; UsageError if a value has no column name."""
    key = key_of_words((), words)
    if isinstance(key, str):
        raise UsageError("other-key", "The key's column must be named for a database.", "Write name=value.")
    return key


def describe_key(names: Sequence[str], words: tuple[str, ...]) -> str:
    """The words of a key as `name=value` for each of its columns."""
    key = key_of_words(names, words)
    values = key if isinstance(key, dict) else dict.fromkeys(names[:1], key)
    return " ".join(f"{name}={value}" for name, value in values.items())


def no_known_times() -> UsageError:
    """The error for a question about known times to a history in a database."""
    return UsageError(
        "bad-option", "A history in a database keeps no known times.", "Omit --known-at and --axis, or --url."
    )
