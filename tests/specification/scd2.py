"""Historization in plain Python: one load of a base into its history (section 9.2).

The code is slow, but easy to verify. The tests compare every other way to load with this code.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from backstory.model.change import exceeds
from backstory.strategies.scd2.transitions import TRANSITIONS, WORDS, Now, Past, State, Tally


def past_of(*, is_open: bool, interrupted: bool, seen: bool) -> Past:
    """The past of a record, given whether it has an open version, one closed by this load, or any."""
    holds = {Past.OPEN: is_open, Past.INTERRUPTED: interrupted, Past.CLOSED: seen, Past.NOTHING: True}
    return next(past for past in Past if holds[past])


def now_of(past: Past, *, there: bool, same: bool, in_scope: bool) -> Now:
    """The state of a record, given whether the base has it, its hash is the same, and deletes cover it."""
    if past is not Past.OPEN:
        return Now.PRESENT if there else Now.ABSENT
    if there:
        return Now.SAME if same else Now.OTHER
    return Now.ABSENT if in_scope else Now.SPARED


class LoadRejected(Exception):
    """A refused load, with a code from section 3.6 and the keys."""

    def __init__(self, code: str, keys: Sequence[Any] = ()) -> None:
        super().__init__(code, list(keys))
        self.code = code
        self.keys = list(keys)


@dataclass(frozen=True)
class BaseRow:
    """A row of the base: its key, the hash of its attributes, and the attributes."""

    key: Any
    row_hash: str | None
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Version:
    """A row of the history. An open version has no end. Times may have any type that can be ordered."""

    hist_key: Any
    key: Any
    row_hash: str | None
    values: Mapping[str, Any]
    started: Any
    ended: Any
    state: str
    run: str
    loaded_at: Any


@dataclass(frozen=True)
class Rules:
    """The options of a load: the open versions that a deletion may close (`scope`), and the guards.

    `archived` has the keys of pruned versions. `words` has the states as they are stored. Rows that are
    flagged as deleted must not be in the base.
    """

    scope: Callable[[Version], bool | None] = lambda _: True
    allow_empty: bool = False
    max_delete_ratio: float | None = None
    collapse_identical: bool = False
    archived: Collection[Any] = ()
    words: Mapping[State, str] = field(default_factory=lambda: WORDS)


def historize(
    history: Sequence[Version],
    base: Sequence[BaseRow],
    started: Any,
    run: str,
    hist_key: Callable[[Any, Any], Any],
    rules: Rules = Rules(),
) -> tuple[list[Version], Tally]:
    """The history after the load at the instant `started`, and the number of records by case.

    Raises LoadRejected with one of the codes P1 to P7 (section 3.6).
    """
    rows = _rows(base, rules)
    open_ = _open_versions(history)
    if not rows and open_ and not rules.allow_empty:
        raise LoadRejected("EMPTY_SNAPSHOT")
    tally = Tally()
    known = {version.key for version in history}.union(rules.archived)
    after = {version.hist_key: version for version in history}
    deleted = []
    for key in {**rows, **open_}:
        row, version = rows.get(key), open_.get(key)
        past = past_of(
            is_open=version is not None,
            interrupted=_is_interrupted(history, key, started, rules.words),
            seen=key in known,
        )
        now = now_of(
            past,
            there=row is not None,
            same=bool(row and version and row.row_hash == version.row_hash),
            in_scope=version is not None and rules.scope(version) is True,
        )
        step = TRANSITIONS[past, now]
        tally.cases[past, now] += 1
        deleted += [key] if step.closes is State.DELETED else []
        if step.closes is not None:
            assert version is not None
            if version.started >= started:
                raise LoadRejected("NON_MONOTONIC_TIMESTAMP", [key])
            after[version.hist_key] = replace(version, ended=started, state=rules.words[step.closes], run=run)
        if step.begins is not None:
            assert row is not None
            _require_later(history, key, started)
            built, word = hist_key(key, started), rules.words[step.begins]
            after[built] = Version(built, key, row.row_hash, row.values, started, None, word, run, started)
    ratio = rules.max_delete_ratio
    if ratio is not None and exceeds(len(deleted), ratio, len(open_)):
        raise LoadRejected("MASS_DELETE", deleted)
    return list(after.values()), tally


def _rows(base: Sequence[BaseRow], rules: Rules) -> dict[Any, BaseRow]:
    """The rows by key. Raises LoadRejected for NULL keys, NULL hashes and duplicate keys."""
    if any(row.key is None for row in base):
        raise LoadRejected("NULL_KEY")
    hashless = [row.key for row in base if row.row_hash is None]
    if hashless:
        raise LoadRejected("NULL_ROW_HASH", hashless)
    by_key: dict[Any, BaseRow] = {}
    for row in sorted(base, key=lambda row: repr(row.values)):
        other = by_key.setdefault(row.key, row)
        if other is not row and not (rules.collapse_identical and other.row_hash == row.row_hash):
            raise LoadRejected("DUPLICATE_KEY", [row.key])
    return by_key


def _open_versions(history: Sequence[Version]) -> dict[Any, Version]:
    by_key: dict[Any, Version] = {}
    for version in history:
        if version.ended is None:
            if version.key in by_key:
                raise LoadRejected("MULTIPLE_OPEN", [version.key])
            if version.started is None:
                raise LoadRejected("spoilt-table", [version.key])
            by_key[version.key] = version
    return by_key


def _is_interrupted(history: Sequence[Version], key: Any, started: Any, words: Mapping[State, str]) -> bool:
    """Whether an interrupted attempt of this load closed a version of the key without beginning the next."""
    changed = words[State.CHANGED]
    return any(v.key == key and v.ended == started and v.state == changed for v in history)


def _require_later(history: Sequence[Version], key: Any, started: Any) -> None:
    for version in history:
        late = version.started >= started or (version.ended is not None and version.ended > started)
        if version.key == key and late:
            raise LoadRejected("NON_MONOTONIC_TIMESTAMP", [key])
