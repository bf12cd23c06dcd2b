"""Spark, started when something needs more of it than its Java: what the driver can hold does not."""

from contextlib import suppress
from threading import RLock
from typing import TYPE_CHECKING, Any

from backstory.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class LateSpark:
    """The session of an embedded warehouse: Java with Iceberg in it now, Spark once it is asked for.

    `properties` are those of the session; `catalogs` are Iceberg's objects for its catalogs, by name, as far
    as they were made without it. Raises what `start_java` raises.
    """

    def __init__(self, settings: Settings, *, verbose: bool = False) -> None:
        from backstory.spark.session import properties, start_java

        self._settings = settings
        self._verbose = verbose
        self._lock = RLock()
        self.properties = properties(settings)
        self.jvm = start_java(settings, self.properties, verbose=verbose)
        self.catalogs: dict[str, Any] = {}
        self.started: SparkSession | None = None

    @property
    def session(self) -> "SparkSession":
        """The session, which is started if it was not; raises what `start` raises."""
        from backstory.spark.session import start

        with self._lock:
            if self.started is None:
                self.started = start(self._settings, verbose=self._verbose)
            return self.started

    def stop(self) -> None:
        """End the session, if it was started; Java ends with this process."""
        from py4j.protocol import Py4JError

        with self._lock:
            for each in self.catalogs.values():
                with suppress(Py4JError, OSError):  # a Java that died has closed them
                    each.close()
            self.catalogs.clear()
            if self.started is not None:
                self.started.stop()
