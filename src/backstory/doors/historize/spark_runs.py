"""The registry of runs on Spark: the commits of base and history that still stand (decision H6)."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

from backstory.doors.historize.model import ColumnRole, ModelDataset
from backstory.doors.historize.runs import (
    RUNS,
    RegisteredRun,
    dataset_key,
    earlier_key,
    hist_names,
    names_of,
    wrote,
)
from backstory.doors.historize.spark_log import LOG, sources
from backstory.doors.historize.spark_work import BASE, RECEIPT, TIMESTAMP, token_of
from backstory.model.change import TOKEN
from backstory.model.instant import EPOCH, iso, parse_instant
from backstory.model.table import TableName
from backstory.stores.iceberg.jvm import may_have
from backstory.stores.iceberg.literals import column
from backstory.stores.iceberg.snapshots import CommitNote, commits
from backstory.stores.iceberg.store import Store, StoredTable, load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A commit that took a run's rows back says whose they were.
UNDONE = "backstory.undone"
# The latest start or end that a history knows, as its last load tells it.
NEWEST = "backstory.newest"
COUNTS = ("closed_changed", "closed_deleted", "inserted_changed", "inserted_new")


def first_of(store: Store, schema: str, names: Sequence[str]) -> StoredTable | None:
    """The first of these tables that is there."""
    return next(filter(None, (load(store, TableName(schema, name)) for name in names)), None)


def newest_of(store: Store, table: StoredTable) -> datetime | None:
    """No start or end in the history is later: told by the last load, else by the bounds of its files."""
    from pyspark.sql.functions import max as greatest
    from pyspark.sql.functions import unix_micros

    snapshot = table.iceberg.currentSnapshot()
    if snapshot is None:
        return None
    known = snapshot.summary().get(NEWEST)
    if known:
        return parse_instant(known)
    files = store.spark.table(store.sql_name(table.shape.table, "files"))
    bounds = [
        unix_micros(f"readable_metrics.{role}.upper_bound") for role in (ColumnRole.STARTED, ColumnRole.ENDED)
    ]
    micros = [each for each in files.agg(*map(greatest, bounds)).collect()[0] if each is not None]
    if table.rows and not micros:
        # Iceberg keeps no bounds for the columns at the end of a wide table.
        rows = store.spark.table(store.sql_name(table.shape.table))
        ends = [greatest(unix_micros(column(role))) for role in (ColumnRole.STARTED, ColumnRole.ENDED)]
        micros = [each for each in rows.agg(*ends).collect()[0] if each is not None]
    return EPOCH + timedelta(microseconds=max(micros)) if micros else None


def find_run(store: Store, schema: str, dataset: ModelDataset, run_id: str) -> RegisteredRun | None:
    """What tables and log tell of a run; what is not in the tables was not loaded.

    Only ancestors of the current snapshots count, and the log of a run that made no commit only while
    the versions stand that it found.
    """
    base = first_of(store, schema, names_of(dataset))
    hist = first_of(store, schema, hist_names(dataset))
    if base is None or hist is None:
        return None
    tokens = {token_of(schema, dataset, run_id), f"{earlier_key(dataset)} {run_id}"}
    begun = None
    of_base = commits(store, base)
    for past in (commits(store, hist), of_base):
        standing, gone = _notes_of_run(past, tokens)
        for told in standing:
            if told.get(RECEIPT):
                return _of(told) if _stands(of_base, told) else None
            begun = begun or _of(told)
        if gone and not standing:
            return None  # it was rolled back
    return _logged(store, schema, dataset, run_id, hist) or begun


def unlogged_tokens(store: Store, table: StoredTable) -> frozenset[str]:
    """The tokens of runs that only the table's own commits tell of: these must not expire."""
    from pyspark.sql.functions import concat_ws

    tokens = {told for each in commits(store, table) if (told := each.told.get(TOKEN))}
    runs = sources(store, RUNS)
    if not runs or not tokens:
        return frozenset(tokens)
    token = concat_ws(" ", "dataset_key", "load_run_id")
    rows = _ended_well(store, runs).where(token.isin(*tokens)).select(token).collect()
    return frozenset(tokens - {row[0] for row in rows})


def _ended_well(store: Store, runs: Sequence[tuple[StoredTable, str]]) -> "DataFrame":
    """What the logs say of runs that ended well."""
    told = store.spark.sql(" UNION ALL ".join(query for _, query in runs))
    return told.where(column("status") == "success").where(column("receipt").isNotNull())


def _of(told: Mapping[str, str]) -> RegisteredRun:
    receipt = told.get(RECEIPT)
    return RegisteredRun(parse_instant(told[TIMESTAMP]), 1, json.loads(receipt) if receipt else None)


def _notes_of_run(past: Sequence[CommitNote], tokens: set[str]) -> tuple[list[Mapping[str, str]], bool]:
    """What a run's commits that stand were told, and whether there are others that do not."""
    found = [each for each in past if each.told.get(TOKEN) in tokens]
    undone = [each for each in past if each.told.get(UNDONE) in tokens and each.stands]
    since = max((each.number for each in undone), default=-1)
    standing = [each.told for each in found if each.stands and each.number > since]
    return standing, len(standing) < len(found)


def _stands(base: Sequence[CommitNote], told: Mapping[str, str]) -> bool:
    """Whether the base that a history was made from still stands; an expired snapshot tells nothing."""
    made_from = {str(each.id): each for each in base}.get(told.get(BASE, ""))
    return made_from is None or made_from.stands


def _logged(
    store: Store, schema: str, dataset: ModelDataset, run_id: str, hist: StoredTable
) -> RegisteredRun | None:
    """A run that changed nothing made no commit, and old commits expire: the log knows them."""
    runs = sources(store, RUNS)
    if not any(may_have(store.jvm, table.iceberg, "load_run_id", run_id) for table, _ in runs):
        return None  # most runs are new, and need no query to be told so
    own, earlier = dataset_key(schema, dataset), earlier_key(dataset)
    success = _ended_well(store, runs)
    mine = success.where(column("dataset_key").isin(own, earlier) & (column("load_run_id") == run_id))
    rows = mine.select("finished_at", "dataset_key", "receipt").collect()
    found = {row["dataset_key"]: row["receipt"] for row in sorted(rows)}
    key = own if own in found else earlier
    if key not in found or (key == earlier and not _named(store, schema, dataset, run_id)):
        return None
    receipt = json.loads(found[key])
    instant: datetime | None = parse_instant(receipt["load_timestamp"])
    if not wrote(receipt):
        instant = _last_that_wrote(success.where(column("dataset_key") == key), receipt["load_timestamp"])
    known = RegisteredRun(parse_instant(receipt["load_timestamp"]), 1, receipt)
    return known if _has_versions(store, hist, instant, known.load_timestamp) else None


def _named(store: Store, schema: str, dataset: ModelDataset, run_id: str) -> bool:
    """Whether the log of loads has the run for this schema: earlier rows of `hist_run` do not tell."""
    if load(store, LOG) is None:
        return False
    loads = store.spark.table(store.sql_name(LOG))
    ours = column("target_dataset").isin(hist_names(dataset)) & (column("target_schema") == schema)
    return bool(loads.where(ours & (column("load_run_id") == run_id)).take(1))


def _last_that_wrote(success: "DataFrame", until: str) -> datetime | None:
    """The instant of the last run up to then that began or ended versions."""
    from pyspark.sql.functions import col, lit

    written = reduce(add, (col(name) for name in COUNTS)) > 0
    earlier = success.where(written & (column("load_timestamp") <= lit(until).cast("timestamp")))
    found = earlier.orderBy(column("load_timestamp").desc()).select("receipt").take(1)
    return parse_instant(json.loads(found[0]["receipt"])["load_timestamp"]) if found else None


def _has_versions(store: Store, hist: StoredTable, wrote_at: datetime | None, until: datetime) -> bool:
    """Whether versions begin or end at an instant; without one, whether the history is not younger."""
    from pyspark.sql.functions import lit

    instant = lit(iso(wrote_at or until)).cast("timestamp")
    rows = store.spark.table(store.sql_name(hist.shape.table))
    if wrote_at:
        return bool(
            rows.where((column(ColumnRole.STARTED) == instant) | (column(ColumnRole.ENDED) == instant)).take(
                1
            )
        )
    return bool(rows.where(column(ColumnRole.STARTED) <= instant).take(1)) or not rows.take(1)
