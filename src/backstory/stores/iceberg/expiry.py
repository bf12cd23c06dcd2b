"""Let old snapshots expire, with the files that nothing else needs."""

from collections.abc import Mapping, Sequence
from typing import Any

from backstory.model.change import NOTHING
from backstory.stores.iceberg.data_files import delete_files
from backstory.stores.iceberg.erasures import Expired
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.history_script import expired_files
from backstory.stores.iceberg.places import bare
from backstory.stores.iceberg.store import StoredTable


def expire(
    jvm: Any,
    table: StoredTable,
    before_ms: int,
    tags: Sequence[str] = (),
    renewed: Mapping[str, int] = NOTHING,
) -> Expired:
    """Expire the snapshots that are older, and drop these tags before.

    What a branch or tag names stays, if the tag is not too old; those that are `renewed` may be so many
    milliseconds old.
    Raises TryAgain if another writer came first.
    """
    iceberg, known = table.iceberg, _ids(table.iceberg)
    with translate_faults(table.shape.table):
        if tags or renewed:
            managing = iceberg.manageSnapshots()
            for tag in tags:
                managing.removeTag(tag)
            for tag, milliseconds in renewed.items():
                managing.setMaxRefAgeMs(tag, milliseconds)
            managing.commit()
        expiring = iceberg.expireSnapshots().expireOlderThan(before_ms).retainLast(1).cleanExpiredFiles(True)
        left = delete_files(iceberg, expired_files(jvm, expiring))
        iceberg.refresh()
    return Expired(len(known - _ids(iceberg)), sorted(map(bare, left)))


def _ids(iceberg: Any) -> set[int]:
    return {int(each.snapshotId()) for each in iceberg.snapshots()}
