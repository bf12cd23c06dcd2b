"""Column types inferred from the JSON values of all rows (B24).

Values without a common type are refused; there is no guessing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from backstory.errors import Refused
from backstory.formats.json.text import Number
from backstory.formats.json.values import whole_text
from backstory.formats.produced import excerpt
from backstory.formats.values.digits import is_kept
from backstory.formats.values.texts import TextForms, all_are

_INT64 = range(-(1 << 63), 1 << 63)
_EXACT_IN_FLOAT = 1 << 53
_AT_ONCE = 1 << 16
_WORDS = frozenset(["NaN", "Infinity", "-Infinity"])
DEEPEST = 20  # engines exhaust their stack at about 50


class TooDeep(ValueError):
    """A value is nested more deeply than a column can be."""


@dataclass(slots=True)
class Fitting:
    """A check that all values of a column are numbers of its known type."""

    type: pa.DataType
    _texts: list[str] = field(default_factory=list)
    _some: bool = False
    _fits: bool = True

    def look(self, value: Any) -> None:
        """Take one more value into account."""
        if self._fits and value is not None:
            self._some, self._fits = True, self._is_number(value)
            self._texts.append(whole_text(value) if self._fits and pa.types.is_integer(self.type) else value)
            if len(self._texts) == _AT_ONCE:
                self._fits = self.fits()

    def _is_number(self, value: Any) -> bool:
        """Whether the value is written as a number of this type.

        Decimals, and floats that are not finite, may be strings because JSON numbers cannot express them.
        """
        if type(value) is not str:
            return type(value) is Number
        return value in _WORDS if pa.types.is_floating(self.type) else pa.types.is_decimal(self.type)

    def fits(self) -> bool:
        """Whether values were checked, and all of them were of the type."""
        texts, self._texts = self._texts, []
        return self._some and self._fits and all_are(pa.array(texts, pa.string()), self.type, TextForms())


@dataclass(slots=True)
class Seen:
    """The kinds of values found at one path in all rows."""

    kinds: set[str] = field(default_factory=set)
    inner: dict[str, "Seen"] = field(default_factory=dict)

    def look(self, value: Any, depth: int = 0) -> None:
        """Record the kind of one value. Raises TooDeep if it is nested more deeply than a column can be."""
        if depth == DEEPEST and isinstance(value, dict | list):
            raise TooDeep
        match value:
            case None:
                return
            case Number():
                self.kinds.add(_number(value))
            case bool():
                self.kinds.add("boolean")
            case str():
                self.kinds.add("text")
            case dict():
                self.kinds.add("object")
                for key, item in value.items():
                    self._of(key).look(item, depth + 1)
            case _:
                self.kinds.add("array")
                for item in value:
                    self._of("").look(item, depth + 1)

    def _of(self, key: str) -> "Seen":
        seen = self.inner.get(key)
        if seen is None:
            seen = self.inner[key] = Seen()
        return seen

    def type(
        self, name: str, column: str, within: str = "", stored: pa.DataType | None = None
    ) -> pa.DataType:
        """The common type of all values of a column, or of the values at the path `within` its values.

        Objects without keys have the stored type, if it is a struct. Raises Refused for the column if there
        is no common type.
        """
        kinds = tuple(sorted(self.kinds))
        if kinds in _SCALARS:
            return _SCALARS[kinds]
        if kinds == ("array",):
            return pa.list_(self._of("").type(name, column, f"{within}[]", _part(stored, "")))
        if kinds == ("object",):
            if not self.inner:
                # No table supports a struct without fields; text keeps `{}` distinct from NULL.
                return stored if stored is not None and pa.types.is_struct(stored) else pa.string()
            fields = [
                (key, seen.type(name, column, f"{within}.{key}", _part(stored, key)))
                for key, seen in self.inner.items()
            ]
            return pa.struct(fields)
        raise Refused(
            "mixed-types",
            f"{name}: the values of `{excerpt(column + within)}` have no type in common: {', '.join(kinds)}.",
            "Declare the column with a `schema` in `read`, as String, which accepts all kinds.",
            [column],
        )


def _part(stored: pa.DataType | None, key: str) -> pa.DataType | None:
    """The type of a struct's field, or of a list's items, or None if there is no such part."""
    if stored is not None and pa.types.is_struct(stored) and stored.get_field_index(key) >= 0:
        return stored.field(key).type
    return stored.value_type if stored is not None and pa.types.is_list(stored) else None


_SCALARS = {
    (): pa.null(),
    ("float",): pa.float64(),
    ("float", "integer"): pa.float64(),
    ("integer",): pa.int64(),
    ("integer", "long integer"): pa.int64(),
    ("long integer",): pa.int64(),
    ("boolean",): pa.bool_(),
    ("text",): pa.string(),
}


def _number(text: Number) -> str:
    """The kind of a number, on which its column type depends.

    A float cannot hold a long integer exactly. An integer beyond 64 bits fits no integer type.
    """
    if not text.lstrip("-").isdigit():
        return "float" if is_kept(text) else "number beyond a float"
    if len(text) > len(str(_INT64.start)) or int(text) not in _INT64:
        return "integer beyond 64 bits"
    return "integer" if abs(int(text)) <= _EXACT_IN_FLOAT else "long integer"


def infer_schema(
    columns: Mapping[str, Seen], name: str, known: Mapping[str, pa.Field], *, sort: bool
) -> pa.Schema:
    """The columns with their inferred types, all optional, in the file's order or sorted by name.

    Columns that the table has are `known`.
    """
    order = sorted(columns) if sort else list(columns)
    stored = {column: field.type for column, field in known.items()}
    return pa.schema(
        [pa.field(column, columns[column].type(name, column, stored=stored.get(column))) for column in order]
    )
