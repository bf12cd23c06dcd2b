"""What stands in a table from the commit of an erasure until its files are deleted."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from backstory.stores.iceberg.store import StoredTable

UNFINISHED: Final = "backstory.erasing"


@dataclass(frozen=True, slots=True)
class Unfinished:
    """An erasure whose files are still to be deleted: the digest of its `record`, which is empty for none.

    `files` are those that its commit left unnamed, `kept` tells of those that are not the table's to delete.
    """

    record: str = ""
    files: Collection[str] = ()
    kept: Collection[str] = ()

    def text(self) -> str:
        """The text of the property."""
        return json.dumps({"record": self.record, "files": sorted(self.files), "kept": list(self.kept)})


def unfinished(table: StoredTable) -> Unfinished:
    """The erasure of a table that was interrupted."""
    told = json.loads(table.properties.get(UNFINISHED) or "{}")
    return Unfinished(**{name: told[name] for name in ("record", "files", "kept") if name in told})
