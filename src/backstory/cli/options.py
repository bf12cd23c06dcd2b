"""The options that every command takes.

The options that say how the files of a source are written.

Keys, columns and times in the words of a command.
"""

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
from backstory.settings import Settings, load
from backstory.table import Table

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


@Parameter(name="*", group=COMMON)
@dataclass(frozen=True)
class Options:
    """Where the warehouse is and how a command answers.

    Attributes:
        warehouse: Folder of the embedded warehouse. Default: BACKSTORY_WAREHOUSE, or ./warehouse.
        config: Configuration file. Default: BACKSTORY_CONFIG, or ./backstory.toml if it exists.
        output: table, json or csv. Default: a table on a terminal, json elsewhere.
        wide: Show whole values, whatever the width of the terminal.
        quiet: Print only the result and errors.
        verbose: Show Spark's own log, and the trace of an error.
    """

    warehouse: Path | None = None
    config: Path | None = None
    output: Output | None = None
    wide: Annotated[bool, Parameter(negative="", show_default=False)] = False
    quiet: Annotated[bool, Parameter(negative="", alias="-q", show_default=False)] = False
    verbose: Annotated[bool, Parameter(negative="", alias="-v", show_default=False)] = False

    @property
    def answer(self) -> Output:
        """The output that the command answers with."""
        return choose_output(self.output)

    def settings(self) -> Settings:
        """The settings of this run."""
        return load(self.warehouse, self.config)


REMARK = Group("About the commit", sort_key=8)


@Parameter(name="*", group=REMARK)
@dataclass(frozen=True)
class RemarkFlags:
    """A note and an author of the commit; `log` and the explorer show them.

    Attributes:
        note: Why the commit is made.
        author: Who makes the commit.
    """

    note: Annotated[str | None, Parameter(show_default=False)] = None
    author: Annotated[str | None, Parameter(show_default=False)] = None

    def arguments(self) -> dict[str, Any]:
        """The options as Python's calls take them."""
        return {"note": self.note, "author": self.author}


NO_REMARK = RemarkFlags()


def parse_names(options: tuple[str, ...]) -> list[str]:
    """The names that an option lists, separated by commas or in repeated options."""
    return [name.strip() for each in options for name in each.split(",") if name.strip()]


def names_or_none(options: tuple[str, ...]) -> list[str] | None:
    """The same; None where there are none, as the option is left out then."""
    return parse_names(options) or None


FILES = Group("Files in other forms", sort_key=5)
_Text = Annotated[str | None, Parameter(show_default=False)]


@Parameter(name="*", group=FILES)
@dataclass(frozen=True)
class FileFlags:
    """How CSV and JSON files are written, where a reader would expect otherwise.

    Attributes:
        separator: The character between the cells of a CSV file. Default: a comma. Use tab for a tab.
        encoding: The encoding of CSV or JSON files, such as latin-1 or cp1252. Default: UTF-8.
        decimal: The decimal point of numbers in a CSV file: a point or a comma. Default: a point.
        null: The text that means NULL in a CSV file, such as NA. Default: an empty cell.
        quote: The character around values of a CSV file. Default: a double quote.
        type: Types of columns in CSV or JSON files: zip=STRING. Default: the type that fits all values.
    """

    separator: _Text = None
    encoding: _Text = None
    decimal: _Text = None
    null: _Text = None
    quote: _Text = None
    type: Names = ()

    def arguments(self) -> dict[str, Any]:
        """The options as Python's calls take them."""
        return {**vars(self), "type": parse_pairs(self.type, "--type column=TYPE")}

    def options(self) -> FileOptions:
        """The options as readers take them; UsageError for a type that there is not."""
        types = {name: type_named(word) for name, word in self.arguments()["type"].items()}
        return FileOptions(**{**vars(self), "type": types})


def parse_parts(given: tuple[str, ...]) -> list[str]:
    """The parts of an option's texts between commas; one within parentheses parts nothing."""
    return [part for text in given for part in split_list(text)]


def parse_pairs(given: tuple[str, ...], form: str) -> dict[str, str]:
    """What an option of this form says of columns."""
    pairs = {}
    for each in parse_parts(given):
        name, equals, word = each.partition("=")
        if not (name and equals and word):
            lacks = "a name or a value" if equals else "'='"
            message = f"{form.partition(' ')[0]} {each} has no {lacks}."
            raise UsageError("bad-option", message, f"Write {form}.")
        pairs[name] = word
    return pairs


@dataclass(frozen=True, slots=True)
class SelectionFlags:
    """The words of `--key` and `--columns`: which record, and which of its columns, are shown."""

    key: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def selection(self, shape: Shape) -> Any:
        """The selection that they mean on a table."""
        from backstory.reading.selection import Selection

        return Selection(key_of_words(shape.source_key, self.key) if self.key else None, self.names)

    def arguments(self, table: Table) -> Mapping[str, Any]:
        """The arguments that they mean on a table of a warehouse."""
        return {"key": parse_key(table, self.key) if self.key else None, "columns": self.names}

    @property
    def names(self) -> list[str]:
        """The columns."""
        return parse_names(self.columns)


def require_key(given: tuple[str, ...]) -> None:
    """Raise UsageError if no key is given."""
    if not given:
        remedy = "Write its value, or a=1 b=2 for a key of several columns."
        raise UsageError("no-key", "No key is given.", remedy)


def parse_key(table: Table, words: tuple[str, ...]) -> str | dict[str, str]:
    """The key of the table in the words of a command."""
    from backstory.stores.iceberg.store import existing

    return key_of_words(existing(table.store, table.name).shape.source_key, words)


def parse_named_key(given: tuple[str, ...]) -> dict[str, str]:
    """The key of a record in a database, which does not tell its columns: each is named."""
    wanted = key_of_words((), given)
    if isinstance(wanted, str):
        raise UsageError("other-key", "The key's column must be named for a database.", "Write name=value.")
    return wanted


def describe_key(names: Sequence[str], given: tuple[str, ...]) -> str:
    """A key that was given, as `name=value` for each of its columns."""
    wanted = key_of_words(names, given)
    named = wanted if isinstance(wanted, dict) else dict.fromkeys(names[:1], wanted)
    return " ".join(f"{name}={value}" for name, value in named.items())


def no_known_times() -> UsageError:
    """The error for a question of known times to a database."""
    return UsageError(
        "bad-option", "A history in a database keeps no known times.", "Omit --known-at and --axis, or --url."
    )
