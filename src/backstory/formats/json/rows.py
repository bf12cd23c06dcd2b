"""Rows of JSON and GeoJSON files, as whole documents or one row per line (section 1.6, B15, B22, B24)."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa

from backstory.errors import Refused
from backstory.formats.encoded import decode, utf8_blocks, utf8_lines
from backstory.formats.json.values import (
    JsonColumn,
    NotJson,
    Number,
    dumps,
    line_of_element,
    loads,
    typed_array,
    whole_text,
)
from backstory.formats.options import JsonOptions
from backstory.formats.produced import (
    BATCH,
    FIX_FILE,
    UNDECLARED,
    DeclaredFields,
    ProducedRows,
    excerpt,
    malformed_row,
    unknown_columns,
)
from backstory.formats.rows import KEEPS, column_of_kept, map_leaves
from backstory.formats.values.cells import is_kept
from backstory.formats.values.exactly import is_number, merge_types
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
        """Check one more value."""
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
        """Whether at least one value was checked, and all values were numbers of the type."""
        texts, self._texts = self._texts, []
        return self._some and self._fits and all_are(pa.array(texts, pa.string()), self.type, TextForms())


@dataclass(slots=True)
class ValueKinds:
    """The kinds of values found at one path in all rows."""

    kinds: set[str] = field(default_factory=set)
    inner: dict[str, "ValueKinds"] = field(default_factory=dict)

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

    def _of(self, key: str) -> "ValueKinds":
        seen = self.inner.get(key)
        if seen is None:
            seen = self.inner[key] = ValueKinds()
        return seen

    def type(self, name: str, column: str, within: str = "") -> pa.DataType:
        """The common type of a column's values, or of the values nested at the path `within`.

        Raises Refused for the column if there is no common type.
        """
        kinds = tuple(sorted(self.kinds))
        if kinds in _SCALARS:
            return _SCALARS[kinds]
        if kinds == ("array",):
            return pa.list_(self._of("").type(name, column, f"{within}[]"))
        if kinds == ("object",):
            inner = [(key, seen.type(name, column, f"{within}.{key}")) for key, seen in self.inner.items()]
            return pa.struct(inner) if inner else _KEYLESS
        raise Refused(
            "mixed-types",
            f"{name}: the values of `{excerpt(column + within)}` have no type in common: {', '.join(kinds)}.",
            "Declare the column with a `schema` in `read`, as String, which accepts all kinds.",
            [column],
        )


# The type of objects without keys. Neither a table nor any other JSON value has this type.
_KEYLESS: Final = pa.large_binary()
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
    """The kind of a number, which determines the type of its column.

    A float cannot hold a long integer exactly. An integer beyond 64 bits fits no integer type.
    """
    if not text.lstrip("-").isdigit():
        return "float" if is_kept(text) else "number beyond a float"
    if len(text) > len(str(_INT64.start)) or int(text) not in _INT64:
        return "integer beyond 64 bits"
    return "integer" if abs(int(text)) <= _EXACT_IN_FLOAT else "long integer"


def infer_schema(
    columns: Mapping[str, ValueKinds], name: str, known: Mapping[str, pa.Field], *, sort: bool
) -> pa.Schema:
    """The columns with their inferred types, all optional, in the file's order or sorted by name.

    `known` are the columns that the table already has.
    """
    types = {column: columns[column].type(name, column) for column in (sorted(columns) if sort else columns)}
    for column in types.keys() & known.keys():
        merge_leaf = _stored_inside if pa.types.is_nested(types[column]) else _stored_type
        types[column] = merge_types(known[column].type, types[column], merge_leaf)
    # No table supports a struct without fields; text keeps `{}` distinct from NULL.
    return pa.schema(
        [
            (column, map_leaves(type_, lambda leaf: pa.string() if leaf == _KEYLESS else leaf))
            for column, type_ in types.items()
        ]
    )


def _stored_type(stored: pa.DataType, type_: pa.DataType) -> pa.DataType:
    """The stored type if JSON may write its values as `type_`, else `type_`."""
    days = pa.types.is_date(stored) or pa.types.is_timestamp(stored)
    if type_ == _KEYLESS:  # a day refuses `{}` as any other text
        return stored if days or pa.types.is_struct(stored) else type_
    return stored if days and pa.types.is_string(type_) else type_


def _stored_inside(stored: pa.DataType, type_: pa.DataType) -> pa.DataType:
    """The stored type if JSON may write its values as `type_` inside objects and arrays, else `type_`."""
    number = pa.types.is_integer(type_) or pa.types.is_floating(type_)
    wider = pa.types.is_floating(stored) or pa.types.is_decimal(stored)
    return stored if pa.types.is_null(type_) or (number and wider) else _stored_type(stored, type_)


GEOMETRY = "geometry"
FEATURES = "features"
AS_TEXT = "Declare the column with a `schema` in `read`, as String."
Row = dict[str, Any]
_UNKNOWN: Final[Mapping[str, Fitting]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class JsonDocument:
    """The rows of a JSON file with their numbers. `line` returns the line for a row's number."""

    name: str
    rows: Callable[[], Iterator[tuple[int, Any]]]
    line: Callable[[int], int]
    options: JsonOptions

    def objects(self) -> Iterator[tuple[int, Row]]:
        """Each row's number, and the row as an object.

        Raises Refused for a row that is not an object. A GeoJSON feature becomes an object of its properties
        and geometry.
        """
        for number, value in self.rows():
            try:
                row = self._feature(number, value) if self.options.geo else value
                if not isinstance(row, dict):
                    raise self.refusal(number, f"`{excerpt(dumps(value))}` is not an object")
            except NotJson as stop:
                raise self.refusal(number, str(stop)) from None
            yield number, row

    def _feature(self, number: int, value: Any) -> Row:
        if not isinstance(value, dict) or value.get("type") != "Feature":
            raise self.refusal(number, f"`{excerpt(dumps(value))}` is not a Feature")
        geometry, properties = value.get("geometry"), value.get("properties")
        if not isinstance(geometry, dict | None) or not isinstance(properties, dict | None):
            raise self.refusal(number, "geometry and properties must be objects")
        if GEOMETRY in (properties or {}):
            raise self.refusal(number, "a property has the name `geometry`, which is the geometry's column")
        return {**(properties or {}), GEOMETRY: None if geometry is None else dumps(geometry)}

    def columns(self, dataset_types: DeclaredFields) -> pa.Schema:
        """The inferred columns of all rows, and the dataset's columns.

        The schema is empty if there are no rows. Raises Refused if values are nested too deeply or have no
        common type.
        """
        seen: dict[str, ValueKinds] = {}
        rows = self.look(seen, fixed=dataset_types)
        own = {key: values for key, values in seen.items() if key not in dataset_types}
        inferred = infer_schema(own, self.name, UNDECLARED, sort=self.options.geo)
        return pa.schema([*inferred, *dataset_types.values()]) if rows else inferred

    def look(
        self,
        seen: dict[str, ValueKinds],
        known: Mapping[str, Fitting] = _UNKNOWN,
        there: "Counter[str] | None" = None,
        fixed: DeclaredFields = UNDECLARED,
    ) -> int:
        """Record the kinds of the values in all columns. Return the number of rows.

        `there` counts the rows that have each column. For `fixed` columns, only the names are recorded.
        """
        rows = 0
        for number, row in self.objects():
            rows += 1
            if there is not None:
                there.update(row.keys())
            for key in row:
                values = seen.setdefault(key, ValueKinds())
                if key in fixed:
                    continue
                try:
                    values.look(row[key])
                    if key in known:
                        known[key].look(row[key])
                except TooDeep:
                    why = f"the values of `{excerpt(key)}` are nested more than {DEEPEST} deep"
                    raise self.refusal(number, why, AS_TEXT, [key]) from None
        return rows

    def refusal(
        self, number: int, why: str, remedy: str = f"{FIX_FILE}.", columns: Sequence[str] = ()
    ) -> Refused:
        """The error for a malformed row."""
        return malformed_row(self.name, f"line {self.line(number)}", why, remedy, columns)


def json_rows(
    path: Path,
    name: str,
    options: JsonOptions,
    schema: pa.Schema | None,
    dataset_types: DeclaredFields = UNDECLARED,
) -> ProducedRows:
    """The file's rows, with the declared columns or else with the file's own columns.

    A missing key is NULL. Raises Refused for a document that is not JSON or has the wrong structure. Errors
    in single rows are raised when their batch is read, or earlier if the types are inferred from all rows.
    """
    document = _document(path, name, options, wanted=schema is not None)
    if schema is None:
        schema = document.columns(dataset_types)
    return ProducedRows(schema, _batches(document, schema))


def json_columns(
    files: Sequence[tuple[Path, str]],
    options: JsonOptions,
    known: DeclaredFields = UNDECLARED,
    fixed: DeclaredFields = UNDECLARED,
) -> pa.Schema:
    """The columns of all files, inferred from all their values.

    A missing key is NULL. With `keeps`, each column that some rows lack has an extra boolean column that
    flags these rows. A number column has its `known` type if all values fit it. `fixed` columns keep their
    type.
    """
    seen: dict[str, ValueKinds] = {}
    fitting = {name: Fitting(field.type) for name, field in known.items() if is_number(field.type)}
    rows, there = 0, Counter[str]()
    for path, name in files:
        rows += _document(path, name, options, wanted=False).look(seen, fitting, there, fixed)
    typed = {name: known[name] for name, check in fitting.items() if name in seen and check.fits()}
    typed |= {name: field for name, field in fixed.items() if name in seen}
    others = {name: values for name, values in seen.items() if name not in typed}
    inferred = infer_schema(others, ", ".join(name for _, name in files[:3]), known, sort=False)
    lacking = [name for name in seen if options.keeps and there[name] < rows]
    return pa.schema(
        [
            *(typed[name] if name in typed else inferred.field(name) for name in seen),
            *(pa.field(KEEPS.format(name), pa.bool_()) for name in lacking),
        ]
    )


def _document(path: Path, name: str, options: JsonOptions, *, wanted: bool) -> JsonDocument:
    """Read a file as rows. An empty file is refused if a declared schema names columns (`wanted`)."""
    codec, geo = options.encoding, options.geo
    if options.lines:
        return JsonDocument(name, lambda: _lines(path, name, codec), lambda number: number, options)
    keys = [FEATURES] if geo else options.sub_path.split(".") if options.sub_path else []
    text = _read_text(path, name, codec)
    array = _array(text, name, keys, geo=geo) if text.strip() or wanted else []
    del text  # an error reads the file again for its line, so the text need not stay in memory

    def line(number: int) -> int:
        return line_of_element(_read_text(path, name, codec), keys, number)

    return JsonDocument(name, lambda: enumerate(array), line, options)


def _read_text(path: Path, name: str, codec: str) -> str:
    return decode(b"".join(utf8_blocks(path, name, codec)), name, 1)


def _lines(path: Path, name: str, codec: str) -> Iterator[tuple[int, Any]]:
    """The line number and value of each line that is not empty."""
    for number, line in utf8_lines(path, name, codec):
        if line.strip():
            try:
                yield number, loads(line)
            except NotJson as stop:
                where = f", character {stop.at + 1}" if stop.at >= 0 else ""
                raise malformed_row(name, f"line {number}{where}", f"it is not JSON: {stop}") from None


def _array(text: str, name: str, keys: list[str], *, geo: bool) -> list[Any]:
    """The array of rows, found at the root or under the path `keys`."""
    if not text.strip():
        raise malformed_row(name, "", "it is empty, without any JSON")
    try:
        value = loads(text)
    except NotJson as stop:
        place = f"line {text.count(chr(10), 0, stop.at) + 1}" if stop.at >= 0 else ""
        raise malformed_row(name, place, f"it is not JSON: {stop}") from None
    if geo and not (isinstance(value, dict) and value.get("type") == "FeatureCollection"):
        raise malformed_row(name, "", "it is not a FeatureCollection")
    where = "its root"
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            present = f"; its keys are {excerpt(', '.join(value))}" if isinstance(value, dict) else ""
            mend = "Fix the file, or `subPath` in `read`."
            raise malformed_row(name, "", f"{where} has no `{key}`{present}", mend)
        value, where = value[key], f"`{key}`"
    if not isinstance(value, list):
        why = f"{where} is not an array of objects"
        raise malformed_row(
            name, "", why, "Name the array with `subPath`, a dotted path like `result.cities`."
        )
    return value


def _batches(document: JsonDocument, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    names = set(schema.names)
    rows = document.objects()
    while part := list(islice(rows, BATCH)):
        numbers = [number for number, _ in part]

        def place(row: int, numbers: list[int] = numbers) -> str:
            return f"line {document.line(numbers[row])}"

        for row, (_, values) in enumerate(part):
            if document.options.strict and (extra := [key for key in values if key not in names]):
                raise unknown_columns(document.name, extra, place(row))
        column = JsonColumn(document.name, place, document.options)
        arrays = []
        for target in schema:
            if (of := column_of_kept(target.name)) is not None:
                arrays.append(pa.array([of not in values for _, values in part], pa.bool_()))
                continue
            arrays.append(typed_array([values.get(target.name) for _, values in part], target, column))
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
