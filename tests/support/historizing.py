"""Historization on a small scale, for tests: a model, a database, and its tables as text.

A base is written `a:1 b:-`, with business key and attribute, and `-` is NULL. `a:1!key` has no surrogate key,
`a:1!hash` no row hash. A history has one version per line, `key attribute [start,end) state run`. Instants
are seconds of a fixed day, and `-` is no end.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

from backstory.documents import Document
from backstory.doors.historize.door import run_model
from backstory.doors.historize.hist_state import sync_hist
from backstory.doors.historize.load import Load
from backstory.doors.historize.model import Model, ModelColumn, ModelDataset, base_columns, business_keys
from backstory.doors.historize.receipts import HistoryReceipt, LoadRequest
from backstory.doors.historize.resolve import MODEL, resolve, schema_of
from backstory.doors.historize.sql_target import SqlTarget
from backstory.stores.sql.dialect import Dialect
from backstory.stores.sql.dialects import get_dialect
from backstory.testing.conformance_bench import Hashes

DAY = datetime(2025, 1, 2, tzinfo=UTC)
PEPPER = "pepper"
COLUMN = re.compile(r"(?P<name>\w+)(?::(?P<type>[A-Z]+)(?:\((?P<numbers>[\d,]+)\))?)?(?P<key>\*)?")
VERSION = re.compile(
    r"(?P<key>\S+) (?P<value>\S+) \[(?P<start>\S+),(?P<end>\S+)\) (?P<state>\S+) (?P<run>\S+)"
)


def second(number: object) -> datetime:
    """The instant of a number, which is a second of the fixed day."""
    return DAY + timedelta(microseconds=int(Decimal(str(number)) * 1_000_000))


def column(word: str) -> dict[str, Any]:
    """A column of the model from `name:DECIMAL(10,2)`. A star marks a business key."""
    parts = COLUMN.fullmatch(word)
    made: dict[str, Any] = {"target_column_name": parts["name"], "datatype": parts["type"] or "STRING"}
    numbers = [int(each) for each in (parts["numbers"] or "").split(",") if each]
    if made["datatype"] == "DECIMAL":
        made |= dict(zip(("decimal_precision", "decimal_scale"), numbers, strict=False))
    elif numbers:
        made["max_length"] = numbers[0]
    return made | ({"system_role": "business_key", "nullable": False} if parts["key"] else {})


def dataset(columns: str = "k* a", name: str = "rc_c", **more: Any) -> dict[str, Any]:
    """A dataset of the model. `more` has its other keys."""
    written = {"target_schema": "rawcore", "target_dataset_name": name, "lineage_key": f"rawcore:{name}"}
    return written | {"target_columns": [column(word) for word in columns.split()], **more}


def document(
    *datasets: Mapping[str, Any], schema: Mapping[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """A model's document."""
    layers = [{"short_name": "rawcore", **(schema or {})}]
    return {"format": "historize/1", "target_schemas": layers, "target_datasets": list(datasets), **more}


def model_of(written: Mapping[str, Any]) -> Model:
    """The resolved model."""
    return resolve(Model.model_validate(written), Document("model.yaml", written, MODEL))


def load_of(model: Model, dialect: Dialect) -> Load:
    """The load of the model's first dataset."""
    base = model.target_datasets[0]
    return Load(dialect, model, base, sync_hist(base, None, DAY))


def save(written: Mapping[str, Any], folder: Path) -> Path:
    """The model as a file; JSON is YAML."""
    path = folder / "model.yaml"
    path.write_text(json.dumps(written, default=str))
    return path


# Histories that none of our loads leaves, and a base that is loaded onto each at instant 5.
PASTS = """
    closed 1 [1,2) deleted r0
    imported 1 [1,2) changed r0
    healed 1 [1,5) changed r5
    archived 1 [1,2) deleted r0
    pruned 1 [1,2) changed r0
    pruned 2 [2,3) deleted r0
    open 1 [1,-) new r0
"""
BASE = "closed:1 imported:1 healed:2 archived:1 pruned:1 open:1 fresh:1"
BACK = ["archived", "closed", "imported", "pruned"]


def archived_pasts(place: "Place") -> None:
    """`PASTS` as a history and its archive, which has all versions of one record, and the first of another."""
    gone = "k = 'archived' OR (k = 'pruned' AND version_state = 'changed')"
    place.put(PASTS)
    place.sql(f"CREATE TABLE rawcore.rc_c_hist_archive AS SELECT * FROM rawcore.rc_c_hist WHERE {gone}")
    place.sql(f"DELETE FROM rawcore.rc_c_hist WHERE {gone}")


def versions(text: str) -> list[str]:
    """The lines of a history, as `Place.history` returns them."""
    return sorted(line.strip() for line in text.strip().splitlines() if line.strip())


@dataclass
class Place:
    """A database with the tables of a model. The first dataset is the default."""

    name: str
    url: str
    folder: Path
    pepper: str = PEPPER

    def __post_init__(self) -> None:
        self.dialect: Dialect = get_dialect(self.name)
        self.use(document(dataset()))
        self.target = self.connected()

    def use(self, written: Mapping[str, Any]) -> None:
        """Load this model from now on."""
        self.model = model_of(written)
        self.dataset: ModelDataset = self.model.target_datasets[0]
        self.schema = schema_of(self.model, self.dataset)

    def mode(self, engine: str, columns: str = "k* a", **historization: Any) -> "Place":
        """Use a model with one dataset whose history is loaded in this way."""
        self.use(document(dataset(columns, historization={"engine": engine, **historization})))
        return self

    def connected(self) -> SqlTarget:
        """A separate connection."""
        return SqlTarget(self.dialect, self.dialect.get_execution_engine(self.url), self.pepper)

    @contextmanager
    def connection(self) -> Iterator[SqlTarget]:
        """A connection that is closed at the end."""
        target = self.connected()
        try:
            yield target
        finally:
            target._engine.close()

    def close(self) -> None:
        self.target._engine.close()

    # SQL

    def sql(self, text: str) -> int:
        return self.target._engine.execute(text)

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        return self.target._engine.fetch_all(text)

    def insert(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Insert rows, given as dicts, into a table."""
        all_rows = list(rows)
        made = ", ".join("(" + ", ".join(map(self.literal, row.values())) + ")" for row in all_rows)
        if all_rows:
            names = ", ".join(self.dialect.render_identifier(name) for name in all_rows[0])
            self.sql(f"INSERT INTO {table} ({names}) VALUES {made}")

    def literal(self, value: object) -> str:
        if isinstance(value, bytes):
            return f"'\\x{value.hex()}'" if self.name == "postgres" else f"from_hex('{value.hex()}')"
        return self.dialect.render_literal(value)

    def create(self, schema: str, table: str, columns: Sequence[Any]) -> None:
        """Create a table with the model's columns, which may all be NULL."""
        self.sql(self.dialect.render_create_schema_if_not_exists(schema))
        free = [each.model_copy(update={"nullable": True}) for each in columns]
        name = self.dialect.render_table_identifier(schema, table)
        self.sql(self.dialect.render_create_table_if_not_exists_from_columns(name, free))

    def stage(self, name: str, columns: str, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        """Create a stage table with exactly these rows."""
        made = [ModelColumn.model_validate(column(word)) for word in columns.split()]
        if self.has("stage", name):
            self.sql(f"DROP TABLE stage.{name}")
        self.create("stage", name, made)
        self.insert(f"stage.{name}", rows)

    def lock(self, name: str = "rc_c") -> Path:
        """The lock file of a dataset at this place."""
        return self.folder / f"{self.target.place}.rawcore.{name}.hist.lock.yaml"

    def has(self, schema: str, table: str) -> bool:
        return self.target.columns(schema, table) is not None

    def dump(self, *tables: str) -> dict[str, list[tuple[Any, ...]]]:
        """Every row and column of tables, or None for a table that does not exist."""
        chosen = tables or (f"rawcore.{self.dataset.name}", f"rawcore.{self.dataset.hist_name}")
        return {name: self._dumped(name) for name in chosen}

    def _dumped(self, name: str) -> list[tuple[Any, ...]] | None:
        stored = self.target.columns(*name.split("."))
        if stored is None:
            return None
        listed = ", ".join(self.dialect.render_identifier(each) for each in stored)
        return [tuple(stored), *sorted(self.rows(f"SELECT {listed} FROM {name}"), key=repr)]

    # The base

    @property
    def hashes(self) -> Hashes:
        return Hashes(self.schema, self.pepper)

    def base(self, text: str) -> "Place":
        """Make the base contain exactly these rows. It is created if it does not exist."""
        if not self.has("rawcore", self.dataset.name):
            self.create("rawcore", self.dataset.name, base_columns(self.dataset))
        self.sql(f"DELETE FROM rawcore.{self.dataset.name}")
        self.insert(f"rawcore.{self.dataset.name}", [self._base_row(word) for word in text.split()])
        return self

    def typed(self, value: str | None) -> Any:
        """The value of the attribute as a string, in the model's type."""
        return value

    def _base_row(self, word: str) -> dict[str, Any]:
        word, _, lacks = word.partition("!")
        key, value = (None if part == "-" else part for part in word.split(":"))
        row = {"k": key, "a": self.typed(value)}
        return {
            self.dataset.key: None if lacks == "key" else self.hashes.base_key(self.dataset, row),
            **row,
            "row_hash": None if lacks == "hash" else self.hashes.row_hash(self.dataset, row),
            "load_run_id": "ingest",
            "loaded_at": DAY,
        }

    # The history

    def put(self, text: str) -> "Place":
        """Write versions into the history. A line that ends with `!hash` or `!start` lacks this value."""
        hist = sync_hist(self.dataset, None, DAY)
        if not self.has("rawcore", hist.target_dataset_name):
            self.create("rawcore", hist.target_dataset_name, hist.target_columns)
        self.insert(f"rawcore.{self.dataset.hist_name}", [self._version(line) for line in versions(text)])
        return self

    def _version(self, line: str) -> dict[str, Any]:
        line, _, lacks = line.partition("!")
        parts = VERSION.fullmatch(line.strip())
        key, value = (None if parts[part] == "-" else parts[part] for part in ("key", "value"))
        row, started = {"k": key, "a": self.typed(value)}, second(parts["start"])
        entity = self.hashes.base_key(self.dataset, row)
        return {
            self.dataset.hist_key: self.hashes.hist_key(self.dataset, entity, started),
            self.dataset.key: entity,
            **row,
            "row_hash": None if lacks == "hash" else self.hashes.row_hash(self.dataset, row),
            "version_started_at": None if lacks == "start" else started,
            "version_ended_at": None if parts["end"] == "-" else second(parts["end"]),
            "version_state": parts["state"],
            "load_run_id": parts["run"],
            "loaded_at": started,
        }

    def history(self, value: str = "a") -> list[str]:
        """The history as text, after a check of its laws."""
        assert_lawful(self)
        key = business_keys(self.dataset)[0].name
        listed = f"{key}, {value}, version_started_at, version_ended_at, version_state, load_run_id"
        rows = self.rows(f"SELECT {listed} FROM rawcore.{self.dataset.hist_name}")
        return sorted(
            f"{_word(k)} {_word(v)} [{_number(start)},{_number(end)}) {state} {run}"
            for k, v, start, end, state, run in rows
        )

    # Loads

    def load(self, run: str | None, at: object = None, **options: Any) -> HistoryReceipt:
        """Load the first dataset's history from the current base."""
        (receipt, *_) = self.loads(run, at, **{"skip_base": True, **options})
        return receipt

    def loads(self, run: str | None, at: object = None, **options: Any) -> list[HistoryReceipt]:
        """Load all datasets."""
        instant = None if at is None else second(at)
        return run_model(
            self.model, self.folder, self.target, LoadRequest(run_id=run, load_timestamp=instant, **options)
        )

    def registered(self, *columns: str, run: str | None = None) -> list[tuple[Any, ...]]:
        """The rows of the registry."""
        where = "" if run is None else f" WHERE load_run_id = {self.literal(run)}"
        return self.rows(f"SELECT {', '.join(columns)} FROM meta.hist_run{where} ORDER BY load_timestamp")


def assert_lawful(place: Place) -> None:
    """Check the invariants of section 9.2: open versions, intervals, keys."""
    key, hist_key, table = place.dataset.key, place.dataset.hist_key, f"rawcore.{place.dataset.hist_name}"
    rows = place.rows(
        f"SELECT {hist_key}, {key}, version_started_at, version_ended_at, version_state FROM {table}"
    )
    lives: dict[str, list[tuple[Any, Any]]] = {}
    for made, entity, started, ended, state in rows:
        assert made == place.hashes.hist_key(place.dataset, entity, aware(started))
        assert state in ({"new", "changed"} if ended is None else {"changed", "deleted"})
        lives.setdefault(entity, []).append((started, ended))
    assert len({row[0] for row in rows}) == len(rows)
    for life in lives.values():
        assert sum(ended is None for _, ended in life) <= 1
        ordered = sorted(life, key=lambda each: each[0])
        assert all(ended is None or started < ended for started, ended in ordered)
        pairs = pairwise(ordered)
        assert all(ended is not None and ended <= after for (_, ended), (after, _) in pairs)


def aware(instant: datetime) -> datetime:
    """An instant from the database, in UTC."""
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)


def _word(value: object) -> str:
    return "-" if value is None else str(value)


def _number(instant: datetime | None) -> str:
    if instant is None:
        return "-"
    seconds = Decimal((aware(instant) - DAY) // timedelta(microseconds=1)) / 1_000_000
    return f"{seconds.normalize():f}"
