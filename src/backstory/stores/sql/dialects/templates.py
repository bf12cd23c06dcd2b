"""Types and canonical texts as tables: a row of a dialect's table is a template for one type."""

from collections.abc import Mapping
from typing import ClassVar

from backstory.stores.sql.columns import Datatype
from backstory.stores.sql.dialects.dialect import Dialect

BOOLEAN_TEXT = "CASE WHEN {sql} THEN 'true' WHEN NOT {sql} THEN 'false' END"


class TemplateDialect(Dialect):
    """A dialect whose types and canonical texts stand in tables.

    A type may name `{precision}` and `{scale}`; a text of limited length is `LIMITED`, with `{length}`. A
    canonical text names the value `{sql}` and, for numbers, `{precision}` and `{scale}`; a type without a row
    is cast as `CAST_TEXT` says.
    """

    TYPES: ClassVar[Mapping[Datatype, str]]
    LIMITED: ClassVar[str]
    TEXTS: ClassVar[Mapping[Datatype, str]]
    CAST_TEXT: ClassVar[str]

    def map_logical_type(
        self,
        datatype: Datatype,
        max_length: int | None = None,
        precision: int | None = None,
        scale: int | None = None,
        *,
        strict: bool = True,
    ) -> str:
        if datatype is Datatype.STRING and strict and max_length:
            return self.LIMITED.format(length=max_length)
        return self.TYPES[datatype].format(precision=precision, scale=scale)

    def canonical_text(
        self, sql: str, datatype: Datatype, precision: int | None = None, scale: int | None = None
    ) -> str:
        template = self.TEXTS.get(datatype, self.CAST_TEXT)
        return template.format(sql=sql, precision=precision, scale=scale)
