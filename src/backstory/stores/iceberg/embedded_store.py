"""The store of an embedded warehouse: Java with Iceberg in it, Spark once it is asked for."""

from backstory.errors import UsageError
from backstory.formats.memory import Memory
from backstory.settings import CATALOG, Settings
from backstory.spark.late import LateSpark
from backstory.stores.iceberg.store import Store
from backstory.stores.whereabouts import remember_if_writable


def open_store(settings: Settings, catalog: str = CATALOG, *, verbose: bool = False) -> Store:
    """A catalog of the settings; an embedded one remembers its folder.

    Raises UsageError for a catalog that the settings lack, before Java starts, and what `LateSpark` raises.
    """
    if catalog != CATALOG:
        _require_configured(settings, catalog)
    session = LateSpark(settings, verbose=verbose)
    memory = Memory(settings.driver_memory)
    store = Store(session, catalog, settings.format_version, memory, settings.origin)
    remember_if_writable(store.home)
    return store


def _require_configured(settings: Settings, catalog: str) -> None:
    from backstory.spark.session import properties

    setting = f"spark.sql.catalog.{catalog}"
    if setting not in properties(settings):
        raise UsageError(
            "no-iceberg-catalog",
            f"The configuration has no catalog {catalog}.",
            f"Use {CATALOG}, or configure `{setting}` below [spark] in backstory.toml.",
        )
