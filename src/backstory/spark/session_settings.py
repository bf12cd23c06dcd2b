"""The settings that backstory's statements need in any session: UTC, ANSI mode, exact names (E1 to E4)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import wraps
from inspect import isfunction
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeVar

from backstory.errors import UsageError
from backstory.spark.connect import refuse_java, session_id
from backstory.spark.java_errors import Py4JError
from backstory.spark.late_session import LateSpark
from backstory.spark.versions import naming_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Of = TypeVar("Of")
# In another zone naive times shift, and two instants in summer time have the same text. Without ANSI mode a
# value that does not fit is NULL, and two values have the same hash. Columns may differ only by case. Cached
# rows are collected in the heap in batches of this size, however wide they are. Compressing them takes longer
# than writing and reading them.
EXACT: Final = "spark.sql.caseSensitive"
OUR_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    EXACT: "true",
    "spark.sql.inMemoryColumnarStorage.batchSize": "1000",
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
}


@dataclass(slots=True)
class _Holders:
    """The number of holders of a session, and the settings that the session had before."""

    count: int = 0
    before: dict[str, str] = field(default_factory=dict)


_lock = Lock()
# By session id: several Python objects may be the same session.
_holders: dict[str, _Holders] = {}


@contextmanager
def hold_settings(of: "SparkSession | LateSpark") -> Iterator[None]:
    """Hold the session in UTC, in ANSI mode and with exact names during the block, then restore its settings.

    Analysis fixes the meaning of times and casts in a plan, which may run later. Our own sessions start with
    these settings.
    """
    spark = of.started if isinstance(of, LateSpark) else of
    if spark is None:
        yield
        return
    session = session_id(spark)
    _hold(spark, session)
    try:
        with naming_columns(spark), refuse_java(spark):
            yield
    finally:
        _release(spark, session)


def require_exact_names(frame: "DataFrame") -> "DataFrame":
    """Return the frame, if the session can run it with its own settings. Raises UsageError otherwise.

    A session that ignores case cannot read a table whose columns differ only by case (E4).
    """
    spark = frame.sparkSession
    session = session_id(spark)
    with _lock:
        before = _holders[session].before if session in _holders else {}
    if before.get(EXACT, str(spark.conf.get(EXACT))) == "true":
        return frame
    for names in _names(frame.schema):
        spellings: dict[str, str] = {}
        for name in names:
            other = spellings.setdefault(name.lower(), name)
            if other != name:
                raise UsageError(
                    "names-differ-by-case",
                    f"The columns {other} and {name} differ only in case, and this session ignores case.",
                    f'Set spark.conf.set("{EXACT}", "true") first.',
                    [other, name],
                )
    return frame


def _names(schema: "StructType") -> Iterator[list[str]]:
    """The names of the columns, then the names of the fields in each struct column."""
    yield schema.fieldNames()
    for column in schema.fields:
        if hasattr(column.dataType, "fieldNames"):
            yield column.dataType.fieldNames()


def _hold(spark: "SparkSession", session: str) -> None:
    with _lock:
        holders = _holders.setdefault(session, _Holders())
        if not holders.count:
            current = {name: str(spark.conf.get(name)) for name in OUR_SETTINGS}
            holders.before = {name: value for name, value in current.items() if value != OUR_SETTINGS[name]}
            for name in holders.before:
                spark.conf.set(name, OUR_SETTINGS[name])
        holders.count += 1


def _release(spark: "SparkSession", session: str) -> None:
    with _lock:
        holders = _holders[session]
        holders.count -= 1
        if not holders.count:
            del _holders[session]
            with suppress(Py4JError, OSError):  # a crashed Java has no settings
                for name, value in holders.before.items():
                    spark.conf.set(name, value)


def in_settled_session(kind: type[Of]) -> type[Of]:
    """Make the public methods of a class hold its session's settings, and check returned frames.

    The check is `require_exact_names`.
    """
    for name, method in list(vars(kind).items()):
        if isfunction(method) and not name.startswith("_"):
            setattr(kind, name, _hold_in_method(method))
    return kind


def _hold_in_method(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def with_settings(self: Any, *arguments: Any, **keywords: Any) -> Any:
        from pyspark.sql import DataFrame

        with hold_settings(self.store.session):
            result = method(self, *arguments, **keywords)
            return require_exact_names(result) if isinstance(result, DataFrame) else result

    return with_settings
