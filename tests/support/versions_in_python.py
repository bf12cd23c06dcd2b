"""The questions of section 7, answered row by row in plain Python, and random histories for them.

A history is a list of the rule's versions. Instants are seconds of a fixed day.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from historizing import Place, aware, dataset, document, second
from hypothesis import strategies as st
from specification.scd2 import BaseRow, Rules, Version, historize

from backstory.doors.historize.hist_state import stored_history, sync_hist
from backstory.doors.historize.model import StateLabels
from backstory.model.table import Archive
from backstory.reading.history_queries import Query, StoredHistory
from backstory.strategies.scd2.transitions import State
from backstory.testing.conformance_bench import sha256

KEYS = ("x", "y", "z")
INSTANTS = [second(number / 2) for number in range(1, 18)]
MOMENTS = st.sampled_from(INSTANTS)
SINCE = [None, *map(second, (-86_400, 2, 3.5, 5, 7, 90_000))]

PARENT = dataset("k* a n:INTEGER since:TIMESTAMP day:DATE doc:JSON", "rc_p")
CHILD = dataset(
    "c* k amount:DECIMAL(6,2)",
    "rc_c",
    references=[{"id": 1, "referenced_dataset": "rc_p", "key_components": [{"from": "k", "to": "k"}]}],
)

PARENT_VALUES = st.fixed_dictionaries(
    {
        "a": st.sampled_from(["p", "q|", "", None]),
        "n": st.sampled_from([1, None]),
        "since": st.sampled_from(SINCE),
        "day": st.sampled_from([None, date(2025, 1, 1), date(2025, 1, 2), date(2025, 1, 4)]),
        "doc": st.sampled_from([None, "{}"]),
    }
)
CHILD_VALUES = st.fixed_dictionaries(
    {"k": st.sampled_from(KEYS), "amount": st.sampled_from([None, Decimal("1.50"), Decimal("-2.00")])}
)


@st.composite
def lives(draw, values=PARENT_VALUES, key="k"):
    """A history of up to seven loads of up to three records."""
    history: list[Version] = []
    for at in sorted(draw(st.sets(st.integers(1, 8), min_size=1, max_size=7))):
        rows = draw(st.dictionaries(st.sampled_from(KEYS), values, max_size=3))
        values_of = {name: {key: name, **dict(sorted(row.items()))} for name, row in rows.items()}
        base = [BaseRow(f"key {name}", sha256(repr(row)), row) for name, row in values_of.items()]
        history = loaded(history, base, at)
    return history


def loaded(history, base, at):
    """The history after one more load."""
    rules = Rules(allow_empty=True)
    return historize(history, base, second(at), f"r{at}", lambda key, start: f"{key} {start}", rules)[0]


def children():
    """A history of children with a foreign key to the parent `k`."""
    return lives(CHILD_VALUES, "c").map(lambda history: [with_foreign_key(each) for each in history])


def with_foreign_key(version: Version) -> Version:
    values = {**version.values, "rc_p_key": f"key {version.values['k']}"}
    return Version(**{**vars(version), "values": values})


# Tables


def prepare(place: Place, **historization: Any) -> dict[str, StoredHistory]:
    """Create empty history tables of parent and child, named after the base."""
    place.use(document({**PARENT, "historization": historization}, CHILD))
    histories = {}
    for each in place.model.target_datasets:
        hist = sync_hist(each, None, second(0))
        place.create("rawcore", hist.target_dataset_name, hist.target_columns)
        histories[each.name] = stored_history(place.dialect, "rawcore", hist, each.historization)
    return histories


def in_dialect(dialect, **state: Any) -> dict[str, StoredHistory]:
    """Histories without a database, to inspect their SQL."""
    from historizing import model_of

    model = model_of(document(PARENT, CHILD))
    return {
        each.name: stored_history(
            dialect, "rawcore", sync_hist(each, None, second(0)).model_copy(update=state)
        )
        for each in model.target_datasets
    }


def pruned_at(history: StoredHistory, instant: datetime) -> StoredHistory:
    """The history after the versions that had ended by then were pruned."""
    model = replace(history.model, whole_since=instant, archive=Archive(history.model.archive_name))
    return replace(history, model=model)


def fill(place: Place, history: StoredHistory, versions: Sequence[Version], table: str | None = None) -> None:
    """Make the table contain exactly these versions."""
    table = table or history.table
    place.sql(f"DELETE FROM {table}")
    rows = [stored(history, version) for version in versions]
    if rows:
        types = {each.name: place.dialect.type_of(each) for each in history.columns}
        values = ", ".join(
            f"({', '.join(f'CAST({place.literal(value)} AS {types[name]})' for name, value in row.items())})"
            for row in rows
        )
        place.sql(f"INSERT INTO {table} ({', '.join(rows[0])}) VALUES {values}")


def stored(history: StoredHistory, version: Version) -> dict[str, object]:
    """The row of a version."""
    return {
        history.model.version_key: version.hist_key,
        history.key: version.key,
        **version.values,
        "row_hash": version.row_hash,
        "version_started_at": version.started,
        "version_ended_at": version.ended,
        "version_state": version.state,
        "load_run_id": version.run,
        "loaded_at": version.loaded_at,
    }


def answer(place: Place, query: Query) -> list[dict[str, object]]:
    """The rows of a query."""
    rows = place.rows(query.sql)
    return ordered(dict(zip(query.columns, map(plain, row), strict=True)) for row in rows)


def plain(value: object) -> object:
    """A value in a form that is the same for every database."""
    if isinstance(value, datetime):
        return aware(value)
    return "{}" if value == {} else value


def ordered(rows: Iterable[Mapping[str, object]]) -> list[dict[str, object]]:
    """Rows in a fixed order."""
    return sorted((dict(row) for row in rows), key=lambda row: repr(sorted(row.items())))


# The reference


def valid(history: Sequence[Version], at: datetime) -> list[Version]:
    return [v for v in history if v.started <= at and (v.ended is None or v.ended > at)]


def gaps(history: Sequence[Version], key: str) -> list[tuple[Version, timedelta | None]]:
    """The versions of a record, and the length of its absence before each."""
    life = sorted((v for v in history if v.key == key), key=lambda v: v.started)
    pairs = zip([None, *life], life, strict=False)
    return [(v, v.started - b.ended if b and b.ended < v.started else None) for b, v in pairs]


def events(history: Sequence[Version], after: datetime, until: datetime) -> list[tuple]:
    """The events at each instant: the state just before it is compared with the state at it."""
    changes = []
    for at in sorted({t for v in history for t in (v.started, v.ended) if t and after < t <= until}):
        before = {v.key: v for v in history if v.started < at and (v.ended is None or v.ended >= at)}
        now = {v.key: v for v in valid(history, at)}
        for key in {**before, **now}:
            old, new = before.get(key), now.get(key)
            if old is not new:
                known = any(v.key == key and v.started < at for v in history)
                kind = (
                    (("reappeared" if known else "inserted") if old is None else "changed")
                    if new
                    else "deleted"
                )
                changes.append((kind, at, old, new))
    return changes


def differences(
    history: Sequence[Version], first: datetime, second_: datetime, names: Sequence[str]
) -> list[tuple]:
    """The differences between two times: (change, version, column, old value, new value)."""
    old, new = ({v.key: v for v in valid(history, at)} for at in (first, second_))
    changes = []
    for key in {**old, **new}:
        if key not in old or key not in new:
            changes.append(("added" if key in new else "removed", new.get(key) or old[key], None, None, None))
            continue
        for name in names:
            a, b = old[key].values[name], new[key].values[name]
            if a != b:
                changes.append(("changed", new[key], name, a, b))
    return changes


def together(children: Sequence[Version], parents: Sequence[Version]) -> list[tuple]:
    """The pairs that are valid together for some time: (child, parent, from, to)."""
    pairs = []
    for child in children:
        for parent in parents:
            start = max(child.started, parent.started)
            end = min((t for t in (child.ended, parent.ended) if t), default=None)
            if child.values["rc_p_key"] == parent.key and (end is None or start < end):
                pairs.append((child, parent, start, end))
    return pairs


def effective(
    history: Sequence[Version], column: str, granularity: str, known: datetime | None
) -> list[tuple]:
    """The versions by effective time, as known at a time: (version, from, to)."""
    axis = on_axis(granularity)
    seen = [v for v in history if known is None or v.started <= known]
    spans = []
    for key in {v.key for v in seen}:
        mine = sorted((v for v in seen if v.key == key), key=lambda v: v.started)
        facts = {axis(v.values[column] or v.started): v for v in mine}
        newest, starts = mine[-1], sorted(facts)
        gone = newest.state == State.DELETED and newest.ended and (known is None or newest.ended <= known)
        ends = [*starts[1:], axis(newest.ended) if gone else None]
        spans += [(facts[a], a, b) for a, b in zip(starts, ends, strict=True) if b is None or a < b]
    return spans


def on_axis(granularity: str):
    def day(value):
        return value.astimezone(UTC).date() if isinstance(value, datetime) else value

    def instant(value):
        return value if isinstance(value, datetime) else datetime.combine(value, time(), UTC)

    return day if granularity == "date" else instant


def labelled(history: Sequence[Version], labels: StateLabels) -> list[tuple[Version, str]]:
    """Each version with the label of its state."""
    pairs = []
    for version in history:
        again = version.state == State.NEW and any(
            v.key == version.key and v.started < version.started for v in history
        )
        pairs.append((version, labels.reappeared if again else getattr(labels, version.state)))
    return pairs
