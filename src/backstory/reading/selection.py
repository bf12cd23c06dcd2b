"""Which record, and which of its columns, an answer tells of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from backstory.errors import UsageError
from backstory.model.layout import VALID_FROM, VALID_TO
from backstory.model.table import TableName
from backstory.reading.lives import TOLD_FROM, TOLD_TO

_AXES: Final = {VALID_FROM, VALID_TO, TOLD_FROM, TOLD_TO}


@dataclass(frozen=True, slots=True)
class Selection:
    """The key of one record, None for all; and the columns that are told beside the key, none for all."""

    key: object = None
    columns: Sequence[str] = ()

    @classmethod
    def of(cls, key: object, columns: str | Sequence[str] | None) -> "Selection":
        """What a caller names: one column, or several."""
        return cls(key, [columns] if isinstance(columns, str) else list(columns or ()))

    def chosen(self, table: TableName, key: Sequence[str], names: Sequence[str]) -> list[str]:
        """Those of the names that stay: the key's, those that were chosen, and the times.

        Raises UsageError for a column that is not there.
        """
        if not self.columns:
            return list(names)
        users = [name for name in names if name not in _AXES]
        if missing := [name for name in self.columns if name not in names]:
            raise UsageError(
                "unknown-column",
                f"{table} has no column {missing[0]}.",
                f"Its columns are {', '.join(users)}.",
            )
        return [name for name in names if name in {*key, *self.columns, *_AXES}]


EVERYTHING: Final = Selection()
