"""A database under examination, its hashes in plain Python, and the examination of a dialect's values.

The keys and row hashes in Python are the reference for every dialect (sections 2.3, 2.4 and 5.4).
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import cache
from itertools import product
from typing import Any

import pyarrow as pa

from backstory.documents import Document
from backstory.doors.historize.hist_state import sync_hist
from backstory.doors.historize.load import NO_COLUMNS, STRICT_NULL, Load, hash_order
from backstory.doors.historize.model import (
    STRICT,
    ColumnRole,
    ForeignKey,
    HistState,
    Model,
    ModelColumn,
    ModelDataset,
    TargetSchema,
    base_columns,
    business_keys,
    hashed_columns,
    identity,
    key_name,
    user_columns,
)
from backstory.doors.historize.resolve import MODEL, resolve, schema_of
from backstory.doors.historize.sql_target import base_steps
from backstory.doors.historize.stage import column_type
from backstory.errors import BackstoryError
from backstory.formats.rows import arrow_type
from backstory.model.layout import STARTED
from backstory.stores.sql.columns import Datatype, instant_text
from backstory.stores.sql.dialect import Dialect
from backstory.stores.sql.engine import Engine, Statement

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


PEPPER = "pepper"
DAY = datetime(2025, 1, 2, tzinfo=UTC)


@dataclass
class Bench:
    """A database under examination. Each dataset of the sample model is a table in its schema."""

    dialect: Dialect
    engine: Engine
    leftovers: list[str] = field(default_factory=list)

    @contextmanager
    def schema(self) -> Iterator[None]:
        """Create the schema, and drop it at the end of the block."""
        with examination("render_create_schema_if_not_exists"):
            for _ in range(2):
                self.engine.execute(self.dialect.render_create_schema_if_not_exists(SCHEMA))
        try:
            yield
        except BaseException:
            with suppress(BackstoryError):  # report the original error
                self._clear()
            raise
        self._clear()

    def _clear(self) -> None:
        for name in self.leftovers:
            self.drop(name)
        self.engine.execute(f"DROP SCHEMA {self.dialect.render_identifier(SCHEMA)}")

    def table(self, name: str) -> str:
        """The qualified name of a table in SQL."""
        return self.dialect.render_table_identifier(SCHEMA, name)

    def drop(self, name: str) -> None:
        """Drop a table if it exists."""
        self.engine.execute(f"DROP TABLE IF EXISTS {self.table(name)}")

    def make(self, name: str, columns: Sequence[ModelColumn]) -> str:
        """Create an empty table, replacing any old one, and return its name in SQL."""
        self.drop(name)
        self.leftovers.append(name)
        with examination("render_create_table_if_not_exists_from_columns"):
            for _ in range(2):
                sql = self.dialect.render_create_table_if_not_exists_from_columns(self.table(name), columns)
                self.engine.execute(sql)
        return self.table(name)

    def insert(self, name: str, row: Mapping[str, Any]) -> None:
        """Insert a row whose values are written as literals."""
        names = ", ".join(self.dialect.render_identifier(column) for column in row)
        values = ", ".join(self.dialect.render_literal(value) for value in row.values())
        self.engine.execute(f"INSERT INTO {self.table(name)} ({names}) VALUES ({values})")

    def texts(self, table: str, columns: Sequence[ModelColumn]) -> list[dict[str, Any]]:
        """The rows of a table, with each value in its canonical text form."""
        exact = [(column, self.dialect.render_identifier(column.name)) for column in columns]
        listed = ", ".join(f"{self._text(column, name)} AS {name}" for column, name in exact)
        rows = self.engine.fetch_all(f"SELECT {listed} FROM {table}")
        return [
            dict(zip([column.name for column in columns], row, strict=True)) for row in sorted(rows, key=repr)
        ]

    def _text(self, column: ModelColumn, name: str) -> str:
        precision, scale = column.decimal_precision, column.decimal_scale
        if column.hash_as:
            precision, scale = column.hash_as.precision, column.hash_as.scale
        return self.dialect.canonical_text(name, column.datatype, precision, scale)

    def values(self, started: datetime, run: str) -> dict[str, str]:
        """The SQL for each placeholder, by name."""
        secret = self.dialect.secret_reference("pepper")
        if secret:
            self.engine.bind_secret("pepper", PEPPER)
        return {
            "load_timestamp": self.dialect.timestamp_literal(started),
            "load_timestamp_text": self.dialect.string_literal(instant_text(started)),
            "load_run_id": self.dialect.string_literal(run),
            "pepper": secret or self.dialect.string_literal(PEPPER),
        }


def fresh(bench: Bench, model: Model, dataset: ModelDataset, *, merges: bool = False) -> Load:
    """A load whose tables are newly created."""
    hist = history_of(dataset)
    bench.make(dataset.name, base_columns(dataset))
    bench.make(dataset.hist_name, hist.target_columns)
    return Load(bench.dialect, model, dataset, hist, merges=merges)


def bring_rows(
    bench: Bench, load: Load, rows: Sequence[Mapping[str, Any]], run: str, started: datetime
) -> Load:
    """Stage the rows and load the base from them. Returns the load with its stage."""
    columns = user_columns(load.dataset)
    arrays = {
        column.name: pa.array(
            [_stage_value(row[column.name]) for row in rows], arrow_type(column_type(column))
        )
        for column in columns
    }
    with examination("bring"):
        stage = bench.engine.bring(f"backstory_stage_{load.dataset.name}", pa.table(arrays), columns)
    load = replace(load, stage=stage)
    steps_run(bench, base_steps(load), run, started)
    return load


def _stage_value(value: Any) -> Any:
    return value.strftime("%H:%M:%S.%f") if isinstance(value, time) else value


def steps_run(bench: Bench, statements: Sequence[Statement], run: str, started: datetime) -> dict[str, int]:
    """Run statements in one transaction, and return the row count of each step."""
    values, counts = bench.values(started, run), {}
    with bench.engine.transaction() if bench.dialect.supports_transactions else nullcontext():
        for statement in statements:
            with examination(statement.step):
                counts[statement.step] = bench.engine.run(statement.sql, values)
    return counts


SCHEMA = "backstory_conformance"

NASTY_NAMES = (
    *("select", "Order", "1st", "two words", "tüür", "per.iod", ""),
    *('quo"te', "back`tick", "brac]ket", "'"),
)

NASTY_TEXTS = (
    "",
    " ",
    "it's",
    "''",
    'say "so"',
    "back\\slash",
    "\\",
    "\\'; --",
    "a\nb\tc\r\nd",
    "{x} {{ load_run_id }} %s %% :a ?",
    "a|b~c^d^0|^p",
    "null_replaced",
    "Köln 東京 🦆 e\u0301",
)

_KEY = {"system_role": "business_key", "nullable": False}

_MORE: Mapping[Datatype, Mapping[str, object]] = {
    Datatype.DECIMAL: {"decimal_precision": 20, "decimal_scale": 6},
    Datatype.FLOAT: {"hash_as": "DECIMAL(18,4)"},
    Datatype.STRING: {"max_length": 200},
}


def _column(name: str, datatype: str, **more: object) -> dict[str, object]:
    return {"target_column_name": name, "datatype": datatype, **more}


def _dataset(name: str, *columns: dict[str, object], **more: object) -> dict[str, object]:
    return {"target_schema": "rawcore", "target_dataset_name": name, "target_columns": columns, **more}


@cache
def sample_model(profile: str = "elevata_v1") -> Model:
    """A model whose four datasets are for the scenarios, the golden vectors, all types, and parent keys."""
    types = [_column(datatype.lower(), datatype, **_MORE.get(datatype, {})) for datatype in Datatype]
    tree = {
        "format": "historize/1",
        "hash_profile": profile,
        "target_schemas": [{"short_name": "rawcore", "schema_name": SCHEMA}],
        "target_datasets": [
            _dataset(
                "rc_c",
                _column("cust_id", "STRING", **_KEY),
                _column("name", "STRING"),
                _column("city", "STRING"),
            ),
            _dataset(
                "rc_crm_customer",
                _column("customer_id", "BIGINT", system_role="business_key"),
                _column("mandant", "STRING", max_length=3, **_KEY),
                _column("name", "STRING"),
                _column("city", "STRING"),
                _column("active", "BOOLEAN"),
                _column("credit", "DECIMAL", decimal_precision=10, decimal_scale=2),
                _column("since", "DATE"),
                _column("note", "STRING"),
            ),
            _dataset("rc_region", _column("region", "STRING", **_KEY)),
            _dataset(
                "rc_types",
                _column("order", "BIGINT", **_KEY),
                *types,
                references=[
                    {
                        "id": 1,
                        "referenced_dataset": "rc_region",
                        "key_components": [{"from": "string", "to": "region"}],
                    }
                ],
            ),
        ],
    }
    return resolve(Model.model_validate(tree), Document("conformance", tree, MODEL))


def dataset_of(model: Model, name: str) -> ModelDataset:
    """The dataset of the sample with this name."""
    return next(dataset for dataset in model.target_datasets if dataset.name == name)


def history_of(dataset: ModelDataset) -> HistState:
    """The metadata for the history of a sample dataset."""
    return sync_hist(dataset, None, datetime(2025, 1, 1, tzinfo=UTC))


@contextmanager
def examination(what: str) -> Iterator[None]:
    """Turn any exception within the block into an AssertionError that first names the method or scenario."""
    try:
        yield
    except Exception as wrong:
        raise AssertionError(f"{what}: {wrong}") from wrong


def require(holds: object, message: object) -> None:
    """Raise AssertionError with the message unless `holds` is true, even with `python -O`."""
    if not holds:
        raise AssertionError(str(message))


def require_equal(actual: object, expected: object, of: object) -> None:
    """Raise AssertionError with both values unless they are equal."""
    require(actual == expected, f"{of} gives {actual!r} instead of {expected!r}")


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


# Keys and hashes


def examine_hashes(bench: Bench) -> None:
    """Examine the golden vectors, with their strings as literals and in the columns of a row."""
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
    load = Load(bench.dialect, model, dataset, history_of(dataset))
    table = bench.make("rc_crm_customer", [_nullable(column) for column in base_columns(dataset)])
    bench.insert("rc_crm_customer", CUSTOMER | {dataset.key: KEY})

    def evaluate(sql: str, started: datetime = DAY) -> str:
        rows = bench.engine.query(f"SELECT {sql} FROM {table} AS s", bench.values(started, "r"))
        return str(rows[0][0])

    built = {
        "a key": evaluate(load.base_key("s")),
        f"a row hash, {schema_of(model, dataset).hash_profile}": evaluate(load.row_hash("s")),
    }
    for name, instant in (
        ("a history key", DAY + timedelta(hours=3, minutes=4, seconds=5.6)),
        ("a history key of another day", DAY + timedelta(days=1)),
    ):
        built[name] = evaluate(load.hist_key("s"), instant)
    bench.make("rc_crm_customer", [_nullable(column) for column in base_columns(dataset)])
    bench.insert("rc_crm_customer", CUSTOMER | {"customer_id": None})
    built["a key with NULL"] = evaluate(load.base_key("s"))
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
    """Load values of every type into a base. Compare the base's strings and hashes with those from Python."""
    rows = list(_typed_rows())
    for profile in ("elevata_v1", "strict_v2"):
        model = sample_model(profile)
        dataset = dataset_of(model, "rc_types")
        load = fresh(bench, model, dataset)
        bring_rows(bench, load, rows, "r1", DAY)
        loaded = {row["order"]: row for row in bench.texts(load.base_table, base_columns(dataset))}
        for row in rows:
            for column in user_columns(dataset):
                with examination(f"canonical_text of {column.datatype}"):
                    expected = canon(row[column.name], column)
                    require_equal(
                        loaded[str(row["order"])][column.name], expected, of=f"{row[column.name]!r}"
                    )
            _require_hashes(model, dataset, row, loaded[str(row["order"])])


def _typed_rows() -> Iterator[dict[str, Any]]:
    """A row of NULLs, followed by rows with every value of every type."""
    yield {"order": 0, **{str(datatype).lower(): None for datatype in TYPED}}
    for number in range(max(len(values) for values in TYPED.values())):
        row = {str(kind).lower(): values[number % len(values)] for kind, values in TYPED.items()}
        yield {"order": number + 1, **row}


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
