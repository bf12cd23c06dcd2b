"""Branches of a table, for previews and for deliveries by SQL.

A branch only changes rows. Properties that its commits change are pending: each commit has all of them in its
summary, and publishing the branch sets them on the table. A delivery by SQL first publishes its branch, then
sets the properties, and then drops the branch. Until the properties are set, every reader takes them from the
commit.
"""

import json
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any, Final

from backstory.errors import Refused, UsageError
from backstory.model.table import TableName

# Properties of a snapshot: the branch that it was committed to, and the pending properties as JSON.
BRANCH: Final = "backstory.branch"
PENDING: Final = "backstory.pending-properties"
# The table's own values of the pending properties when a commit was made to the branch of a preview, as JSON.
REPLACED: Final = "backstory.replaced-properties"
MAIN: Final = "main"
# The prefix of the names of branches that deliveries by SQL create, one for each delivery.
DELIVERY: Final = "backstory_delivery_"
_CURRENT: Final = "current-snapshot-id"
_SCHEMA: Final = "current-schema-id"

Json = Mapping[str, Any]


def in_effect(metadata: Json, table: TableName, branch: str | None = None) -> Json:
    """The metadata as every reader sees it: with its pending properties, or as if `branch` were current.

    Raises UsageError if the branch does not exist, and Refused if the table no longer has all columns of the
    branch.
    """
    if branch is None:
        pending = pending_in(metadata)
        return {**metadata, "properties": _properties(metadata, pending)} if pending else metadata
    head = head_of(metadata, branch)
    if head is None:
        raise no_branch(table, branch)
    for commit in _own_commits(metadata, branch, head)[:1]:
        if not _column_ids(metadata, commit["schema-id"]) <= _column_ids(metadata, metadata[_SCHEMA]):
            raise _behind(table, branch)
    past = ancestors(metadata, head)
    log = [{"snapshot-id": one["snapshot-id"], "timestamp-ms": one["timestamp-ms"]} for one in past[::-1]]
    return {
        **metadata,
        _CURRENT: head,
        "refs": {**metadata["refs"], MAIN: {"snapshot-id": head, "type": "branch"}},
        "snapshot-log": sorted(log, key=lambda each: each["timestamp-ms"]),
        "properties": _properties(metadata, pending_in(metadata, branch)),
    }


def pending_in(metadata: Json, branch: str = MAIN) -> dict[str, str | None]:
    """The pending properties of a table or branch, from its commits. None removes a property."""
    pending: dict[str, str | None] = {}
    for commit in _published_commits(metadata):
        pending |= pending_properties(_summary(commit).get(PENDING))
    head = None if branch == MAIN else head_of(metadata, branch)
    for commit in [] if head is None else _own_commits(metadata, branch, head)[:1]:
        pending |= pending_properties(_summary(commit).get(PENDING))
    return pending


def finished_deliveries(metadata: Json) -> list[str]:
    """The branches of deliveries that are published, or cannot be published because the table has changed."""
    heads = _deliveries(metadata)
    bases = {
        (one["snapshot-id"], _summary(one).get(BRANCH)): one.get("parent-snapshot-id")
        for one in (metadata.get("snapshots") or () if heads else ())
    }
    now = metadata.get(_CURRENT)
    return [name for name, head in heads.items() if bases.get((head, name), head) != now]


def _properties(metadata: Json, pending: Mapping[str, str | None]) -> dict[str, str]:
    properties = {**(metadata.get("properties") or {}), **pending}
    return {name: value for name, value in properties.items() if value is not None}


def _deliveries(metadata: Json) -> dict[str, int]:
    """The newest snapshot of each delivery's branch."""
    refs = (metadata.get("refs") or {}).items()
    return {name: ref["snapshot-id"] for name, ref in refs if name.startswith(DELIVERY)}


def _published_commits(metadata: Json) -> list[Json]:
    """The newest commits of the published branches of deliveries, oldest first."""
    heads = _deliveries(metadata)
    past = ancestors(metadata, metadata.get(_CURRENT)) if heads else []
    if past and past[-1].get("parent-snapshot-id") is not None:
        _refuse_unclear(metadata, heads, {one["snapshot-id"] for one in past})
    return [one for one in past[::-1] if heads.get(_summary(one).get(BRANCH, "")) == one["snapshot-id"]]


def head_of(metadata: Json, branch: str) -> int | None:
    """The newest snapshot of a branch, or None if the branch does not exist."""
    ref = (metadata.get("refs") or {}).get(branch)
    return ref["snapshot-id"] if ref is not None and ref["type"] == "branch" else None


def ancestors(metadata: Json, snapshot_id: int | None) -> list[Json]:
    """A snapshot and its ancestors, newest first, ending before the first one that has expired."""
    snapshots = {one["snapshot-id"]: one for one in metadata.get("snapshots") or []}
    past = []
    while snapshot_id in snapshots:
        past.append(snapshots[snapshot_id])
        snapshot_id = past[-1].get("parent-snapshot-id")
    return past


def pending_properties(text: str | None) -> dict[str, str | None]:
    """The properties to set when a commit is published, from its `PENDING` text. None removes a property."""
    return dict(json.loads(text or "{}"))


def _refuse_unclear(metadata: Json, heads: Mapping[str, int], ours: Collection[int]) -> None:
    """Raise Refused if the commits that would show whether a delivery was published have expired."""
    for one in metadata.get("snapshots") or ():
        name, number = _summary(one).get(BRANCH, ""), one["snapshot-id"]
        if heads.get(name) == number and number not in ours and one.get("parent-snapshot-id") not in ours:
            raise Refused(
                "delivery-unclear",
                f"Commits of the table in {metadata.get('location')} have expired, and it is unclear whether "
                f"the delivery of its branch {name} was published.",
                "Nothing was written; if the table has the rows of the branch, set the properties in the "
                f"summary of its commit ({PENDING}). Then drop the branch.",
            )


def commits_of_branch(metadata: Json, table: TableName, branch: str) -> list[Json]:
    """The commits that only the branch has, newest first.

    Raises UsageError if the branch does not exist, or is the table's main branch.
    """
    if branch == MAIN:
        require_branch_name(branch)
    head = head_of(metadata, branch)
    if head is None:
        raise no_branch(table, branch)
    return _own_commits(metadata, branch, head)


def _own_commits(metadata: Json, branch: str, head: int) -> list[Json]:
    ours = {one["snapshot-id"] for one in ancestors(metadata, metadata.get(_CURRENT))}

    def is_own(one: Json) -> bool:
        return one["snapshot-id"] not in ours and _summary(one).get(BRANCH) == branch

    return list(takewhile(is_own, ancestors(metadata, head)))


def require_current(metadata: Json, table: TableName, branch: str) -> list[Json]:
    """The commits that only the branch has.

    Raises Refused if the table has changed since the branch began: its rows, its columns, or a property that
    is pending on the branch.
    """
    commits = commits_of_branch(metadata, table, branch)
    base = commits[-1].get("parent-snapshot-id") if commits else head_of(metadata, branch)
    properties = metadata.get("properties") or {}
    replaced = [pending_properties(_summary(commit).get(REPLACED)).items() for commit in commits]
    if (
        base != metadata.get(_CURRENT)
        or any(commit["schema-id"] != metadata[_SCHEMA] for commit in commits)
        or any(properties.get(name) != value for items in replaced for name, value in items)
    ):
        raise _behind(table, branch)
    return commits


def preview_notes(
    branch: str, pending: Mapping[str, str | None], properties: Mapping[str, str]
) -> dict[str, str]:
    """The summary of a commit to the branch of a preview, with the table's own properties."""
    replaced = {name: properties.get(name) for name in pending}
    return {BRANCH: branch, PENDING: json.dumps(pending), REPLACED: json.dumps(replaced)}


def _column_ids(metadata: Json, schema_id: int) -> set[int]:
    schema = next(one for one in metadata["schemas"] if one["schema-id"] == schema_id)
    return {field["id"] for field in schema["fields"]}


def _behind(table: TableName, branch: str) -> Refused:
    return Refused(
        "branch-behind",
        f"{table} has changed since its branch {branch} began.",
        f"Discard the branch with `backstory publish` and `discard=True`, and deliver to {branch} again.",
    )


def began_at(metadata: Json, table: TableName, branch: str) -> datetime:
    """A recorded time after the table's newest commit and before the branch's first commit.

    Raises the errors of `require_current`.
    """
    require_current(metadata, table, branch)
    newest = ancestors(metadata, metadata.get(_CURRENT))[0]
    # A commit's time is in whole milliseconds, and the next commit is more than a millisecond later.
    return datetime.fromtimestamp(newest["timestamp-ms"] / 1000, UTC) + timedelta(microseconds=999)


def _summary(snapshot: Json) -> Mapping[str, str]:
    return snapshot.get("summary") or {}


def require_branch_name(branch: str) -> str:
    """The name, if it is valid for the branch of a preview. Raises UsageError otherwise."""
    if not branch.isidentifier() or not branch.isascii() or branch == MAIN:
        raise UsageError(
            "bad-option",
            f"{branch!r} cannot be the name of a branch.",
            "Use letters, digits and underscores, such as preview.",
        )
    return branch


def no_branch(table: TableName, branch: str) -> UsageError:
    """The error for a branch that a table does not have."""
    return UsageError(
        "no-branch", f"{table} has no branch {branch}.", f"Begin it by a delivery with `branch={branch!r}`."
    )


def refuse_on_branch(table: TableName, branch: str, what: str) -> Refused:
    """The error for a change that can be made only to the table itself, not on a branch."""
    return Refused(
        "not-on-branch",
        f"{table} cannot be previewed on {branch}: {what}.",
        f"Deliver to {table} itself; `dry_run=True` reports the changes.",
    )
