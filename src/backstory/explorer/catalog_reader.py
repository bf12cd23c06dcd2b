"""The warehouse that the explorer looks at: its tables, read here without Spark."""

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from backstory.errors import UsageError
from backstory.formats.memory import Memory
from backstory.model.table import possible_names
from backstory.reading.arrow.versions import ChangeTimes, change_times
from backstory.settings import Settings
from backstory.stores.metadata.catalogs import open_without_spark
from backstory.stores.metadata.table_metadata import ReadableCatalog, TableMetadata
from backstory.stores.metadata.table_rows import TableReader
from backstory.stores.port import require_columns
from backstory.stores.refusals import no_table

# Tables whose times of change are kept, and how many times of each.
KEPT_TABLES: Final = 16
KEPT_TIMES: Final = 200_000
_CREDENTIALS: Final = re.compile(r"(?<=://)[^/\s@]+@")
_PATH: Final = re.compile(r"(?:[a-z0-9]+:)?/{1,3}(?:[^\s'\"`:,()]+/)+")


@dataclass(slots=True)
class CatalogReader:
    """The catalog of a warehouse, the memory that answers may take, and what is kept of its tables."""

    catalog: Callable[[], ReadableCatalog]
    memory: Memory
    _times: "OrderedDict[str, ChangeTimes]" = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)

    @contextmanager
    def files(self, table: str) -> Iterator[TableReader]:
        """A table, to be read; UsageError for one that is not there."""
        catalog = self.catalog()
        with self.memory.lease() as lease:
            yield TableReader(require_columns(find_table(catalog, table)), catalog, lease)

    def times(self, files: TableReader) -> ChangeTimes:
        """When the table changed, once for each state of it; raises what reading raises."""
        with self._lock:
            kept = self._times.get(files.table.location)
        if kept is not None:
            return kept
        told = change_times(files)
        if len(told.instants) <= KEPT_TIMES:
            with self._lock:
                self._times[files.table.location] = told
                while len(self._times) > KEPT_TABLES:
                    self._times.popitem(last=False)
        return told


def table_reader(settings: Settings) -> CatalogReader:
    """The warehouse of the settings; UsageError where Spark alone knows how to read its catalog."""

    def catalog() -> ReadableCatalog:
        found = open_without_spark(settings)
        if found is None:
            raise UsageError(
                "spark-only",
                "This catalog is configured for Spark alone; the command reads without Spark.",
                "Use `Warehouse.explore()` in Python, in a session that has the catalog.",
            )
        return found

    catalog()
    return CatalogReader(catalog, Memory(settings.driver_memory))


def find_table(catalog: ReadableCatalog, table: str) -> TableMetadata:
    """The table that a text names; UsageError if there is none."""
    found = next(filter(None, map(catalog.describe, possible_names(table))), None)
    if found is None:
        raise no_table(next(possible_names(table)), catalog.tables(), "the warehouse")
    return found


def without_paths(text: str) -> str:
    """The text without folders of this machine and without who signs in to a server."""
    return _PATH.sub("", _CREDENTIALS.sub("", text))
