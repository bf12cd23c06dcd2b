"""Keys and row hashes in plain Python: the reference for every dialect (sections 2.3 and 2.4)."""

import hashlib
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from backstory.doors.historize.hashes import NO_COLUMNS, STRICT, STRICT_NULL, hash_order
from backstory.doors.historize.model import (
    ForeignKey,
    ModelColumn,
    ModelDataset,
    TargetSchema,
    business_keys,
    hashed_columns,
    identity,
    key_name,
)
from backstory.model.layout import STARTED
from backstory.stores.sql.columns import Datatype, instant_text

MAX_DIGITS = 38


def canon(value: Any, column: ModelColumn) -> str | None:
    """A value's canonical string by the column's logical type, or None for NULL."""
    if value is None:
        return None
    if column.hash_as:
        return _decimal(Decimal(repr(value)), column.hash_as.scale)
    match column.datatype:
        case Datatype.BOOLEAN:
            return "true" if value else "false"
        case Datatype.DECIMAL:
            return _decimal(Decimal(value), column.decimal_scale or 0)
        case Datatype.DATE:
            return date.isoformat(value)
        case Datatype.TIME:
            return value if isinstance(value, str) else time.strftime(value, "%H:%M:%S.%f")
        case Datatype.TIMESTAMP:
            return instant_text(value)
        case Datatype.BINARY:
            return bytes(value).hex()
        case Datatype.UUID:
            return str(value).lower()
        case _:
            return str(value)


def _decimal(value: Decimal, scale: int) -> str:
    exact = Context(prec=2 * MAX_DIGITS, rounding=ROUND_HALF_UP)
    rounded = value.quantize(Decimal(1).scaleb(-scale), context=exact)
    return format(rounded or abs(rounded), "f")  # a DECIMAL has no negative zero


def sha256(text: str) -> str:
    """The SHA-256 of a string's UTF-8 bytes, in lower-case hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def escape(text: str) -> str:
    """The string with all separators escaped (`strict_v2`)."""
    return text.replace("^", "^^").replace("|", "^p")


class Hashes:
    """The hashes of one layer: its separators, tokens and profile, and the pepper."""

    def __init__(self, schema: TargetSchema, pepper: str) -> None:
        self._schema = schema
        self._strict = schema.hash_profile == STRICT
        self._pepper = pepper

    def key(self, parts: Mapping[str, str | None]) -> str:
        """The key made from canonical strings, by name."""
        pair = self._schema.surrogate_key_pair_separator
        named = [f"{name}{pair}{self._text(parts[name])}" for name in sorted(parts)]
        return sha256(self._schema.surrogate_key_component_separator.join([*named, self._pepper]))

    def base_key(self, dataset: ModelDataset, row: Mapping[str, Any]) -> str:
        """The surrogate key of a base row."""
        keys = business_keys(dataset)
        return self.key({key_name(column): canon(row[column.name], column) for column in keys})

    def foreign_key(self, reference: ForeignKey, parent: ModelDataset, row: Mapping[str, Any]) -> str:
        """The parent's key, computed from the child's row."""
        child = {part.to: part.from_ for part in reference.key_components}
        return self.key(
            {key_name(column): canon(row[child[column.name]], column) for column in business_keys(parent)}
        )

    def hist_key(self, dataset: ModelDataset, key: str, started: datetime) -> str:
        """The key of the version that begins at `started`."""
        return self.key({dataset.key: key, STARTED: instant_text(started)})

    def row_hash(self, dataset: ModelDataset, row: Mapping[str, Any]) -> str:
        """The hash of a row's attributes."""
        columns = hash_order(hashed_columns(dataset), strict=self._strict)
        if not columns:
            return sha256(NO_COLUMNS)
        pair = self._schema.surrogate_key_pair_separator
        parts = []
        for column in columns:
            text = self._text(canon(row[column.name], column))
            parts.append(f"{identity(column)}{pair}{text}" if self._strict else text)
        return sha256(self._schema.surrogate_key_component_separator.join(parts))

    def _text(self, text: str | None) -> str:
        if text is None:
            return STRICT_NULL if self._strict else self._schema.surrogate_key_null_token
        return escape(text) if self._strict else text
