"""Options that several commands share, and parsers of their words."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from backstory.cli.output import Output, choose_output
from backstory.errors import UsageError
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
Text = Annotated[str | None, Parameter(show_default=False)]


@Parameter(name="*", group=COMMON)
@dataclass(frozen=True)
class Options:
    """The warehouse, the output, and the amount that is printed.

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
    def branch(self) -> str | None:
        """The branch to read tables from."""
        return None

    @property
    def output_format(self) -> Output:
        """The output format, or its default."""
        return choose_output(self.output)

    def settings(self) -> Settings:
        """The settings of this run."""
        return load(self.warehouse, self.config)


@Parameter(name="*", group=COMMON)
@dataclass(frozen=True)
class BranchOptions(Options):
    """The common options of commands that read a table, or its branch.

    Attributes:
        branch: Read this branch of the table, to which deliveries were previewed.
    """

    branch: Text = None


DEFAULTS = Options()
BRANCH_DEFAULTS = BranchOptions()


def parse_names(options: tuple[str, ...]) -> list[str]:
    """The names in an option, separated by commas or given in repeated options."""
    return [name.strip() for text in options for name in text.split(",") if name.strip()]


def parse_parts(options: tuple[str, ...]) -> list[str]:
    """The parts of an option, separated by commas outside of parentheses."""
    return [part for text in options for part in split_list(text)]


def parse_pairs(options: tuple[str, ...], form: str) -> dict[str, str]:
    """The pairs in an option, such as `name=value`. `form` describes the option in errors."""
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
    """The words of a key in a database, by column. Raises UsageError if a value has no column name."""
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
    """The error for a question about known times, for a history in a database."""
    return UsageError(
        "bad-option", "A history in a database keeps no known times.", "Omit --known-at and --axis, or --url."
    )
