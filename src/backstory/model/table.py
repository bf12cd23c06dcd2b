"""A table's name."""

from dataclasses import dataclass

from backstory.errors import UsageError


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
    if not schema or not name:
        raise UsageError("no-table", f"{text!r} does not name a table.", "Write it as schema.table.")
    return TableName(schema, name)
