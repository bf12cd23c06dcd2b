"""The changes that a table needs before a load: the table in section 4.3, A12 to A16, A32."""

import pytest
from historizing import column
from hypothesis import given
from hypothesis import strategies as st

from backstory.dialects import DuckDB, Postgres, Spark, SqlServer
from backstory.doors.historize.model import ModelColumn
from backstory.errors import Refused
from backstory.stores.sql.columns import Datatype
from backstory.stores.sql.ddl import fits, logical_type, plan_changes

# The databases' own names for the types of our columns.
STORED = {
    DuckDB: {
        "STRING": "VARCHAR",
        "STRING(10)": "VARCHAR",
        "STRING(20)": "VARCHAR",
        "INTEGER": "INTEGER",
        "BIGINT": "BIGINT",
        "DECIMAL(10,2)": "DECIMAL(10,2)",
        "DECIMAL(12,2)": "DECIMAL(12,2)",
        "DECIMAL(12,3)": "DECIMAL(12,3)",
        "DECIMAL(12,6)": "DECIMAL(12,6)",
        "DATE": "DATE",
        "TIMESTAMP": "TIMESTAMP",
        "FLOAT": "DOUBLE",
        "BOOLEAN": "BOOLEAN",
        "TIME": "TIME",
        "BINARY": "BLOB",
        "UUID": "UUID",
    },
    Postgres: {
        "STRING": "text",
        "STRING(10)": "character varying(10)",
        "STRING(20)": "character varying(20)",
        "INTEGER": "integer",
        "BIGINT": "bigint",
        "DECIMAL(10,2)": "numeric(10,2)",
        "DECIMAL(12,2)": "numeric(12,2)",
        "DECIMAL(12,3)": "numeric(12,3)",
        "DECIMAL(12,6)": "numeric(12,6)",
        "DATE": "date",
        "TIMESTAMP": "timestamp with time zone",
        "FLOAT": "double precision",
        "BOOLEAN": "boolean",
        "TIME": "time without time zone",
        "BINARY": "bytea",
        "UUID": "uuid",
        "JSON": "json",
    },
    Spark: {
        "STRING": "string",
        "STRING(10)": "string",
        "STRING(20)": "string",
        "INTEGER": "int",
        "BIGINT": "bigint",
        "DECIMAL(10,2)": "decimal(10,2)",
        "DECIMAL(12,2)": "decimal(12,2)",
        "DECIMAL(12,3)": "decimal(12,3)",
        "DECIMAL(12,6)": "decimal(12,6)",
        "DATE": "date",
        "TIMESTAMP": "timestamp",
        "FLOAT": "double",
        "BOOLEAN": "boolean",
        "BINARY": "binary",
    },
    SqlServer: {
        "STRING": "nvarchar(max)",
        "STRING(10)": "nvarchar(10)",
        "STRING(20)": "nvarchar(20)",
        "INTEGER": "int",
        "BIGINT": "bigint",
        "DECIMAL(10,2)": "decimal(10,2)",
        "DECIMAL(12,2)": "decimal(12,2)",
        "DECIMAL(12,3)": "decimal(12,3)",
        "DECIMAL(12,6)": "decimal(12,6)",
        "DATE": "date",
        "TIMESTAMP": "datetime2(6)",
        "FLOAT": "float",
        "BOOLEAN": "bit",
        "TIME": "time(6)",
        "BINARY": "varbinary(max)",
        "UUID": "uniqueidentifier",
    },
}
WIDER = {
    ("INTEGER", "BIGINT"),
    ("DATE", "TIMESTAMP"),
    ("STRING(10)", "STRING(20)"),
    ("STRING(10)", "STRING"),
    ("STRING(20)", "STRING"),
    ("DECIMAL(10,2)", "DECIMAL(12,2)"),
    ("DECIMAL(10,2)", "DECIMAL(12,3)"),
}
# These databases store no length of a text.
LENGTHLESS = {DuckDB, Spark}
dialects = pytest.mark.parametrize("dialect", STORED)


def columns(text):
    """Columns from `name:TYPE<former`. One in brackets is inactive."""
    model_columns = []
    for word in text.split():
        name, _, former = word.strip("[]").partition("<")
        made = column(name) | {
            "active": not word.startswith("["),
            "former_names": former.split(",") if former else [],
        }
        if made["datatype"] == "FLOAT":
            made["hash_as"] = "DECIMAL(10,2)"
        model_columns.append(ModelColumn.model_validate(made))
    return model_columns


def stored(text, dialect=DuckDB):
    """The database's description of a table, from the same notation."""
    types = {}
    for word in text.split():
        name, _, type_ = word.partition(":")
        types[name] = STORED[dialect][type_ or "STRING"]
    return types


def planned(wanted, stands, dialect=DuckDB):
    made = plan_changes("rc_c_hist", columns(wanted), stored(stands, dialect), dialect())
    return ", ".join(made.changes_in_words)


@dialects
@pytest.mark.parametrize(
    ("wanted", "stands", "changes"),
    [
        ("a b", "a b", ""),
        ("a b", "B A", ""),
        ("a", "a old", ""),
        ("new<old", "old", "RENAME_COLUMN old to new"),
        ("new<old", "OLD", "RENAME_COLUMN OLD to new"),
        ("new<older,old", "old", "RENAME_COLUMN old to new"),
        ("new<old", "other", "ADD_COLUMN new"),
        ("new<old", "new old", ""),
        ("a [gone]", "a gone", ""),
        ("a [gone]", "a", ""),
        ("a [gone:INTEGER]", "a gone:DATE", ""),
        ("a b c", "a", "ADD_COLUMN b, ADD_COLUMN c"),
        ("b<a c<b", "a b", "RENAME_COLUMN b to c, RENAME_COLUMN a to b"),
        ("b<a c<b d<c", "a b c", "RENAME_COLUMN c to d, RENAME_COLUMN b to c, RENAME_COLUMN a to b"),
        ("b c<b", "b", "RENAME_COLUMN b to c, ADD_COLUMN b"),
        ("a<b b<a", "a b", ""),
        ("c<a,b a", "a b", "RENAME_COLUMN b to c"),
        ("x:DATE [x__until_1:INTEGER<x]", "x:INTEGER", "RENAME_COLUMN x to x__until_1, ADD_COLUMN x"),
        ("x:DATE [x__until_1:INTEGER<x]", "x:DATE", ""),
        ("x:DATE [x__until_1:INTEGER<x]", "x:DATE x__until_1:INTEGER", ""),
    ],
)
def test_a12_a_column_is_renamed_from_its_former_name(dialect, wanted, stands, changes):
    """R34, R37, R38, R42, A12: A column is renamed if exactly one former name exists, including chains and
    forks. Other columns stay, and retired ones are never created or dropped."""
    assert planned(wanted, stands, dialect) == changes


@dialects
def test_a15_changes_are_made_in_a_fixed_order(dialect):
    """A15, A16, R38: The order is renames, types, new columns. Nothing is dropped."""
    made = plan_changes("t", columns("z wide:BIGINT b<a"), stored("a wide:INTEGER other", dialect), dialect())
    ops = [
        "RENAME_COLUMN a to b",
        f"ALTER_COLUMN_TYPE wide from {STORED[dialect]['INTEGER']}",
        "ADD_COLUMN z",
    ]
    assert made.changes_in_words == ops
    sql = made.statements(dialect(), "s", "t")
    assert len(sql) == 3
    assert not any("DROP" in each for each in sql)
    words = ("sp_rename" if dialect is SqlServer else "RENAME COLUMN", "ALTER COLUMN", " ADD ")
    assert [word in each for word, each in zip(words, sql, strict=True)] == [True, True, True]


@pytest.mark.parametrize(
    ("wanted", "stands", "code", "keys"),
    [
        ("new<a,b", "a b", "AMBIGUOUS_RENAME", ["a", "b"]),
        ("a", "", "NO_COLUMNS_RETURNED", []),
        ("a", "a A", "DUPLICATE_COLUMN", []),
        ("a", "a ' a'", "DUPLICATE_COLUMN", []),
    ],
)
def test_r41_ambiguous_columns_are_refused(wanted, stands, code, keys):
    """R41: Several former names, repeated names, or a table without columns are refused by name."""
    table = {name.strip("'"): "VARCHAR" for name in stands.replace("' ", "'_").split()}
    table = {name.replace("_", " "): type_ for name, type_ in table.items()}
    with pytest.raises(Refused) as refused:
        plan_changes("rc_c_hist", columns(wanted), table, DuckDB())
    assert (refused.value.code, refused.value.keys) == (code, keys)
    assert "rc_c_hist" in refused.value.message


def test_a13_a_column_with_its_former_name_in_the_table_is_unchanged():
    """A13: If both exist, there is no rename and no new column."""
    assert plan_changes("t", columns("new<old"), stored("new old"), DuckDB()).changes_in_words == []


@dialects
def test_r40_types_are_kept_widened_or_refused(dialect):
    """R40, 4.3: Equal types change nothing, wider ones are widened in place, and others are refused. Text
    without a length fits every length."""
    types = STORED[dialect]
    for old in types:
        for new in types:
            unlimited = old == "STRING" or (old.startswith("STRING") and dialect in LENGTHLESS)
            if types[old] == types[new] or (unlimited and new.startswith("STRING")):
                assert planned(f"a:{new}", f"a:{old}", dialect) == ""
            elif (old, new) in WIDER:
                assert planned(f"a:{new}", f"a:{old}", dialect) == f"ALTER_COLUMN_TYPE a from {types[old]}"
            else:
                with pytest.raises(Refused) as refused:
                    planned(f"a:{new}", f"a:{old}", dialect)
                assert (refused.value.code, refused.value.keys) == ("UNSAFE_TYPE_DRIFT", ["a"])


@dialects
def test_every_column_type_is_recognised_again(dialect):
    """4.3: A dialect recognises its column type in its own and in the database's spelling."""
    for type_name, type_ in STORED[dialect].items():
        (made,) = columns(f"a:{type_name}")
        for text in (type_, dialect().type_of(made)):
            logical = logical_type(text, dialect())
            assert logical is not None
            assert logical.datatype == made.datatype
            if made.datatype is Datatype.DECIMAL:
                assert (logical.decimal_precision, logical.decimal_scale) == (
                    made.decimal_precision,
                    made.decimal_scale,
                )
            if made.datatype is Datatype.STRING and dialect not in LENGTHLESS:
                assert logical.max_length == made.max_length
    assert logical_type("geometry", dialect()) is None


class Rigid(DuckDB):
    """A dialect that cannot widen types."""

    supports_alter_column_type = False


class Silent(DuckDB):
    """A dialect that cannot widen this type."""

    def render_alter_column_type(self, table, column, old_type):
        return None


@pytest.mark.parametrize("dialect", [Rigid, Silent])
def test_a32_a_type_that_cannot_be_widened_in_place_is_refused(dialect):
    """R38, A32: The plan is blocked, because a rebuild would lose the retired `city`."""
    made = plan_changes("t", columns("name:BIGINT [city]"), stored("name:INTEGER city"), dialect())
    with pytest.raises(Refused) as refused:
        made.statements(dialect(), "s", "t")
    assert (refused.value.code, refused.value.keys) == ("UNSUPPORTED_TYPE_EVOLUTION", ["name"])


@pytest.mark.parametrize(
    ("stage", "wanted", "fit"),
    [
        ("INTEGER", "BIGINT", True),
        ("BIGINT", "INTEGER", True),
        ("VARCHAR(50)", "STRING(10)", True),
        ("VARCHAR", "UUID", True),
        ("VARCHAR", "TIME", True),
        ("VARCHAR", "JSON", True),
        ("DATE", "TIMESTAMP", True),
        ("DECIMAL(10,2)", "DECIMAL(12,3)", True),
        ("DECIMAL(10,3)", "DECIMAL(10,2)", False),
        ("DOUBLE", "DECIMAL(10,2)", False),
        ("VARCHAR", "INTEGER", False),
        ("VARCHAR", "DATE", False),
        ("TIMESTAMP", "DATE", False),
        ("GEOMETRY", "STRING", False),
    ],
)
def test_stage_columns_must_fit_the_base_column(stage, wanted, fit):
    """E1: No cast from stage to base loses a value. Types that the database checks are accepted."""
    (made,) = columns(f"a:{wanted}")
    assert fits(stage, made, DuckDB()) is fit


# Any metadata against any table

WORDS = st.sampled_from("abcde")


@given(
    st.dictionaries(WORDS, st.tuples(st.booleans(), st.lists(WORDS, max_size=2)), min_size=1),
    st.dictionaries(WORDS, st.sampled_from(["VARCHAR", "INTEGER"]), min_size=1),
)
def test_a_plan_keeps_every_column_and_adds_missing_active_columns(wanted, table):
    """R38: After any plan, every former column and every active column exists once. Each rename has an
    existing old name and a free new one."""
    text = " ".join(
        f"{'' if active else '['}{name}{'<' + ','.join(former) if former else ''}"
        for name, (active, former) in wanted.items()
    )
    made = columns(text)
    try:
        plan = plan_changes("t", made, table, DuckDB())
    except Refused as refused:
        if refused.code not in {"AMBIGUOUS_RENAME", "UNSAFE_TYPE_DRIFT"}:
            raise
        return
    names = list(table)
    for old, new in plan.renamed.items():
        assert old in names
        assert new not in names
        names[names.index(old)] = new
    for added in plan.added:
        assert added.name not in names
        names.append(added.name)
    assert len(names) == len(set(names)) == len(table) + len(plan.added)
    assert {each.name for each in made if each.active} <= set(names)
