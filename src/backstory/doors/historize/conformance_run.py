"""The part of a dialect's examination that a database runs (section 5.4)."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import product
from typing import Any

import pyarrow as pa

from backstory.doors.historize import ddl
from backstory.doors.historize.columns import base_columns, user_columns
from backstory.doors.historize.conformance_sample import (
    NASTY_NAMES,
    NASTY_TEXTS,
    SCHEMA,
    dataset_of,
    examined,
    history_of,
    require,
    require_equal,
    sample_model,
)
from backstory.doors.historize.dialects.base import Dialect
from backstory.doors.historize.engines.base import Engine
from backstory.doors.historize.expressions import Expressions
from backstory.doors.historize.hashing import Hashes, canon, instant_text, sha256
from backstory.doors.historize.model import Column, Dataset, Datatype, Model, Role
from backstory.doors.historize.resolve import schema_of
from backstory.doors.historize.stage_files import column_type
from backstory.doors.historize.statements import Load, Statement
from backstory.errors import BackstoryError
from backstory.files.rows import arrow_type
from backstory.strategies.full_state import rule

PEPPER = "pepper"
DAY = datetime(2025, 1, 2, tzinfo=UTC)
SAMPLES = ("rc_c", "rc_crm_customer", "rc_region", "rc_types")

# Section 2.4: texts and their hashes, and the row that the row hashes are of.
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
        f"rc_crm_customer_key~{KEY}|version_started_at~2025-01-02 03:04:05.600000|pepper",
        "3baf0599f25b0e87808baa0128b8cda612f0afffc85d337a7c4b9554d4da0d90",
    ),
    "a history key of another day": (
        f"rc_crm_customer_key~{KEY}|version_started_at~2025-01-03 00:00:00.000000|pepper",
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
# Values that databases write in different ways, each as Python has it.
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


def run_examination(dialect: Dialect, engine: Engine) -> None:
    """Run what the dialect writes; AssertionError names the method or the scenario that is wrong."""
    bench = Bench(dialect, engine)
    with bench.schema():
        _examine_hashes(bench)
        _examine_inequality(bench)
        _examine_literals(bench)
        _examine_types(bench)
        _examine_transactions(bench)
        _examine_scenarios(bench)
        _examine_schema_changes(bench)


@dataclass
class Bench:
    """A database under examination; each dataset of the sample is one table of its schema."""

    dialect: Dialect
    engine: Engine
    leftovers: list[str] = field(default_factory=list)

    @contextmanager
    def schema(self) -> Iterator[None]:
        """The schema, empty at the beginning and gone at the end."""
        with examined("render_create_schema_if_not_exists"):
            for _ in range(2):
                self.engine.execute(self.dialect.render_create_schema_if_not_exists(SCHEMA))
        try:
            yield
        except BaseException:
            with suppress(BackstoryError):  # the fault itself is what matters
                self._clear()
            raise
        self._clear()

    def _clear(self) -> None:
        for name in self.leftovers:
            self.drop(name)
        self.engine.execute(f"DROP SCHEMA {self.dialect.render_identifier(SCHEMA)}")

    def table(self, name: str) -> str:
        """A table's name in SQL."""
        return self.dialect.render_table_identifier(SCHEMA, name)

    def drop(self, name: str) -> None:
        """Take a table away."""
        self.engine.execute(f"DROP TABLE IF EXISTS {self.table(name)}")

    def make(self, name: str, columns: Sequence[Column]) -> str:
        """An empty table."""
        self.drop(name)
        self.leftovers.append(name)
        with examined("render_create_table_if_not_exists_from_columns"):
            for _ in range(2):
                sql = self.dialect.render_create_table_if_not_exists_from_columns(self.table(name), columns)
                self.engine.execute(sql)
        return self.table(name)

    def insert(self, name: str, row: Mapping[str, Any]) -> None:
        """Add a row of values that have literals."""
        names = ", ".join(self.dialect.render_identifier(each) for each in row)
        values = ", ".join(self.dialect.render_literal(each) for each in row.values())
        self.engine.execute(f"INSERT INTO {self.table(name)} ({names}) VALUES ({values})")

    def texts(self, table: str, columns: Sequence[Column]) -> list[dict[str, Any]]:
        """The rows of a table, each value as its canonical text."""
        exact = [(column, self.dialect.render_identifier(column.name)) for column in columns]
        listed = ", ".join(f"{self._text(column, name)} AS {name}" for column, name in exact)
        rows = self.engine.fetch_all(f"SELECT {listed} FROM {table}")
        return [
            dict(zip([column.name for column in columns], row, strict=True)) for row in sorted(rows, key=repr)
        ]

    def _text(self, column: Column, name: str) -> str:
        precision, scale = column.decimal_precision, column.decimal_scale
        if column.hash_as:
            precision, scale = column.hash_as.precision, column.hash_as.scale
        return self.dialect.canonical_text(name, column.datatype, precision, scale)

    def values(self, started: datetime, run: str) -> dict[str, str]:
        """SQL for the placeholders."""
        secret = self.dialect.secret_reference("pepper")
        if secret:
            self.engine.bind_secret("pepper", PEPPER)
        return {
            "load_timestamp": self.dialect.timestamp_literal(started),
            "load_timestamp_text": self.dialect.string_literal(instant_text(started)),
            "load_run_id": self.dialect.string_literal(run),
            "pepper": secret or self.dialect.string_literal(PEPPER),
        }


# Expressions


def _examine_hashes(bench: Bench) -> None:
    """The golden vectors: the texts as they stand, and made of the columns of a row."""
    dialect, engine = bench.dialect, bench.engine
    with examined("hash_expression"):
        for told, (text, expected) in VECTORS.items():
            require_equal(sha256(text), expected, of=f"the vector of {told}")
            sql = dialect.hash_expression(dialect.string_literal(text))
            require_equal(engine.execute_scalar(f"SELECT {sql}"), expected, of=f"golden vector, {told}")
    for profile in ("elevata_v1", "strict_v2"):
        model = sample_model(profile)
        dataset = dataset_of(model, "rc_crm_customer")
        made = _made_of_columns(bench, model, dataset)
        kinds = ["a key", "a key with NULL"] if profile == "elevata_v1" else ["a key"]
        kinds += [f"a row hash, {profile}", "a history key", "a history key of another day"]
        for told in kinds:
            with examined(f"golden vector, {told}, {profile}"):
                require_equal(made[told], VECTORS[told][1], of="the dialect's SQL")


def _made_of_columns(bench: Bench, model: Model, dataset: Dataset) -> dict[str, str]:
    expressions = Expressions(bench.dialect, schema_of(model, dataset))
    table = bench.make("rc_crm_customer", [_nullable(column) for column in base_columns(dataset)])
    bench.insert("rc_crm_customer", CUSTOMER | {dataset.key: KEY})

    def told(sql: str, started: datetime = DAY) -> str:
        found = bench.engine.query(f"SELECT {sql} FROM {table} AS s", bench.values(started, "r"))
        return str(found[0][0])

    made = {
        "a key": told(expressions.base_key(dataset, "s")),
        f"a row hash, {schema_of(model, dataset).hash_profile}": told(expressions.row_hash(dataset, "s")),
    }
    for name, at in (
        ("a history key", DAY + timedelta(hours=3, minutes=4, seconds=5.6)),
        ("a history key of another day", DAY + timedelta(days=1)),
    ):
        made[name] = told(expressions.hist_key(dataset, "s"), at)
    bench.make("rc_crm_customer", [_nullable(column) for column in base_columns(dataset)])
    bench.insert("rc_crm_customer", CUSTOMER | {"customer_id": None})
    made["a key with NULL"] = told(expressions.base_key(dataset, "s"))
    return made


def _nullable(column: Column) -> Column:
    return column.model_copy(update={"nullable": True})


def _examine_inequality(bench: Bench) -> None:
    type_ = bench.dialect.map_logical_type(Datatype.STRING, 10)
    literal = bench.dialect.render_literal
    with examined("null_safe_ne"):
        for left, right in product([None, "a", "b", ""], repeat=2):
            sides = [bench.dialect.cast_expression(literal(side), type_) for side in (left, right)]
            sql = bench.dialect.null_safe_ne(*sides)
            asked = f"SELECT CASE WHEN {sql} THEN 1 WHEN NOT ({sql}) THEN 0 END"
            require_equal(bench.engine.execute_scalar(asked), int(left != right), of=f"{left!r}, {right!r}")


def _examine_literals(bench: Bench) -> None:
    for text in NASTY_TEXTS:
        with examined(f"string_literal of {text!r}"):
            sql = f"SELECT {bench.dialect.string_literal(text)}"
            require_equal(bench.engine.execute_scalar(sql), text, of=sql)
    others: list[tuple[Datatype, Any]] = [
        *((Datatype.DATE, each) for each in TYPED[Datatype.DATE]),
        *((Datatype.TIMESTAMP, each) for each in TYPED[Datatype.TIMESTAMP]),
        *((Datatype.BOOLEAN, each) for each in (True, False)),
        *((Datatype.BIGINT, each) for each in (-1, 2**63 - 1)),
        *((Datatype.DECIMAL, each) for each in TYPED[Datatype.DECIMAL]),
    ]
    for datatype, value in others:
        with examined(f"render_literal of {value!r}"):
            column = _typed_column(datatype)
            typed = bench.dialect.cast_expression(
                bench.dialect.render_literal(value), bench.dialect.type_of(column)
            )
            text = bench.dialect.canonical_text(typed, datatype, 20, 6)
            require_equal(bench.engine.execute_scalar(f"SELECT {text}"), canon(value, column), of=text)


def _typed_column(datatype: Datatype) -> Column:
    types = user_columns(dataset_of(sample_model(), "rc_types"))
    return next(each for each in types if each.name == datatype.lower())


# All types, through stage and base


def _examine_types(bench: Bench) -> None:
    """Values of every type come from a file into base and history, with the keys of `hashing`."""
    rows = list(_typed_rows())
    for profile in ("elevata_v1", "strict_v2"):
        model = sample_model(profile)
        dataset = dataset_of(model, "rc_types")
        load = _fresh(bench, model, dataset)
        _brought(bench, load, rows, "r1", DAY)
        found = {row["order"]: row for row in bench.texts(load.base_table, base_columns(dataset))}
        for row in rows:
            _require_canonical(dataset, row, found[str(row["order"])])
            _require_hashes(model, dataset, row, found[str(row["order"])])


def _typed_rows() -> Iterator[dict[str, Any]]:
    """A row of NULLs, then rows that have every value of every type."""
    yield {"order": 0, **{str(datatype).lower(): None for datatype in TYPED}}
    for number in range(max(len(values) for values in TYPED.values())):
        row = {str(kind).lower(): values[number % len(values)] for kind, values in TYPED.items()}
        yield {"order": number + 1, **row}


def _require_canonical(dataset: Dataset, row: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    for column in user_columns(dataset):
        with examined(f"canonical_text of {column.datatype}"):
            expected = canon(row[column.name], column)
            require_equal(found[column.name], expected, of=f"{row[column.name]!r}")


def _require_hashes(model: Model, dataset: Dataset, row: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    hashes = Hashes(schema_of(model, dataset), PEPPER)
    parent = dataset_of(model, "rc_region")
    expected = {
        dataset.key: hashes.base_key(dataset, row),
        Role.ROW_HASH: hashes.row_hash(dataset, row),
        dataset.references[0].column: hashes.foreign_key(dataset.references[0], parent, row),
    }
    for name, value in expected.items():
        with examined(f"{name} of all types"):
            require_equal(found[name], value, of=row)


def _fresh(bench: Bench, model: Model, dataset: Dataset, *, merges: bool = False) -> Load:
    """A load whose tables are made anew."""
    hist = history_of(dataset)
    bench.make(dataset.name, base_columns(dataset))
    bench.make(dataset.hist_name, hist.target_columns)
    return Load(model, dataset, hist, bench.dialect, merges=merges)


def _brought(
    bench: Bench, load: Load, rows: Sequence[Mapping[str, Any]], run: str, started: datetime
) -> Load:
    """Load the base from rows of a file."""
    columns = user_columns(load.dataset)
    arrays = {
        column.name: pa.array([_staged(row[column.name]) for row in rows], arrow_type(column_type(column)))
        for column in columns
    }
    with examined("bring"):
        stage = bench.engine.bring(f"backstory_stage_{load.dataset.name}", pa.table(arrays), columns)
    load = replace(load, stage=stage)
    _steps(bench, load.base_steps(), run, started)
    return load


def _staged(value: Any) -> Any:
    return value.strftime("%H:%M:%S.%f") if isinstance(value, time) else value


def _steps(bench: Bench, statements: Sequence[Statement], run: str, started: datetime) -> dict[str, int]:
    """Run statements in one transaction; gives the rows of each."""
    values, counts = bench.values(started, run), {}
    with _transaction(bench):
        for statement in statements:
            with examined(statement.step):
                counts[statement.step] = bench.engine.run(statement.sql, values)
    return counts


@contextmanager
def _transaction(bench: Bench) -> Iterator[None]:
    if not bench.dialect.supports_transactions:
        yield
        return
    with bench.engine.transaction():
        yield


class _Stop(Exception):
    """A transaction is to be taken back."""


def _examine_transactions(bench: Bench) -> None:
    """What fails is taken back, where the dialect says that it can."""
    with examined("transaction"):
        table = bench.make("rc_taken_back", [Column(target_column_name="a", datatype=Datatype.BIGINT)])
        if not bench.dialect.supports_transactions:
            return
        with suppress(_Stop), bench.engine.transaction():
            bench.insert("rc_taken_back", {"a": 1})
            raise _Stop
        require_equal(bench.engine.execute_scalar(f"SELECT COUNT(*) FROM {table}"), 0, of="rows taken back")


# Scenarios

Snapshot = Mapping[str, str]
# What stands in the base at each load, by scenario; a value is the record's name.
LIFE: Sequence[tuple[str, str, int, Snapshot]] = (
    ("A23, the first load", "r1", 1, {"a": "1", "b": "1"}),
    ("A24, a change and a deletion", "r'2\\{{ load_timestamp }}", 2, {"a": "2"}),
    ("A26, the same run again", "r'2\\{{ load_timestamp }}", 2, {"a": "2"}),
    ("A25, a key that returns", "r3", 3, {"a": "2", "b": "1"}),
    ("a load that changes nothing", "r4", 4, {"a": "2", "b": "1"}),
    ("everything at once", "r5", 5, {"b": "2", "c": "1"}),
    ("everything returns", "r6", 6, {"a": "2", "b": "2", "c": "2"}),
)


def _examine_scenarios(bench: Bench) -> None:
    ways = [False, True] if bench.dialect.supports_hist_merge else [False]
    for merges in ways:
        way = "MERGE" if merges else "four steps"
        life = _Life.begun(bench, merges=merges)
        for told, run, second, snapshot in LIFE:
            life.load(f"{told}, {way}", run, second, snapshot)
        for steps in range(1, 4):
            life = _Life.begun(bench, merges=merges)
            life.load(LIFE[0][0], *LIFE[0][1:])
            life.interrupted(f"A27, stopped after step {steps}, {way}", steps)


@dataclass
class _Life:
    """A history in the database, and the same by the rule."""

    bench: Bench
    full: Load
    versions: list[rule.Version] = field(default_factory=list)

    @classmethod
    def begun(cls, bench: Bench, *, merges: bool) -> "_Life":
        model = sample_model()
        return cls(bench, _fresh(bench, model, dataset_of(model, "rc_c"), merges=merges))

    def load(self, told: str, run: str, second: int, snapshot: Snapshot) -> None:
        """Load a snapshot both ways, and compare the tables and the counts."""
        started = DAY + timedelta(seconds=second)
        load = self._based(run, started, snapshot)
        counts = self._by_rule(load, run, started, snapshot)
        steps = [load.hist_merge()] if load.merges else load.hist_steps()
        found = _steps(self.bench, steps, run, started)
        self._compare(told)
        if not load.merges:
            with examined(told):
                expected = {
                    f"{verb}_{outcome}": counts[f"{past}_{outcome}"]
                    for verb, past, outcome in (
                        ("close", "closed", "changed"),
                        ("close", "closed", "deleted"),
                        ("insert", "inserted", "changed"),
                        ("insert", "inserted", "new"),
                    )
                }
                require_equal(found, expected, of="the count of rows that each step touched")

    def interrupted(self, told: str, steps: int) -> None:
        """A24 that stops after some of its steps, and is run again with the same timestamp."""
        _, run, second, snapshot = LIFE[1]
        started = DAY + timedelta(seconds=second)
        load = self._based(run, started, snapshot)
        self._by_rule(load, run, started, snapshot)
        _steps(self.bench, load.hist_steps()[:steps], run, started)
        again = [load.hist_merge()] if load.merges else load.hist_steps()
        _steps(self.bench, again, run, started)
        self._compare(told)

    def _based(self, run: str, started: datetime, snapshot: Snapshot) -> Load:
        rows = [{"cust_id": key, "name": name, "city": None} for key, name in snapshot.items()]
        return _brought(self.bench, self.full, rows, run, started)

    def _by_rule(self, load: Load, run: str, started: datetime, snapshot: Snapshot) -> Mapping[str, int]:
        hashes = Hashes(schema_of(load.model, load.dataset), PEPPER)
        rows = []
        for key, name in snapshot.items():
            values = {"cust_id": key, "name": name, "city": None}
            rows.append(
                rule.Row(hashes.base_key(load.dataset, values), hashes.row_hash(load.dataset, values), values)
            )
        self.versions, counts = rule.historize(
            self.versions, rows, started, run, lambda key, at: hashes.hist_key(load.dataset, key, at)
        )
        return counts

    def _compare(self, told: str) -> None:
        columns = self.full.hist.target_columns
        dataset = self.full.dataset
        expected = [
            {
                dataset.hist_key: each.hist_key,
                dataset.key: each.key,
                **each.values,
                Role.ROW_HASH: each.row_hash,
                Role.STARTED: instant_text(each.started),
                Role.ENDED: each.ended and instant_text(each.ended),
                Role.STATE: each.state,
                Role.LOAD_RUN_ID: each.run,
                Role.LOADED_AT: instant_text(each.loaded_at),
            }
            for each in self.versions
        ]
        with examined(told):
            found = self.bench.texts(self.full.hist_table, columns)
            ordered = sorted(expected, key=lambda row: str(row[dataset.hist_key]))
            require_equal(found, ordered, of="the history")


# Schema changes


def _examine_schema_changes(bench: Bench) -> None:
    """Each change, and what the database then says of the table."""
    names = [name for name in NASTY_NAMES if name]
    columns = [Column(target_column_name="a", datatype=Datatype.INTEGER, nullable=False)]
    columns += [_renamed(columns[0], name) for name in names]
    for gone in ("rc renamed", "rc changed"):
        bench.drop(gone)
    table = bench.make("rc changed", columns)
    _require_table(bench, "rc changed", dict.fromkeys(["a", *names], Datatype.INTEGER))
    bench.insert("rc changed", dict.fromkeys(["a", *names], 7))
    more = _renamed(_typed_column(Datatype.DECIMAL), "add ed")
    with examined("render_add_column"):
        bench.engine.execute(bench.dialect.render_add_column(table, more))
        _require_row(bench, table, "add ed", None)
    with examined("render_rename_column"):
        for old, new in (("a", "group"), (names[1], "b"), ("b", names[1])):
            bench.engine.execute(bench.dialect.render_rename_column(SCHEMA, "rc changed", old, new))
        _require_row(bench, table, "group", 7)
    _examine_widening(bench, table, names[0])
    with examined("render_drop_column"):
        bench.engine.execute(bench.dialect.render_drop_column(table, "group"))
    with examined("render_rename_table"):
        bench.engine.execute(bench.dialect.render_rename_table(SCHEMA, "rc changed", "rc renamed"))
        bench.leftovers.append("rc renamed")
        require(bench.engine.introspect_table(SCHEMA, "rc changed") is None, "the old name is still there")
        _require_row(bench, bench.table("rc renamed"), names[0], 7)
        found = bench.engine.introspect_table(SCHEMA, "rc renamed") or {}
        require_equal(set(found), {*names, "add ed"}, of="the renamed table's columns")


def _examine_widening(bench: Bench, table: str, name: str) -> None:
    with examined("render_alter_column_type"):
        wide = Column(target_column_name=name, datatype=Datatype.BIGINT)
        stored = (bench.engine.introspect_table(SCHEMA, "rc changed") or {})[name]
        sql = bench.dialect.render_alter_column_type(table, wide, stored)
        if sql is None or not bench.dialect.supports_alter_column_type:
            return
        bench.engine.execute(sql)
        stored = (bench.engine.introspect_table(SCHEMA, "rc changed") or {})[name]
        found = ddl.logical(stored, bench.dialect)
        require_equal(found and found.datatype, Datatype.BIGINT, of=stored)
        _require_row(bench, table, name, 7)


def _renamed(column: Column, name: str) -> Column:
    return column.model_copy(update={"target_column_name": name, "nullable": True})


def _require_table(bench: Bench, name: str, expected: Mapping[str, Datatype]) -> None:
    with examined("introspect_table"):
        require(bench.engine.introspect_table(SCHEMA, "not there") is None, "a missing table is None")
        stored = bench.engine.introspect_table(SCHEMA, name) or {}
        found = {each: ddl.logical(type_, bench.dialect) for each, type_ in stored.items()}
        told = {each: column and column.datatype for each, column in found.items()}
        require_equal(told, dict(expected), of="the columns")


def _require_row(bench: Bench, table: str, column: str, expected: object) -> None:
    sql = f"SELECT {bench.dialect.render_identifier(column)} FROM {table}"
    require_equal(bench.engine.fetch_all(sql), [(expected,)], of=sql)
