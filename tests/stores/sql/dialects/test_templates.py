"""Types and canonical texts of the dialects as tables of templates."""

import pytest

from backstory.dialects import DuckDB, Postgres, Spark, SqlServer
from backstory.stores.sql.columns import Datatype


@pytest.mark.parametrize(
    "dialect", [DuckDB(), Postgres(), Spark(), SqlServer()], ids=lambda each: each.DIALECT_NAME
)
def test_every_type_has_its_templates_and_values_stay_unchanged(dialect):
    """A name with braces is not a template, and stays unchanged for each type."""
    for datatype in Datatype:
        assert "{" not in dialect.map_logical_type(datatype, 20, 12, 3)
        assert 'x."a{sql}b"' in dialect.canonical_text('x."a{sql}b"', datatype, 12, 3)


def test_text_has_a_length_only_if_strict():
    types = [DuckDB().map_logical_type(Datatype.STRING, 20, strict=strict) for strict in (True, False)]
    assert types == ["VARCHAR(20)", "VARCHAR"]
