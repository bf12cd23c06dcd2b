"""Keys and hashes as SQL of any dialect; `hashing` is what they mean (sections 2.3 and 2.4)."""

from collections.abc import Mapping, Sequence

from backstory.doors.historize.columns import business_keys, hashed_columns, identity, key_name
from backstory.doors.historize.hashing import NO_COLUMNS, STRICT, STRICT_NULL, ordered, sha256
from backstory.doors.historize.model import ForeignKey, ModelColumn, ModelDataset, TargetSchema
from backstory.model.layout import STARTED
from backstory.stores.sql.dialects.dialect import Dialect
from backstory.stores.sql.placeholders import LOAD_TIMESTAMP_TEXT, PEPPER


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
        columns = ordered(hashed_columns(dataset), strict=self._strict)
        if not columns:
            return self._dialect.string_literal(sha256(NO_COLUMNS))
        parts = []
        for column in columns:
            value = self._text(self.canonical(column, self.column(alias, column.name)))
            named = [self._named(identity(column)), value]
            parts.append(self._dialect.concat_expression(named) if self._strict else value)
        return self._hashed(parts)

    def key(self, parts: Mapping[str, str]) -> str:
        """The key of named canonical texts."""
        named = [
            self._dialect.concat_expression([self._named(name), self._text(parts[name])])
            for name in sorted(parts)
        ]
        return self._hashed([*named, PEPPER])

    def canonical(self, column: ModelColumn, sql: str) -> str:
        """The canonical text of a column's value."""
        precision, scale = column.decimal_precision, column.decimal_scale
        if column.hash_as:
            precision, scale = column.hash_as.precision, column.hash_as.scale
        return self._dialect.canonical_text(sql, column.datatype, precision, scale)

    def _named(self, name: str) -> str:
        return self._dialect.string_literal(f"{name}{self._schema.surrogate_key_pair_separator}")

    def _text(self, sql: str) -> str:
        literal = self._dialect.string_literal
        null = STRICT_NULL if self._strict else self._schema.surrogate_key_null_token
        if self._strict:
            for found, instead in (("^", "^^"), ("|", "^p")):
                sql = f"replace({sql}, {literal(found)}, {literal(instead)})"
        return f"COALESCE({sql}, {literal(null)})"

    def _hashed(self, parts: Sequence[str]) -> str:
        separator = self._dialect.string_literal(self._schema.surrogate_key_component_separator)
        joined: list[str] = []
        for part in parts:
            joined += [separator, part]
        return self._dialect.hash_expression(self._dialect.concat_expression(joined[1:]))
