"""Spark, started when something needs more of it than its Java: what the driver holds needs no more."""

from functools import cached_property
from threading import RLock
from typing import TYPE_CHECKING, Any

from backstory.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession


class LateSpark:
    """The session of an embedded warehouse: Java with Iceberg in it at once, Spark when it is asked for."""

    def __init__(self, settings: Settings, *, verbose: bool = False) -> None:
        self._settings = settings
        self._verbose = verbose
        self._lock = RLock()
        self._session: SparkSession | None = None

    @cached_property
    def properties(self) -> "Mapping[str, str]":
        """The properties that the session has, or will have."""
        from backstory.spark.session import properties

        return properties(self._settings)

    @property
    def started(self) -> "SparkSession | None":
        """The session, if something asked for it."""
        return self._session

    @property
    def jvm(self) -> Any:
        """Its Java, which is started here; raises what `start_java` raises."""
        from backstory.spark.session import start_java

        with self._lock:
            return start_java(self._settings, self.properties, verbose=self._verbose)

    @property
    def session(self) -> "SparkSession":
        """The session, which is started here; raises what `start` raises."""
        from backstory.spark.session import start

        with self._lock:
            if self._session is None:
                self._session = start(self._settings, verbose=self._verbose)
            return self._session

    def stop(self) -> None:
        """End the session, if it was started; Java ends with this process."""
        with self._lock:
            if self._session is not None:
                self._session.stop()
