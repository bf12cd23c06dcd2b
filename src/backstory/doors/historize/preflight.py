"""What refuses a load before it writes, as queries for any dialect (section 3.6).

Each query gives the keys that offend, at most ten: business keys where the row is in the base or in
the history.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from backstory.doors.historize.columns import business_keys, user_columns
from backstory.doors.historize.load import Load
from backstory.doors.historize.model import ColumnRole, Historization, ModelColumn
from backstory.doors.historize.sync import FIXED
from backstory.errors import MAX_KEYS, Refused
from backstory.model.guards import exceeds
from backstory.model.keys import key_text
from backstory.stores.sql.columns import Datatype
from backstory.stores.sql.engines.engine import Engine
from backstory.stores.sql.placeholders import LOAD_TIMESTAMP
from backstory.strategies.scd2.statements.cases import closing

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
NO_BEGINNING = f"The history has open versions without {ColumnRole.STARTED}: another program wrote to it."


class Check(NamedTuple):
    """A query of offending keys, the code of what it finds, and the sentence to tell."""

    code: str
    sql: str
    told: str


def rejection(code: str, told: str, keys: Sequence[object] = ()) -> Refused:
    """The error of a check that found something."""
    return Refused(code, told, REMEDIES[code], keys)


def stage_checks(load: Load) -> Iterator[Check]:
    """Checks of the stage's rows before they come into the base."""
    keys = business_keys(load.dataset)
    for column in user_columns(load.dataset):
        if not column.nullable:
            code = "NULL_KEY" if column.system_role is ColumnRole.BUSINESS_KEY else "NULL_VALUE"
            where = f"{load.of('s', column.name)} IS NULL"
            yield Check(
                code, _keys(load, keys, load.staged, "s", where), f"{column.name} is NULL in the stage."
            )
        if column.max_length and column.datatype is Datatype.STRING:
            long = f"length({load.of('s', column.name)}) > {column.max_length}"
            told = f"{column.name} is longer than {column.max_length} characters in the stage."
            yield Check("VALUE_TOO_LONG", _keys(load, keys, load.staged, "s", long), told)
    told = "Rows of the stage share a business key."
    if load.dataset.historization.duplicate_keys == "reject":
        yield Check("DUPLICATE_KEY", _repeated(load, keys, load.staged_rows, "s"), told)
    else:
        twice = _repeated(load, keys, load.staged_rows, "s", load.live, having=_unlike(load, keys, "ss"))
        yield Check("DUPLICATE_KEY", twice, told)


def base_checks(load: Load) -> Iterator[Check]:
    """A check of stage and base together: a record that is there already has the key that it had."""
    keys = business_keys(load.dataset)
    same = " AND ".join(f"NOT ({load.other_text(key, 'x', 's')})" for key in keys)
    other = f"{load.of('x', load.dataset.key)} <> {load.of('s', load.dataset.key)}"
    moved = f"EXISTS (SELECT 1 FROM {load.base_table} AS x WHERE {same} AND {other})"
    yield Check("KEYS_CHANGED", _keys(load, keys, load.staged, "s", moved), KEYS_CHANGED)


def mass_delete(rules: Historization, gone: int, open_: int) -> str | None:
    """P7: what is told if more than the allowed part of the open versions would be closed as deleted."""
    ratio = rules.max_delete_ratio
    if ratio is None or not exceeds(gone, ratio, open_):
        return None
    return f"{gone} of {open_} open versions would be closed as deleted."


def hist_checks(load: Load) -> Iterator[Check]:
    """The checks P1 to P5, in their order, on base and history."""
    keys = business_keys(load.dataset)
    base, hist, key = load.base, load.hist_table, load.dataset.key
    null_key = f"{load.of('r', key)} IS NULL{load.live('r')}"
    yield Check(
        "NULL_KEY", _keys(load, keys, load.base_table, "r", null_key), f"Rows of the base have no {key}."
    )
    null_hash = f"{load.of('r', ColumnRole.ROW_HASH)} IS NULL{load.live('r')}"
    yield Check(
        "NULL_ROW_HASH",
        _keys(load, keys, load.base_table, "r", null_hash),
        "Rows of the base have no row_hash.",
    )
    if load.dataset.historization.duplicate_keys == "reject":
        yield Check(
            "DUPLICATE_KEY",
            _repeated(load, keys, base, "r", load.live),
            f"Rows of the base share {key}.",
        )
    else:
        others = (load.other_text(each, "x", "r") for each in keys)
        unlike = " OR ".join([load.pair.other_hash("x", "r"), *others])
        other = (
            f"EXISTS (SELECT 1 FROM {load.base_table} AS x WHERE {load.same_key('x', 'r')} AND "
            f"({unlike}){load.live('x')}){load.live('r')}"
        )
        yield Check(
            "DUPLICATE_KEY", _keys(load, keys, load.base_table, "r", other), f"Rows of the base share {key}."
        )
    mirrored = [column for column in load.mirrored if column.system_role is ColumnRole.BUSINESS_KEY]
    several = _repeated(load, mirrored, hist, "h", lambda alias: f" AND {load.pair.is_open(alias)}")
    yield Check("MULTIPLE_OPEN", several, "Keys have more than one open version.")
    started, ended = load.of("h", ColumnRole.STARTED), load.of("h", ColumnRole.ENDED)
    never = f"{load.pair.is_open('h')} AND {started} IS NULL"
    yield Check("spoilt-table", _keys(load, mirrored, hist, "h", never), NO_BEGINNING)
    closes = " OR ".join(f"({condition})" for condition in closing(load.pair).values())
    early = f"{load.pair.is_open('h')} AND {started} >= {LOAD_TIMESTAMP} AND ({closes})"
    told = "Versions begin or end at or after the load's timestamp."
    yield Check("NON_MONOTONIC_TIMESTAMP", _keys(load, mirrored, hist, "h", early), told)
    same = (
        f"EXISTS (SELECT 1 FROM {hist} AS o WHERE {load.same_key('o', 'r')} AND {load.pair.is_open('o')}"
        f" AND NOT ({load.pair.other_hash('o', 'r')}))"
    )
    versioned = (
        f"EXISTS (SELECT 1 FROM {base} AS r WHERE {load.same_key('r', 'h')}{load.live('r')} AND NOT {same})"
    )
    late = f"({started} >= {LOAD_TIMESTAMP} OR {ended} > {LOAD_TIMESTAMP}) AND {versioned}"
    yield Check("NON_MONOTONIC_TIMESTAMP", _keys(load, mirrored, hist, "h", late), told)
    yield from _late_effective(load, mirrored)


def require_hist_columns(load: Load, added: Sequence[ModelColumn]) -> None:
    """P8; raises Refused if a column that every version has would have to be added."""
    lacking = [column.name for column in added if column.system_role in FIXED]
    if lacking:
        raise rejection("HIST_COLUMNS", f"{load.hist_table} has no {', '.join(lacking)}.", lacking)


def require_base_key(load: Load, added: Sequence[ModelColumn]) -> None:
    """Raises Refused if a base that has rows lacks their key: no record would be found again."""
    lacking = [column.name for column in added if column.system_role is ColumnRole.SURROGATE_KEY]
    if lacking:
        raise Refused(
            "column-gone",
            f"{load.base_table} no longer has the column {', '.join(lacking)}, the key of its rows.",
            "Nothing was written; give it its former name again with ALTER TABLE, or drop the base and load "
            "it again from a complete stage.",
            lacking,
        )


def _late_effective(load: Load, keys: Sequence[ModelColumn]) -> Iterator[Check]:
    dating = load.dataset.historization.effective_dating
    if dating is None or dating.late_policy == "accept":
        return
    other = load.pair.other_hash("r", "h")
    late = (
        f"{load.pair.is_open('h')} AND EXISTS (SELECT 1 FROM {load.base} AS r"
        f" WHERE {load.same_key('r', 'h')}{load.live('r')}"
        f" AND {other} AND {load.of('r', dating.column)} < {load.of('h', dating.column)})"
    )
    yield Check(
        "LATE_EFFECTIVE",
        _keys(load, keys, load.hist_table, "h", late),
        f"Changed rows have an earlier {dating.column} than their open version.",
    )


def run_checks(engine: Engine, load: Load, checks: Iterator[Check], values: Mapping[str, str]) -> None:
    """Raises Refused for the first check that finds something."""
    names = [column.name for column in business_keys(load.dataset)]
    for check in checks:
        found = engine.query(check.sql, values)
        if found:
            keys = [key_text(names, row) for row in found[:MAX_KEYS]]
            raise rejection(check.code, check.told, keys)


def keys_query(load: Load, names: Sequence[str], source: str, alias: str, where: str) -> str:
    """A query of up to ten business keys of the rows that meet a condition."""
    listed = ", ".join(load.of(alias, name) for name in names)
    return (
        f"SELECT DISTINCT {listed} FROM {source} AS {alias} WHERE {where} ORDER BY {listed} LIMIT {MAX_KEYS}"
    )


def _unlike(load: Load, keys: Sequence[ModelColumn], alias: str) -> str:
    """Whether rows of one key are several records or states: the default profile's keys may collide."""
    texts = [load.expressions.canonical(key, load.of(alias, key.name)) for key in keys]
    nulls = [f"COUNT({text}) NOT IN (0, COUNT(*))" for text in texts]
    told = [load.of(alias, ColumnRole.ROW_HASH), *texts]
    return " OR ".join([*(f"COUNT(DISTINCT {text}) > 1" for text in told), *nulls])


def _keys(load: Load, keys: Sequence[ModelColumn], source: str, alias: str, where: str) -> str:
    return keys_query(load, [column.name for column in keys], source, alias, where)


def _repeated(
    load: Load,
    keys: Sequence[ModelColumn],
    source: str,
    alias: str,
    where: Callable[[str], str] = lambda _: "",
    having: str = "COUNT(*) > 1",
) -> str:
    """The business keys of rows whose key stands there more than once; `where` is of an alias, with AND."""
    inner, key = f"{alias}{alias}", load.dataset.key
    twice = (
        f"SELECT {load.of(inner, key)} FROM {source} AS {inner}"
        f" WHERE {load.of(inner, key)} IS NOT NULL{where(inner)}"
        f" GROUP BY {load.of(inner, key)} HAVING {having}"
    )
    return _keys(load, keys, source, alias, f"{load.of(alias, key)} IN ({twice}){where(alias)}")
