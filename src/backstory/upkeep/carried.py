"""What the newest commit says of a table, for a commit that changes no answer to say after it."""

import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import Final

from backstory.engine.remarks import AUTHOR, NOTE, remark_properties
from backstory.journal.chain import PREFIX as BLOCK
from backstory.model.change import COUNTS, DOOR, TOKEN
from backstory.model.layout import Layout
from backstory.stores.iceberg.snapshots import newest
from backstory.stores.iceberg.store import StoredTable

OURS: Final = "backstory."
# Of a commit that took rows back; it counts from where it stands.
UNDONE: Final = "backstory.undone"
_OF_ONE_COMMIT: Final = (UNDONE, NOTE, AUTHOR)


def carried(table: StoredTable, counts: Mapping[str, int]) -> dict[str, str]:
    """The properties of the commit: what makes a delivery known again stays where it is looked for.

    A block of a chain is not told twice.
    """
    snapshot, layout = newest(table), table.shape.layout
    told = {} if snapshot is None or layout is Layout.ODF else dict(snapshot.summary)
    kept = {
        name: str(value)
        for name, value in told.items()
        if name.startswith(OURS) and not name.startswith(BLOCK) and name not in _OF_ONE_COMMIT
    }
    return {
        TOKEN: "",
        **kept,
        **remark_properties(),
        DOOR: layout.door,
        COUNTS: json.dumps(dict(counts)),
        "backstory.version": version("backstory"),
    }
