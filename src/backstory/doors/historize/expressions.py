"""Keys and hashes as SQL of any dialect; `hashing` is what they mean (sections 2.3 and 2.4)."""

from collections.abc import Mapping, Sequence

from backstory.doors.historize.columns import business_keys, hashed_columns, identity, key_name
from backstory.doors.historize.hashing import STRICT, STRICT_NULL, ordered
from backstory.doors.historize.model import ForeignKey, ModelColumn, ModelDataset, TargetSchema
from backstory.model.layout import STARTED
from backstory.stores.sql.dialects.dialect import Dialect
from backstory.stores.sql.placeholders import LOAD_TIMESTAMP_TEXT, PEPPER
from backstory.stores.sql.row_hashes import HashedColumn, RowHash, hashable_text, joined_hash


class Expressions:
    """The expressions of one layer in one dialect; columns are those of the alias."""

    def __init__(self, dialect: Dialect, schema: TargetSchema) -> None:
        self._dialect = dialect
        self._schema = schema
        self._strict = schema.hash_profile == STRICT

    def column(self, alias: str, name: str) -> str:
        """`alias.name`."""
        return f"{alias}.{self._dialect.render_identifier(name)}"

    def base_key(self, dataset: ModelDataset, alias: str) -> str:
        """The surrogate key of a row; the alias has the names of the base."""
        return self.key(
            {
                key_name(key): self.canonical(key, self.column(alias, key.name))
                for key in business_keys(dataset)
            }
        )

    def foreign_key(
        self, reference: ForeignKey, parent: ModelDataset, child: Mapping[str, ModelColumn], alias: str
    ) -> str:
        """The parent's key, made of the child's columns."""
        source = {part.to: part.from_ for part in reference.key_components}
        return self.key(
            {
                key_name(key): self.canonical(child[source[key.name]], self.column(alias, source[key.name]))
                for key in business_keys(parent)
            }
        )

    def hist_key(self, dataset: ModelDataset, alias: str) -> str:
        """The key of the version that this load begins."""
        return self.key({dataset.key: self.column(alias, dataset.key), STARTED: LOAD_TIMESTAMP_TEXT})

    def row_hash(self, dataset: ModelDataset, alias: str) -> str:
        """The hash of a row's attributes."""
        hashed = row_hash_of(self._schema, dataset)
        return hashed.sql(self._dialect, lambda name: self.column(alias, name))

    def key(self, parts: Mapping[str, str]) -> str:
        """The key of named canonical texts."""
        named = [
            self._dialect.concat_expression([self._named(name), self._text(parts[name])])
            for name in sorted(parts)
        ]
        return self._hashed([*named, PEPPER])

    def canonical(self, column: ModelColumn, sql: str) -> str:
        """The canonical text of a column's value."""
        return self._dialect.canonical_text(sql, column.datatype, *_digits(column))

    def _named(self, name: str) -> str:
        return self._dialect.string_literal(f"{name}{self._schema.surrogate_key_pair_separator}")

    def _text(self, sql: str) -> str:
        return hashable_text(self._dialect, sql, _null(self._schema), escaped=self._strict)

    def _hashed(self, parts: Sequence[str]) -> str:
        return joined_hash(self._dialect, parts, self._schema.surrogate_key_component_separator)


def row_hash_of(schema: TargetSchema, dataset: ModelDataset) -> RowHash:
    """How the rows of a dataset are hashed."""
    strict, pair = schema.hash_profile == STRICT, schema.surrogate_key_pair_separator
    columns = tuple(
        HashedColumn(
            column.name, column.datatype, *_digits(column), f"{identity(column)}{pair}" if strict else ""
        )
        for column in ordered(hashed_columns(dataset), strict=strict)
    )
    return RowHash(columns, schema.surrogate_key_component_separator, _null(schema), strict)


def _digits(column: ModelColumn) -> tuple[int | None, int | None]:
    if column.hash_as:
        return column.hash_as.precision, column.hash_as.scale
    return column.decimal_precision, column.decimal_scale


def _null(schema: TargetSchema) -> str:
    return STRICT_NULL if schema.hash_profile == STRICT else schema.surrogate_key_null_token
