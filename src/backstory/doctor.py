"""A check of a session and a catalog. It tries each ability on a scratch table, and drops the table."""

import platform
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, cast

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
    with _remove_at_end(probe):
        for name, (needs, act) in (_ABILITIES if warehouse.store.has_java else _BY_SQL).items():
            if any(abilities[needed].status != WORKS for needed in needs):
                abilities[name] = Ability(name, UNTRIED)
            else:
                abilities[name] = _try_ability(name, act, probe)
    return Diagnosis(versions_of(warehouse), list(abilities.values()))


def versions_of(warehouse: "Warehouse") -> dict[str, str | None]:
    """The versions of backstory, Python, Java, Spark, Scala and Iceberg, with the catalog and the session.

    Over Spark Connect, the versions of Spark and Iceberg are the server's. PySpark replaces Java and Scala.
    """
    store = warehouse.store
    if not store.has_java:
        return _versions_over_connect(store)
    java = store.jvm.java.lang.System
    return {
        "backstory": version("backstory"),
        "python": platform.python_version(),
        "java": str(java.getProperty("java.version")),
        "spark": str(store.spark.version),
        "scala": str(store.jvm.scala.util.Properties.versionNumberString()),
        "iceberg": jvm.version(store.jvm),
        "catalog": _catalog_text(store),
        "session": "backstory's own" if warehouse.embedded else "yours",
    }


def _catalog_text(store: "IcebergStore") -> str:
    """The catalog's name, and its class, or else its type in the settings."""
    kind = None
    with suppress(Exception):  # the abilities report the error of a catalog that cannot be opened
        kind = store.iceberg().getClass().getSimpleName() if store.has_java else None
    kind = kind or store.setting(f"spark.sql.catalog.{store.catalog}.type")
    return f"{store.catalog}: {kind or 'of a class of its own'}"


def _versions_over_connect(store: "IcebergStore") -> dict[str, str | None]:
    return {
        "backstory": version("backstory"),
        "python": platform.python_version(),
        "pyspark": version("pyspark"),
        "spark": str(store.spark.version),
        "iceberg": iceberg_version(store.spark, store.catalog),
        "catalog": _catalog_text(store),
        "session": "Spark Connect",
    }


@dataclass(frozen=True, slots=True)
class _Probe:
    """The examined warehouse and the name of the scratch table."""

    warehouse: "Warehouse"
    name: TableName

    @property
    def table(self) -> Table:
        return Table(self.warehouse.store, self.name)

    def copy(self, at: datetime, rename: Mapping[str, str] | None = None, **columns: list[Any]) -> None:
        self.warehouse.snapshot(pa.table(columns), into=str(self.name), key="id", at=at, rename=rename)


def _try_ability(name: str, act: Callable[[_Probe], str | None], probe: _Probe) -> Ability:
    """The result for one ability. Every error is a result."""
    began, status, error = time.monotonic(), WORKS, None
    try:
        status = act(probe) or WORKS
    except BackstoryError as stop:
        status, error = FAILS, stop
    except Exception as stop:  # noqa: BLE001 - every error of a catalog is a result
        status, error = FAILS, internal_error(stop)
    return Ability(name, status, round(time.monotonic() - began, 2), error)


@contextmanager
def _remove_at_end(probe: _Probe) -> Iterator[None]:
    """Drop the scratch tables, their views and their schema at the end, if they exist."""
    store = probe.warehouse.store
    try:
        yield
    finally:
        for view in ("current", "versions"):
            with suppress(Exception):
                store.spark.sql(f"DROP VIEW {store.sql_name(TableName(SCHEMA, f'{probe.name.name}_{view}'))}")
        for name in (probe.name, _archive(probe) if store.has_java else _by_sql(probe)):
            with suppress(Exception):
                if store.has_java:
                    drop(store, name)
                else:
                    store.spark.sql(f"DROP TABLE {store.sql_name(name)} PURGE")
        with suppress(Exception):  # the schema has other tables while two examinations run at once
            store.spark.sql(f"DROP NAMESPACE {quote(store.catalog)}.{quote(SCHEMA)}")


def _by_sql(probe: _Probe) -> TableName:
    """The name of the scratch table for the abilities that are single statements."""
    return TableName(SCHEMA, f"{probe.name.name}_sql")


def _archive(probe: _Probe) -> TableName:
    return TableName(SCHEMA, f"{probe.name.name}_renamed")


def _create(probe: _Probe) -> None:
    probe.copy(_FIRST, id=[1, 2, 3], name=["a", "b", "c"])


def _change(probe: _Probe) -> None:
    probe.copy(_SECOND, id=[1, 2], name=["a", "x"])


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


def _columns(probe: _Probe) -> None:
    probe.copy(_THIRD, {"name": "label"}, id=[1, 2], label=["a", "x"], more=[1.5, None])


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


def _maintain(probe: _Probe) -> None:
    probe.table.maintain()


def _views(probe: _Probe) -> str | None:
    return None if any(view["made"] for view in probe.table.views()) else ABSENT


def _forget(probe: _Probe) -> None:
    probe.table.forget(2, drop_cursors=True, apply=True)


def _rename(probe: _Probe) -> None:
    probe.table.drop(archive=str(_archive(probe)), apply=True)


def _drop(probe: _Probe) -> None:
    store = probe.warehouse.store
    name = _archive(probe) if load(store, probe.name) is None else probe.name
    Table(store, name).drop(apply=True)


_REPORT: Final = "Report it, with the output of `backstory doctor`."
_ATOMIC: Final = "Use a catalog that commits atomically, such as JDBC, REST, Hive or Glue."
# Each ability, with the abilities that it needs, in the order of the trials.
_ABILITIES: Final[Mapping[str, tuple[Sequence[str], Callable[[_Probe], str | None]]]] = {
    "create a table and write rows": ((), _create),
    "end rows and add versions": (("create a table and write rows",), _change),
    "read by Spark": (("end rows and add versions",), _read),
    "run Python workers": ((), _task),
    "add and rename columns": (("create a table and write rows",), _columns),
    "refuse the later of two writers": (("create a table and write rows",), _conflict),
    "keep a cursor as a tag": (("create a table and write rows",), _cursor),
    "compact and expire": (("create a table and write rows",), _maintain),
    "make views": (("create a table and write rows",), _views),
    "forget a record": (("end rows and add versions",), _forget),
    "rename a table": (("create a table and write rows",), _rename),
    "drop a table": (("create a table and write rows",), _drop),
}


def _of_statements(act: "Callable[[ConnectStore, TableName], None]") -> Callable[[_Probe], None]:
    return lambda probe: act(cast("ConnectStore", probe.warehouse.store), _by_sql(probe))


_DELIVERED: Final = "create a table and write rows"
# The abilities over Spark Connect: each statement of a commit, then deliveries.
_BY_SQL: Final[Mapping[str, tuple[Sequence[str], Callable[[_Probe], str | None]]]] = {
    **{name: (needs, _of_statements(act)) for name, (needs, act) in STATEMENTS.items()},
    _DELIVERED: ([*STATEMENTS], _create),
    "end rows and add versions": ((_DELIVERED,), _change),
    "read by Spark": (("end rows and add versions",), _read),
    "make views": ((_DELIVERED,), _views),
}
