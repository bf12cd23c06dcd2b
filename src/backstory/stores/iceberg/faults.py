"""Errors of Java, Iceberg and Spark, translated into backstory's own errors.

An error contains the first line of its cause, without parts that may be row values, paths or logins.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from backstory.errors import BackstoryError, Failed, Refused, TryAgain
from backstory.formats.memory import TooLarge, no_room
from backstory.model.table import TableName
from backstory.spark.connect import OF_JAVA, Py4JError, Py4JJavaError, needs_java
from backstory.spark.process import was_interrupted
from backstory.spark.versions import condition_of
from backstory.stores.iceberg.workers import error_of_worker
from backstory.stores.port import conflict, file_lost

if TYPE_CHECKING:
    from pyspark.errors import PySparkException

LONGEST: Final = 160
# A quoted string or a number of three digits or more may be a value. Folders may be named after values, and
# addresses may contain logins.
_TEXTS: Final = re.compile(r"\"[^\"]*\"?|'[^']*'?|`[^`]*`?")
_PLACES: Final = re.compile(r"\S*[/\\@?&=]\S*")
_NUMBERS: Final = re.compile(r"\S*\d{3,}\S*")
# Errors whose messages are about values. Only the names of these errors are shown.
_OF_VALUES: Final = re.compile(r"Number|Arithmetic|Date|IllegalState|Spark|Overflow")
_RAISED: Final = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception|Invalid)): ", re.MULTILINE)


def first_line(name: str, text: str | None) -> str:
    """`Name: first line`, with an ellipsis for each part that may be a value."""
    lines = "" if _OF_VALUES.search(name) else (text or "").strip()
    first = lines.splitlines()[0] if lines else ""
    for values in (_TEXTS, _PLACES, _NUMBERS):
        first = values.sub("…", first)
    first = " ".join(first.split())
    return f"{name}: {first[:LONGEST]}" if re.search(r"\w", first) else name


def spark_cause(fault: "PySparkException") -> str:
    """Spark's name for an error. For an error in a Python worker, its class is included."""
    raised = _RAISED.findall(str(fault))
    name = condition_of(fault) or type(fault).__name__
    return f"{name}: {raised[-1]}" if raised and "Traceback" in str(fault) else name


def root_cause(fault: Any) -> str:
    """`Name: first line` of the innermost cause of a Java exception."""
    while (cause := fault.getCause()) is not None:
        fault = cause
    return first_line(str(fault.getClass().getSimpleName()), fault.getMessage())


MISSING = {"NoSuchTableException", "NoSuchNamespaceException"}
CONFLICTS = {
    "CommitFailedException",
    "ValidationException",
    "CommitStateUnknownException",
    "AlreadyExistsException",
}
# In Spark's error for a result that is larger than the driver may hold.
TOO_MUCH = "maxResultSize"
BUSY = (
    "SQLITE_BUSY",
    "SQLITE_CANTOPEN",
    "SQLITE_LOCKED",
    "database is locked",
    "Connection refused",
    "Connection reset",
)
# In the errors of Amazon's client if an object store limits the rate of requests.
THROTTLED = ("Status Code: 429", "Status Code: 503")
# The beginnings of SQL states. Busy: connection, rollback, resources, operator, lock. Closed: login,
# privilege.
BUSY_STATES = ("08", "40", "53", "57", "55P03")
CLOSED_STATES = ("28", "42501")
# In Iceberg's errors for metadata or a snapshot older than the table's newest.
CLOCK_BACK = ("Invalid update timestamp", "Expected sorted snapshot log", "Expected sorted previous metadata")
# In Iceberg's errors for a column of a type that this Spark lacks.
_UNREADABLE: Final = re.compile(r"Spark does not support ([\w ]+?) fields")
# In Iceberg's errors for a column with the name of a nested field, such as `a.b` and field b of column a.
_AMBIGUOUS: Final = re.compile(
    r"(?:multiple fields for name (.+): \d+ and \d+|Cannot add column, name already exists: (.+))"
)
SPARK_GONE = "spark-gone"
UNCHANGED: Final = "The table is unchanged; `verbose=True` shows the whole cause."
# A missing file. Only its own name is shown, since folders may be named after values.
_FILE: Final = r"[^\s/]+\.(?:parquet|avro|orc|puffin|metadata\.json)"
_LOST: Final = re.compile(rf"(?:FileNotFound|NotFound|NoSuchFile|NoSuchKey)Exception\b[^\n]*?/({_FILE})")
# The system's reasons in Java's FileNotFoundException for a file that is not missing.
_REASON: Final = re.compile(
    r"FileNotFoundException: [^\n]* \((Read-only file system|Permission denied|Operation not permitted|"
    r"Is a directory|Not a directory|Too many open files|File name too long|Input/output error)\)"
)


class _CauseDisplay:
    """Whether errors contain the whole cause of a fault, which may contain values."""

    causes = False


def show_causes(causes: bool) -> None:  # noqa: FBT001 - the one thing that it sets
    """Set whether errors of Java and Spark contain the whole cause, or only its first line without values."""
    _CauseDisplay.causes = causes


@contextmanager
def translate_faults(table: TableName | str) -> Iterator[None]:
    """Raise TryAgain for a conflict, a busy catalog or a full disk, and Failed for any other fault.

    If backstory's own error occurred in a Python worker, the error is raised unchanged. Other errors contain
    the first line of the fault's message, without parts that may be values.
    """
    from pyspark.errors import PySparkException

    try:
        yield
    except BackstoryError:
        raise
    except Py4JJavaError as fault:
        raise java_fault(fault, table) from fault
    except (ConnectionError, EOFError, Py4JError) as fault:  # Java does not answer; files raise OSError
        raise _no_answer(table, fault) from fault
    except OSError as fault:
        raise no_room(fault, table) or _file_failed(table, fault.strerror or type(fault).__name__) from fault
    except PySparkException as fault:
        raise _spark_fault(fault, table) from fault


def _spark_fault(fault: "PySparkException", table: TableName | str) -> BackstoryError:
    """The error for a Spark exception during work on a table."""
    text = str(fault)
    if condition_of(fault) == OF_JAVA:
        return needs_java()
    if "INCOMPATIBLE_TABLE_CHANGE" in (condition_of(fault) or ""):
        return conflict(table)
    if any(word in text for word in CLOCK_BACK):
        return _clock_back(table)
    if any(word in text for word in THROTTLED):
        return _storage_busy(table)
    if unreadable := _UNREADABLE.search(text):
        return Refused(
            "unsupported-type",
            f"{table} has a column of type {unreadable[1]}, which Spark cannot read.",
            "Change the column's type in the program that writes the table, or read it with another program.",
        )
    return _error_by_text(fault, table) or Failed(
        "spark-failed",
        f"Spark could not read or write {table} ({_cause(spark_cause(fault), fault)}).",
        _remedy(),
    )


def java_fault(fault: "Py4JJavaError", table: TableName | str) -> BackstoryError:
    """The error for a Java exception during work on a table."""
    cause = _cause(root_cause(fault.java_exception), fault)
    return _error_by_text(fault, table) or _error_by_names(table, _class_names(fault.java_exception), cause)


def _error_by_text(fault: Exception, table: TableName | str) -> BackstoryError | None:
    """The error for words that a fault contains, from Java and from Spark, or None for other words."""
    text = str(fault)
    return error_of_worker(text) or file_error(fault, table) or _ambiguous_name(text, table)


def _ambiguous_name(text: str, table: TableName | str) -> Refused | None:
    """The error for a column with the name of a nested field, or None if the fault has another cause."""
    if (match := _AMBIGUOUS.search(text)) is None:
        return None
    name = match[1] or match[2]
    return Refused(
        "ambiguous-name",
        f"{table} would have both a column and a nested field with the name {name}.",
        "Nothing was written; rename one of them at the source.",
        [name],
    )


def file_error(fault: Exception, table: TableName | str) -> BackstoryError | None:
    """The error for a full disk, an unusable file or a missing file of a table. None for another cause.

    Java raises FileNotFoundException for all three.
    """
    text = str(fault)
    if full := no_room(text, table):
        return full
    if reason := _REASON.search(text):
        return _file_failed(table, _cause(reason[1], fault))
    match = _LOST.search(text)
    return match and file_lost(table, match[1])


def _file_failed(table: TableName | str, cause: str) -> Failed:
    return Failed(
        "store-failed",
        f"A file of {table} could not be read or written ({cause}).",
        "The table is unchanged; fix the storage, then send it again.",
    )


def _no_answer(table: TableName | str, fault: Exception) -> BaseException:
    if not spark_is_gone(fault):
        return _store_failed(table, first_line(type(fault).__name__, str(fault)))
    if was_interrupted():
        return KeyboardInterrupt()
    return Failed(
        SPARK_GONE,
        f"Spark stopped while it worked on {table}.",
        "Start the process again, then repeat the request.",
    )


def spark_is_gone(fault: BaseException) -> bool:
    """Whether an error, translated or not, means that Java no longer responds.

    An error that Java itself returned, for example for an unknown method, contains its trace.
    """
    if isinstance(fault, BackstoryError):
        return fault.code == SPARK_GONE
    answered = isinstance(fault, Py4JJavaError) or "Trace:" in str(fault)
    return isinstance(fault, ConnectionError | EOFError | Py4JError) and not answered


def is_missing(fault: "Py4JJavaError") -> bool:
    """Whether Iceberg's error means that the table or schema does not exist."""
    return str(fault.java_exception.getClass().getSimpleName()) in MISSING


def _class_names(fault: object) -> list[str]:
    """The class names of a Java fault and its causes, with distinctive words from their messages."""
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
        f"The storage of {table} repeatedly asked for fewer requests.",
        "The table is unchanged; send it again later.",
    )


def _sql_state_kind(fault: Any) -> str:
    """The meaning of a database exception's SQL state: `busy`, `closed`, or empty for any other state."""
    try:
        state = fault.getSQLState() or ""
    except Py4JError:  # Iceberg's own exception, which has no state
        return ""
    return "busy" if state.startswith(BUSY_STATES) else "closed" if state.startswith(CLOSED_STATES) else ""


def _error_by_names(table: TableName | str, names: list[str], cause: str) -> BackstoryError:
    """The error for the class names of Java's exceptions and the words from their messages."""
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
    return "The table is unchanged." if _CauseDisplay.causes else UNCHANGED


def _store_failed(table: TableName | str, what: str) -> Failed:
    return Failed("store-failed", f"Iceberg could not read or write {table} ({what}).", _remedy())
