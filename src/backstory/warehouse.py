"""The Python face: open a warehouse, and read its tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from backstory import settings
from backstory.errors import UsageError
from backstory.model.instant import parse_instant
from backstory.model.table import TableName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from backstory.doors.historize.receipts import HistoryReceipt
    from backstory.tables.store import Store


def open(  # noqa: A001 - the public name
    warehouse: str | Path | None = None,
    *,
    spark: "SparkSession | None" = None,
    catalog: str = settings.CATALOG,
    config: str | Path | None = None,
    verbose: bool = False,
) -> "Warehouse":
    """A warehouse: an embedded one in a folder, or `catalog` of the caller's own session.

    Raises UsageError for a wrong configuration or when Spark or Java is missing.
    """
    from backstory.files.memory import Memory
    from backstory.tables.store import Store

    if spark is not None:
        return Warehouse(Store(spark, catalog), embedded=False)
    from backstory.spark.session import start

    found = settings.load(warehouse, config)
    session = start(found, verbose=verbose)
    store = Store(session, catalog, found.format_version, Memory(found.driver_memory))
    return Warehouse(store, embedded=True)


@dataclass(frozen=True)
class Warehouse:
    """Iceberg tables of one catalog; `spark` is the session that reads and writes them."""

    store: "Store"
    embedded: bool

    @property
    def spark(self) -> "SparkSession":
        """The Spark session."""
        return self.store.spark

    def table(self, name: str) -> "Table":
        """The table `schema.table`; UsageError if there is none."""
        from backstory.tables.store import existing

        table = table_name(name)
        existing(self.store, table)
        return Table(self.store, table)

    def historize(
        self,
        model: str | Path,
        *,
        dataset: str | None = None,
        run_id: str | None = None,
        load_timestamp: str | datetime | None = None,
        skip_base: bool = False,
        dialect: str | None = None,
        url: str | None = None,
        allow_empty: bool = False,
        max_delete_ratio: float | None = None,
        hash_change: str | None = None,
        relabel: bool = False,
        dry_run: bool = False,
        sql: bool = False,
    ) -> "list[HistoryReceipt] | str":
        """Load the base tables and histories of a model, here or in a database; a receipt for each dataset.

        With `sql` nothing is loaded, and the statements come back as a text. Raises UsageError for a wrong
        model; a load that is refused is a receipt with an error.
        """
        from backstory.doors.historize import door
        from backstory.doors.historize.asked import Asked

        chosen = door.choose(model, dialect)
        if sql:
            return door.sql_of(chosen, dataset)
        asked = Asked(
            dataset=dataset,
            run_id=run_id,
            load_timestamp=load_timestamp,
            skip_base=skip_base,
            dry_run=dry_run,
            allow_empty=allow_empty,
            max_delete_ratio=max_delete_ratio,
            hash_change=hash_change,
            relabel=relabel,
        )
        if chosen.on_spark:
            return door.historize_on_spark(chosen, self.store, asked)
        return door.historize_on_database(chosen, url, asked)

    def tables(self) -> list[dict[str, Any]]:
        """For each table its layout, rows, open versions and last commit."""
        from backstory.reading.commits import inventory

        return inventory(self.store)

    def close(self) -> None:
        """Stop the embedded session; the caller's own is left alone."""
        if self.embedded:
            self.spark.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Table:
    """A table that keeps the rows, or the history, of a source."""

    store: "Store"
    name: TableName

    def current(self) -> "DataFrame":
        """The rows that are true now; of a history with `valid_from` and `valid_to`."""
        from backstory.reading import lives

        return lives.current(self.store, self.name)

    def as_of(self, time: str | datetime) -> "DataFrame":
        """The rows that were true at a time, with `valid_from` and `valid_to`."""
        from backstory.reading import lives

        return lives.as_of(self.store, self.name, _instant(time))

    def timeline(self, key: object) -> "Timeline":
        """One record's life; the key is a value, or a mapping of a key of several columns."""
        from backstory.reading import lives
        from backstory.tables.store import existing

        shape = existing(self.store, self.name).shape
        at = key if isinstance(key, Mapping) else dict.fromkeys(shape.key[:1], key)
        versions = lives.life(self.store, self.name, at).toArrow().to_pylist()
        columns = [name for name in lives.user_columns(shape) if name not in shape.key]
        return Timeline(versions, columns)

    def log(self) -> list[dict[str, Any]]:
        """The table's commits, newest first."""
        from backstory.reading.commits import commits

        return commits(self.store, self.name)


@dataclass(frozen=True)
class Timeline:
    """The versions of one record by their start; printed, it draws itself."""

    versions: Sequence[Mapping[str, Any]]
    columns: Sequence[str]

    def __str__(self) -> str:
        from backstory.reading.timeline import draw

        lines = draw(self.versions, self.columns, datetime.now(UTC))
        return "\n".join(lines) or "There is no version of this record."

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(str(self))}</pre>"


def table_name(text: str) -> TableName:
    """The table that `schema.table` names; the schema reaches up to the first dot."""
    schema, _, name = text.partition(".")
    if not schema or not name:
        raise UsageError("no-table", f"{text!r} does not name a table.", "Write it as schema.table.")
    return TableName(schema, name)


def _instant(time: str | datetime) -> datetime:
    if isinstance(time, str):
        return parse_instant(time)
    if time.tzinfo is None:
        raise UsageError("naive-time", "The time has no zone.", "Give it one: datetime(…, tzinfo=UTC).")
    return time.astimezone(UTC)
