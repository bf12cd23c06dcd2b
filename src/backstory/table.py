"""The Python interface of a table: read it, check it, and keep it in order."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast, overload

from backstory.engine.run_context import RemarkOptions, with_remark
from backstory.model.change_feed import Cursor
from backstory.model.instant import instant_of, optional_instant
from backstory.model.layout import Layout
from backstory.model.options import with_options
from backstory.model.table import TableName, table_name
from backstory.reading.options import (
    ChangesOptions,
    CursorOptions,
    DiffOptions,
    DiffRequest,
    ExportOptions,
    KnownOptions,
    ReadOptions,
    TimelineOptions,
)
from backstory.reading.selection import Selection
from backstory.reading.timelines import Timeline, require_axis
from backstory.spark.session_settings import in_settled_session
from backstory.upkeep.options import Bounds, MaintainOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from backstory.reading.changes.feed import ChangeFeed
    from backstory.reading.exports import Export
    from backstory.stores.iceberg.store import IcebergStore
    from backstory.upkeep.certificate import Certificate
    from backstory.upkeep.ending import HistoryEnd
    from backstory.upkeep.maintaining import Maintained
    from backstory.upkeep.repairing import Repair
    from backstory.upkeep.rewinding import Rewound


@in_settled_session
@dataclass(frozen=True)
class Table:
    """A table with the rows, or the history, of a source."""

    store: "IcebergStore"
    name: TableName

    def __repr__(self) -> str:
        return f"Table({str(self.name)!r}, catalog={self.store.catalog!r})"

    def _repr_html_(self) -> str:
        from backstory.reading.notebook import table_as_html

        return table_as_html(self.store, self.name)

    @with_options(ReadOptions, KnownOptions)
    def current(self, **options: Unpack[ReadOptions]) -> "DataFrame":
        """The rows that are true now; for a history with `valid_from` and `valid_to`.

        UsageError or Refused if the table no longer has its rows of `known_at`.
        """
        from backstory.reading.frames import versions as frames

        return frames.rows_at(self.store, self.name, None, *_read_terms(**options))

    @with_options(ReadOptions, KnownOptions)
    def as_of(self, time: str | date, **options: Unpack[ReadOptions]) -> "DataFrame":
        """The rows that were true at a time, with `valid_from` and `valid_to`.

        A date is its first instant. Raises the errors of `current`.
        """
        from backstory.reading.frames import versions as frames

        return frames.rows_at(self.store, self.name, instant_of(time), *_read_terms(**options))

    @with_options(DiffOptions)
    def diff(self, first: str | date, second: str | date, **options: Unpack[DiffOptions]) -> "DataFrame":
        """The differences between two times: `key`, `change`, `before`, `after`, `changed`.

        `key`, `before` and `after` are structs, `change` is added, changed or removed, and `changed` has the
        names of the columns that differ. `through` adds records that are the same at both times but changed
        in between: they were gone (`returned`), had other values (`reverted`), or existed only in between
        (`passed`). Its column `away` shows whether a record was gone and returned. On the axis `recorded`,
        knowledge at the first time is compared with knowledge at the second. Raises the errors of `as_of`.
        """
        from backstory.reading.frames import versions as frames
        from backstory.reading.notebook import drawn_in_notebooks

        request = DiffRequest.of(**options)
        between, compared = (instant_of(first), instant_of(second)), request.comparison
        if request.axis == "recorded":
            frame = frames.diff_knowledge(self.store, self.name, *between, request.time, compared)
        else:
            frame = frames.diff(self.store, self.name, *between, request.known_at, compared)
        return drawn_in_notebooks(frame)

    def join_as_of(
        self,
        frame: "DataFrame",
        on: str | Sequence[str],
        at: str,
        *,
        known_at: str | date | None = None,
        how: Literal["left", "inner"] = "left",
    ) -> "DataFrame":
        """The rows of a frame with the columns of the version that was true at the time of each row.

        `on` names the key columns, which the frame and the table share, and `at` the frame's column of times.
        `known_at` is a time, or the name of a column with a known time for each row. A row without a version
        at its time gets NULLs, or is dropped with `how="inner"`. A repeated column name gets a number
        (`name_2`). If versions of one record overlap, which `check` reports, a row is joined with each one.
        """
        from backstory.reading.frames import joins

        by_row = isinstance(known_at, str) and known_at in frame.columns
        times = joins.JoinTimes(at, str(known_at) if by_row else optional_instant(known_at))
        key = [on] if isinstance(on, str) else list(on)
        return joins.join_as_of(self.store, self.name, frame, key, times, how)

    @with_options(TimelineOptions, KnownOptions)
    def timeline(self, key: object, **options: Unpack[TimelineOptions]) -> Timeline:
        """The life of one record; the key is a value, or a mapping for a composite key.

        The key must name exactly one value of the key's type, else it is refused (`other-key`). The life has
        the statements that the table holds now, or held at `known_at`; on `axis` both, all statements that it
        ever held. Raises UsageError for a wrong key or axis, and for a file that cannot be written.
        """
        from backstory.reading.frames.versions import life

        axis, svg = options.get("axis", "valid"), options.get("svg")
        require_axis(axis, options.get("known_at"))
        known_at, selection = _read_terms(
            key=key, columns=options.get("columns"), known_at=options.get("known_at")
        )
        timeline = life(self.store, self.name, key, axis, known_at, selection.columns)
        if svg is not None:
            timeline.save(svg)
        return timeline

    @overload
    def changes(self, **options: Unpack[ChangesOptions]) -> "ChangeFeed": ...

    @overload
    def changes(self, **options: Unpack[CursorOptions]) -> "ChangeFeed | Cursor": ...

    @with_options(ChangesOptions, CursorOptions)
    def changes(self, **options: Unpack[CursorOptions]) -> "ChangeFeed | Cursor":
        """The rows that changed after commit `since` up to `until`, or since a cursor: `feed.frame`.

        Name a commit by its version, its snapshot id or a time. In a `with` block, the cursor moves if the
        block ends without an error. `advance` and `drop` return a `Cursor`. Raises Refused for an expired
        range or a lost cursor, and UsageError for options that do not go together. Raises TryAgain if another
        consumer moved the cursor meanwhile.
        """
        from backstory.reading.changes import feed, ranges
        from backstory.reading.changes.request import ChangesRequest

        advance, drop = options.pop("advance", None), options.pop("drop", False)
        request = ChangesRequest(**cast("ChangesOptions", options))
        if advance is None and not drop:
            return feed.changes(self.store, self.name, request)
        only_cursor = request == ChangesRequest(cursor=request.cursor) and (advance is None or not drop)
        return ranges.advance_or_drop(self.store, self.name, request.cursor if only_cursor else None, advance)

    def views(self, *, dry_run: bool = False) -> list[dict[str, Any]]:
        """Create views for Spark SQL, of the current rows and of all versions; also a query for one time.

        Each record has the name of the view, whether it was made, and its SQL. The query has the parameter
        `:time` and no name. A catalog that holds no views gets none. Refused if another table has the name.
        """
        from backstory.doors.historize.spark_runs import LOG, log_views
        from backstory.upkeep.table_views import views

        if self.name == LOG:
            return log_views(self.store, dry_run=dry_run)
        return views(self.store, self.name, dry_run=dry_run)

    @with_options(ExportOptions)
    def export(self, file: str | Path, **options: Unpack[ExportOptions]) -> "Export":
        """Write the whole history into one CSV or Parquet file; a live table is written as its rows.

        The file has every version with `valid_from` and `valid_to`; on `axis` both, also every earlier
        statement with its known times. It appears only when it is complete. UsageError for an existing file
        without `overwrite`.
        """
        from backstory.reading.exports import ExportFile, export_table

        return export_table(self.store, self.name, ExportFile(Path(file), **options))

    def log(self) -> list[dict[str, Any]]:
        """The table's commits, newest first."""
        from backstory.reading.commits import commits
        from backstory.stores.metadata.catalogs import SessionCatalog

        return commits(SessionCatalog(self.store), self.name)

    def check(self) -> list[dict[str, Any]]:
        """A record for each law of the layout: `table`, `law`, `violations`, `keys`, `status`."""
        from backstory.upkeep.checking import check_files_first

        return check_files_first(self.store, self.name)

    @with_options(RemarkOptions)
    def repair(self, *, apply: bool = False, **remark: Unpack[RemarkOptions]) -> "Repair":
        """The fix for the records that break a law; `apply` writes it in one commit."""
        from backstory.upkeep.repairing import repair

        with with_remark(**remark):
            return repair(self.store, self.name, apply=apply)

    @with_options(RemarkOptions)
    def rewind(self, time: str | date, *, apply: bool = False, **remark: Unpack[RemarkOptions]) -> "Rewound":
        """Undo everything that the table received after a time; without `apply` only return the plan.

        A table of layout `versions` keeps its earlier state for `known_at`. Raises UsageError
        (`known-pruned`) or Refused (`snapshots-expired`) if the table no longer has its state at that time.
        """
        from backstory.upkeep.rewinding import rewind

        with with_remark(**remark):
            return rewind(self.store, self.name, instant_of(time), apply=apply)

    @with_options(MaintainOptions, RemarkOptions)
    def maintain(self, **options: Unpack[MaintainOptions]) -> "Maintained":
        """Compact small files and expire old snapshots; queries give the same answers as before.

        Raises TryAgain if other writers commit first.
        """
        from backstory.doors.historize.spark_runs import unlogged_tokens
        from backstory.stores.iceberg.store import existing
        from backstory.upkeep.maintaining import maintain

        bounds = Bounds(
            optional_instant(options.get("settle_before")), optional_instant(options.get("known_from"))
        )
        models = existing(self.store, self.name).shape.layout in {Layout.BASE, Layout.HIST}
        needed = unlogged_tokens if models else lambda *_: ()
        with with_remark(options.get("note"), options.get("author")):
            return maintain(self.store, self.name, bounds, needed, dry_run=options.get("dry_run", False))

    @with_options(RemarkOptions)
    def forget(
        self, key: object, *, drop_cursors: bool = False, apply: bool = False, **remark: Unpack[RemarkOptions]
    ) -> "Certificate":
        """Erase a record from all versions, snapshots and files, and return a certificate.

        The key is a value, or a mapping for a composite key. Without `apply` the record is only searched for.
        Raises Refused while a consumer or another program needs old rows, and TryAgain while another program
        may write to the table.
        """
        from backstory.upkeep.forgetting import forget

        with with_remark(**remark):
            return forget(self.store, self.name, key, drop_cursors=drop_cursors, apply=apply)

    def drop(self, *, archive: str | None = None, apply: bool = False) -> "HistoryEnd":
        """End the history: delete the table and its files, or keep it under the name `archive`, read only.

        Without `apply` nothing is changed. A name without a schema is in this table's schema. Raises Refused
        for a table of a model, of a dataset or of another program, and for a name that another table has.
        """
        from backstory.upkeep.ending import end

        name = archive and table_name(archive if "." in archive else f"{self.name.schema}.{archive}")
        return end(self.store, self.name, name or None, apply=apply)


def _read_terms(
    *, key: object = None, columns: str | Sequence[str] | None = None, known_at: str | date | None = None
) -> tuple[datetime | None, Selection]:
    """The known time and the selection of a call with these options."""
    return optional_instant(known_at), Selection.of(key, columns)
