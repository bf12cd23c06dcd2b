"""The rows that commits removed and added, from the states of the table before and after each commit.

A row that is in both states cancels out. In tables with row ids, a row that is in both states is found by its
id and its last update. In other tables, equal rows cancel out in the query of the feed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from backstory.model.change import NUMBER, REPLACE, SIGN, TIME, VERSION
from backstory.model.layout import ROW_ID
from backstory.spark.connect import needs_java
from backstory.stores.iceberg.frames import UPDATED_IN, keeps_row_ids
from backstory.stores.iceberg.literals import micros_of, quote
from backstory.stores.iceberg.schema import spark_type
from backstory.stores.iceberg.store import IcebergStore, IcebergTable
from backstory.stores.metadata.moves import GAP
from backstory.stores.metadata.table_metadata import CommitMetadata

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ID, _UPDATED, _STATES = "moved: id", "moved: updated", "moved: states"
_APPEND: Final = "append"


@dataclass(frozen=True, slots=True)
class MovedStates:
    """The rows that these commits moved, oldest first. `since` is the snapshot before them, or None.

    The class has the same methods as `MovedRows`, which uses Java to find the rows in files.
    """

    table: IcebergTable
    since: int | None
    commits: Sequence[CommitMetadata]

    @property
    def rows(self) -> int:
        """An upper bound of the number of row moves."""
        return sum(int(commit.properties.get(name, 0)) for commit in self.commits for name in _MOVED) + (
            self.table.rows if any(commit.operation == GAP for commit in self.commits) else 0
        )

    @property
    def only_adds(self) -> bool:
        """Whether no commit removed a row."""
        appends = all(commit.operation == _APPEND for commit in self.commits)
        return appends and keeps_row_ids(self.table)

    def frame(self, store: IcebergStore) -> "DataFrame":
        """The moved rows: the table's columns, and the commit's number, version, time and sign.

        Raises UsageError if the type of a nested column has changed since these commits, because only Java
        can read such a column.
        """
        name = replace(store, branch=None).sql_name(self.table.shape.table)
        before, moves = self.since, list[str]()
        for number, commit in enumerate(self.commits):
            if commit.operation != REPLACE:
                moves.append(self._moves_of(name, number, before, commit))
            before = commit.id
        if not moves:
            moves = [self._no_moves(name)]
        return store.spark.sql(" UNION ALL ".join(moves))

    def release(self, _: IcebergStore) -> None:
        """Do nothing, because nothing is staged."""

    def _moves_of(self, name: str, number: int, before: int | None, commit: CommitMetadata) -> str:
        sides = [self._state(name, commit.id, 1)]
        if before is not None:
            sides.append(self._state(name, before, -1))
        states = f"({' UNION ALL '.join(sides)})"
        if keeps_row_ids(self.table):
            copies = f"COUNT(*) OVER (PARTITION BY {quote(_ID)}, {quote(_UPDATED)})"
            once = f"{quote(_ID)} IS NULL OR {quote(_STATES)} = 1"
            states = f"(SELECT *, {copies} AS {quote(_STATES)} FROM {states}) WHERE {once}"  # noqa: S608
        is_gap = commit.operation == GAP
        version = "NULL" if is_gap else commit.version
        time = "NULL" if is_gap else f"TIMESTAMP_MICROS({micros_of(commit.committed_at)})"
        return (
            f"SELECT {', '.join(map(quote, self.table.shape.names))}, "  # noqa: S608 - quoted names
            f"CAST({number} AS BIGINT) AS {quote(NUMBER)}, CAST({version} AS BIGINT) AS {quote(VERSION)}, "
            f"CAST({time} AS TIMESTAMP) AS {quote(TIME)}, {quote(SIGN)} FROM {states}"
        )

    def _state(self, name: str, snapshot: int, sign: int) -> str:
        """The rows at a snapshot, in the table's current columns."""
        columns = [*self._columns_at(snapshot), f"CAST({sign} AS TINYINT) AS {quote(SIGN)}"]
        if keeps_row_ids(self.table):
            columns += [f"{ROW_ID} AS {quote(_ID)}", f"{UPDATED_IN} AS {quote(_UPDATED)}"]
        return f"SELECT {', '.join(columns)} FROM {name} VERSION AS OF {snapshot}"  # noqa: S608

    def _columns_at(self, snapshot: int) -> Sequence[str]:
        """The current columns, selected by their names in the schema of a snapshot."""
        state = self.table.snapshot_by_id(snapshot) or {}
        then = {field["id"]: field for field in self.table.fields_then(state.get("schema-id"))}
        types = {column.name: spark_type(column.type) for column in self.table.shape.columns}
        return [_column_at(then.get(now["id"]), now, types[now["name"]]) for now in self.table.fields]

    def _no_moves(self, name: str) -> str:
        names = ", ".join(map(quote, self.table.shape.names))
        return (
            f"SELECT {names}, CAST(0 AS BIGINT) AS {quote(NUMBER)}, CAST(0 AS BIGINT) AS {quote(VERSION)}, "  # noqa: S608
            f"CAST(NULL AS TIMESTAMP) AS {quote(TIME)}, CAST(0 AS TINYINT) AS {quote(SIGN)} "
            f"FROM {name} WHERE FALSE"
        )


_MOVED: Final = ("added-records", "deleted-records", "added-position-deletes", "added-equality-deletes")


def _column_at(then: Mapping[str, Any] | None, now: Mapping[str, Any], type_: str) -> str:
    """A current column, selected by its former name, or NULL if it did not exist yet."""
    name = quote(now["name"])
    if then is None and now.get("initial-default") is None:
        return f"CAST(NULL AS {type_}) AS {name}"
    if then is not None and then["type"] == now["type"]:
        return f"{quote(then['name'])} AS {name}"
    if then is None or not isinstance(then["type"], str) or not isinstance(now["type"], str):
        raise needs_java("A feed over another type of a nested column, or over a column with a default,")
    return f"CAST({quote(then['name'])} AS {type_}) AS {name}"
