"""Iceberg's and Spark's errors in our words.

The first line of what went wrong in Java or in Spark, without what may be of rows, paths or logins.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from backstory.errors import BackstoryError, Failed, Refused, TryAgain
from backstory.formats.memory import TooLarge
from backstory.formats.wrapping.room import no_room, no_room_by
from backstory.model.table import TableName
from backstory.spark.process import was_interrupted
from backstory.spark.versions import condition_of
from backstory.stores.iceberg.workers import error_of_worker
from backstory.stores.refusals import conflict, file_lost

if TYPE_CHECKING:
    from pyspark.errors import PySparkException

LONGEST: Final = 160
# What stands in quotes, and a number of three digits or more, may be a value. Folders may be named by values,
# and addresses may hold logins.
_TEXTS: Final = re.compile(r"\"[^\"]*\"?|'[^']*'?|`[^`]*`?")
_PLACES: Final = re.compile(r"\S*[/\\@?&=]\S*")
_NUMBERS: Final = re.compile(r"\S*\d{3,}\S*")
# Of these the name alone is told: their words are about values.
_OF_VALUES: Final = re.compile(r"Number|Arithmetic|Date|IllegalState|Spark|Overflow")
_RAISED: Final = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception|Invalid)): ", re.MULTILINE)


def first_line(name: str, text: str | None) -> str:
    """`Name: first line`, with an ellipsis for each part that may be a value."""
    lines = "" if _OF_VALUES.search(name) else (text or "").strip()
    told = lines.splitlines()[0] if lines else ""
    for values in (_TEXTS, _PLACES, _NUMBERS):
        told = values.sub("…", told)
    told = " ".join(told.split())
    return f"{name}: {told[:LONGEST]}" if re.search(r"\w", told) else name


def spark_cause(fault: "PySparkException") -> str:
    """What Spark names its error by; of one in a Python worker its class."""
    raised = _RAISED.findall(str(fault))
    name = condition_of(fault) or type(fault).__name__
    return f"{name}: {raised[-1]}" if raised and "Traceback" in str(fault) else name


def root_cause(fault: Any) -> str:
    """The same of the innermost cause of one of Java's exceptions."""
    while (cause := fault.getCause()) is not None:
        fault = cause
    return first_line(str(fault.getClass().getSimpleName()), fault.getMessage())


if TYPE_CHECKING:
    from py4j.protocol import Py4JJavaError

MISSING = {"NoSuchTableException", "NoSuchNamespaceException"}
CONFLICTS = {
    "CommitFailedException",
    "ValidationException",
    "CommitStateUnknownException",
    "AlreadyExistsException",
}
# A result of Spark that is larger than the driver may hold.
TOO_MUCH = "maxResultSize"
BUSY = (
    "SQLITE_BUSY",
    "SQLITE_CANTOPEN",
    "SQLITE_LOCKED",
    "database is locked",
    "Connection refused",
    "Connection reset",
)
# What an object store says that wants fewer requests, as Amazon's client tells it.
THROTTLED = ("Status Code: 429", "Status Code: 503")
# SQL states by their beginnings: connection, rollback, resources, operator, lock; login and privilege.
BUSY_STATES = ("08", "40", "53", "57", "55P03")
CLOSED_STATES = ("28", "42501")
# Iceberg writes no metadata, and no snapshot, older than those that a table has.
CLOCK_BACK = (
    "Invalid update timestamp",
    "Expected sorted snapshot log",
    "Expected sorted previous metadata",
)
SPARK_GONE = "spark-gone"
UNCHANGED: Final = "The table is as it was; `verbose=True` shows the whole cause."
# A file that is not there any more: its own name alone is told, for folders may be named by values.
_FILE: Final = r"[^\s/]+\.(?:parquet|avro|orc|puffin|metadata\.json)"
_LOST: Final = re.compile(rf"(?:FileNotFound|NotFound|NoSuchFile|NoSuchKey)Exception\b[^\n]*?/({_FILE})")


class _CauseDisplay:
    """Whether the whole cause of a fault is part of its error; it may hold values."""

    causes = False


def show_causes(causes: bool) -> None:  # noqa: FBT001 - the one thing that it says
    """From now on errors of Java and Spark hold the whole cause, or its first line without values."""
    _CauseDisplay.causes = causes


@contextmanager
def translate_faults(table: TableName | str) -> Iterator[None]:
    """Raises TryAgain for conflicts, a busy catalog and a full disk, Failed for all else of JVM and storage.

    An error of our own that a Python worker met is raised as itself.

    Of a fault's text the first line is passed on, without what may be a value.
    """
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except BackstoryError:
        raise
    except Py4JJavaError as fault:
        raise java_fault(fault, table) from fault
    except (ConnectionError, EOFError, Py4JError) as fault:  # no file's: it is Java that does not answer
        raise _no_answer(table, fault) from fault
    except OSError as fault:
        raise no_room(fault, table) or Failed(
            "store-failed",
            f"A file of {table} could not be read or written ({fault.strerror or type(fault).__name__}).",
            "The table is as it was; fix the storage, then send it again.",
        ) from fault
    except PySparkException as fault:
        if "INCOMPATIBLE_TABLE_CHANGE" in (condition_of(fault) or ""):
            raise conflict(table) from fault
        if any(word in str(fault) for word in CLOCK_BACK):
            raise _clock_back(table) from fault
        if any(word in str(fault) for word in THROTTLED):
            raise _storage_busy(table) from fault
        raise (
            error_of_worker(str(fault))
            or no_room_by(str(fault), table)
            or lost_file(fault, table)
            or Failed(
                "spark-failed",
                f"Spark could not read or write {table} ({_cause(spark_cause(fault), fault)}).",
                _remedy(),
            )
        ) from fault


def java_fault(fault: "Py4JJavaError", table: TableName | str) -> BackstoryError:
    """The error for what Java could not do with a table."""
    error = error_of_worker(str(fault)) or lost_file(fault, table) or no_room_by(str(fault), table)
    cause = _cause(root_cause(fault.java_exception), fault)
    return error or _error_by_names(table, _class_names(fault.java_exception), cause)


def lost_file(fault: Exception, table: TableName | str) -> Failed | None:
    """The error for a file of a table that is gone, if a fault of Java's is that."""
    found = _LOST.search(str(fault))
    return found and file_lost(table, found[1])


def _no_answer(table: TableName | str, fault: Exception) -> BaseException:
    if not spark_is_gone(fault):
        return _store_failed(table, first_line(type(fault).__name__, str(fault)))
    return KeyboardInterrupt() if was_interrupted() else _spark_stopped(table)


def spark_is_gone(fault: BaseException) -> bool:
    """Whether an error, in our words or as it came, says that Java does not answer any more.

    An answer of Java's has its trace: that it knows no such method, for one.
    """
    from py4j.protocol import Py4JError, Py4JJavaError

    if isinstance(fault, BackstoryError):
        return fault.code == SPARK_GONE
    answered = isinstance(fault, Py4JJavaError) or "Trace:" in str(fault)
    return isinstance(fault, ConnectionError | EOFError | Py4JError) and not answered


def is_missing(fault: "Py4JJavaError") -> bool:
    """Whether Iceberg says that there is no such table or schema."""
    return str(fault.java_exception.getClass().getSimpleName()) in MISSING


def _spark_stopped(table: TableName | str) -> Failed:
    """The error where Java does not answer any more."""
    return Failed(
        SPARK_GONE,
        f"Spark stopped while it worked on {table}.",
        "Start the process again, then repeat the request.",
    )


def _class_names(fault: object) -> list[str]:
    """The class names of a Java fault and of its causes, with words of theirs that tell them apart."""
    names = []
    while fault is not None:
        name = fault.getClass().getSimpleName()  # type: ignore[attr-defined]
        text = str(fault.getMessage())  # type: ignore[attr-defined]
        names.append(name)
        names += [word for word in (*BUSY, *CLOCK_BACK, *THROTTLED, TOO_MUCH) if word in text]
        if "SQLException" in name:
            names += [_sql_state_kind(fault)]
        fault = fault.getCause()  # type: ignore[attr-defined]
    return names


def _clock_back(table: TableName | str) -> TryAgain:
    return TryAgain(
        "clock-back",
        f"The clock of this machine is behind the newest commit of {table}.",
        "Nothing was written; set the clock right, or wait until it has passed that commit's time.",
    )


def _storage_busy(table: TableName | str) -> TryAgain:
    return TryAgain(
        "storage-busy",
        f"The storage of {table} asked for fewer requests, again and again.",
        "The table is as it was; send it again later.",
    )


def _sql_state_kind(fault: Any) -> str:
    """What the SQL state of a database's own exception says: busy, closed, or nothing of the kind."""
    from py4j.protocol import Py4JError

    try:
        state = fault.getSQLState() or ""
    except Py4JError:  # Iceberg's exception around it has none
        return ""
    return "busy" if state.startswith(BUSY_STATES) else "closed" if state.startswith(CLOSED_STATES) else ""


def _error_by_names(table: TableName | str, names: list[str], cause: str) -> BackstoryError:
    """The error for the names of Java's exceptions, by the one that says what to do."""
    if TOO_MUCH in names:
        return TooLarge()
    if {*CLOCK_BACK} & set(names):
        return _clock_back(table)
    if CONFLICTS & set(names):
        return conflict(table)
    if "closed" in names:
        return Refused(
            "no-access",
            f"The catalog refuses access to {table}.",
            "Nothing was written; fix the login or its privileges on the server.",
        )
    if {*BUSY, "busy"} & set(names):
        return TryAgain(
            "catalog-busy",
            f"The catalog did not answer in time for {table}.",
            "Nothing was written; send it again.",
        )
    return _storage_busy(table) if {*THROTTLED} & set(names) else _store_failed(table, cause)


def _cause(short: str, fault: object) -> str:
    return str(fault).strip() if _CauseDisplay.causes else short


def _remedy() -> str:
    return "The table is as it was." if _CauseDisplay.causes else UNCHANGED


def _store_failed(table: TableName | str, what: str) -> Failed:
    return Failed(
        "store-failed",
        f"Iceberg could not read or write {table} ({what}).",
        _remedy(),
    )
