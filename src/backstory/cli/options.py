"""The options that every command takes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from backstory.cli.output import Output, chosen
from backstory.settings import Settings, load

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
        return chosen(self.output)

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
