"""Historization in plain Python: one load of a base into its history (historization.md, section 9.2).

Slow and obvious: every other way to load is held to it.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from backstory.model.guards import exceeds

NEW, CHANGED, DELETED = "new", "changed", "deleted"


class Rejected(Exception):
    """The load would not be right: a code of section 3.6, and the keys."""

    def __init__(self, code: str, keys: Sequence[Any] = ()) -> None:
        super().__init__(code, list(keys))
        self.code = code
        self.keys = list(keys)


@dataclass(frozen=True)
class Row:
    """A row of the base: its key, the hash of its attributes, and these."""

    key: Any
    row_hash: str | None
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Version:
    """A row of the history; an open one has no end. Times are of any ordered kind."""

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
    """The options of a load: which open versions a deletion may close, and the guards.

    `archived` are the keys of versions that were pruned out of the history.
    """

    scope: Callable[[Version], bool | None] = lambda _: True
    allow_empty: bool = False
    max_delete_ratio: float | None = None
    collapse_identical: bool = False
    archived: Collection[Any] = ()


def historize(
    history: Sequence[Version],
    base: Sequence[Row],
    started: Any,
    run: str,
    hist_key: Callable[[Any, Any], Any],
    rules: Rules = Rules(),
) -> tuple[list[Version], Counter[str]]:
    """The history after the load at the instant `started`, and the counts of the four steps.

    `reappeared` counts those of the versions inserted as new whose record was there before: it has closed
    versions, whatever closed them and archived ones too, and no open one. Raises Rejected with the codes
    P1 to P7 of section 3.6.
    """
    rows = _rows(base, rules)
    open_ = _open(history)
    if not rows and open_ and not rules.allow_empty:
        raise Rejected("EMPTY_SNAPSHOT")
    counts: Counter[str] = Counter(
        closed_changed=0, closed_deleted=0, inserted_changed=0, inserted_new=0, reappeared=0
    )
    known = {version.key for version in history}.union(rules.archived)
    after = {version.hist_key: version for version in history}
    gone = []
    for key in {**rows, **open_}:
        row, version = rows.get(key), open_.get(key)
        action = _action(history, row, version, started, rules)
        if action is None:
            continue
        gone += [key] if action == DELETED else []
        if version is not None:
            if version.started >= started:
                raise Rejected("NON_MONOTONIC_TIMESTAMP", [key])
            after[version.hist_key] = replace(version, ended=started, state=action, run=run)
            counts[f"closed_{action}"] += 1
        if row is not None:
            _require_later(history, key, started)
            made = hist_key(key, started)
            after[made] = Version(made, key, row.row_hash, row.values, started, None, action, run, started)
            counts[f"inserted_{action}"] += 1
            counts["reappeared"] += action == NEW and key in known
    ratio = rules.max_delete_ratio
    if ratio is not None and exceeds(len(gone), ratio, len(open_)):
        raise Rejected("MASS_DELETE", gone)
    return list(after.values()), counts


def _action(
    history: Sequence[Version], row: Row | None, version: Version | None, started: Any, rules: Rules
) -> str | None:
    """The action table of section 9.1; None where nothing happens."""
    if row is None:
        assert version is not None
        return DELETED if rules.scope(version) is True else None
    if version is None:
        return CHANGED if _closed_now(history, row.key, started) else NEW
    return None if row.row_hash == version.row_hash else CHANGED


def _rows(base: Sequence[Row], rules: Rules) -> dict[Any, Row]:
    """The rows by key; rejected are NULL keys, NULL hashes and keys that stand there twice."""
    if any(row.key is None for row in base):
        raise Rejected("NULL_KEY")
    hashless = [row.key for row in base if row.row_hash is None]
    if hashless:
        raise Rejected("NULL_ROW_HASH", hashless)
    found: dict[Any, Row] = {}
    for row in sorted(base, key=lambda row: repr(row.values)):
        other = found.setdefault(row.key, row)
        if other is not row and not (rules.collapse_identical and other.row_hash == row.row_hash):
            raise Rejected("DUPLICATE_KEY", [row.key])
    return found


def _open(history: Sequence[Version]) -> dict[Any, Version]:
    found: dict[Any, Version] = {}
    for version in history:
        if version.ended is None:
            if version.key in found:
                raise Rejected("MULTIPLE_OPEN", [version.key])
            found[version.key] = version
    return found


def _closed_now(history: Sequence[Version], key: Any, started: Any) -> bool:
    """Whether an interrupted load closed a version of the key, and did not come to the next."""
    return any(v.key == key and v.ended == started and v.state == CHANGED for v in history)


def _require_later(history: Sequence[Version], key: Any, started: Any) -> None:
    for version in history:
        late = version.started >= started or (version.ended is not None and version.ended > started)
        if version.key == key and late:
            raise Rejected("NON_MONOTONIC_TIMESTAMP", [key])
