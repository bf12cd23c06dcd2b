"""Which record, and which of its columns, an answer tells of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from backstory.errors import UsageError
from backstory.model.layout import VALID_FROM, VALID_TO
from backstory.model.schema import Shape
from backstory.model.table import TableName
from backstory.reading.keys import shown_key_of
from backstory.reading.lives import TOLD_FROM, TOLD_TO, shown_name

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

    def require(self, shape: Shape) -> None:
        """Raise UsageError, before anything is read, for what is no key or no column of the table."""
        if self.key is not None:
            shown_key_of(shape, self.key)
        users = [name for each in shape.user_columns for name in (each.source, shown_name(each.source))]
        self.chosen(shape.table, (), [*dict.fromkeys(users), *_AXES])

    def chosen(self, table: TableName, key: Sequence[str], names: Sequence[str]) -> list[str]:
        """Those of the names that stay: the key's, those that were chosen, and the times.

        Raises UsageError for a column that is not there.
        """
        if not self.columns:
            return list(names)
        if missing := [name for name in self.columns if name not in names]:
            raise UsageError(
                "unknown-column",
                f"{table} has no column {missing[0]}.",
                f"Its columns are {', '.join(name for name in names if name not in _AXES)}.",
            )
        return [name for name in names if name in {*key, *self.columns, *_AXES}]


EVERYTHING: Final = Selection()
