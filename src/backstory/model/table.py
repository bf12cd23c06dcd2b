"""A table's name."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """`<schema>.<table>`, both exactly as the source spells them."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"
