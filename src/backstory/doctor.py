"""A check of a session and a catalog. It tries each ability on a scratch table, and drops the table."""

import platform
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import pyarrow as pa

from backstory.errors import BackstoryError, Failed, TryAgain, internal_error
from backstory.model.change import Change, Note
from backstory.model.receipt import Receipt
from backstory.model.table import TableName
from backstory.reading.queries import translate_query_faults
from backstory.spark.versions import arrow_of
from backstory.stores.connect.abilities import STATEMENTS
from backstory.stores.connect.store import iceberg_version
from backstory.stores.iceberg import jvm
from backstory.stores.iceberg.commit import commit
from backstory.stores.iceberg.create import drop
from backstory.stores.iceberg.literals import quote
from backstory.stores.iceberg.store import existing, load
from backstory.stores.iceberg.workers import map_batches
from backstory.table import Table

if TYPE_CHECKING:
    from backstory.stores.connect.store import ConnectStore
    from backstory.stores.iceberg.store import IcebergStore
    from backstory.warehouse import Warehouse

SCHEMA: Final = "backstory_doctor"
WORKS, FAILS, UNTRIED, ABSENT = "works", "fails", "not tried", "absent"
_ROWS: Final = 4  # for Python workers
_FIRST, _SECOND, _THIRD = (datetime(2024, 1, day, tzinfo=UTC) for day in range(1, 4))


@dataclass(frozen=True, slots=True, repr=False)
class Ability(Receipt):
    """The result for one ability: the `status`, the seconds, and the error if the ability fails.

    An ability is `not tried` if it depends on another one that does not work. Views are `absent` if the
    catalog does not support them. No other ability depends on views.
    """

    ability: str
    status: str
    seconds: float = 0.0
    error: BackstoryError | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Diagnosis(Receipt):
    """The versions of the parts of a session, and its abilities."""

    versions: Mapping[str, str | None]
    abilities: Sequence[Ability] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """0 if every ability works or is absent, else 1."""
        failed = any(ability.status in {FAILS, UNTRIED} for ability in self.abilities)
        return Failed.exit_code if failed else 0


def examine(warehouse: "Warehouse") -> Diagnosis:
    """Try each ability on a table of the schema `backstory_doctor`, and drop the table at the end."""
    probe = _Probe(warehouse, TableName(SCHEMA, f"t_{secrets.token_hex(4)}"))
    abilities = dict[str, Ability]()
    try:
        for name, (needs, act) in (_ABILITIES if warehouse.store.has_java else _BY_SQL).items():
            if any(abilities[needed].status != WORKS for needed in needs):
                abilities[name] = Ability(name, UNTRIED)
            else:
                abilities[name] = _try_ability(name, act, probe)
    finally:
        _remove_tables(probe)
    return Diagnosis(versions_of(warehouse), list(abilities.values()))


def versions_of(warehouse: "Warehouse") -> dict[str, str | None]:
    """The versions of backstory, Python, Java, Spark, Scala and Iceberg, with the catalog and the session.

    Over Spark Connect, the versions of Spark and Iceberg are the server's. PySpark replaces Java and Scala.
    """
    store = warehouse.store
    parts: dict[str, str | None] = {"spark": str(store.spark.version)}
    if store.has_java:
        parts = {"java": str(store.jvm.java.lang.System.getProperty("java.version")), **parts}
        parts["scala"] = str(store.jvm.scala.util.Properties.versionNumberString())
        parts["iceberg"] = jvm.version(store.jvm)
        session = "backstory's own" if warehouse.embedded else "yours"
    else:
        parts = {"pyspark": version("pyspark"), **parts}
        parts["iceberg"], session = iceberg_version(store.spark, store.catalog), "Spark Connect"
    own = {"backstory": version("backstory"), "python": platform.python_version()}
    return {**own, **parts, "catalog": _catalog_text(store), "session": session}


def _catalog_text(store: "IcebergStore") -> str:
    """The catalog's name, and its class, or else its type in the settings."""
    kind = None
    with suppress(Exception):  # the abilities report the error of a catalog that cannot be opened
        kind = store.iceberg().getClass().getSimpleName() if store.has_java else None
    kind = kind or store.setting(f"spark.sql.catalog.{store.catalog}.type")
    return f"{store.catalog}: {kind or 'of a class of its own'}"


@dataclass(frozen=True, slots=True)
class _Probe:
    """The examined warehouse and the name of the scratch table."""

    warehouse: "Warehouse"
    name: TableName

    @property
    def table(self) -> Table:
        return Table(self.warehouse.store, self.name)

    @property
    def archive(self) -> TableName:
        """The name under which the scratch table is archived."""
        return TableName(SCHEMA, f"{self.name.name}_renamed")

    @property
    def by_sql(self) -> TableName:
        """The name of the scratch table for the abilities that are single statements."""
        return TableName(SCHEMA, f"{self.name.name}_sql")

    def copy(self, at: datetime, rename: Mapping[str, str] | None = None, **columns: list[Any]) -> None:
        self.warehouse.snapshot(pa.table(columns), into=str(self.name), key="id", at=at, rename=rename)


def _try_ability(name: str, act: Callable[[_Probe], object], probe: _Probe) -> Ability:
    """The result for one ability. Every error is a result."""
    began, status, error = time.monotonic(), WORKS, None
    try:
        status = ABSENT if act(probe) == ABSENT else WORKS
    except BackstoryError as stop:
        status, error = FAILS, stop
    except Exception as stop:  # noqa: BLE001 - every error of a catalog is a result
        status, error = FAILS, internal_error(stop)
    return Ability(name, status, round(time.monotonic() - began, 2), error)


def _remove_tables(probe: _Probe) -> None:
    """Drop the scratch tables, their views and their schema, if they exist."""
    store = probe.warehouse.store
    for view in ("current", "versions"):
        with suppress(Exception):
            store.spark.sql(f"DROP VIEW {store.sql_name(TableName(SCHEMA, f'{probe.name.name}_{view}'))}")
    for name in (probe.name, probe.archive if store.has_java else probe.by_sql):
        with suppress(Exception):
            if store.has_java:
                drop(store, name)
            else:
                store.spark.sql(f"DROP TABLE {store.sql_name(name)} PURGE")
    with suppress(Exception):  # the schema has other tables while two examinations run at once
        store.spark.sql(f"DROP NAMESPACE {quote(store.catalog)}.{quote(SCHEMA)}")


def _read(probe: _Probe) -> None:
    rows = (probe.table.current().count(), probe.table.as_of(_FIRST).count())
    if rows != (2, 3):
        raise Failed(
            "wrong-rows",
            f"{rows[0]} current and {rows[1]} earlier rows were read instead of 2 and 3.",
            _REPORT,
        )


def _task(probe: _Probe) -> None:
    rows = probe.warehouse.spark.range(_ROWS, numPartitions=2)
    with translate_query_faults(probe.name):
        count = arrow_of(map_batches(rows, iter, "id BIGINT")).num_rows
    if count != _ROWS:
        raise Failed("wrong-rows", f"Python workers got {_ROWS} rows and returned {count}.", _REPORT)


def _conflict(probe: _Probe) -> None:
    store, note = probe.warehouse.store, Note("native", "")
    stale = existing(store, probe.name)
    commit(store, existing(store, probe.name), Change(snapshot=True), note)
    try:
        commit(store, stale, Change(snapshot=True), note)
    except TryAgain:
        return
    raise Failed("no-conflict", "A commit on an older state of the table was accepted.", _ATOMIC)


def _cursor(probe: _Probe) -> None:
    with probe.table.changes(cursor="doctor", start="first") as feed:
        feed.frame.count()


def _drop(probe: _Probe) -> None:
    store = probe.warehouse.store
    name = probe.archive if load(store, probe.name) is None else probe.name
    Table(store, name).drop(apply=True)


_REPORT: Final = "Report it, with the output of `backstory doctor`."
_ATOMIC: Final = "Use a catalog that commits atomically, such as JDBC, REST, Hive or Glue."
_CREATED, _CHANGED, _READ = "create a table and write rows", "end rows and add versions", "read by Spark"
# Each ability, with the abilities that it needs, in the order of the trials.
_Abilities: TypeAlias = Mapping[str, tuple[Sequence[str], Callable[[_Probe], object]]]
_VIEWS: Final[_Abilities] = {
    "make views": (
        [_CREATED],
        lambda probe: None if any(view["made"] for view in probe.table.views()) else ABSENT,
    ),
}
_DELIVERIES: Final[_Abilities] = {
    _CREATED: ((), lambda probe: probe.copy(_FIRST, id=[1, 2, 3], name=["a", "b", "c"])),
    _CHANGED: ([_CREATED], lambda probe: probe.copy(_SECOND, id=[1, 2], name=["a", "x"])),
    _READ: ([_CHANGED], _read),
}
_ABILITIES: Final[_Abilities] = {
    **_DELIVERIES,
    "run Python workers": ((), _task),
    "add and rename columns": (
        [_CREATED],
        lambda probe: probe.copy(_THIRD, {"name": "label"}, id=[1, 2], label=["a", "x"], more=[1.5, None]),
    ),
    "refuse the later of two writers": ([_CREATED], _conflict),
    "keep a cursor as a tag": ([_CREATED], _cursor),
    "compact and expire": ([_CREATED], lambda probe: probe.table.maintain()),
    **_VIEWS,
    "forget a record": (
        [_CHANGED],
        lambda probe: probe.table.forget(2, drop_cursors=True, apply=True),
    ),
    "rename a table": ([_CREATED], lambda probe: probe.table.drop(archive=str(probe.archive), apply=True)),
    "drop a table": ([_CREATED], _drop),
}


def _of_statements(act: "Callable[[ConnectStore, TableName], None]") -> Callable[[_Probe], None]:
    return lambda probe: act(cast("ConnectStore", probe.warehouse.store), probe.by_sql)


# The abilities over Spark Connect: each statement of a commit, then deliveries.
_BY_SQL: Final[_Abilities] = {
    **{name: (needs, _of_statements(act)) for name, (needs, act) in STATEMENTS.items()},
    **_DELIVERIES,
    _CREATED: ([*STATEMENTS], _DELIVERIES[_CREATED][1]),
    **_VIEWS,
}
