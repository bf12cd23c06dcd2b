"""The options that say how the files of a source are written."""

from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Group, Parameter

from backstory.cli.options import Names
from backstory.errors import UsageError
from backstory.formats.file_options import FileOptions
from backstory.model.lists import split_list
from backstory.model.types import type_named

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
