"""The checks that refuse a load before it writes (section 3.6).

On a database, a check is a query that returns up to ten offending business keys. In a warehouse, the checks
use the counts of all parts of the plan. Another check finds changes that a hash misses (section 2.4). In the
default profile, ('a|b', 'c') and ('a', 'b|c') have the same hash, and so do NULL and the null token. A change
that a hash misses reaches the base but not the history, and is logged.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import structlog

from backstory.doors.historize.hist_state import FIXED
from backstory.doors.historize.load import Load
from backstory.doors.historize.model import (
    LOAD_COLUMNS,
    STRICT,
    ColumnRole,
    ModelColumn,
    business_keys,
    hashed_columns,
    user_columns,
)
from backstory.doors.historize.resolve import schema_of
from backstory.errors import MAX_KEYS, Refused
from backstory.model.change import exceeds
from backstory.model.values import key_text
from backstory.stores.sql.columns import Datatype
from backstory.stores.sql.engine import LOAD_TIMESTAMP, Engine
from backstory.strategies.part_plan import PlanSums
from backstory.strategies.scd2 import plan as scd2
from backstory.strategies.scd2.statements import closing_conditions

REMEDIES = {
    "NULL_KEY": "Load the base again; every row needs its key.",
    "NULL_VALUE": "Fix the rows in the stage, or make the column nullable.",
    "VALUE_TOO_LONG": "Fix the rows in the stage, or raise the column's max_length.",
    "NULL_ROW_HASH": "Load the base again; every row needs its hash.",
    "DUPLICATE_KEY": "Make the business keys unique in the stage; identical rows may be collapsed with "
    "duplicate_keys: collapse_identical, and hash_profile: strict_v2 gives different keys different hashes.",
    "KEYS_CHANGED": "Use the same pepper, hash profile and separators as before; for a business key that "
    "was renamed in the stage, set key_name to its old name.",
    "MULTIPLE_OPEN": "Close all but the newest open version of each key; in a warehouse `backstory repair` "
    "does this.",
    "spoilt-table": "Give these versions their beginning, or delete them; in a warehouse `backstory repair` "
    "does this.",
    "NON_MONOTONIC_TIMESTAMP": "Load with a later timestamp, under a new run id.",
    "EMPTY_SNAPSHOT": "Check the stage; `allow_empty=True`, or allow_empty_snapshot in the model, lets it "
    "close every version.",
    "MASS_DELETE": "Check the stage; a higher `max_delete_ratio=RATIO`, or `max_delete_ratio` in the model, "
    "allows more.",
    "HIST_COLUMNS": "Restore the columns from a copy of the table; new ones would lack the past.",
    "LATE_EFFECTIVE": "Fix the effective dates, or set late_policy: accept.",
}


KEYS_CHANGED = "Records of the base have other keys now: all of their versions would end and begin again."
LATE = "Versions begin or end at or after the load's timestamp."
NO_BEGINNING = f"The history has open versions without {ColumnRole.STARTED}: another program wrote to it."


class Check(NamedTuple):
    """A query for offending keys, and the code and message of the error."""

    code: str
    sql: str
    message: str


def rejection(code: str, message: str, keys: Sequence[object] = ()) -> Refused:
    """The error for a failed check."""
    return Refused(code, message, REMEDIES[code], keys)


def stage_checks(load: Load) -> Iterator[Check]:
    """The checks of the stage's rows before the base load.

    The last check finds records that have the same business keys in stage and base, but different keys.
    """
    keys = business_keys(load.dataset)
    names = [key.name for key in keys]

    def check(code: str, where: str, message: str) -> Check:
        return Check(code, keys_query(load, names, load.unique_stage_rows, "s", where), message)

    for column in user_columns(load.dataset):
        name = load.of("s", column.name)
        if not column.nullable:
            code = "NULL_KEY" if column.system_role is ColumnRole.BUSINESS_KEY else "NULL_VALUE"
            yield check(code, f"{name} IS NULL", f"{column.name} is NULL in the stage.")
        if column.max_length and column.datatype is Datatype.STRING:
            message = f"{column.name} is longer than {column.max_length} characters in the stage."
            yield check("VALUE_TOO_LONG", f"length({name}) > {column.max_length}", message)
    if load.dataset.historization.duplicate_keys == "reject":
        twice = _repeated_keys(load, names, load.stage_rows, "s")
    else:
        # The rows of a key conflict if they differ in hash or business keys.
        # In the default profile, different keys may have the same string.
        texts = [load.canonical(key, load.of("ss", key.name)) for key in keys]
        values = [load.of("ss", ColumnRole.ROW_HASH), *texts]
        conflicts = [f"COUNT(DISTINCT {value}) > 1" for value in values]
        conflicts += [f"COUNT({text}) NOT IN (0, COUNT(*))" for text in texts]
        twice = _repeated_keys(load, names, load.stage_rows, "s", load.live, having=" OR ".join(conflicts))
    yield Check("DUPLICATE_KEY", twice, "Rows of the stage share a business key.")
    same = " AND ".join(f"NOT ({load.other_text(key, 'x', 's')})" for key in keys)
    other = f"{load.of('x', load.dataset.key)} <> {load.of('s', load.dataset.key)}"
    moved = f"EXISTS (SELECT 1 FROM {load.base_table} AS x WHERE {same} AND {other})"
    yield check("KEYS_CHANGED", moved, KEYS_CHANGED)


def refuse_losses(
    load: Load, *, delivered: int, open_: int, deleted: int, keys: Sequence[object] = ()
) -> None:
    """P6, P7: raise Refused if the load would close all open versions, or too large a share of them.

    `delivered` is the number of records in the base. `keys` are keys of the `deleted` records.
    """
    rules = load.dataset.historization
    if open_ and not delivered and not rules.allow_empty_snapshot:
        raise rejection("EMPTY_SNAPSHOT", f"The base {load.dataset.name} is empty.")
    ratio = rules.max_delete_ratio
    if ratio is not None and exceeds(deleted, ratio, open_):
        message = f"{deleted} of {open_} open versions would be closed as deleted."
        raise rejection("MASS_DELETE", message, keys)


def hist_checks(load: Load) -> Iterator[Check]:
    """The checks P1 to P5 on base and history, in order."""
    keys = business_keys(load.dataset)
    names = [key.name for key in keys]
    base, hist, pair, key = load.base, load.hist_table, load.pair, load.dataset.key
    live, is_open = load.live("r"), pair.is_open("h")

    def of_base(code: str, where: str, message: str) -> Check:
        return Check(
            code, keys_query(load, names, load.base_table, "r", where), f"Rows of the base {message}."
        )

    def of_history(code: str, where: str, message: str) -> Check:
        return Check(code, keys_query(load, load.mirrored_keys, hist, "h", where), message)

    yield of_base("NULL_KEY", f"{load.of('r', key)} IS NULL{live}", f"have no {key}")
    yield of_base("NULL_ROW_HASH", f"{load.of('r', ColumnRole.ROW_HASH)} IS NULL{live}", "have no row_hash")
    if load.dataset.historization.duplicate_keys == "reject":
        twice = _repeated_keys(load, names, base, "r", load.live)
        yield Check("DUPLICATE_KEY", twice, f"Rows of the base share {key}.")
    else:
        others = (load.other_text(each, "x", "r") for each in keys)
        unlike = " OR ".join([pair.other_hash("x", "r"), *others])
        other = f"{pair.same_key('x', 'r')} AND ({unlike}){load.live('x')}"
        exists = f"EXISTS (SELECT 1 FROM {load.base_table} AS x WHERE {other}){live}"
        yield of_base("DUPLICATE_KEY", exists, f"share {key}")
    several = _repeated_keys(load, load.mirrored_keys, hist, "h", lambda alias: f" AND {pair.is_open(alias)}")
    yield Check("MULTIPLE_OPEN", several, "Keys have more than one open version.")
    started, ended = load.of("h", ColumnRole.STARTED), load.of("h", ColumnRole.ENDED)
    yield of_history("spoilt-table", f"{is_open} AND {started} IS NULL", NO_BEGINNING)
    closes = " OR ".join(f"({condition})" for condition in closing_conditions(pair).values())
    early = f"{is_open} AND {started} >= {LOAD_TIMESTAMP} AND ({closes})"
    yield of_history("NON_MONOTONIC_TIMESTAMP", early, LATE)
    same = (
        f"EXISTS (SELECT 1 FROM {hist} AS o WHERE {pair.same_key('o', 'r')} AND {pair.is_open('o')}"
        f" AND NOT {pair.is_other('r', 'o')})"
    )
    versioned = f"EXISTS (SELECT 1 FROM {base} AS r WHERE {pair.same_key('r', 'h')}{live} AND NOT {same})"
    late = f"({started} >= {LOAD_TIMESTAMP} OR {ended} > {LOAD_TIMESTAMP}) AND {versioned}"
    yield of_history("NON_MONOTONIC_TIMESTAMP", late, LATE)
    dating = load.dataset.historization.effective_dating
    if dating is not None and dating.late_policy == "reject":
        dated = f"{_effective(load, 'r', LOAD_TIMESTAMP)} < {_effective(load, 'h', started)}"
        later = (
            f"{is_open} AND EXISTS (SELECT 1 FROM {load.base} AS r WHERE {pair.same_key('r', 'h')}{live}"
            f" AND {pair.is_other('r', 'h')} AND {dated})"
        )
        message = f"Changed rows have an earlier {dating.column} than their open version."
        yield of_history("LATE_EFFECTIVE", later, message)


def _effective(load: Load, alias: str, started: str) -> str:
    """SQL for the effective value of a row. If it is NULL, the version is effective from its start (7.1)."""
    dating = load.dataset.historization.effective_dating
    (column,) = (each for each in user_columns(load.dataset) if dating and each.name == dating.column)
    start = load.dialect.cast_expression(started, load.dialect.type_of(column))
    return f"COALESCE({load.of(alias, column.name)}, {start})"


def require_hist_columns(load: Load, added: Sequence[ModelColumn]) -> None:
    """P8: raise Refused if the table lacks a column that every version must have."""
    lacking = [column.name for column in added if column.system_role in FIXED]
    if lacking:
        raise rejection("HIST_COLUMNS", f"{load.hist_table} has no {', '.join(lacking)}.", lacking)


def require_base_key(load: Load, added: Sequence[ModelColumn]) -> None:
    """Raise Refused if a base with rows lacks its key column, without which no record can be found again."""
    lacking = [column.name for column in added if column.system_role is ColumnRole.SURROGATE_KEY]
    if lacking:
        raise Refused(
            "column-gone",
            f"{load.base_table} no longer has the column {', '.join(lacking)}, the key of its rows.",
            "Nothing was written; give it its former name again with ALTER TABLE, or drop the base and load "
            "it again from a complete stage.",
            lacking,
        )


def run_checks(engine: Engine, load: Load, checks: Iterator[Check], values: Mapping[str, str]) -> None:
    """Raise Refused for the first check whose query returns keys."""
    names = [column.name for column in business_keys(load.dataset)]
    for check in checks:
        rows = engine.query(check.sql, values)
        if rows:
            keys = [key_text(names, row) for row in rows[:MAX_KEYS]]
            raise rejection(check.code, check.message, keys)


def keys_query(load: Load, names: Sequence[str], source: str, alias: str, where: str) -> str:
    """The query for up to ten business keys of the rows that meet a condition."""
    listed = ", ".join(load.of(alias, name) for name in names)
    return (
        f"SELECT DISTINCT {listed} FROM {source} AS {alias} WHERE {where} ORDER BY {listed} LIMIT {MAX_KEYS}"
    )


def _repeated_keys(
    load: Load,
    names: Sequence[str],
    source: str,
    alias: str,
    where: Callable[[str], str] = lambda _: "",
    having: str = "COUNT(*) > 1",
) -> str:
    """The query for the business keys of rows that share a key.

    `where` is a condition with a leading AND.
    """
    inner, key = f"{alias}{alias}", load.dataset.key
    twice = (
        f"SELECT {load.of(inner, key)} FROM {source} AS {inner}"
        f" WHERE {load.of(inner, key)} IS NOT NULL{where(inner)}"
        f" GROUP BY {load.of(inner, key)} HAVING {having}"
    )
    return keys_query(load, names, source, alias, f"{load.of(alias, key)} IN ({twice}){where(alias)}")


log = structlog.get_logger()


def collidable_columns(load: Load) -> list[ModelColumn]:
    """The columns whose strings are concatenated in a key or a hash, or none with the profile strict_v2."""
    if schema_of(load.model, load.dataset).hash_profile == STRICT:
        return []
    return [*business_keys(load.dataset), *hashed_columns(load.dataset)]


def count_collisions(engine: Engine, load: Load, values: Mapping[str, str]) -> Mapping[str, int]:
    """The number of changed records with the same hash, by column whose string changed."""
    differs = {each.name: load.other_text(each, "s", "b") for each in collidable_columns(load)}
    if not differs:
        return {}
    counted = ", ".join(f"COUNT(CASE WHEN {each} THEN 1 END)" for each in differs.values())
    same_hash = f"{load.of('s', ColumnRole.ROW_HASH)} = {load.of('b', ColumnRole.ROW_HASH)}"
    sql = (
        f"SELECT {counted} FROM {load.unique_stage_rows} AS s JOIN {load.base_table} AS b"
        f" ON {load.pair.same_key('s', 'b')} AND {same_hash} WHERE {load.differs('s', 'b')}"
    )
    (counts,) = engine.query(sql, values)
    return dict(zip(differs, counts, strict=True))


def warn_of_collisions(load: Load, counts: Mapping[str, int]) -> None:
    """Log one warning with the columns in which records changed without a new version."""
    columns = [name for name, count in counts.items() if count]
    if columns:
        log.warning(
            "changed records have the same hash as before and get no new version; hash_profile strict_v2 "
            "gives them a new hash",
            dataset=load.dataset.name,
            columns=columns,
            records=max(counts.values()),
        )


def refuse_faults(
    load: Load, sums: PlanSums, moved_keys: Callable[[], list[str]], *, skip_base: bool
) -> None:
    """Raise Refused for the first fault of a planned load, with up to ten keys.

    `sums` has the counts of all parts. `moved_keys` returns business keys of records that appear in the base
    while other records with these keys vanish.
    """
    if not skip_base:
        _refuse_stage(load, sums)
        _refuse_base(load, sums, moved_keys)
    _refuse_history(load, sums)


def _refuse_stage(load: Load, sums: PlanSums) -> None:
    keys = {each.name for each in business_keys(load.dataset)}
    names = [each.name for each in user_columns(load.dataset)]
    for name in (*LOAD_COLUMNS, *names):
        code = "NULL_KEY" if name in keys else "NULL_VALUE"
        _refuse(code, f"{name} is NULL in {{rows}} of the stage.", sums, scd2.NULL + name)
    for name in names:
        _refuse("VALUE_TOO_LONG", f"{name} is too long in {{rows}} of the stage.", sums, scd2.LONG + name)
    _refuse("DUPLICATE_KEY", "Rows of the stage share a business key.", sums, scd2.STAGE_TWICE)


def _refuse_base(load: Load, sums: PlanSums, moved_keys: Callable[[], list[str]]) -> None:
    dataset = load.dataset
    _refuse("DUPLICATE_KEY", f"Rows of the base share {dataset.key}.", sums, scd2.BASE_TWICE)
    match = scd2.counted_match(scd2.BASE, sums.counts)
    if match.appeared and (match.vanished or match.kept) and (keys := moved_keys()):
        raise rejection("KEYS_CHANGED", KEYS_CHANGED, keys)
    whole = load.deletes_base and not load.delete_scope
    lost = whole and match.stored and not match.delivered
    if lost and not dataset.historization.allow_empty_snapshot:
        raise rejection("EMPTY_SNAPSHOT", f"The stage of {dataset.name} is empty.")


def _refuse_history(load: Load, sums: PlanSums) -> None:
    """Run the checks P1 to P4, P6 and P7 on the history, with the counts of a plan. Raises Refused."""
    dataset = load.dataset
    _refuse("NULL_KEY", f"{{rows}} of the base have no {dataset.key}.", sums, scd2.NO_KEY)
    _refuse("NULL_ROW_HASH", "{rows} of the base have no row_hash.", sums, scd2.NO_HASH)
    _refuse("DUPLICATE_KEY", f"Rows of the base share {dataset.key}.", sums, scd2.LIVE_TWICE)
    _refuse("MULTIPLE_OPEN", "Keys have more than one open version.", sums, scd2.OPEN_TWICE)
    _refuse("spoilt-table", NO_BEGINNING, sums, scd2.NEVER_BEGAN)
    match = scd2.counted_match(scd2.OPEN, sums.counts)
    keys = scd2.sampled_keys(sums, scd2.DELETED)
    refuse_losses(load, delivered=match.delivered, open_=match.stored, deleted=match.vanished, keys=keys)
    if dating := dataset.historization.effective_dating:
        message = f"Changed rows have an earlier {dating.column} than before."
        _refuse("LATE_EFFECTIVE", message, sums, scd2.EARLIER_DATE)


def refuse_late(sums: PlanSums) -> None:
    """P5: raise Refused if a changing record has a version at or after the load's instant."""
    for fault in (scd2.ENDS_EARLY, scd2.BEGINS_EARLY):
        _refuse("NON_MONOTONIC_TIMESTAMP", LATE, sums, fault)


def _refuse(code: str, message: str, sums: PlanSums, fault: str) -> None:
    if count := sums.counts.get(fault, 0):
        rows = f"{count} row{'' if count == 1 else 's'}"
        raise rejection(code, message.replace("{rows}", rows), scd2.sampled_keys(sums, fault))
