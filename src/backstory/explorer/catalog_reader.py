"""The warehouse that the explorer shows. Its tables are read without Spark."""

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
from backstory.reading.pages import ChangeTimes, change_times
from backstory.settings import Settings
from backstory.stores.metadata.catalogs import open_without_spark
from backstory.stores.metadata.table_metadata import Catalog, TableMetadata
from backstory.stores.metadata.table_rows import TableReader
from backstory.stores.port import no_table, require_columns

# The maximum number of tables whose times of change are cached, and of times for each.
CACHED_TABLES: Final = 16
CACHED_TIMES: Final = 200_000
_CREDENTIALS: Final = re.compile(r"(?<=://)[^/\s@]+@")
_PATH: Final = re.compile(r"(?:[a-z0-9]+:)?/{1,3}(?:[^\s'\"`:,()]+/)+")


@dataclass(slots=True)
class CatalogReader:
    """The catalog of a warehouse, the memory limit for answers, and cached times of change by table."""

    catalog: Callable[[], Catalog]
    memory: Memory
    _times: "OrderedDict[str, ChangeTimes]" = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)

    @contextmanager
    def files(self, table: str) -> Iterator[TableReader]:
        """A reader of a table. Raises UsageError if the table does not exist."""
        catalog = self.catalog()
        with self.memory.lease() as lease:
            yield TableReader(require_columns(find_table(catalog, table)), catalog, lease)

    def times(self, files: TableReader) -> ChangeTimes:
        """The times at which the table changed, cached for each of its states.

        Raises the errors of reading.
        """
        with self._lock:
            cached = self._times.get(files.table.location)
        if cached is not None:
            return cached
        times = change_times(files)
        if len(times.instants) <= CACHED_TIMES:
            with self._lock:
                self._times[files.table.location] = times
                while len(self._times) > CACHED_TABLES:
                    self._times.popitem(last=False)
        return times


def table_reader(settings: Settings) -> CatalogReader:
    """A reader of the warehouse in the settings. Raises UsageError if only Spark can read its catalog."""

    def catalog() -> Catalog:
        opened = open_without_spark(settings)
        if opened is None:
            raise UsageError(
                "spark-only",
                "Only Spark can read this catalog, and the command does not use Spark.",
                "Use `Warehouse.explore()` in Python, in a session that has the catalog.",
            )
        return opened

    catalog()
    return CatalogReader(catalog, Memory(settings.driver_memory))


def find_table(catalog: Catalog, table: str) -> TableMetadata:
    """The table with this name. Raises UsageError if it does not exist."""
    described = next(filter(None, map(catalog.describe, possible_names(table))), None)
    if described is None:
        raise no_table(next(possible_names(table)), catalog.tables(), "the warehouse")
    return described


def without_paths(text: str) -> str:
    """The message without the folders of this machine and without the credentials in addresses."""
    return _PATH.sub("", _CREDENTIALS.sub("", text))
