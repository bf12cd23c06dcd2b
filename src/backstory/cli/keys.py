"""Keys, columns and times in the words of a command."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backstory.cli.options import parse_names
from backstory.errors import UsageError
from backstory.model.keys import key_of_words
from backstory.model.schema import Shape
from backstory.table import Table


@dataclass(frozen=True, slots=True)
class Chosen:
    """The words of `--key` and `--columns`: which record, and which of its columns, are shown."""

    key: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def of(self, shape: Shape) -> Any:
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


def named_key(given: tuple[str, ...]) -> dict[str, str]:
    """The key of a record in a database, which does not tell its columns: each is named."""
    wanted = key_of_words((), given)
    if isinstance(wanted, str):
        raise UsageError("other-key", "The key's column must be named for a database.", "Write name=value.")
    return wanted


def key_in_words(names: Sequence[str], given: tuple[str, ...]) -> str:
    """A key that was given, as `name=value` for each of its columns."""
    wanted = key_of_words(names, given)
    named = wanted if isinstance(wanted, dict) else dict.fromkeys(names[:1], wanted)
    return " ".join(f"{name}={value}" for name, value in named.items())


def no_known_times() -> UsageError:
    """The error for a question of known times to a database."""
    return UsageError(
        "bad-option", "A history in a database keeps no known times.", "Omit --known-at and --axis, or --url."
    )
