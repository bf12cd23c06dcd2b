"""Changes that a hash does not see: the default profile's known collisions (section 2.4).

Its text of a row has the values side by side, so ('a|b', 'c') is ('a', 'b|c'), and NULL is the text of the
null token. Such a record changes in the base and stays unchanged in the history, be it another one whose
business keys make the same key: that is told.
"""

from collections.abc import Mapping

import structlog

from backstory.doors.historize.columns import business_keys, hashed_columns
from backstory.doors.historize.hashing import STRICT
from backstory.doors.historize.load import Load
from backstory.doors.historize.model import ColumnRole, ModelColumn
from backstory.doors.historize.resolve import schema_of

log = structlog.get_logger()


def hashed_texts(load: Load) -> list[ModelColumn]:
    """The columns whose texts stand side by side in a key or a hash; none where hashes tell all apart."""
    if schema_of(load.model, load.dataset).hash_profile == STRICT:
        return []
    return [*business_keys(load.dataset), *hashed_columns(load.dataset)]


def differing(load: Load, left: str, right: str) -> dict[str, str]:
    """For each such column whether two rows have other texts of it."""
    return {each.name: load.other_text(each, left, right) for each in hashed_texts(load)}


def same_hash(load: Load, left: str, right: str) -> str:
    """Whether two rows have one hash."""
    return f"{load.of(left, ColumnRole.ROW_HASH)} = {load.of(right, ColumnRole.ROW_HASH)}"


def collisions(load: Load) -> str | None:
    """The query of how many records of stage and base have one hash and another text, column by column."""
    differs = differing(load, "s", "b")
    if not differs:
        return None
    counted = ", ".join(f"COUNT(CASE WHEN {each} THEN 1 END)" for each in differs.values())
    return (
        f"SELECT {counted} FROM {load.staged} AS s JOIN {load.base_table} AS b"
        f" ON {load.same_key('s', 'b')} AND {same_hash(load, 's', 'b')} WHERE {load.differs('s', 'b')}"
    )


def warn_of_collisions(load: Load, found: Mapping[str, int]) -> None:
    """Log once that records changed, and in which columns, and get no version."""
    columns = [name for name, count in found.items() if count]
    if columns:
        log.warning(
            "changed records have the same hash as before and get no new version; hash_profile strict_v2 "
            "gives them a new hash",
            dataset=load.dataset.name,
            columns=columns,
            records=max(found.values()),
        )
