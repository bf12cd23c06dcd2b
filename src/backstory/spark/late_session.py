"""A session whose Spark starts on first use. Plans on the driver need only the session's Java."""

from collections.abc import Callable
from contextlib import suppress
from threading import Lock, RLock, local
from typing import TYPE_CHECKING, Any, cast

from backstory.settings import Settings
from backstory.spark.java_errors import Py4JError
from backstory.spark.process import is_forked
from backstory.spark.versions import sessions_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# By thread: the session that was last active in its Java.
_seen = local()


def activate(spark: "SparkSession") -> "SparkSession":
    """Make the session active in this thread of Java, unless another running session is active. Returns it.

    Spark reads its settings, including Iceberg's catalogs, from the active session of the thread. A Java
    thread that is older than the session has no active session.
    """
    if getattr(_seen, "session", None) is not spark:
        from backstory.spark.java_names import java_class

        sessions = java_class(spark._jvm, sessions_class())  # noqa: SLF001 - Python has no name for it
        active = sessions.getActiveSession()
        if active.isEmpty() or active.get().sparkContext().isStopped():
            sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001 - Python has no name for it
        _seen.session = spark
    return spark


class LazyContext:
    """A placeholder for pyspark's context until Spark starts. Any use of it starts Spark.

    With this placeholder, columns can be created before their frame exists, even in a process without a
    session.
    """

    def __init__(self, late: "LateSpark") -> None:
        self._late = late

    def __getattr__(self, name: str) -> Any:
        return getattr(self._late.session.sparkContext, name)

    def install(self) -> None:
        """Become the active context, unless a context runs or another placeholder is installed."""
        from pyspark import SparkContext

        if SparkContext._active_spark_context is None:  # noqa: SLF001 - pyspark has no name for it
            SparkContext._active_spark_context = self  # type: ignore[assignment]  # noqa: SLF001

    def uninstall(self) -> None:
        """Stop being the active context, to make room for a real context."""
        from pyspark import SparkContext

        if SparkContext._active_spark_context is cast("Any", self):  # noqa: SLF001
            SparkContext._active_spark_context = None  # noqa: SLF001


class LateSpark:
    """The session of an embedded warehouse. Java and Iceberg start at once, and Spark starts on first use.

    `properties` are the session's. `catalogs` are Iceberg's catalog objects by name that were made without
    the session. Raises the errors of `start_java`.
    """

    def __init__(self, settings: Settings, *, verbose: bool = False) -> None:
        from backstory.spark.session import session_properties, start_java

        self._settings = settings
        self._verbose = verbose
        self._lock = RLock()
        self._catalogs_lock = Lock()  # a catalog must not wait for Spark
        self.properties = session_properties(settings)
        self.jvm = start_java(settings, self.properties, verbose=verbose, brief=True)
        self.catalogs: dict[str, Any] = {}
        self.started: SparkSession | None = None
        self._lazy_context = LazyContext(self)
        self._lazy_context.install()

    @property
    def session(self) -> "SparkSession":
        """The session, started if necessary. Raises the errors of `start_session`."""
        from backstory.spark.session import start_session

        with self._lock:
            if self.started is None:
                self._lazy_context.uninstall()
                try:
                    self.started = start_session(self._settings, verbose=self._verbose)
                finally:
                    self._lazy_context.install()  # if it did not start
        return activate(self.started)

    def catalog(self, name: str, make: Callable[[], Any]) -> Any:
        """Iceberg's object for a catalog. It is made once and shared by all threads."""
        with self._catalogs_lock:
            if name not in self.catalogs:
                self.catalogs[name] = make()
            return self.catalogs[name]

    def stop(self) -> None:
        """Stop the session if it was started. Java ends with this process.

        In a forked process, do nothing.
        """
        if is_forked(self.jvm):
            return
        with self._lock:
            for catalog in self.catalogs.values():
                with suppress(Py4JError, OSError):  # a crashed Java has closed them
                    catalog.close()
            self.catalogs.clear()
            self._lazy_context.uninstall()
            if self.started is not None:
                self.started.stop()
