"""Keys and row hashes as SQL in any dialect (sections 2.3 and 2.4).

The tests compare every dialect with `testing.conformance_bench`.
"""

from collections.abc import Mapping, Sequence

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
from backstory.stores.sql.dialect import Dialect
from backstory.stores.sql.engine import LOAD_TIMESTAMP_TEXT, PEPPER
from backstory.stores.sql.row_hashes import HashedColumn, RowHash, hashable_text, joined_hash

NO_COLUMNS = "no_columns"
STRICT_NULL = "^0"
STRICT = "strict_v2"


def hash_order(columns: Sequence[ModelColumn], *, strict: bool) -> list[ModelColumn]:
    """The attributes in hashing order: in the base's order or, if strict, by identity."""
    return sorted(columns, key=identity) if strict else list(columns)


class Expressions:
    """SQL expressions for one layer in one dialect, over the columns of an alias."""

    def __init__(self, dialect: Dialect, schema: TargetSchema) -> None:
        self._dialect = dialect
        self._schema = schema
        self._strict = schema.hash_profile == STRICT

    def column(self, alias: str, name: str) -> str:
        """A column of an alias: `alias.name`."""
        return f"{alias}.{self._dialect.render_identifier(name)}"

    def base_key(self, dataset: ModelDataset, alias: str) -> str:
        """SQL for the surrogate key of a row. The alias must have the base's columns."""
        return self.key(
            {
                key_name(key): self.canonical(key, self.column(alias, key.name))
                for key in business_keys(dataset)
            }
        )

    def foreign_key(
        self, reference: ForeignKey, parent: ModelDataset, child: Mapping[str, ModelColumn], alias: str
    ) -> str:
        """SQL for the parent's key, computed from the child's columns."""
        source = {part.to: part.from_ for part in reference.key_components}
        return self.key(
            {
                key_name(key): self.canonical(child[source[key.name]], self.column(alias, source[key.name]))
                for key in business_keys(parent)
            }
        )

    def hist_key(self, dataset: ModelDataset, alias: str) -> str:
        """SQL for the key of the version that this load begins."""
        return self.key({dataset.key: self.column(alias, dataset.key), STARTED: LOAD_TIMESTAMP_TEXT})

    def row_hash(self, dataset: ModelDataset, alias: str) -> str:
        """SQL for the hash of a row's attributes."""
        hashed = row_hash_of(self._schema, dataset)
        return hashed.sql(self._dialect, lambda name: self.column(alias, name))

    def key(self, parts: Mapping[str, str]) -> str:
        """SQL for the key made from these canonical strings, in the order of their names."""
        pair, literal = self._schema.surrogate_key_pair_separator, self._dialect.string_literal
        named = [
            self._dialect.concat_expression([literal(f"{name}{pair}"), self._text(parts[name])])
            for name in sorted(parts)
        ]
        separator = self._schema.surrogate_key_component_separator
        return joined_hash(self._dialect, [*named, PEPPER], separator)

    def canonical(self, column: ModelColumn, sql: str) -> str:
        """SQL for the canonical string of a column's value."""
        return self._dialect.canonical_text(sql, column.datatype, *_digits(column))

    def _text(self, sql: str) -> str:
        return hashable_text(self._dialect, sql, _null_token(self._schema), escaped=self._strict)


def row_hash_of(schema: TargetSchema, dataset: ModelDataset) -> RowHash:
    """The definition of the row hash for a dataset."""
    strict, pair = schema.hash_profile == STRICT, schema.surrogate_key_pair_separator
    columns = tuple(
        HashedColumn(
            column.name, column.datatype, *_digits(column), f"{identity(column)}{pair}" if strict else ""
        )
        for column in hash_order(hashed_columns(dataset), strict=strict)
    )
    return RowHash(columns, schema.surrogate_key_component_separator, _null_token(schema), strict)


def _digits(column: ModelColumn) -> tuple[int | None, int | None]:
    if column.hash_as:
        return column.hash_as.precision, column.hash_as.scale
    return column.decimal_precision, column.decimal_scale


def _null_token(schema: TargetSchema) -> str:
    return STRICT_NULL if schema.hash_profile == STRICT else schema.surrogate_key_null_token
