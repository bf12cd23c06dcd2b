"""A table to read: its rows, and the lives of its records."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from backstory.model.change_feed import Cursor, Start
from backstory.model.instant import instant_of, optional_instant
from backstory.model.table import TableName
from backstory.reading.selection import ChangeKind, Comparison, Selection, require_times
from backstory.reading.timelines import Axis, Timeline, require_axis
from backstory.spark.session_settings import in_settled_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from backstory.reading.changes.feed import ChangeFeed
    from backstory.reading.changes.ranges import CommitName
    from backstory.reading.exports import Export
    from backstory.stores.iceberg.store import Store
    from backstory.upkeep.certificate import Certificate
    from backstory.upkeep.ending import HistoryEnd
    from backstory.upkeep.maintaining import Maintained
    from backstory.upkeep.repairing import Repair
    from backstory.upkeep.rewinding import Rewound


@in_settled_session
@dataclass(frozen=True)
class Table:
    """A table that keeps the rows, or the history, of a source."""

    store: "Store"
    name: TableName

    def __repr__(self) -> str:
        return f"Table({str(self.name)!r}, catalog={self.store.catalog!r})"

    def _repr_html_(self) -> str:
        from backstory.reading.notebook import table_as_html

        return table_as_html(self.store, self.name)

    def current(
        self,
        *,
        key: object = None,
        columns: str | Sequence[str] | None = None,
        known_at: str | date | None = None,
    ) -> "DataFrame":
        """The rows that are true now; of a history with `valid_from` and `valid_to`.

        With a `key`, as `timeline` takes it, that of one record; with `columns` only these and the key. With
        `known_at` what the table held to be true then: UsageError or Refused where it no longer tells.
        """
        from backstory.reading.frames import point_in_time

        chosen = Selection.of(key, columns)
        return point_in_time.current(self.store, self.name, optional_instant(known_at), chosen)

    def as_of(
        self,
        time: str | date,
        *,
        key: object = None,
        columns: str | Sequence[str] | None = None,
        known_at: str | date | None = None,
    ) -> "DataFrame":
        """The rows that were true at a time, with `valid_from` and `valid_to`; a date is its start.

        `key`, `columns` and `known_at` are those of `current`.
        """
        from backstory.reading.frames import point_in_time

        known, chosen = optional_instant(known_at), Selection.of(key, columns)
        return point_in_time.as_of(self.store, self.name, instant_of(time), known, chosen)

    def diff(
        self,
        first: str | date,
        second: str | date,
        *,
        known_at: str | date | None = None,
        axis: Literal["valid", "recorded"] = "valid",
        at: str | date | None = None,
        columns: str | Sequence[str] | None = None,
        change: ChangeKind | None = None,
        through: bool = False,
    ) -> "DataFrame":
        """What changed between two times: `key`, `change`, `before`, `after`, `changed`.

        The column `change` is added, changed or removed; the option `change` gives only those. Key, before
        and after are structs, and `changed` names the columns that differ. Only `columns` are compared.
        `through` tells also what is the same at both ends: records that were gone in between (`returned`),
        had other values (`reverted`), or were there in between alone (`passed`); its column `away` says
        whether a record was gone and came back. On the axis `recorded` what was known at the first time is
        compared with what was known at the second, of the instant `at` (now). Raises what `as_of` raises.
        """
        from backstory.reading.frames import differences
        from backstory.reading.notebook import drawn_in_notebooks

        comparison = Comparison.of(columns, change, through=through, axis=axis)
        require_times(axis, known_at, at)
        between = instant_of(first), instant_of(second)
        if axis == "recorded":
            then = optional_instant(at) or datetime.now(UTC)
            frame = differences.diff_knowledge(self.store, self.name, *between, then, comparison)
        else:
            frame = differences.diff(self.store, self.name, *between, optional_instant(known_at), comparison)
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
        """The frame's rows with the columns of the version that was true at each row's own time.

        `on` names the key's columns, in the frame as in the table, and `at` the column of times. `known_at`
        is a time, or the name of a column: each row then sees what was known at its own time. No version
        then: NULLs, or with `how="inner"` no row. A name that is taken gets a number (`name_2`). Where
        versions of one record overlap, which `check` tells, a row stands beside each of them.
        """
        from backstory.reading.frames import joins

        by_row = isinstance(known_at, str) and known_at in frame.columns
        times = joins.JoinTimes(at, str(known_at) if by_row else optional_instant(known_at))
        key = [on] if isinstance(on, str) else list(on)
        return joins.join_as_of(self.store, self.name, frame, key, times, how)

    def timeline(
        self,
        key: object,
        *,
        axis: Axis = "valid",
        known_at: str | date | None = None,
        columns: str | Sequence[str] | None = None,
        svg: str | Path | None = None,
    ) -> Timeline:
        """One record's life; the key is a value, or a mapping of a key of several columns.

        A text or a value of Python names exactly one value of the key's type, or is refused (`other-key`).
        What the table says of the record now, or said at `known_at`; on `axis` both all that it ever said.
        Only `columns` are shown beside the key. `svg` names a file for the picture. UsageError for another
        key, axis or a file that cannot be written.
        """
        from backstory.reading.frames.point_in_time import life

        require_axis(axis, known_at)
        names = Selection.of(key, columns).columns
        told = life(self.store, self.name, key, axis, optional_instant(known_at), names)
        if svg is not None:
            told.save(svg)
        return told

    @overload
    def changes(
        self,
        *,
        since: "CommitName | None" = None,
        until: "CommitName | None" = None,
        net: bool = False,
        current: bool = False,
        cursor: str | None = None,
        start: Start | None = None,
    ) -> "ChangeFeed": ...

    @overload
    def changes(
        self,
        *,
        since: "CommitName | None" = None,
        until: "CommitName | None" = None,
        net: bool = False,
        current: bool = False,
        cursor: str | None = None,
        start: Start | None = None,
        advance: int | None = None,
        drop: bool = False,
    ) -> "ChangeFeed | Cursor": ...

    def changes(
        self,
        *,
        since: "CommitName | None" = None,
        until: "CommitName | None" = None,
        net: bool = False,
        current: bool = False,
        cursor: str | None = None,
        start: Start | None = None,
        advance: int | None = None,
        drop: bool = False,
    ) -> "ChangeFeed | Cursor":
        """The rows that changed after commit `since` up to `until`, or since a cursor: `feed.frame`.

        A commit is named by its version, its snapshot id or a time. `net` tells the difference of the ends
        instead of each commit, `current` sees only rows that are current. In a `with` block the cursor moves
        when the block ends well; `advance` and `drop` do nothing but move or drop it, and give a `Cursor`.
        Raises Refused for a range that has expired and for a cursor that is lost, UsageError for options that
        do not go together, and TryAgain if another consumer moved the cursor meanwhile.
        """
        from backstory.reading.changes import feed, ranges

        asked = feed.ChangesRequest(since, until, net, current, cursor, start)
        if advance is None and not drop:
            return feed.changes(self.store, self.name, asked)
        alone = asked == feed.ChangesRequest(cursor=cursor) and (advance is None or not drop)
        return ranges.advance_or_drop(self.store, self.name, cursor if alone else None, advance)

    def views(self, *, dry_run: bool = False) -> list[dict[str, Any]]:
        """Views of the catalog for Spark SQL: what is true now, all versions, and the query of an instant.

        For each its name (NULL of the query, which has the parameter `:time`), whether it was made, and its
        SQL. Where the catalog holds no views nothing is made. Refused where another table has the name.
        """
        from backstory.doors.historize.spark_runs import LOG, log_views
        from backstory.upkeep.table_views import views

        if self.name == LOG:
            return log_views(self.store, dry_run=dry_run)
        return views(self.store, self.name, dry_run=dry_run)

    def export(self, file: str | Path, *, axis: Axis = "valid", overwrite: bool = False) -> "Export":
        """Write the whole history into one file, CSV or Parquet by its ending; of a live table its rows.

        Every version, with `valid_from` and `valid_to`; on `axis` both all that ever was told, and when. The
        file is there at once or not at all. UsageError for one that is there, without `overwrite`.
        """
        from backstory.reading.exports import Destination, export_table

        return export_table(self.store, self.name, Destination(Path(file), axis, overwrite))

    def log(self) -> list[dict[str, Any]]:
        """The table's commits, newest first."""
        from backstory.reading.commits import commits
        from backstory.stores.metadata.catalogs import SessionCatalog

        return commits(SessionCatalog(self.store), self.name)

    def check(self) -> list[dict[str, Any]]:
        """A record for each law of the layout: `table`, `law`, `violations`, `keys`, `status`."""
        from backstory.upkeep.checking import check_files_first

        return check_files_first(self.store, self.name)

    def repair(self, *, apply: bool = False, note: str | None = None, author: str | None = None) -> "Repair":
        """The repair of the records that break a law; `apply` makes it, in one commit."""
        from backstory.engine.run_context import with_remark
        from backstory.upkeep.repairing import repair

        with with_remark(note, author):
            return repair(self.store, self.name, apply=apply)

    def rewind(
        self, time: str | date, *, apply: bool = False, note: str | None = None, author: str | None = None
    ) -> "Rewound":
        """Take back what the table learnt after a time; without `apply` only tell what would go.

        On layout `versions` what was believed in between stays known. Raises UsageError (`known-pruned`) and
        Refused (`snapshots-expired`) for a time that is known no more.
        """
        from backstory.engine.run_context import with_remark
        from backstory.upkeep.rewinding import rewind

        with with_remark(note, author):
            return rewind(self.store, self.name, instant_of(time), apply=apply)

    def maintain(
        self,
        *,
        settle_before: str | date | None = None,
        known_from: str | date | None = None,
        dry_run: bool = False,
        note: str | None = None,
        author: str | None = None,
    ) -> "Maintained":
        """Compact small files and let old snapshots expire; no answer changes.

        On layout `versions` what is remembered of facts up to `settle_before` goes, and what was known before
        `known_from`. Raises TryAgain while other writers come first.
        """
        from backstory.doors.historize.spark_runs import unlogged_tokens
        from backstory.engine.run_context import with_remark
        from backstory.model.layout import Layout
        from backstory.stores.iceberg.store import existing
        from backstory.upkeep.maintaining import Bounds, maintain

        bounds = Bounds(optional_instant(settle_before), optional_instant(known_from))
        models = existing(self.store, self.name).shape.layout in {Layout.BASE, Layout.HIST}
        needed = unlogged_tokens if models else lambda *_: ()
        with with_remark(note, author):
            return maintain(self.store, self.name, bounds, needed, dry_run=dry_run)

    def forget(
        self,
        key: object,
        *,
        drop_cursors: bool = False,
        apply: bool = False,
        note: str | None = None,
        author: str | None = None,
    ) -> "Certificate":
        """Remove a record from every version, old snapshots and files included; a certificate.

        The key is a value, or a mapping of a key of several columns. Without `apply` it is only looked for.
        Raises Refused while a consumer or another program needs old rows, TryAgain while somebody may write.
        """
        from backstory.engine.run_context import with_remark
        from backstory.upkeep.forgetting import forget

        with with_remark(note, author):
            return forget(self.store, self.name, key, drop_cursors=drop_cursors, apply=apply)

    def drop(self, *, archive: str | None = None, apply: bool = False) -> "HistoryEnd":
        """End the history: delete the table and its files, or with `archive` keep it under a name, read only.

        Without `apply` nothing is changed. A name without a schema is in this table's schema. Raises Refused
        for a table of a model, of a dataset or of another program, and for a name that is taken.
        """
        from backstory.model.table import table_name
        from backstory.upkeep.ending import end

        name = archive and table_name(archive if "." in archive else f"{self.name.schema}.{archive}")
        return end(self.store, self.name, name or None, apply=apply)
