"""What erasures leave in a table: a mark until they are finished, and the files that they may not delete."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from backstory.stores.iceberg.store import StoredTable

UNFINISHED: Final = "backstory.erasing"
LEFT: Final = "backstory.left"


@dataclass(frozen=True, slots=True)
class Unfinished:
    """An erasure whose files are still to be deleted: the digest of its `record`, which is empty for none.

    `files` are those that its commit left unnamed, `kept` those that are not the table's to delete: their
    locations, or what stands for one that may be named after a key.
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


def left_outside(table: StoredTable) -> list[str]:
    """The files with records of former erasures that no metadata names any more, as `kept` above."""
    return list(json.loads(table.properties.get(LEFT) or "[]"))


def is_location(name: str) -> bool:
    """Whether it is the location of such a file, and does not stand for one."""
    return "/" in name
