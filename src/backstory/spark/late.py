"""Spark, started when something needs more of it than its Java: what the driver can hold does not."""

from contextlib import suppress
from threading import RLock
from typing import TYPE_CHECKING, Any, cast

from backstory.settings import Settings
from backstory.spark.forks import of_another_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Asleep:
    """In the place of pyspark's context until there is one: whoever asks it for anything starts Spark.

    So columns may be named before the frame that they are of, in a process that began without a session too.
    """

    def __init__(self, late: "LateSpark") -> None:
        self._late = late

    def __getattr__(self, name: str) -> Any:
        return getattr(self._late.session.sparkContext, name)

    def take_place(self) -> None:
        """Be what columns are named with, unless a context runs or another waits for one."""
        from pyspark import SparkContext

        if SparkContext._active_spark_context is None:  # noqa: SLF001 - pyspark has no name for it
            SparkContext._active_spark_context = self  # type: ignore[assignment]  # noqa: SLF001

    def give_place(self) -> None:
        """Leave the place to a context."""
        from pyspark import SparkContext

        if SparkContext._active_spark_context is cast("Any", self):  # noqa: SLF001
            SparkContext._active_spark_context = None  # noqa: SLF001


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
        self.jvm = start_java(settings, self.properties, verbose=verbose, brief=True)
        self.catalogs: dict[str, Any] = {}
        self.started: SparkSession | None = None
        self._asleep = Asleep(self)
        self._asleep.take_place()

    @property
    def session(self) -> "SparkSession":
        """The session, which is started if it was not; raises what `start` raises."""
        from backstory.spark.session import start

        with self._lock:
            if self.started is None:
                self._asleep.give_place()
                try:
                    self.started = start(self._settings, verbose=self._verbose)
                finally:
                    self._asleep.take_place()  # where it did not start
            return self.started

    def stop(self) -> None:
        """End the session, if it was started; Java ends with this process. Nothing ends in a forked one."""
        from py4j.protocol import Py4JError

        if of_another_process(self.jvm):
            return
        with self._lock:
            for each in self.catalogs.values():
                with suppress(Py4JError, OSError):  # a Java that died has closed them
                    each.close()
            self.catalogs.clear()
            self._asleep.give_place()
            if self.started is not None:
                self.started.stop()
