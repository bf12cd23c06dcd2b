"""The definition of row hashes, stored with the table, so that anyone can verify the hashes (section 2.4)."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any, Final

from backstory.stores.sql.columns import Datatype
from backstory.stores.sql.dialect import Dialect

# A table property: all ways in which rows of the table were hashed, with columns by their ids.
ROW_HASHES: Final = "backstory.row-hashes"
NO_COLUMNS: Final = sha256(b"no_columns").hexdigest()


@dataclass(frozen=True, slots=True)
class HashedColumn:
    """A column of a hash: its canonical text, preceded by a `prefix`."""

    name: str
    datatype: Datatype
    precision: int | None = None
    scale: int | None = None
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class RowHash:
    """The SHA-256 of the columns' texts in this order, with a separator and a text for NULL.

    If `escaped` is true, no text contains the separator.
    """

    columns: tuple[HashedColumn, ...]
    separator: str
    null: str
    escaped: bool = False

    def sql(self, dialect: Dialect, column: Callable[[str], str]) -> str:
        """The hash of a row in SQL. `column` returns the SQL of a name."""
        if not self.columns:
            return dialect.string_literal(NO_COLUMNS)
        return joined_hash(
            dialect, [self._part(dialect, hashed, column) for hashed in self.columns], self.separator
        )

    def _part(self, dialect: Dialect, hashed: HashedColumn, column: Callable[[str], str]) -> str:
        text = dialect.canonical_text(column(hashed.name), hashed.datatype, hashed.precision, hashed.scale)
        text = hashable_text(dialect, text, self.null, escaped=self.escaped)
        return (
            dialect.concat_expression([dialect.string_literal(hashed.prefix), text])
            if hashed.prefix
            else text
        )


def hashable_text(dialect: Dialect, sql: str, null: str, *, escaped: bool) -> str:
    """The SQL of a canonical text for a hash: never NULL, and escaped if `escaped` is set."""
    literal = dialect.string_literal
    if escaped:
        for character, instead in (("^", "^^"), ("|", "^p")):
            sql = f"replace({sql}, {literal(character)}, {literal(instead)})"
    return f"COALESCE({sql}, {literal(null)})"


def joined_hash(dialect: Dialect, parts: Sequence[str], separator: str) -> str:
    """The hash of texts with the separator between them."""
    between = dialect.string_literal(separator)
    joined = [text for part in parts for text in (between, part)]
    return dialect.hash_expression(dialect.concat_expression(joined[1:]))


def hashes_of_property(text: str | None, names: Mapping[int, str]) -> list[RowHash] | None:
    """The hash definitions in a property, or None if it is not set or a hashed column is missing."""
    try:
        return None if text is None else [_hash_of_json(written, names) for written in json.loads(text)]
    except (KeyError, TypeError, ValueError):
        return None


def _hash_of_json(written: Mapping[str, Any], names: Mapping[int, str]) -> RowHash:
    columns = (
        HashedColumn(names[column["id"]], Datatype(column["datatype"]), *(column[part] for part in _PARTS))
        for column in written["columns"]
    )
    return RowHash(tuple(columns), written["separator"], written["null"], written["escaped"])


_PARTS = ("precision", "scale", "prefix")


def hashes_to_keep(hashes: Iterable[RowHash], ids: Mapping[str, int]) -> str:
    """The value of the table property for these hash definitions."""
    return json.dumps([_hash_as_json(hashed, ids) for hashed in dict.fromkeys(hashes)], ensure_ascii=False)


def _hash_as_json(hashed: RowHash, ids: Mapping[str, int]) -> dict[str, Any]:
    written = asdict(hashed)
    written["columns"] = [{"id": ids[column.pop("name")], **column} for column in written["columns"]]
    return written
