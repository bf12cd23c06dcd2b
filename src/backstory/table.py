"""The Python interface of a table: read, check and maintain it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from backstory.engine.run_context import Remark, RemarkOptions, with_remark
from backstory.errors import bad_option
from backstory.model.change import Cursor
from backstory.model.instant import instant_of, optional_instant
from backstory.model.layout import Layout
from backstory.model.options import with_options, with_request
from backstory.model.table import TableName, table_name
from backstory.reading import commit_ranges
from backstory.reading.commits import commits
from backstory.reading.exports import Export, export
from backstory.reading.feeds import ChangeFeed, changes
from backstory.reading.frames import table_in_session
from backstory.reading.notebook import drawn_in_notebooks, table_as_html
from backstory.reading.options import (
    AsOfRequest,
    ChangesRequest,
    CursorRequest,
    DiffRequest,
    ExportRequest,
    ReadRequest,
    TimelineRequest,
)
from backstory.reading.questions import diff, life
from backstory.reading.timelines import Timeline
from backstory.spark.session import in_settled_session
from backstory.stores.iceberg.store import IcebergStore, existing
from backstory.upkeep.checking import check_files_first
from backstory.upkeep.ending import HistoryEnd, end
from backstory.upkeep.options import Bounds, MaintainOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from backstory.upkeep.forgetting import Certificate
    from backstory.upkeep.maintaining import Maintained
    from backstory.upkeep.repairing import Repair
    from backstory.upkeep.rewinding import Rewound

from backstory.upkeep.table_views import views


@in_settled_session
@dataclass(frozen=True)
class Table:
    """A table with the rows or the history of a source."""

    store: IcebergStore
    name: TableName

    def __repr__(self) -> str:
        return f"Table({str(self.name)!r}, catalog={self.store.catalog!r})"

    def _repr_html_(self) -> str:
        return table_as_html(self.store, self.name)

    @with_request(ReadRequest)
    def current(self, request: ReadRequest) -> "DataFrame":
        """The rows that are true now. Rows of a history have `valid_from` and `valid_to`.

        Raises UsageError or Refused if the table no longer has its state at `known_at`.
        """
        return self._rows_at(None, request)

    @with_request(AsOfRequest)
    def as_of(self, request: AsOfRequest) -> "DataFrame":
        """The rows that were true at a time, with `valid_from` and `valid_to`.

        A date means its first instant. Raises the errors of `current`.
        """
        return self._rows_at(request.time, request)

    def _rows_at(self, time: datetime | None, request: ReadRequest) -> "DataFrame":
        return table_in_session(self.store, self.name).at(request.known_at).of(request).rows_at(time)

    @with_request(DiffRequest)
    def diff(self, request: DiffRequest) -> "DataFrame":
        """The differences between two times: `key`, `change`, `before`, `after`, `changed`.

        `key`, `before` and `after` are structs. `change` is added, changed or removed, and `changed` has the
        names of the columns that differ. `through` adds records that are the same at both times but changed
        in between. They were absent (`returned`), had other values (`reverted`), or existed only in between
        (`passed`). The column `away` then shows whether a record was absent and returned. On the axis
        `recorded`, the states that were recorded at the two times are compared. Raises the errors of `as_of`.
        """
        return drawn_in_notebooks(diff(table_in_session(self.store, self.name), request))

    def join_as_of(
        self,
        frame: "DataFrame",
        on: str | Sequence[str],
        at: str,
        *,
        known_at: str | date | None = None,
        how: Literal["left", "inner"] = "left",
    ) -> "DataFrame":
        """The rows of a frame, each with the columns of the version that was true at the row's time.

        `on` names the key columns, which the frame and the table share, and `at` names the frame's column of
        times. `known_at` is a time, or the name of a column with a known time for each row. A row without a
        version at its time gets NULLs, or is dropped with `how="inner"`. A repeated column name gets a number
        (`name_2`). If versions of one record overlap, which `check` reports, the row is joined with each of
        them.
        """
        from backstory.reading.joins import join_as_of

        if not hasattr(frame, "sparkSession"):
            raise bad_option(
                f"A {type(frame).__module__.partition('.')[0]}.{type(frame).__name__} cannot be joined.",
                "Give a Spark frame, such as `spark.createDataFrame(frame)`.",
            )
        by_row = isinstance(known_at, str) and known_at in frame.columns
        known = str(known_at) if by_row else optional_instant(known_at)
        key = [on] if isinstance(on, str) else list(on)
        return join_as_of(table_in_session(self.store, self.name), frame, key, at, known, how)

    @with_request(TimelineRequest)
    def timeline(self, request: TimelineRequest) -> Timeline:
        """The history of one record. The key is a value, or a mapping for a composite key.

        The key must be exactly one value of the key's type. The history has the statements that the table
        holds now, or held at `known_at`. With `axis="both"`, the history has all statements that the table
        ever held. Raises UsageError for a wrong key (`other-key`) or axis, and for a file that cannot be
        written.
        """
        timeline = life(table_in_session(self.store, self.name), request)
        if request.svg is not None:
            timeline.save(request.svg)
        return timeline

    @overload
    @with_request(ChangesRequest)
    def changes(self, request: ChangesRequest) -> ChangeFeed: ...

    @overload
    @with_request(CursorRequest)
    def changes(self, request: CursorRequest) -> ChangeFeed | Cursor: ...

    @with_request(CursorRequest)
    def changes(self, request: CursorRequest) -> ChangeFeed | Cursor:
        """The rows that changed after commit `since`, up to and including `until`, or since a cursor.

        The rows are in `feed.frame`. Name a commit by its version, its snapshot id or a time. In a `with`
        block, the cursor moves if the block ends without an error. `advance` and `drop` return a `Cursor`.
        Raises Refused for an expired range or a lost cursor, and UsageError for options that exclude each
        other. Raises TryAgain if another consumer moved the cursor in the meantime.
        """
        advance, drop = request.advance, request.drop
        if advance is None and not drop:
            return changes(self.store, self.name, request)
        lone = CursorRequest(cursor=request.cursor, advance=advance, drop=advance is None)
        cursor = request.cursor if request == lone else None
        return commit_ranges.advance_or_drop(self.store, self.name, cursor, advance)

    def views(self, *, dry_run: bool = False) -> list[dict[str, Any]]:
        """Create Spark SQL views of the current rows and of all versions, and return a query for one time.

        Each record has the name of the view, whether it was created, and its SQL. The query has the parameter
        `:time` and no name. If the catalog does not support views, none is created. Raises Refused if another
        table already has the name of a view.
        """
        from backstory.doors.historize.spark_runs import LOG, log_views

        if self.name == LOG:
            return log_views(self.store, dry_run=dry_run)
        return views(self.store, self.name, dry_run=dry_run)

    @with_request(ExportRequest)
    def export(self, request: ExportRequest) -> Export:
        """Write the whole history into one CSV or Parquet file.

        A table without a history is written as its rows. The file has every version with `valid_from` and
        `valid_to`. With `axis="both"`, it also has every earlier statement with its known times. The file
        appears only when it is complete. Raises UsageError if the file exists and `overwrite` is false.
        """
        return export(table_in_session(self.store, self.name), request)

    def log(self) -> list[dict[str, Any]]:
        """The table's commits, newest first."""
        return commits(self.store, self.name)

    def check(self) -> list[dict[str, Any]]:
        """One record for each law of the layout: `table`, `law`, `violations`, `keys`, `status`."""
        return check_files_first(self.store, self.name)

    @with_options(Remark)
    def repair(self, *, apply: bool = False, **remark: Unpack[RemarkOptions]) -> "Repair":
        """A fix for the records that break a law. If `apply` is true, the fix is written in one commit."""
        from backstory.upkeep.repairing import repair

        with with_remark(**remark):
            return repair(self.store, self.name, apply=apply)

    @with_options(Remark)
    def rewind(self, time: str | date, *, apply: bool = False, **remark: Unpack[RemarkOptions]) -> "Rewound":
        """Undo everything that the table received after a given time.

        Unless `apply` is true, only the plan is returned. A table of layout `versions` keeps its earlier
        state for `known_at`. Raises UsageError (`known-pruned`) or Refused (`snapshots-expired`) if the table
        no longer has its state at that time.
        """
        from backstory.upkeep.rewinding import rewind

        with with_remark(**remark):
            return rewind(self.store, self.name, instant_of(time), apply=apply)

    @with_options(MaintainOptions, Remark)
    def maintain(self, **options: Unpack[MaintainOptions]) -> "Maintained":
        """Compact small files and expire old snapshots. Queries return the same results as before.

        Raises TryAgain if other writers commit first.
        """
        from backstory.doors.historize.spark_runs import unlogged_tokens
        from backstory.upkeep.maintaining import maintain

        bounds = Bounds(
            optional_instant(options.get("settle_before")), optional_instant(options.get("known_from"))
        )
        models = existing(self.store, self.name).shape.layout in {Layout.BASE, Layout.HIST}
        needed = unlogged_tokens if models else lambda *_: ()
        with with_remark(options.get("note"), options.get("author")):
            return maintain(self.store, self.name, bounds, needed, dry_run=options.get("dry_run", False))

    @with_options(Remark)
    def forget(
        self, key: object, *, drop_cursors: bool = False, apply: bool = False, **remark: Unpack[RemarkOptions]
    ) -> "Certificate":
        """Erase a record from all versions, snapshots and files, and return a certificate.

        The key is a value, or a mapping for a composite key. Unless `apply` is true, the record is only
        searched for. Raises Refused while a consumer or another program needs old rows, and TryAgain while
        another program may write to the table.
        """
        from backstory.upkeep.forgetting import forget

        with with_remark(**remark):
            return forget(self.store, self.name, key, drop_cursors=drop_cursors, apply=apply)

    def drop(self, *, archive: str | None = None, apply: bool = False) -> HistoryEnd:
        """End the history: delete the table and its files, or keep it under the name `archive`, read-only.

        Unless `apply` is true, nothing is changed. An archive name without a schema is in this table's
        schema. Raises Refused for a table of a model, a dataset or another program, and for a name that is
        taken.
        """
        name = archive and table_name(archive if "." in archive else f"{self.name.schema}.{archive}")
        return end(self.store, self.name, name or None, apply=apply)
