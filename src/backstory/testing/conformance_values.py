"""The examination of a dialect's values: literals, hashes and all types (sections 2.3 and 2.4)."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import product
from typing import Any

from backstory.doors.historize.hashes import Expressions, Hashes, canon, sha256
from backstory.doors.historize.model import (
    ColumnRole,
    Model,
    ModelColumn,
    ModelDataset,
    base_columns,
    user_columns,
)
from backstory.doors.historize.resolve import schema_of
from backstory.model.layout import STARTED
from backstory.stores.sql.columns import Datatype
from backstory.testing.conformance_bench import (
    DAY,
    NASTY_TEXTS,
    PEPPER,
    Bench,
    bring_rows,
    dataset_of,
    examination,
    fresh,
    require_equal,
    sample_model,
)

# Section 2.4: strings and their hashes, and the row for the row hashes.
KEY = "85248cfc5da10dc0f38df603a4f1298e0ee8b5215f5f580578ef14495039aac8"
VECTORS = {
    "a key": ("customer_id~4711|mandant~100|pepper", KEY),
    "a key with NULL": (
        "customer_id~null_replaced|mandant~100|pepper",
        "a47d00c852f0a766a1239640d4dfda52bb72c2c4d33f5238149278fbdd039d46",
    ),
    "a row hash, elevata_v1": (
        "Müller|Köln|true|1.50|2025-01-02|null_replaced",
        "b8dbc53ba2a77343faa39af29a9df1b3ca9b08f7ab7fd1761895857236bedcf0",
    ),
    "a row hash, strict_v2": (
        "active~true|city~Köln|credit~1.50|name~Müller|note~^0|since~2025-01-02",
        "3a6d89cb8781af3f3f8e8b3b59e7e45964adce980d0e445e6d2c3b9bb51b5180",
    ),
    "a history key": (
        f"rc_crm_customer_key~{KEY}|{STARTED}~2025-01-02 03:04:05.600000|pepper",
        "3baf0599f25b0e87808baa0128b8cda612f0afffc85d337a7c4b9554d4da0d90",
    ),
    "a history key of another day": (
        f"rc_crm_customer_key~{KEY}|{STARTED}~2025-01-03 00:00:00.000000|pepper",
        "5c028800ca07705a3d31e6fafc1d0261bfa6868a8ff397a3510264457454862c",
    ),
}
CUSTOMER = {
    "customer_id": 4711,
    "mandant": "100",
    "name": "Müller",
    "city": "Köln",
    "active": True,
    "credit": Decimal("1.50"),
    "since": date(2025, 1, 2),
    "note": None,
}
# Python values that databases write in different forms.
TYPED: Mapping[Datatype, Sequence[Any]] = {
    Datatype.STRING: ("", "x", " y ", *NASTY_TEXTS),
    Datatype.INTEGER: (0, -(2**31), 2**31 - 1),
    Datatype.BIGINT: (0, -(2**63), 2**63 - 1),
    Datatype.DECIMAL: (Decimal(0), Decimal("0.000001"), Decimal("-0.5"), Decimal("12345678901234.567891")),
    Datatype.FLOAT: (0.0, 1.0, 1.5, -0.1, 1e10, 0.001),
    Datatype.BOOLEAN: (True, False),
    Datatype.DATE: (date(1, 1, 1), date(1969, 12, 31), date(2024, 2, 29), date(9999, 12, 31)),
    Datatype.TIME: (time(0), time(1, 2, 3, 500000), time(23, 59, 59, 999999)),
    Datatype.TIMESTAMP: (
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(2024, 3, 31, 2, 30, 0, 1, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC),
    ),
    Datatype.BINARY: (b"", b"\x00\xff\x7f'\\"),
    Datatype.UUID: ("0A1B2C3D-0000-4000-8000-AABBCCDDEEFF", "00000000-0000-0000-0000-000000000000"),
    Datatype.JSON: ('{"b": 1,  "a": [true, null]}', "[]", '"x"'),
}


# Expressions


def examine_hashes(bench: Bench) -> None:
    """Examine the golden vectors, with strings as literals and in the columns of a row."""
    dialect, engine = bench.dialect, bench.engine
    with examination("hash_expression"):
        for vector, (text, expected) in VECTORS.items():
            require_equal(sha256(text), expected, of=f"the vector of {vector}")
            sql = dialect.hash_expression(dialect.string_literal(text))
            require_equal(engine.execute_scalar(f"SELECT {sql}"), expected, of=f"golden vector, {vector}")
    for profile in ("elevata_v1", "strict_v2"):
        model = sample_model(profile)
        dataset = dataset_of(model, "rc_crm_customer")
        built = _values_of_columns(bench, model, dataset)
        kinds = ["a key", "a key with NULL"] if profile == "elevata_v1" else ["a key"]
        kinds += [f"a row hash, {profile}", "a history key", "a history key of another day"]
        for vector in kinds:
            with examination(f"golden vector, {vector}, {profile}"):
                require_equal(built[vector], VECTORS[vector][1], of="the dialect's SQL")


def _values_of_columns(bench: Bench, model: Model, dataset: ModelDataset) -> dict[str, str]:
    expressions = Expressions(bench.dialect, schema_of(model, dataset))
    table = bench.make("rc_crm_customer", [_nullable(column) for column in base_columns(dataset)])
    bench.insert("rc_crm_customer", CUSTOMER | {dataset.key: KEY})

    def evaluate(sql: str, started: datetime = DAY) -> str:
        rows = bench.engine.query(f"SELECT {sql} FROM {table} AS s", bench.values(started, "r"))
        return str(rows[0][0])

    built = {
        "a key": evaluate(expressions.base_key(dataset, "s")),
        f"a row hash, {schema_of(model, dataset).hash_profile}": evaluate(expressions.row_hash(dataset, "s")),
    }
    for name, instant in (
        ("a history key", DAY + timedelta(hours=3, minutes=4, seconds=5.6)),
        ("a history key of another day", DAY + timedelta(days=1)),
    ):
        built[name] = evaluate(expressions.hist_key(dataset, "s"), instant)
    bench.make("rc_crm_customer", [_nullable(column) for column in base_columns(dataset)])
    bench.insert("rc_crm_customer", CUSTOMER | {"customer_id": None})
    built["a key with NULL"] = evaluate(expressions.base_key(dataset, "s"))
    return built


def _nullable(column: ModelColumn) -> ModelColumn:
    return column.model_copy(update={"nullable": True})


def examine_inequality(bench: Bench) -> None:
    """Examine `null_safe_ne` for all pairs of NULL and strings."""
    type_ = bench.dialect.map_logical_type(Datatype.STRING, 10)
    literal = bench.dialect.render_literal
    with examination("null_safe_ne"):
        for left, right in product([None, "a", "b", ""], repeat=2):
            sides = [bench.dialect.cast_expression(literal(side), type_) for side in (left, right)]
            sql = bench.dialect.null_safe_ne(*sides)
            query = f"SELECT CASE WHEN {sql} THEN 1 WHEN NOT ({sql}) THEN 0 END"
            require_equal(bench.engine.execute_scalar(query), int(left != right), of=f"{left!r}, {right!r}")


def examine_literals(bench: Bench) -> None:
    """Examine literals of strings, dates, instants, booleans and numbers."""
    for text in NASTY_TEXTS:
        with examination(f"string_literal of {text!r}"):
            sql = f"SELECT {bench.dialect.string_literal(text)}"
            require_equal(bench.engine.execute_scalar(sql), text, of=sql)
    others: list[tuple[Datatype, Any]] = [
        *((Datatype.DATE, value) for value in TYPED[Datatype.DATE]),
        *((Datatype.TIMESTAMP, value) for value in TYPED[Datatype.TIMESTAMP]),
        *((Datatype.BOOLEAN, value) for value in (True, False)),
        *((Datatype.BIGINT, value) for value in (-1, 2**63 - 1)),
        *((Datatype.DECIMAL, value) for value in TYPED[Datatype.DECIMAL]),
    ]
    for datatype, value in others:
        with examination(f"render_literal of {value!r}"):
            column = typed_column(datatype)
            typed = bench.dialect.cast_expression(
                bench.dialect.render_literal(value), bench.dialect.type_of(column)
            )
            text = bench.dialect.canonical_text(typed, datatype, 20, 6)
            require_equal(bench.engine.execute_scalar(f"SELECT {text}"), canon(value, column), of=text)


def typed_column(datatype: Datatype) -> ModelColumn:
    """The sample's column of this type."""
    columns = user_columns(dataset_of(sample_model(), "rc_types"))
    return next(column for column in columns if column.name == datatype.lower())


# All types, through stage and base


def examine_types(bench: Bench) -> None:
    """Load values of every type into a base. Compare its strings and hashes with those computed in Python."""
    rows = list(_typed_rows())
    for profile in ("elevata_v1", "strict_v2"):
        model = sample_model(profile)
        dataset = dataset_of(model, "rc_types")
        load = fresh(bench, model, dataset)
        bring_rows(bench, load, rows, "r1", DAY)
        loaded = {row["order"]: row for row in bench.texts(load.base_table, base_columns(dataset))}
        for row in rows:
            _require_canonical(dataset, row, loaded[str(row["order"])])
            _require_hashes(model, dataset, row, loaded[str(row["order"])])


def _typed_rows() -> Iterator[dict[str, Any]]:
    """A row of NULLs, followed by rows with every value of every type."""
    yield {"order": 0, **{str(datatype).lower(): None for datatype in TYPED}}
    for number in range(max(len(values) for values in TYPED.values())):
        row = {str(kind).lower(): values[number % len(values)] for kind, values in TYPED.items()}
        yield {"order": number + 1, **row}


def _require_canonical(dataset: ModelDataset, row: Mapping[str, Any], loaded: Mapping[str, Any]) -> None:
    for column in user_columns(dataset):
        with examination(f"canonical_text of {column.datatype}"):
            expected = canon(row[column.name], column)
            require_equal(loaded[column.name], expected, of=f"{row[column.name]!r}")


def _require_hashes(
    model: Model, dataset: ModelDataset, row: Mapping[str, Any], loaded: Mapping[str, Any]
) -> None:
    hashes = Hashes(schema_of(model, dataset), PEPPER)
    parent = dataset_of(model, "rc_region")
    expected = {
        dataset.key: hashes.base_key(dataset, row),
        ColumnRole.ROW_HASH: hashes.row_hash(dataset, row),
        dataset.references[0].column: hashes.foreign_key(dataset.references[0], parent, row),
    }
    for name, value in expected.items():
        with examination(f"{name} of all types"):
            require_equal(loaded[name], value, of=row)
