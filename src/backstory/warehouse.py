"""The Python face: open a warehouse, bring deliveries to it, and find its tables.

Tables of a warehouse, maintained one after the other.

The Python face of Open Data Fabric datasets: what a warehouse does with them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from backstory import settings
from backstory.formats.memory import Memory
from backstory.model.instant import optional_instant
from backstory.model.table import ODF, TableName, resolve_name, table_name
from backstory.table import Table

if TYPE_CHECKING:
    from backstory.stores.iceberg.store import Store
    from backstory.upkeep.maintaining import Maintained


def maintain_each(
    store: "Store",
    named: Sequence[TableName],
    times: Mapping[str, datetime | None],
    *,
    every: bool,
    dry_run: bool,
) -> "list[Maintained]":
    """Maintain these tables, or every one; then the times are heeded where a table keeps memory."""
    from backstory.model.layout import Layout
    from backstory.stores.iceberg.faults import translate_faults
    from backstory.stores.iceberg.store import existing, tables
    from backstory.stores.refusals import require_some
    from backstory.upkeep.maintaining import run_for_each

    require_some(named, every=every)

    def one(name: TableName) -> "Maintained":
        with translate_faults(name):
            heeded = bool(named) or existing(store, name).shape.layout is Layout.VERSIONS
            bounds: dict[str, Any] = dict(times) if heeded else {}
            return Table(store, name).maintain(**bounds, dry_run=dry_run)

    return run_for_each(named or tables(store), one, every=not named)


Paths = str | Path | Sequence[str | Path]

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from backstory.doors.odf.door import Added, DatasetReceipt, Inspected, Verdict, Watcher
    from backstory.settings import Rights
    from backstory.stores.iceberg.store import Store


class WarehouseDatasets:
    """The datasets of a warehouse."""

    store: "Store"
    rights: "Rights"

    def add(self, files: Paths, *, namespace: str = ODF, dry_run: bool = False) -> "list[Added]":
        """Register the datasets of manifests: files, or folders with files in them.

        What is wrong with one file does not keep the others back; the first error is raised at the end.
        """
        from backstory.doors.odf import door

        added = door.add_each(self.store, namespace, _paths(files), dry_run=dry_run)
        for each in added:
            if each.error is not None:
                raise each.error
        return added

    def pull(
        self,
        *names_or_files: str | Path,
        all: bool = False,  # noqa: A002 - the option's name
        system_time: str | datetime | None = None,
        fetch_uncacheable: bool = False,
        refetch: bool = False,
        set_watermark: str | datetime | None = None,
        run_id: str | None = None,
        namespace: str = ODF,
        dry_run: bool = False,
        note: str | None = None,
        author: str | None = None,
        watcher: "Watcher | None" = None,
    ) -> "list[DatasetReceipt]":
        """Ask the polling sources of datasets, and ingest what is new; a receipt for each dataset.

        A file of manifests is added first. Raises UsageError for a wrong manifest or an unknown name; what
        goes wrong with a source is a receipt with an error.
        """
        from backstory.doors.odf import door
        from backstory.engine.run_context import with_remark

        watcher = watcher or door.Watcher()
        asked = door.RunRequest(
            system_time=optional_instant(system_time),
            fetch_uncacheable=fetch_uncacheable,
            refetch=refetch,
            set_watermark=optional_instant(set_watermark),
            run_id=run_id,
            dry_run=dry_run,
            rights=self.rights,
            progress=watcher.progress,
        )
        with with_remark(note, author):
            return door.pull_all(
                self.store, names_or_files, asked, namespace=namespace, every=all, watcher=watcher
            )

    def ingest(
        self,
        name: str,
        *files: str | Path,
        source_name: str | None = None,
        event_time: str | datetime | None = None,
        input_format: str | None = None,
        system_time: str | datetime | None = None,
        run_id: str | None = None,
        namespace: str = ODF,
        dry_run: bool = False,
        note: str | None = None,
        author: str | None = None,
        watcher: "Watcher | None" = None,
    ) -> "DatasetReceipt":
        """Push files, a commit for each; an error stands in the receipt, UsageError for an unknown name."""
        from backstory.doors.odf import door
        from backstory.engine.run_context import with_remark

        pushed = door.Pushed(_paths(files), source_name, optional_instant(event_time), input_format)
        asked = door.RunRequest(
            system_time=optional_instant(system_time),
            run_id=run_id,
            dry_run=dry_run,
            rights=self.rights,
            progress=(watcher or door.Watcher()).progress,
        )
        with with_remark(note, author):
            return door.ingest(self.store, name, pushed, asked, namespace=namespace)

    def datasets(self, *, namespace: str = ODF) -> list[dict[str, Any]]:
        """The Open Data Fabric datasets: source, strategy, last pull, records, blocks, watermark."""
        from backstory.doors.odf import door

        return door.list_datasets(self.store, namespace=namespace)

    def events(self, name: str, encoding: str | None = None, *, namespace: str = ODF) -> "DataFrame":
        """The log of a dataset, as it is stored or in the encoding `op` or `observed`."""
        from backstory.doors.odf import door
        from backstory.spark.session_settings import hold_settings, require_exact_names

        with hold_settings(self.store.session):
            return require_exact_names(door.events(self.store, name, encoding, namespace=namespace))

    def inspect(self, name: str, *, namespace: str = ODF) -> "Inspected":
        """A dataset's manifest, schema, lints and head."""
        from backstory.doors.odf import door

        return door.inspect(self.store, name, namespace=namespace)

    def verify(self, name: str, *, namespace: str = ODF) -> "Verdict":
        """Whether a dataset is what its commits said: chain, log, offsets, rows and columns."""
        from backstory.doors.odf import door

        return door.verify_dataset(self.store, name, namespace=namespace)


def _paths(files: Paths) -> list[Path]:
    return [Path(files)] if isinstance(files, str | Path) else [Path(each) for each in files]


if TYPE_CHECKING:
    from typing import Unpack

    from pyspark.sql import DataFrame, SparkSession

    from backstory.doctor import Diagnosis
    from backstory.doors.fivetran.server import Running
    from backstory.doors.historize.receipts import HistoryReceipt
    from backstory.doors.native.options import FeedOptions, OnSchemaChange, SnapshotOptions
    from backstory.doors.native.receipts import FeedPlan, FeedReceipt, SnapshotPlan, SnapshotReceipt
    from backstory.explorer.server import Explorer
    from backstory.projects.log import RunReceipt
    from backstory.stores.iceberg.store import Store
    from backstory.upkeep.adopting import Adopted
    from backstory.upkeep.maintaining import Maintained


def open(  # noqa: A001 - the public name
    warehouse: str | Path | None = None,
    *,
    spark: "SparkSession | None" = None,
    catalog: str = settings.CATALOG,
    config: str | Path | None = None,
    driver_memory: str | None = None,
    format_version: int | None = None,
    verbose: bool = False,
) -> "Warehouse":
    """A warehouse: an embedded one in a folder, or `catalog` of the caller's own session.

    `driver_memory` (such as "512m") and `format_version` (2 or 3) beat the configuration. With a session this
    is the file that `config` or BACKSTORY_CONFIG names, whose [catalog] and [spark] the session replaces.
    `verbose` puts the whole cause of an error of Spark into its message. A process forked later is refused
    (`forked`). Raises UsageError for what is wrong with configuration, session or Iceberg, and without Spark
    or Java.
    """
    from backstory.stores.iceberg.faults import show_causes
    from backstory.stores.iceberg.sessions import require_usable
    from backstory.stores.iceberg.store import Store

    show_causes(verbose)
    if spark is not None:
        require_usable(spark, catalog)
        chosen = settings.load_for_session(config).with_choices(driver_memory, format_version)
        store = Store(spark, catalog, chosen.format_version, Memory(chosen.driver_memory))
        return Warehouse(store, embedded=False, rights=chosen.rights)
    from backstory.stores.iceberg.store import open_store

    found = settings.load(warehouse, config).with_choices(driver_memory, format_version)
    store = open_store(found, catalog, verbose=verbose)
    return Warehouse(store, embedded=True, rights=found.rights)


@dataclass(frozen=True)
class Warehouse(WarehouseDatasets):
    """Iceberg tables of one catalog; `spark` is the session that reads and writes them."""

    store: "Store"
    embedded: bool
    rights: settings.Rights = field(default_factory=settings.Rights)

    def __repr__(self) -> str:
        return f"Warehouse({self.store.catalog!r}, embedded={self.embedded})"

    @property
    def spark(self) -> "SparkSession":
        """The Spark session."""
        return self.store.spark

    def table(self, name: str) -> "Table":
        """The table `schema.table`, or that of a dataset in `odf`; UsageError if there is none."""
        from backstory.stores.iceberg.store import load
        from backstory.stores.refusals import no_table

        table = resolve_name(name, lambda each: load(self.store, each) is not None)
        if table is None:
            raise no_table(table_name(name), searched=self.store.searched)
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
        from backstory.doors.historize.receipts import LoadRequest

        chosen = door.choose(model, dialect)
        if sql:
            return door.sql_of(chosen, dataset)
        asked = LoadRequest(
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

    def snapshot(
        self, source: Any, *, into: str, **options: "Unpack[SnapshotOptions]"
    ) -> "SnapshotReceipt | SnapshotPlan":
        """Keep the history of a source: a frame, or files, of all of its records as they are at an instant.

        The first copy makes the table and says its key and which columns it tracks; the table keeps both.
        Raises UsageError for invalid options, and Refused for a copy that would corrupt the history; then
        nothing is written. With `dry_run` the plan comes back.
        """
        from backstory.doors.native import door

        return door.snapshot(self.store, source, table_name(into), door.parse_options(**options))

    def apply(self, source: Any, *, into: str, **options: "Unpack[FeedOptions]") -> "FeedReceipt | FeedPlan":
        """Keep the history of a feed: changes of records, late, twice and in any order, of a frame or files.

        The first delivery makes the table and says its key, what orders the changes and which columns it
        tracks; the table keeps all three. Raises UsageError for options that nothing can be done with, and
        Refused, with nothing written, for a feed that would not be right. With `dry_run` the plan comes back.
        """
        from backstory.doors.native import door
        from backstory.doors.native.options import parse_feed_options

        return door.apply(self.store, source, table_name(into), parse_feed_options(**options))

    def apply_batch(
        self, *, into: str, **options: "Unpack[FeedOptions]"
    ) -> "Callable[[DataFrame, int], None]":
        """What `foreachBatch` of a stream takes: each batch is applied as `apply` does it, once.

        A batch that was committed before is answered without reading it, also after a restart.
        """
        from backstory.doors.native.feeds.feed import batch_writer
        from backstory.doors.native.options import parse_feed_options

        return batch_writer(self.store, table_name(into), parse_feed_options(**options))

    def run(
        self,
        file: str | Path | None = None,
        *,
        select: str | Sequence[str] = (),
        failed: bool = False,
        jobs: int = 4,
        dry_run: bool = False,
        on_schema_change: "OnSchemaChange | None" = None,
        note: str | None = None,
        author: str | None = None,
    ) -> "list[RunReceipt]":
        """Deliver what a project file declares, `histories.yaml` by default; a receipt for each declaration.

        `select` are words of the command's option, `failed` takes only what did not end well the last time,
        `jobs` is how many tables are delivered at once. `on_schema_change` accepts or refuses that columns
        are missing, whatever the file says of its tables. `note` and `author` are on the commits of tables
        and datasets, unless a declaration has its own. Raises UsageError for a wrong file or selection; what
        goes wrong with a table is a receipt with an error.
        """
        from backstory.engine.run_context import Remark
        from backstory.projects.declarations import read_project
        from backstory.projects.deliveries import RunTerms
        from backstory.projects.running import RunRequest, run_project

        project = read_project(file)
        words = [select] if isinstance(select, str) else list(select)
        request = RunRequest(words, failed, jobs, dry_run)
        terms = RunTerms(project.folder, dry_run, self.rights, Remark(note, author), on_schema_change)
        return run_project(self.store, project, request, terms)

    def runs(self) -> list[dict[str, Any]]:
        """Former runs, newest first: `run_id`, `started_at` (UTC), `seconds`, and how many ended how."""
        from backstory.projects.log import former_runs, rows_of_log
        from backstory.stores.metadata.catalogs import SessionCatalog

        return former_runs(SessionCatalog(self.store), rows_of_log(self.store))

    def fresh(self, file: str | Path | None = None) -> list[dict[str, Any]]:
        """How old what a project file expects is: `name`, `last_delivery` and `due` (UTC), `late`."""
        from backstory.projects.declarations import read_project
        from backstory.projects.log import freshness, rows_of_log
        from backstory.stores.metadata.catalogs import SessionCatalog

        now, logged = datetime.now(UTC), rows_of_log(self.store)
        return freshness(read_project(file), SessionCatalog(self.store), logged, now)

    def sql(self, query: str) -> "DataFrame":
        """The answer to a query of Spark SQL; tables are `schema.table`. UsageError if it is no query."""
        from backstory.reading.queries import run_query

        return run_query(self.store, query)

    def adopt(self, table: str, *, layout: str, key: Any = (), dry_run: bool = False) -> "Adopted":
        """Read, check and mend a history of dbt, SQLMesh, dlt or AUTO CDC; only properties are set."""
        from backstory.upkeep.adopting import adopt

        return adopt(self.store, table_name(table), layout, key, dry_run=dry_run)

    def check(self, *tables: str, all: bool = False) -> list[dict[str, Any]]:  # noqa: A002 - the option's name
        """The laws of tables, as records; if some could not be checked, `results` of the error."""
        from backstory.upkeep.checking import check_tables

        return check_tables(self.store, [self.table(each).name for each in tables], every=all)

    def tables(self) -> list[dict[str, Any]]:
        """For each table its layout, rows, open versions and last commit."""
        from backstory.reading.commits import inventory
        from backstory.stores.metadata.catalogs import SessionCatalog

        return inventory(SessionCatalog(self.store))

    def maintain(
        self,
        *tables: str,
        all: bool = False,  # noqa: A002 - the option's name
        settle_before: str | datetime | None = None,
        known_from: str | datetime | None = None,
        dry_run: bool = False,
        note: str | None = None,
        author: str | None = None,
    ) -> "list[Maintained]":
        """Compact tables, and let old snapshots expire; an error of one is in its receipt."""
        from backstory.engine.run_context import with_remark

        times = {"settle_before": optional_instant(settle_before), "known_from": optional_instant(known_from)}
        names = [self.table(each).name for each in tables]
        with with_remark(note, author):
            return maintain_each(self.store, names, times, every=all, dry_run=dry_run)

    def doctor(self) -> "Diagnosis":
        """Versions, and what the session and its catalog can do, each ability tried on a scratch table."""
        from backstory.doctor import examine

        return examine(self)

    def explore(self, *, port: int | None = None, host: str = "127.0.0.1", token: str = "") -> "Explorer":
        """Show the histories in a browser, read only, until `stop` is called; a notebook shows the link.

        Without a port it is 8055, or a free one. Raises UsageError for a host beyond this machine without a
        token of 16 characters, and without the extra `explore`; Failed for a port that is taken.
        """
        from backstory.explorer.catalog_reader import CatalogReader
        from backstory.explorer.opening import open_explorer
        from backstory.stores.metadata.catalogs import SessionCatalog

        source = CatalogReader(lambda: SessionCatalog(self.store), self.store.memory)
        return open_explorer(source, host, port, token)

    def serve(self, **options: Any) -> "Running":
        """A Fivetran destination that listens until `stop` is called; options are those of the command."""
        from backstory.doors.fivetran.server import ServeOptions, serve
        from backstory.stores.iceberg.faults import show_causes

        show_causes(False)  # a delivery of Fivetran's leaves no value in a log
        return serve({self.store.catalog: self.store}, ServeOptions(**options))

    def close(self) -> None:
        """Stop the embedded session; the caller's own is left alone."""
        if self.embedded:
            self.store.session.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
