"""A database under examination: its tables and loads, a sample model, and assertions (section 5.4)."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, time
from functools import cache
from typing import Any

import pyarrow as pa

from backstory.documents import Document
from backstory.doors.historize.hist_state import sync_hist
from backstory.doors.historize.load import Load
from backstory.doors.historize.model import (
    HistState,
    Model,
    ModelColumn,
    ModelDataset,
    base_columns,
    user_columns,
)
from backstory.doors.historize.resolve import MODEL, resolve
from backstory.doors.historize.sql_load import base_steps
from backstory.doors.historize.stage import column_type
from backstory.errors import BackstoryError
from backstory.formats.rows import arrow_type
from backstory.stores.sql.columns import Datatype, instant_text
from backstory.stores.sql.dialect import Dialect
from backstory.stores.sql.engine import Engine
from backstory.stores.sql.statements import Statement

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
    return Load(model, dataset, hist, bench.dialect, merges=merges)


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
    with transaction(bench):
        for statement in statements:
            with examination(statement.step):
                counts[statement.step] = bench.engine.run(statement.sql, values)
    return counts


@contextmanager
def transaction(bench: Bench) -> Iterator[None]:
    """Open a transaction if the dialect supports them."""
    if not bench.dialect.supports_transactions:
        yield
        return
    with bench.engine.transaction():
        yield


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
    """Four datasets: for the scenarios, for the golden vectors, for all types, and for their parent keys."""
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
    hist = sync_hist(dataset, None, datetime(2025, 1, 1, tzinfo=UTC))
    assert hist is not None
    return hist


@contextmanager
def examination(what: str) -> Iterator[None]:
    """Turn any exception within the block into an AssertionError that begins with the method or scenario."""
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
