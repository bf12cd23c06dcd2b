"""Two histories side by side, as queries of any dialect (section 7.4)."""

from typing import Literal

from backstory.errors import UsageError
from backstory.model.instant import instant_of, iso
from backstory.model.layout import VALID_FROM, VALID_TO
from backstory.reading.statements.point_in_time import valid
from backstory.reading.statements.stored_history import Query, Shown, StoredHistory, Time, columns_of, select


def join_as_of(
    child: StoredHistory, parent: StoredHistory, fk: str, time: Time, how: Literal["left", "inner"] = "left"
) -> Query:
    """The child's versions valid at a time, each beside its parent's, whose columns are `parent_<name>`."""
    _require_foreign_key(child, fk)
    side = f"(SELECT * FROM {parent.table} AS p WHERE {valid(parent, 'p', time)})"
    return select(
        child.dialect,
        [*columns_of(child, "c", child.names), *columns_of(parent, "p", parent.names, "parent_")],
        f"FROM {child.table} AS c\n{how.upper()} JOIN {side} AS p ON {parent.of('p', parent.key)} = "
        f"{child.of('c', fk)}\nWHERE {valid(child, 'c', time)}",
    )


def join_valid(child: StoredHistory, parent: StoredHistory, fk: str, since: Time | None = None) -> Query:
    """Each pair of a child's version and its parent's, and when both were valid: `valid_from`, `valid_to`.

    `since` leaves out what ended by then. Where one of the two was pruned it must be given, and lie
    no earlier than the watermark.
    """
    _require_foreign_key(child, fk)
    for history in (child, parent):
        if since is not None:
            history.model.whole_at(instant_of(since))
        elif history.watermark:
            raise UsageError(
                "since-needed",
                f"{history.model.name} was pruned, so its past is incomplete.",
                f"Give since, {iso(history.watermark)} or later.",
            )
    starts = [history.started(alias) for history, alias in ((child, "c"), (parent, "p"))]
    ends = [history.ended(alias) for history, alias in ((child, "c"), (parent, "p"))]
    begin = f"CASE WHEN {starts[0]} < {starts[1]} THEN {starts[1]} ELSE {starts[0]} END"
    end = f"CASE WHEN {ends[0]} IS NULL OR {ends[1]} < {ends[0]} THEN {ends[1]} ELSE {ends[0]} END"
    meet = [
        f"({ends[0]} IS NULL OR {starts[1]} < {ends[0]})",
        f"({ends[1]} IS NULL OR {starts[0]} < {ends[1]})",
    ]
    if since is not None:
        literal = child.instant(since)
        meet += [f"({each} IS NULL OR {each} > {literal})" for each in ends]
    return select(
        child.dialect,
        [
            *columns_of(child, "c", child.names),
            *columns_of(parent, "p", parent.names, "parent_"),
            Shown(VALID_FROM, begin),
            Shown(VALID_TO, end),
        ],
        f"FROM {child.table} AS c\nJOIN {parent.table} AS p ON {parent.of('p', parent.key)} = "
        f"{child.of('c', fk)}\nWHERE {' AND '.join(meet)}",
    )


def _require_foreign_key(child: StoredHistory, fk: str) -> None:
    known = [name for name in child.names if name in child.model.references]
    if fk not in known:
        raise UsageError(
            "unknown-reference",
            f"{child.model.name} has no foreign key {fk!r}.",
            f"It has {', '.join(known) or 'none'}.",
        )
