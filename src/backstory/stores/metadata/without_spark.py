"""Whichever catalog the settings name, read without Spark where that can be."""

from backstory.settings import CATALOG, Settings
from backstory.stores.metadata.described import Opening
from backstory.stores.metadata.embedded import EmbeddedCatalog

_OF_CATALOG = f"spark.sql.catalog.{CATALOG}"


def open_without_spark(settings: Settings) -> Opening | None:
    """The catalog `backstory` of the settings; None where Spark alone knows how to read it."""
    if any(name.split(".")[:4] == _OF_CATALOG.split(".") for name in settings.spark):
        return None
    properties = settings.catalogs[CATALOG]
    if not properties:
        return EmbeddedCatalog(settings.warehouse, settings.origin)
    from backstory.stores.metadata.with_pyiceberg import open_catalog

    return open_catalog(properties, settings.location)
