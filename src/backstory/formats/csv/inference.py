"""The type of a column, from all of its cells (B18, B20).

A column is what every cell of it is without loss: `007` and a number of twenty digits stay texts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.csv.table import CsvTable
from backstory.formats.kept_cells import KEEPS
from backstory.formats.values.decimal_commas import are_numbers, have_commas
from backstory.formats.values.fitting import (
    BOOL,
    DATE,
    FLOAT,
    INSTANT,
    INT,
    all_are,
    beside,
    exact_as_float,
)
from backstory.formats.values.texts import TextForms

# The first of these that all cells are is the column's type.
_TYPES = [INT, FLOAT, BOOL, DATE, INSTANT]


@dataclass(slots=True)
class Guesses:
    """What the columns may still be; `look` at all their cells, then ask for the `schema`.

    A column is of the type that is `known` of it if all its cells may be; those that are the `unmodified`
    text say nothing of it.
    """

    names: Sequence[str]
    forms: TextForms
    known: Mapping[str, pa.Field]
    unmodified: str | None = None
    _left: list[list[pa.DataType]] = field(init=False)
    _seen: list[bool] = field(init=False)
    _told: list[bool] = field(init=False)
    _numbers: list[bool] = field(init=False)
    _commas: list[bool] = field(init=False)
    _kept: set[str] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self._left = [[*_TYPES, *self._others(name)] for name in self.names]
        self._seen = [False for _ in self.names]
        self._told = [False for _ in self.names]
        self._numbers = [self.forms.decimal == "." for _ in self.names]
        self._commas = [False for _ in self.names]

    def look(self, cells: pa.Table) -> None:
        """Strike the types that a cell of the table is not; its columns are in the names' order."""
        for place, column in enumerate(cells.columns):
            some = self._own(place, column.combine_chunks().drop_null())
            full = some.filter(pc.not_equal(some, ""))
            self._seen[place] |= len(some) > 0
            if len(full):
                self._told[place] = True
                self._left[place] = _left(full, self._left[place], self.forms)
                self._numbers[place] = self._numbers[place] and are_numbers(full)
                self._commas[place] |= self._numbers[place] and have_commas(full)

    def _own(self, place: int, cells: pa.Array) -> pa.Array:
        """The cells of a column that say what it is."""
        if self.unmodified is None:
            return cells
        own = cells.filter(pc.not_equal(cells, self.unmodified))
        if len(own) < len(cells):
            self._kept.add(self.names[place])
        return own

    def with_commas(self) -> frozenset[str]:
        """The columns that would be numbers if a comma were the decimal point."""
        told = zip(self.names, self._numbers, self._commas, strict=True)
        return frozenset(name for name, numbers, commas in told if numbers and commas)

    def _others(self, name: str) -> list[pa.DataType]:
        """The type that is known of a column, where it is looked for because of that alone."""
        wanted = self.known[name].type if name in self.known else pa.null()
        return [wanted] if beside(wanted) else []

    def schema(self) -> pa.Schema:
        """The columns, all optional: one without a single value is of type null, one of empty texts text.

        An empty text tells nothing beside values: it is their NULL, unless they are texts (O27). Behind the
        columns is one more for each that has unmodified cells: it says which these are.
        """
        fields = []
        for name, left, seen, told in zip(self.names, self._left, self._seen, self._told, strict=True):
            may_be = [*left, pa.string()] if told else [pa.string(), *left]
            wanted = self.known[name].type if name in self.known else None
            kept = wanted if wanted in may_be else may_be[0]
            fields.append(pa.field(name, kept if seen else pa.null()))
        kept_cells = (KEEPS.format(name) for name in self.names if name in self._kept)
        return pa.schema([*fields, *(pa.field(name, pa.bool_()) for name in kept_cells)])


def with_commas(table: CsvTable, columns: Sequence[str]) -> list[str]:
    """Those of a table's columns that are numbers if a comma is the decimal point, and have one somewhere."""
    names = table.names or []
    guesses = Guesses(columns, table.options.forms, {})
    for piece in table.pieces():
        guesses.look(table.texts(piece, [names.index(each) for each in columns]))
    return [each for each in columns if each in guesses.with_commas()]


def _left(cells: pa.Array, types: Sequence[pa.DataType], forms: TextForms) -> list[pa.DataType]:
    """Those of the types that all cells are."""
    for place, type_ in enumerate(types):
        if _all_are(cells, type_, forms):
            rest = types[place + 1 :]
            if type_ == INT:  # floats are told by the cells' lengths, and nothing else is digits alone
                exact = [FLOAT] if FLOAT in rest and exact_as_float(cells) else []
                rest = [other for other in rest if other not in _TYPES]
                return [INT, *exact, *(other for other in rest if _all_are(cells, other, forms))]
            return [type_, *(other for other in rest if _all_are(cells, other, forms))]
    return []


def _all_are(cells: pa.Array, type_: pa.DataType, forms: TextForms) -> bool:
    # One cell tells most of what a column is not.
    return all_are(cells[:1], type_, forms) and all_are(cells, type_, forms)
