"""The Python interface of a warehouse: open it, deliver to it, and find its tables."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from backstory import settings
from backstory.doors.fivetran.options import ServeRequest
from backstory.doors.historize.receipts import HistorizeRequest
from backstory.doors.native.options import (
    ApplyRequest,
    SnapshotRequest,
    request_of,
    source_of,
)
from backstory.doors.odf.options import InputFormat, PullOptions, RunOptions
from backstory.engine.run_context import Remark, RemarkOptions, with_remark
from backstory.explorer.access import open_explorer
from backstory.explorer.catalog_reader import CatalogReader
from backstory.formats.memory import Memory
from backstory.model.instant import optional_instant
from backstory.model.layout import BITEMPORAL, Layout
from backstory.model.options import with_options, with_request
from backstory.model.table import ODF, TableName, resolve_name, table_name
from backstory.projects.options import RunRequest
from backstory.reading.commits import inventory
from backstory.spark.connect import is_connect, needs_java
from backstory.spark.session import hold_settings, require_exact_names
from backstory.stores.iceberg.faults import show_causes, translate_faults
from backstory.stores.iceberg.sessions import require_usable
from backstory.stores.iceberg.store import IcebergStore, existing, load, open_store
from backstory.stores.iceberg.store import tables as list_tables
from backstory.stores.port import no_table, require_some
from backstory.table import Table
from backstory.upkeep import previews
from backstory.upkeep.adopting import Adopted, adopt
from backstory.upkeep.checking import check_tables
from backstory.upkeep.options import MaintainOptions
from backstory.upkeep.previews import Published

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from backstory.doctor import Diagnosis
    from backstory.doors.fivetran.server import Running
    from backstory.doors.historize.receipts import HistoryReceipt
    from backstory.doors.native.receipts import FeedPlan, FeedReceipt, SnapshotPlan, SnapshotReceipt
    from backstory.doors.odf.inspecting import Inspected
    from backstory.doors.odf.receipts import Added, DatasetReceipt, Watcher
    from backstory.explorer.server import Explorer
    from backstory.journal.verify import Verdict
    from backstory.projects.log import RunReceipt
    from backstory.upkeep.maintaining import Maintained

Paths = str | Path | Sequence[str | Path]


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
    """Open a warehouse: the embedded one in a folder, or `catalog` in your own session.

    `driver_memory` (such as "512m") and `format_version` (2 or 3) override the configuration. With your own
    session, the configuration is the file that `config` or BACKSTORY_CONFIG names, but its sections [catalog]
    and [spark] do not apply. If `verbose` is true, the messages of Spark's errors contain the whole cause. A
    process that is forked later cannot use the warehouse (`forked`). Raises UsageError for a wrong
    configuration, session or version of Iceberg, and if Spark or Java is missing.
    """
    show_causes(verbose)
    loaded = settings.load(warehouse, config) if spark is None else settings.load_for_session(config)
    loaded = loaded.with_choices(driver_memory, format_version)
    terms = catalog, loaded.format_version, Memory(loaded.driver_memory)
    if spark is None:
        store = open_store(loaded, catalog, verbose=verbose)
    elif is_connect(spark):
        from backstory.stores.connect.store import open_connect

        store = open_connect(spark, *terms)
    else:
        require_usable(spark, catalog)
        store = IcebergStore(spark, *terms)
    return Warehouse(store, embedded=spark is None, rights=loaded.rights)


@dataclass(frozen=True)
class Warehouse:
    """The Iceberg tables of one catalog. `spark` is the session that reads and writes them."""

    store: IcebergStore
    embedded: bool
    rights: settings.Rights = field(default_factory=settings.Rights)

    def __repr__(self) -> str:
        return f"Warehouse({self.store.catalog!r}, embedded={self.embedded})"

    @property
    def spark(self) -> "SparkSession":
        """The Spark session."""
        return self.store.spark

    def _require_java(self, what: str) -> None:
        if not self.store.has_java:
            raise needs_java(what)

    def table(self, name: str) -> Table:
        """The table `schema.table`, or the table of a dataset in `odf`.

        Raises UsageError if it does not exist.
        """
        table = resolve_name(name, lambda candidate: load(self.store, candidate) is not None)
        if table is None:
            raise no_table(table_name(name), searched=self.store.description)
        return Table(self.store, table)

    def tables(self) -> list[dict[str, Any]]:
        """The layout, rows, open versions and last commit of each table."""
        return inventory(self.store)

    def sql(self, query: str) -> "DataFrame":
        """The rows of a Spark SQL query on tables `schema.table`.

        Raises UsageError for any other statement.
        """
        self._require_java("A query of the warehouse")
        from backstory.reading.queries import run_query

        return run_query(self.store, query)

    @with_request(SnapshotRequest, build=request_of)
    def snapshot(self, source: Any, request: SnapshotRequest) -> "SnapshotReceipt | SnapshotPlan":
        """Keep the history of a source from a full copy of its records: a frame, or files.

        The first copy creates the table. The table stores the key and the tracked columns. Raises UsageError
        for invalid options. Raises Refused, and writes nothing, for a copy that would corrupt the history. If
        `dry_run` is true, the plan is returned.
        """
        from backstory.doors.native import door

        return door.snapshot(self.store, source_of(source, request), request)

    @with_request(ApplyRequest, build=request_of)
    def apply(self, source: Any, request: ApplyRequest) -> "FeedReceipt | FeedPlan":
        """Keep the history of a feed of changes, which may arrive late, twice and in any order.

        The source is a frame or files. The first delivery creates the table. The table stores the key, the
        order of changes and the tracked columns. Raises UsageError for invalid options. Raises Refused, and
        writes nothing, for a feed that would corrupt the history. If `dry_run` is true, the plan is returned.
        """
        from backstory.doors.native import door

        return door.apply(self.store, source_of(source, request), request)

    def branch(self, table: str, branch: str) -> Table:
        """The table `schema.table` as it is on a branch. Raises UsageError if the branch does not exist."""
        name = self.table(table).name
        return Table(previews.read_branch(self.store, name, branch), name)

    def publish(self, table: str, branch: str, *, discard: bool = False) -> Published:
        """Publish a branch to its table in one step, or discard the branch.

        Each delivery keeps its own commit. Raises UsageError if the branch does not exist, and Refused if the
        table has changed since the branch began.
        """
        end = previews.discard if discard else previews.publish
        return end(self.store, self.table(table).name, branch)

    @with_request(ApplyRequest, build=request_of)
    def apply_batch(self, request: ApplyRequest) -> "Callable[[DataFrame, int], None]":
        """A function for a stream's `foreachBatch`. It applies each batch once, as `apply` does.

        A batch that was already committed is skipped and not read, even after a restart.
        """
        from backstory.doors.native.door import batch_writer

        return batch_writer(self.store, request)

    @with_request(HistorizeRequest)
    def historize(self, request: HistorizeRequest) -> "list[HistoryReceipt] | str":
        """Load the base tables and histories of a model, here or in a database.

        Returns a receipt per dataset. If `sql` is true, nothing is loaded, and the statements are returned as
        a string. Raises UsageError for a wrong model. The receipt of a refused load contains an error.
        """
        from backstory.doors.historize import door

        chosen = door.choose(request.model, request.dialect)
        if request.sql:
            return door.script(chosen, request.dataset)
        if chosen.on_spark:
            return door.historize_on_spark(chosen, self.store, request)
        return door.historize_on_database(chosen, request.url, request)

    @with_request(RunRequest)
    def run(self, request: RunRequest) -> "list[RunReceipt]":
        """Deliver the declarations of a project file, by default `histories.yaml`.

        Returns a receipt for each. A run with a `branch` is not logged. `note` and `author` are stored with
        the commits of tables and datasets, unless a declaration has its own. Raises UsageError for an invalid
        file or selection. The receipt of a table that fails contains an error.
        """
        from backstory.projects import declarations, running

        project = declarations.read_project(request.file, request.select)
        return running.run_project(self.store, project, request, self.rights)

    def runs(self) -> list[dict[str, Any]]:
        """Past runs, newest first: `run_id`, `started_at` (UTC), `seconds`, and declarations by outcome."""
        from backstory.projects.log import former_runs, rows_of_log

        return former_runs(self.store, rows_of_log(self.store))

    def fresh(self, file: str | Path | None = None) -> list[dict[str, Any]]:
        """The age of each declaration with `expect`: `name`, `last_delivery` and `due` (both UTC), `late`."""
        from backstory.projects import declarations, log

        now, logged, project = datetime.now(UTC), log.rows_of_log(self.store), declarations.read_project(file)
        return log.freshness(project, self.store, logged, now)

    def add(self, files: Paths, *, namespace: str = ODF, dry_run: bool = False) -> "list[Added]":
        """Register the datasets that manifests define. Manifests are given as files, or as folders of files.

        A wrong file does not stop the others. The first error is raised at the end.
        """
        from backstory.doors.odf.adding import add_each

        manifests = add_each(self.store, namespace, _paths(files), dry_run=dry_run)
        for manifest in manifests:
            if manifest.error is not None:
                raise manifest.error
        return manifests

    @with_options(PullOptions, RunOptions, Remark)
    def pull(
        self,
        *names_or_files: str | Path,
        all: bool = False,  # noqa: A002 - the option's name
        namespace: str = ODF,
        watcher: "Watcher | None" = None,
        **options: Unpack[PullOptions],
    ) -> "list[DatasetReceipt]":
        """Poll the sources of datasets and ingest new data. Returns a receipt for each dataset.

        If an argument is a manifest file, its datasets are registered first. Raises UsageError for a wrong
        manifest or an unknown name. The receipt of a source that fails contains an error.
        """
        from backstory.doors.odf import door, polling, receipts

        watcher = watcher or receipts.Watcher()
        request = polling.IngestRequest(**options, rights=self.rights, progress=watcher.progress)
        with with_remark(request.note, request.author):
            return door.pull_all(
                self.store, names_or_files, request, namespace=namespace, every=all, watcher=watcher
            )

    @with_options(RunOptions, Remark)
    def ingest(
        self,
        name: str,
        *files: str | Path,
        source_name: str | None = None,
        event_time: str | date | None = None,
        input_format: InputFormat | None = None,
        namespace: str = ODF,
        watcher: "Watcher | None" = None,
        **options: Unpack[RunOptions],
    ) -> "DatasetReceipt":
        """Ingest files into a dataset, with one commit for each file.

        Raises UsageError for an unknown name. The receipt contains any other error.
        """
        from backstory.doors.odf import door, polling, receipts

        pushed = door.PushedFiles(_paths(files), source_name, optional_instant(event_time), input_format)
        progress = (watcher or receipts.Watcher()).progress
        request = polling.IngestRequest(**options, rights=self.rights, progress=progress)
        with with_remark(request.note, request.author):
            return door.ingest(self.store, name, pushed, request, namespace=namespace)

    def datasets(self, *, namespace: str = ODF) -> list[dict[str, Any]]:
        """The Open Data Fabric datasets: source, strategy, last pull, records, blocks, watermark."""
        from backstory.doors.odf import door

        return door.list_datasets(self.store, namespace=namespace)

    def events(self, name: str, encoding: str | None = None, *, namespace: str = ODF) -> "DataFrame":
        """The log of a dataset, as it is stored, or in the encoding `op` or `observed`."""
        from backstory.doors.odf import door

        with hold_settings(self.store.session):
            return require_exact_names(door.events(self.store, name, encoding, namespace=namespace))

    def inspect(self, name: str, *, namespace: str = ODF) -> "Inspected":
        """The manifest, schema, lints and newest block of a dataset."""
        from backstory.doors.odf import door

        return door.inspect(self.store, name, namespace=namespace)

    def verify(self, name: str, *, namespace: str = ODF) -> "Verdict":
        """Check a dataset against the metadata of its commits: chain, log, offsets, rows and columns."""
        from backstory.doors.odf import door

        return door.verify_dataset(self.store, name, namespace=namespace)

    @with_options(Remark)
    def adopt(
        self,
        table: str,
        *,
        layout: str,
        key: Any = (),
        into: str | None = None,
        dry_run: bool = False,
        **remark: Unpack[RemarkOptions],
    ) -> Adopted:
        """Adopt a history of dbt, SQLMesh, dlt or AUTO CDC, to read, check and repair it here.

        Only table properties are set. A history of layout `autocdc-bitemporal` is imported into the new table
        `into`, with both of its times.
        """
        self._require_java("An adoption")
        from backstory.doors.native import bitemporal

        name = table_name(table)
        if layout != BITEMPORAL:
            bitemporal.refuse_into(layout, into, remark.get("note"), remark.get("author"))
            return adopt(self.store, name, layout, key, dry_run=dry_run)
        with with_remark(**remark):
            return bitemporal.import_history(self.store, name, into, key, dry_run=dry_run)

    def check(self, *tables: str, all: bool = False) -> list[dict[str, Any]]:  # noqa: A002 - the option's name
        """Check the laws of tables. Returns a record for each law.

        If some tables cannot be checked, an error is raised whose `results` contain all records.
        """
        return check_tables(self.store, [self.table(name).name for name in tables], every=all)

    @with_options(MaintainOptions, Remark)
    def maintain(
        self,
        *tables: str,
        all: bool = False,  # noqa: A002 - the option's name
        **options: Unpack[MaintainOptions],
    ) -> "list[Maintained]":
        """Compact tables and expire old snapshots. The receipt of a table that fails contains an error.

        If `all` is true, the bounds `settle_before` and `known_from` only apply to native tables.
        """
        options["settle_before"] = optional_instant(options.get("settle_before"))
        options["known_from"] = optional_instant(options.get("known_from"))
        named = [self.table(name).name for name in tables]
        require_some(named, every=all)
        from backstory.upkeep.maintaining import run_for_each

        def maintain_one(name: TableName) -> "Maintained":
            with translate_faults(name):
                chosen = options.copy()
                if not named and existing(self.store, name).shape.layout is not Layout.VERSIONS:
                    chosen["settle_before"] = chosen["known_from"] = None
                return Table(self.store, name).maintain(**chosen)

        return run_for_each(named or list_tables(self.store), maintain_one, every=not named)

    def doctor(self) -> "Diagnosis":
        """The versions of all components, and what works in this session and catalog, on a scratch table."""
        from backstory.doctor import examine

        return examine(self)

    def explore(self, *, port: int | None = None, host: str = "127.0.0.1", token: str = "") -> "Explorer":
        """Show the histories in a browser, read-only, until `stop` is called. A notebook shows the link.

        The default port is 8055, or a free one if 8055 is taken. Raises UsageError if the extra `explore` is
        not installed, or if other machines can reach `host` and the token is shorter than 16 characters.
        Raises Failed if `port` is taken.
        """
        self._require_java("The explorer")

        source = CatalogReader(lambda: self.store, self.store.memory)
        return open_explorer(source, host, port, token)

    @with_request(ServeRequest)
    def serve(self, request: ServeRequest) -> "Running":
        """Start a Fivetran destination. It runs until `stop` is called."""
        from backstory.doors.fivetran.server import serve

        show_causes(False)  # causes may contain values of a Fivetran delivery
        return serve({self.store.catalog: self.store}, request)

    def close(self) -> None:
        """Stop the embedded session. Your own session is not stopped."""
        if self.embedded:
            self.store.session.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _paths(files: Paths) -> list[Path]:
    return [Path(files)] if isinstance(files, str | Path) else [Path(file) for file in files]
