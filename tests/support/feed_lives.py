"""Tables of layout `versions` after feeds and copies as text, in the form of native.md's worked examples.

`k:a10 m:-20 k:b10.2 *30`: a at 10, a delete at 20, b at 10 with the further sequence 2, a truncate at 30. Two
columns are `ann/oslo10`; `_` is unmodified, `~` NULL. A copy is `k:a m:b`. The n-th commit is recorded at n.
In a log, `k:b10#900` is a change with its own time 10 at position 900, and `k:a40#157r` is a read.
"""

import json
import re
from collections import Counter
from dataclasses import replace

import pytest
from specification.copies import Copy
from specification.feeds.copies import take_among
from specification.feeds.order import settled_position
from specification.feeds.remembering import Window
from specification.feeds.rule import Event, Feed, apply
from specification.laws import terms_of_layout, violations
from specification.rewind import rewound
from specification.stored import StoredRow, StoredVersions

from backstory.errors import Refused
from backstory.model.layout import VERSIONS_OWN, Layout
from backstory.model.versions_layout import FactKind
from backstory.upkeep.laws.terms import RecordRow

EVENT = re.compile(r"(?:(\w+):)?([-*]|\D+?)(\d+)(?:\.(\d+)|#(\d+)(r?))?")


def event(text, columns=("v",)):
    key, content, at, further, position, read = EVENT.fullmatch(text).groups()
    sequence = () if further is None else (int(further),)
    logged = position is not None
    if logged:
        sequence = (int(position), not read)
    if content in "-*":
        kind = FactKind.DELETE if content == "-" else FactKind.TRUNCATE
        return Event(key, int(at), kind, sequence=sequence, logged=logged)
    cells = dict(zip(columns, content.split("/"), strict=True))
    values = {name: None if cell == "~" else cell for name, cell in cells.items() if cell != "_"}
    return Event(key, int(at), values=values, columns=tuple(values), sequence=sequence, logged=logged)


class Life:
    """A table of one or more columns, and its content after each commit."""

    def __init__(self, *columns, settled=(), **settings):
        self.table = StoredVersions(columns or ("v",), settled=settled, **settings)
        self.states = {}

    @property
    def commits(self):
        return len(self.states)

    def feed(self, text, late="refuse", window=None, all_keys=False):
        """Apply events. Returns the counts that are not 0."""
        events = tuple(event(each, self.table.columns) for each in text.split())
        window = window and Window(*window)
        return self._take(apply(self.table, Feed(events, late == "drop", window, all_keys), self.commits + 1))

    def copy(self, at, text, scope=None, columns=None, **options):
        """Take a copy of all records, or of a scope such as `w=e`. Returns the counts that are not 0."""
        names = columns or self.table.columns
        rows = {}
        for each in text.split():
            key, _, content = each.partition(":")
            cells = zip(names, content.split("/"), strict=True)
            rows[key] = {name: None if cell == "~" else cell for name, cell in cells}
        scope = scope and (tuple(scope.split("=")),)
        return self._take(take_among(self.table, Copy(at, rows, names, **options), self.commits + 1, scope))

    def _take(self, taken):
        if taken.table is not self.table:
            self.table = taken.table
            self.states[self.commits + 1] = now(self.table)
        return {outcome: int(number) for outcome, number in taken.counts.items() if number}

    def refused(self, taking, *arguments, **options):
        """The code with which a delivery is refused. The table is unchanged."""
        before = self.table
        with pytest.raises(Refused) as refusal:
            taking(*arguments, **options)
        assert self.table is before
        return refusal.value.code

    def shown(self, key):
        """`a[10,20) b[20,)`."""
        life = sorted(self.table.life(key), key=lambda row: row.start)
        return " ".join(
            f"{'/'.join(str(row.values.get(name) or '~') for name in self.table.columns)}"
            f"[{row.start},{'' if row.end is None else row.end})"
            for row in life
        )

    def rows(self, *roles):
        """The number of stored rows with each of these roles. None is a version."""
        return tuple(sum(row.role == role for row in self.table.rows) for role in roles)


def now(table):
    """The current content of a table, in comparable form."""
    return sorted((row.key, row.start, row.end or 0, repr(row.values)) for row in table.versions)


def known(table, recorded):
    """The content of the table at a recorded time."""
    return sorted(
        (key, start, end or 0, repr(values)) for key, start, end, values in table.statements_at(recorded)
    )


def forgetful(table):
    """The table as it would be if copies in order were its only deliveries."""
    return replace(table, rows=tuple(table.versions), settled=None)


def settled_before(table, instant):
    """The table after facts up to an instant are settled (V33). Settled facts remain settled.

    In a log, the last position of each record and the truncates remain. Each record has its own instant of a
    truncate.
    """
    instant = max([instant, *table.settled[1:]])
    settled = replace(table, settled=(None, instant))
    last = {row.key: settled_position(settled, row.key) for row in table.rows}
    rows = [row for row in table.rows if row.role != "fact" or row.start > instant or _stays(row, last)]
    return replace(settled, rows=tuple(rows))


def _stays(row, last):
    if row.time is None or not row.is_live:
        return False
    return row.kind in {FactKind.TRUNCATE, FactKind.VOID} or row.sequence == last[row.key]


def rewound_to(table, recorded, now_):
    """The table as it was known at a time, computed with the rule of rewinds on its rows."""
    rows = rewound([_mapping(row) for row in table.rows], recorded, now_, ("k",))
    return replace(table, rows=tuple(_row(table, row) for row in rows))


def _mapping(row):
    fields = ("role", "ended_at", "end_before", "kind", "columns", "scope", "time")
    memory = {name: each for name in fields if (each := getattr(row, name)) is not None}
    memory |= {"sequence": row.sequence} if row.sequence else {}
    own = (row.start, row.end, row.end is None, row.recorded, memory or None)
    return {"k": row.key, **row.values, **dict(zip(VERSIONS_OWN, own, strict=True))}


def _row(table, row):
    start, end, _, recorded, memory = (row[name] for name in VERSIONS_OWN)
    values = {name: row[name] for name in table.columns} if row["k"] is not None else {}
    return StoredRow(row["k"], values, start, end, recorded, **(memory or {}))


def judged(table, newest):
    """The laws that the rows break, according to the rule of `check`. No column was ever renamed."""
    numbers = {name: number for number, name in enumerate(table.columns)}
    rows = [_record_row(place, row, numbers) for place, row in enumerate(table.rows)]
    marks = [row for row in rows if not row.keyed and row.ended_at is None]
    terms = terms_of_layout(
        Layout.VERSIONS,
        newest=newest,
        settled=table.settled or None,
        marks=tuple(marks),
        tracked=tuple(table.tracked),
        numbers=numbers,
    )
    keys = {row.key for row in table.rows}
    lives = [[each for each, row in zip(rows, table.rows, strict=True) if row.key == key] for key in keys]
    return sum((violations(life, terms) for life in lives), Counter())


def _record_row(place, row, numbers):
    return RecordRow(
        place,
        row.start,
        row.end,
        keyed=row.key is not None,
        flag=row.end is None,
        written=row.recorded,
        role=row.role,
        ended_at=row.ended_at,
        end_before=row.end_before,
        kind=row.kind,
        sequence=row.sequence,
        columns=None if row.columns is None else [numbers[name] for name in row.columns],
        scope=None if row.scope is None else json.dumps(dict(row.scope)),
        time=row.time,
        values=row.values,
    )
