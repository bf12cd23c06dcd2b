"""Spark, started when something needs more of it than its Java: what the driver can hold does not."""

from collections.abc import Callable
from contextlib import suppress
from threading import Lock, RLock, local
from typing import TYPE_CHECKING, Any, cast

from backstory.settings import Settings
from backstory.spark.process import is_forked
from backstory.spark.versions import sessions_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# By thread: the session that was last seen active in its Java.
_seen = local()


def activate(spark: "SparkSession") -> "SparkSession":
    """The session, which Java takes for this thread's from now on, unless that has one that runs.

    Spark asks the thread for its settings, some of which are Iceberg's catalogs. A thread of Java that is
    older than the session, or was not begun by one of its own, has none.
    """
    if getattr(_seen, "session", None) is not spark:
        from backstory.spark.java_names import java_class

        sessions = java_class(spark._jvm, sessions_class())  # noqa: SLF001 - Python has no name for it
        now = sessions.getActiveSession()
        if now.isEmpty() or now.get().sparkContext().isStopped():
            sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001 - Python has no name for it
        _seen.session = spark
    return spark


class LazyContext:
    """In the place of pyspark's context until there is one: whoever asks it for anything starts Spark.

    So columns may be named before the frame that they are of, in a process that began without a session too.
    """

    def __init__(self, late: "LateSpark") -> None:
        self._late = late

    def __getattr__(self, name: str) -> Any:
        return getattr(self._late.session.sparkContext, name)

    def install(self) -> None:
        """Be what columns are named with, unless a context runs or another waits for one."""
        from pyspark import SparkContext

        if SparkContext._active_spark_context is None:  # noqa: SLF001 - pyspark has no name for it
            SparkContext._active_spark_context = self  # type: ignore[assignment]  # noqa: SLF001

    def uninstall(self) -> None:
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
        from backstory.spark.session import session_properties, start_java

        self._settings = settings
        self._verbose = verbose
        self._lock = RLock()
        self._catalogs_lock = Lock()  # a catalog is not to wait for Spark
        self.properties = session_properties(settings)
        self.jvm = start_java(settings, self.properties, verbose=verbose, brief=True)
        self.catalogs: dict[str, Any] = {}
        self.started: SparkSession | None = None
        self._lazy_context = LazyContext(self)
        self._lazy_context.install()

    @property
    def session(self) -> "SparkSession":
        """The session, which is started if it was not; raises what `start` raises."""
        from backstory.spark.session import start_session

        with self._lock:
            if self.started is None:
                self._lazy_context.uninstall()
                try:
                    self.started = start_session(self._settings, verbose=self._verbose)
                finally:
                    self._lazy_context.install()  # where it did not start
        return activate(self.started)

    def catalog(self, name: str, make: Callable[[], Any]) -> Any:
        """Iceberg's object for a catalog, made once, whatever threads ask for it."""
        with self._catalogs_lock:
            if name not in self.catalogs:
                self.catalogs[name] = make()
            return self.catalogs[name]

    def stop(self) -> None:
        """End the session, if it was started; Java ends with this process. Nothing ends in a forked one."""
        from py4j.protocol import Py4JError

        if is_forked(self.jvm):
            return
        with self._lock:
            for each in self.catalogs.values():
                with suppress(Py4JError, OSError):  # a Java that died has closed them
                    each.close()
            self.catalogs.clear()
            self._lazy_context.uninstall()
            if self.started is not None:
                self.started.stop()
