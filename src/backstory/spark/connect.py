"""Work without Java: Spark Connect sessions, and an installation without py4j.

A Connect session is a client of a process that has Java. This process has no Java.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from backstory.errors import UsageError
from backstory.spark.versions import condition_of, with_offsets

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

# The errors of calls to Java. A plain installation has no py4j.
try:
    from py4j.protocol import Py4JError as Py4JError  # noqa: PLC0414 - a name of this module
    from py4j.protocol import Py4JJavaError as Py4JJavaError  # noqa: PLC0414
except ImportError:

    class Py4JError(Exception):  # type: ignore[no-redef]
        """The error of a call to Java."""

    class Py4JJavaError(Py4JError):  # type: ignore[no-redef, misc]
        """The error of a call in which Java raised an exception."""


# Spark's name for the error that a use of Java raises.
OF_JAVA: Final = "JVM_ATTRIBUTE_NOT_SUPPORTED"


def is_connect(session: object) -> bool:
    """Whether a session is a Spark Connect session."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


def session_id(spark: "SparkSession") -> str:
    """The id of a session. Several Python objects may represent the same session."""
    of_any: Any = spark
    return str(of_any.session_id if is_connect(spark) else of_any._jsparkSession.sessionUUID())  # noqa: SLF001


def arrow_parts(frame: "DataFrame") -> Iterator["pa.Table"]:
    """The rows of a Spark Connect frame as Arrow tables, in their order, divided as the server sent them."""
    import pyarrow as pa

    of_any: Any = frame
    client, plan = of_any.sparkSession.client, of_any._plan  # noqa: SLF001 - pyspark has no name for it
    parts = client.to_table_as_iterator(plan.to_proto(client), plan.observations)
    return (with_offsets(part) for part in parts if isinstance(part, pa.Table))


def needs_java(work: str = "This", command: str = "") -> UsageError:
    """The error for work that needs Iceberg's Java, in a session without Java.

    `command` is the command that does the work, without the program's name.
    """
    command_line = f"`backstory {command}`" if command else "the command line"
    return UsageError(
        "needs-java",
        f"{work} needs Iceberg's Java, which a Spark Connect session does not have.",
        "The table is unchanged; do this in a classic session on the same catalog, such as "
        f"`SparkSession.builder.master(...)`, or with {command_line}.",
    )


@contextmanager
def refuse_java(spark: "SparkSession") -> Iterator[None]:
    """Raise UsageError, instead of pyspark's own error, if the block uses Java in a session without Java."""
    if not is_connect(spark):
        yield
        return
    from pyspark.errors import PySparkAttributeError

    try:
        yield
    except PySparkAttributeError as fault:
        if condition_of(fault) != OF_JAVA:
            raise
        raise needs_java() from fault


class NoJava:
    """A placeholder for Java. Any use of it raises UsageError."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise needs_java()
