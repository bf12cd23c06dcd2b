"""The store of an embedded warehouse: Java with Iceberg in it, Spark once it is asked for."""

from backstory.formats.memory import Memory
from backstory.settings import CATALOG, Settings
from backstory.spark.late import LateSpark
from backstory.stores.iceberg.store import Store
from backstory.stores.whereabouts import remember_if_writable


def open_store(settings: Settings, catalog: str = CATALOG, *, verbose: bool = False) -> Store:
    """A catalog of the settings; raises what `LateSpark` raises. An embedded one remembers its folder."""
    session = LateSpark(settings, verbose=verbose)
    memory = Memory(settings.driver_memory)
    store = Store(session, catalog, settings.format_version, memory, settings.origin)
    remember_if_writable(store.home)
    return store
