"""How rows are hashed, recorded with their table, so that anybody can compute them again (section 2.4)."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any, Final

from backstory.stores.sql.columns import Datatype
from backstory.stores.sql.dialect import Dialect

# A table property: every way in which rows of the table were hashed, columns by their ids.
ROW_HASHES: Final = "backstory.row-hashes"
NO_COLUMNS: Final = sha256(b"no_columns").hexdigest()


@dataclass(frozen=True, slots=True)
class HashedColumn:
    """A column that goes into a hash as its canonical text, behind a `prefix`."""

    name: str
    datatype: Datatype
    precision: int | None = None
    scale: int | None = None
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class RowHash:
    """The SHA-256 of the texts of columns, in this order: what stands between them, and what for NULL.

    With `escaped` no separator is left in a text.
    """

    columns: tuple[HashedColumn, ...]
    separator: str
    null: str
    escaped: bool = False

    def sql(self, dialect: Dialect, column: Callable[[str], str]) -> str:
        """The hash of a row; `column` writes a name."""
        if not self.columns:
            return dialect.string_literal(NO_COLUMNS)
        return joined_hash(
            dialect, [self._part(dialect, each, column) for each in self.columns], self.separator
        )

    def _part(self, dialect: Dialect, each: HashedColumn, column: Callable[[str], str]) -> str:
        text = dialect.canonical_text(column(each.name), each.datatype, each.precision, each.scale)
        text = hashable_text(dialect, text, self.null, escaped=self.escaped)
        return dialect.concat_expression([dialect.string_literal(each.prefix), text]) if each.prefix else text


def hashable_text(dialect: Dialect, sql: str, null: str, *, escaped: bool) -> str:
    """The SQL of a canonical text as it goes into a hash: escaped, and never NULL."""
    literal = dialect.string_literal
    if escaped:
        for character, instead in (("^", "^^"), ("|", "^p")):
            sql = f"replace({sql}, {literal(character)}, {literal(instead)})"
    return f"COALESCE({sql}, {literal(null)})"


def joined_hash(dialect: Dialect, parts: Sequence[str], separator: str) -> str:
    """The hash of texts, the separator between them."""
    between = dialect.string_literal(separator)
    joined = [each for part in parts for each in (between, part)]
    return dialect.hash_expression(dialect.concat_expression(joined[1:]))


def hashes_of_property(text: str | None, names: Mapping[int, str]) -> list[RowHash] | None:
    """The ways of hashing in a property; None without one, or where a hashed column is gone."""
    try:
        return None if text is None else [_hash_of_json(each, names) for each in json.loads(text)]
    except (KeyError, TypeError, ValueError):
        return None


def _hash_of_json(told: Mapping[str, Any], names: Mapping[int, str]) -> RowHash:
    columns = (
        HashedColumn(names[each["id"]], Datatype(each["datatype"]), *(each[part] for part in _PARTS))
        for each in told["columns"]
    )
    return RowHash(tuple(columns), told["separator"], told["null"], told["escaped"])


_PARTS = ("precision", "scale", "prefix")


def hashes_to_keep(hashes: Iterable[RowHash], ids: Mapping[str, int]) -> str:
    """The property's text."""
    return json.dumps([_hash_as_json(each, ids) for each in dict.fromkeys(hashes)], ensure_ascii=False)


def _hash_as_json(hashed: RowHash, ids: Mapping[str, int]) -> dict[str, Any]:
    told = asdict(hashed)
    told["columns"] = [{"id": ids[each.pop("name")], **each} for each in told["columns"]]
    return told
