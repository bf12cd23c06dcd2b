"""The rule for live rows, slow and obvious.

The tests compare the plan with it. Source: fivetran-destination.md section 2.8, decisions.md F7.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from backstory.model.values import UNMODIFIED

Row = dict[str, object]
_Key = tuple[object, ...]
_Table = dict[_Key, list[Row]]


@dataclass(frozen=True, slots=True)
class LiveOutcome:
    """The table after a batch, and the number of the batch's rows that found nothing to change."""

    rows: list[Row]
    ignored: int


def apply(
    stored: Sequence[Row],
    key: Sequence[str],
    columns: Sequence[str],
    replace: Sequence[Row] = (),
    update: Sequence[Row] = (),
    delete: Sequence[Row] = (),
) -> LiveOutcome:
    """The table after a batch: rows are replaced, then updated, then deleted (section 2.8).

    `columns` are the columns of the request. A row lacks one of them if its file lacks it. Update rows and
    distinct deleted keys that find no record are ignored (F7). Keys are compared exactly, and NULL equals
    NULL. If stored rows share a key, a change applies to all of them.

    Raises:
        ValueError: A row has no value for a key column, or a replace row leaves a cell
            unmodified.
    """
    blank: Row = dict.fromkeys(chain(*stored, columns, *replace, *update))
    table = _by_key(stored, key)
    _put_replaced(table, _last_of_each_key(replace, key), columns, blank)
    strays = _put_updated(table, update, key)
    absent = _drop_deleted(table, delete, key)
    return LiveOutcome([row for rows in table.values() for row in rows], strays + absent)


def _by_key(rows: Sequence[Row], key: Sequence[str]) -> _Table:
    table: _Table = {}
    for row in rows:
        table.setdefault(_key_of(row, key), []).append(dict(row))
    return table


def _key_of(row: Row, key: Sequence[str]) -> _Key:
    unnamed = [column for column in key if row.get(column, UNMODIFIED) is UNMODIFIED]
    if unnamed:
        raise ValueError(f"A row names no value for the key columns {unnamed}.")
    return tuple(row[column] for column in key)


def _last_of_each_key(rows: Sequence[Row], key: Sequence[str]) -> dict[_Key, Row]:
    """The last row of each key. The sender promises only one row for each key, but may send more (2.8)."""
    if any(cell is UNMODIFIED for row in rows for cell in row.values()):
        raise ValueError("A replace row leaves a cell unmodified; it must carry the whole row.")
    return {_key_of(row, key): row for row in rows}


def _put_replaced(table: _Table, rows: dict[_Key, Row], columns: Sequence[str], blank: Row) -> None:
    """Write whole rows. Only columns that are not in the request keep their old values (2.8)."""
    for identity, row in rows.items():
        old = table.get(identity, [blank])[-1]
        table[identity] = [old | dict.fromkeys(columns) | row]


def _put_updated(table: _Table, rows: Sequence[Row], key: Sequence[str]) -> int:
    """Write changed cells in the given order. Returns the number of rows without a record (2.8)."""
    ignored = 0
    for row in rows:
        identity = _key_of(row, key)
        changed = {column: cell for column, cell in row.items() if cell is not UNMODIFIED}
        if identity in table:
            table[identity] = [old | changed for old in table[identity]]
        else:
            ignored += 1
    return ignored


def _drop_deleted(table: _Table, rows: Sequence[Row], key: Sequence[str]) -> int:
    """Remove the keys. Returns the number of keys without a record (2.8)."""
    identities = {_key_of(row, key) for row in rows}
    return sum(table.pop(identity, None) is None for identity in identities)
