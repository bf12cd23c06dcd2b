"""A session as our own statements need it, whatever it is set to: UTC, ANSI mode, exact names (E1 to E4)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import wraps
from inspect import isfunction
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeVar

from backstory.errors import UsageError
from backstory.spark.late_session import LateSpark
from backstory.spark.versions import naming_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Of = TypeVar("Of")
# In another zone naive times move, and in summer time two instants have one text. Without ANSI mode what
# does not fit is NULL, and two values have one hash. Columns may differ by nothing but the case of letters.
# Rows that are kept gather in the heap, so many at a time, however wide they are.
EXACT: Final = "spark.sql.caseSensitive"
OUR_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    EXACT: "true",
    "spark.sql.inMemoryColumnarStorage.batchSize": "1000",
}


@dataclass(slots=True)
class _Holders:
    """How many hold a session now, and what it was set to before them."""

    count: int = 0
    before: dict[str, str] = field(default_factory=dict)


_lock = Lock()
# By the session itself: several of Python's objects may be one session.
_holders: dict[str, _Holders] = {}


@contextmanager
def hold_settings(of: "SparkSession | LateSpark") -> Iterator[None]:
    """While it lasts the session is in UTC and ANSI mode, and names are exact; then it is as it was set.

    What a plan says of times and casts is settled when it is analysed: it may run later. A session of ours
    starts so.
    """
    spark = of.started if isinstance(of, LateSpark) else of
    if spark is None:
        yield
        return
    session = str(spark._jsparkSession.sessionUUID())  # noqa: SLF001 - Python has no name for it
    _hold(spark, session)
    try:
        with naming_columns(spark):
            yield
    finally:
        _release(spark, session)


def require_exact_names(frame: "DataFrame") -> "DataFrame":
    """The frame, which its caller will run in the session as that is set; UsageError where Spark cannot.

    A session that takes names for one that differ by the case of letters reads no table that has both (E4).
    """
    spark = frame.sparkSession
    session = str(spark._jsparkSession.sessionUUID())  # noqa: SLF001 - Python has no name for it
    with _lock:
        before = _holders[session].before if session in _holders else {}
    if before.get(EXACT, str(spark.conf.get(EXACT))) == "true":
        return frame
    for names in _names(frame.schema):
        found: dict[str, str] = {}
        for name in names:
            other = found.setdefault(name.lower(), name)
            if other != name:
                raise UsageError(
                    "names-differ-by-case",
                    f"The columns {other} and {name} differ only in case, and this session ignores case.",
                    f'Set spark.conf.set("{EXACT}", "true") first.',
                    [other, name],
                )
    return frame


def _names(schema: "StructType") -> Iterator[list[str]]:
    """The names of the columns, and of the parts of each that is a struct."""
    yield schema.fieldNames()
    for column in schema.fields:
        if hasattr(column.dataType, "fieldNames"):
            yield column.dataType.fieldNames()


def _hold(spark: "SparkSession", session: str) -> None:
    with _lock:
        held = _holders.setdefault(session, _Holders())
        if not held.count:
            set_to = {name: str(spark.conf.get(name)) for name in OUR_SETTINGS}
            held.before = {name: value for name, value in set_to.items() if value != OUR_SETTINGS[name]}
            for name in held.before:
                spark.conf.set(name, OUR_SETTINGS[name])
        held.count += 1


def _release(spark: "SparkSession", session: str) -> None:
    from py4j.protocol import Py4JError

    with _lock:
        held = _holders[session]
        held.count -= 1
        if not held.count:
            del _holders[session]
            with suppress(Py4JError, OSError):  # a Java that died has no settings
                for name, value in held.before.items():
                    spark.conf.set(name, value)


def in_settled_session(kind: type[Of]) -> type[Of]:
    """The class, whose public methods hold its session while they work (see `require_exact_names`)."""
    for name, method in list(vars(kind).items()):
        if isfunction(method) and not name.startswith("_"):
            setattr(kind, name, _hold_in_method(method))
    return kind


def _hold_in_method(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def with_settings(self: Any, *given: Any, **named: Any) -> Any:
        from pyspark.sql import DataFrame

        with hold_settings(self.store.session):
            found = method(self, *given, **named)
            return require_exact_names(found) if isinstance(found, DataFrame) else found

    return with_settings
