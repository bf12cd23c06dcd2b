"""A table's name."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from backstory.errors import UsageError

NUL = "\0"  # no catalog, no file and no database has it in a name
ODF = "odf"  # the schema of datasets


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """`<schema>.<table>`, both exactly as the source spells them."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


def table_name(text: str) -> TableName:
    """The table that `schema.table` names; the schema reaches up to the first dot."""
    schema, _, name = text.partition(".")
    if not schema or not name or NUL in text:
        raise UsageError("no-table", f"{text!r} does not name a table.", "Write it as schema.table.")
    return TableName(schema, name)


def resolve_name(text: str, is_there: Callable[[TableName], bool]) -> TableName | None:
    """The table `schema.table`, as lists have it, else that of a dataset in `odf`; None for neither.

    Raises UsageError for what names no table at all.
    """
    return next(filter(is_there, meanings(text)), None)


def meanings(text: str) -> Iterator[TableName]:
    """The tables that a text may name, the dataset's last; raises UsageError for one that names no other."""
    if NUL in text:
        table_name(text)
    if dotted := all(text.partition(".")[::2]):
        yield table_name(text)
    if text:
        yield TableName(ODF, text)
    if not dotted:
        table_name(text)
