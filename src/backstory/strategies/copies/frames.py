"""The stored versions that count for a copy, on Spark."""

from typing import TYPE_CHECKING

from backstory.model.layout import MEMORY, VALID_FROM, VALID_TO
from backstory.model.versions_layout import ENDED_AT, KIND, ROLE, FactKind, Role
from backstory.stores.iceberg.literals import column, instant
from backstory.strategies.copies.terms import CopyTerms

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def version_condition() -> "Column":
    """Whether a stored row is a version, and no memory."""
    return column(MEMORY).getField(ROLE).isNull()


def mark_condition() -> "Column":
    """Whether a stored row remembers a copy or a truncate that was not taken back."""
    memory = column(MEMORY)
    is_mark = memory.getField(KIND).isin(FactKind.COPY.value, FactKind.TRUNCATE.value)
    return is_mark & (memory.getField(ROLE) == Role.FACT.value) & memory.getField(ENDED_AT).isNull()


def touched_versions(rows: "DataFrame", terms: CopyTerms) -> "DataFrame":
    """The versions that a copy can touch: in order the open ones, else those that reach its instant."""
    start, end = column(VALID_FROM), column(VALID_TO)
    if terms.in_order:
        return rows.where(version_condition() & end.isNull())
    slice_ = rows.where(version_condition() & (end.isNull() | (end >= instant(terms.at))))
    return slice_ if terms.following is None else slice_.where(start <= instant(terms.following))
