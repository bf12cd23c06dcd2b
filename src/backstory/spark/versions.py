"""The differences between the supported Spark versions. No other module depends on the version.

In Spark 4, the classes of a session with Java are in other packages, and a few methods have other names.
Arrow tables are accepted and returned. Spark 3.5, whose Scala is 2.12, needs other calls.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from backstory.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.errors import PySparkException
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    _Rows = TypeVar("_Rows", pa.Table, pa.RecordBatch)

Version = tuple[int, int]

OLDEST: Final = (3, 5)
TESTED: Final = "Spark 3.5, 4.0 or 4.1"
_FOUR: Final = (4, 0)
_FOUR_ONE: Final = (4, 1)
DEFAULTS: Final = "spark-defaults.conf"


def spark_home() -> Path:
    """The folder of the installed Spark."""
    from pyspark.find_spark_home import _find_spark_home

    return Path(_find_spark_home())  # type: ignore[no-untyped-call]


_CORE: Final = re.compile(r"spark-core_([0-9.]+)-([0-9]+(?:\.[0-9]+)*).*\.jar")


def installed_build() -> tuple[str, str] | None:
    """The versions of the installed Spark and its Scala, from the name of a jar, or None if it is missing."""
    names = (_CORE.fullmatch(jar.name) for jar in (spark_home() / "jars").glob("spark-core_*.jar"))
    return next(((name[2], name[1]) for name in names if name), None)


_PACKAGE: Final = re.compile(r"(?P<name>.+)_(?P<scala>2\.\d+|3):(?P<version>.+)")


def require_build(packages: Iterable[str], spark: str, scala: str) -> None:
    """Raise UsageError for a package that does not fit this Spark and Scala.

    Such a package is for another Scala, or belongs to Spark and has another major version. Java would load
    it, and fail in the middle of a query.
    """
    for package in packages:
        parts = _PACKAGE.fullmatch(package)
        if parts is None:
            continue
        of_spark = parts["name"].startswith("org.apache.spark:")
        if parts["scala"] == scala and not (of_spark and _major(parts["version"]) != _major(spark)):
            continue
        version = f":{spark}" if of_spark else " in a version for this Spark"
        fitting = f"{parts['name']}_{scala}{version}"
        raise UsageError(
            "other-spark",
            f"The package {package} does not fit Spark {spark} with Scala {scala}.",
            f"Name {fitting}.",
        )


def _major(version: str) -> str:
    return version.partition(".")[0]


@cache
def _is_before(version: Version) -> bool:
    """Whether this process's pyspark is older than a version, even in another program's session."""
    from pyspark.version import __version__

    return is_older(__version__, version)


def is_before_4() -> bool:
    """Whether this process uses Spark 3."""
    return _is_before(_FOUR)


def is_older(version: str, oldest: Version) -> bool:
    """Whether a version is known to be older than another.

    The result is False for a vendor's own spelling.
    """
    parts = version.split(".")[:2]
    return all(part.isdigit() for part in parts) and tuple(map(int, parts)) < oldest


def package_suffix(spark: str | None, scala: str | None = None) -> str:
    """The suffix of package names for a version of Spark, by default the installed one, such as `3.5_2.12`.

    Spark 4 uses Scala 2.13. Spark 3.5 uses 2.12, unless its Java reports another `scala`.
    """
    spark = spark or version("pyspark")
    short = ".".join((scala or "2.12").split(".")[:2]) if is_older(spark, _FOUR) else "2.13"
    return f"{'.'.join(spark.split('.')[:2])}_{short}"


def scala_of(jvm: Any) -> str | None:
    """The version of Scala in a session's Java, or None if this Spark exists for only one Scala."""
    return str(jvm.scala.util.Properties.versionNumberString()) if is_before_4() else None


def sessions_class() -> str:
    """The Java class of sessions."""
    return f"org.apache.spark.sql.{'' if is_before_4() else 'classic.'}SparkSession"


@contextmanager
def naming_columns(spark: "SparkSession") -> Iterator[None]:
    """Create columns in this session during the block.

    In Spark 3.5, this session determines how casts of the columns fail. In Spark 4, the session of the frame
    that uses the columns does.
    """
    if not is_before_4():
        yield
        return
    from backstory.spark.java_names import java_class

    sessions = java_class(spark._jvm, sessions_class())  # noqa: SLF001 - Python has no name for it
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())


def frame_of_plan(spark: "SparkSession", jvm: Any, plan: Any) -> "DataFrame":
    """The frame of a logical plan."""
    from pyspark.sql import DataFrame

    sql = jvm.org.apache.spark.sql
    datasets = sql.Dataset if is_before_4() else sql.classic.Dataset
    return DataFrame(datasets.ofRows(spark._jsparkSession, plan), spark)  # noqa: SLF001


def rewrites_by_options() -> bool:
    """Whether options make Iceberg's ordinary table read and write like its rewriting.

    For Spark 4.1, Iceberg has a separate table for that.
    """
    return _is_before(_FOUR_ONE)


def resolver_folder() -> str:
    """The folder of the package resolver's copies, in the user's home."""
    return ".ivy2" if is_before_4() else ".ivy2.5.2"


def submit_options() -> tuple[str, ...]:
    """The options that make spark-submit read its own defaults in addition to a properties file."""
    return () if is_before_4() else ("--load-spark-defaults",)


def own_defaults(environ: Mapping[str, str]) -> str:
    """The lines of Spark's own defaults, for a properties file that replaces them."""
    if not is_before_4():
        return ""
    file = Path(environ.get("SPARK_CONF_DIR") or spark_home() / "conf", DEFAULTS)
    return file.read_text("utf-8") + "\n" if file.is_file() else ""


def condition_of(fault: "PySparkException") -> str | None:
    """Spark's name for this kind of error."""
    return fault.getErrorClass() if is_before_4() else fault.getCondition()


def arrow_of(frame: "DataFrame") -> "pa.Table":
    """The rows of a frame as an Arrow table, on the driver."""
    if not is_before_4():
        return with_offsets(frame.toArrow())
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(frame.schema)
    batches = frame._collect_as_arrow()  # type: ignore[operator]  # noqa: SLF001 - Spark 4 calls it toArrow
    return with_offsets(pa.Table.from_batches(batches).cast(schema)) if batches else schema.empty_table()


def with_offsets(rows: "_Rows") -> "_Rows":
    """The rows of Spark, in which each list and map has offsets, including empty lists within lists.

    Spark omits the offsets of a column without elements, as Arrow's format allows. `nbytes` reads them
    nevertheless, and the process would crash.
    """
    import numpy as np
    import pyarrow as pa

    for place, field in enumerate(rows.schema):
        values = rows.column(place)
        if pa.types.is_nested(field.type) and any(map(_lacks_offsets, getattr(values, "chunks", [values]))):
            copy = values.take(pa.array(np.arange(len(values))))
            rows = rows.set_column(place, field, copy)
    return rows


def _lacks_offsets(values: "pa.Array") -> bool:
    """Whether a list or map in these values has no element, so that its offsets may be missing."""
    import pyarrow as pa

    type_ = values.type
    if pa.types.is_struct(type_):
        return any(_lacks_offsets(values.field(place)) for place in range(type_.num_fields))
    if pa.types.is_map(type_):
        return not len(values) or _lacks_offsets(values.keys) or _lacks_offsets(values.items)
    return pa.types.is_list(type_) and (not len(values) or _lacks_offsets(values.values))


def frame_of_arrow(spark: "SparkSession", rows: "pa.Table", fields: "StructType") -> "DataFrame":
    """A frame with an Arrow table's rows and these columns."""
    if not is_before_4():
        return spark.createDataFrame(rows, fields)
    from pyspark.sql import DataFrame
    from pyspark.sql.pandas.serializers import ArrowStreamSerializer
    from pyspark.sql.pandas.types import to_arrow_schema

    context: Any = spark.sparkContext
    util = context._jvm.PythonSQLUtils  # noqa: SLF001 - as pyspark does it with pandas' tables
    most = int(spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") or 0)
    batches = rows.cast(to_arrow_schema(fields)).to_batches(max_chunksize=most if most > 0 else None)
    server = context._serialize_to_jvm(  # noqa: SLF001
        batches,
        ArrowStreamSerializer(),
        util.readArrowStreamFromFile,
        context._jvm.ArrowIteratorServer,  # noqa: SLF001
    )
    return DataFrame(util.toDataFrame(server, fields.json(), spark._jsparkSession), spark)  # noqa: SLF001


def try_cast(value: "Column", type_: str) -> "Column":
    """The value cast to another type, or NULL if it does not fit."""
    if not is_before_4():
        return value.try_cast(type_)
    from pyspark import SparkContext

    jvm: Any = SparkContext._active_spark_context._jvm  # type: ignore[union-attr]  # noqa: SLF001
    named: Any = value._jc  # noqa: SLF001 - Spark 4 has a method for it
    sql = jvm.org.apache.spark.sql
    expressions, wanted = sql.catalyst.expressions, sql.types.DataType.fromDDL(type_)
    cast = expressions.Cast(named.expr(), wanted, jvm.scala.Option.empty(), expressions.EvalMode.TRY())
    return _column(sql.Column(cast))


def renew_kept_rows(spark: "SparkSession", name: str) -> None:
    """Refresh the cached rows of a table. Before Spark 4.1, uncache the rows instead.

    An older Spark would recompute them from the former state of the table.
    """
    if _is_before(_FOUR_ONE):
        spark.catalog.uncacheTable(name)
    else:
        spark.sql(f"REFRESH TABLE {name}")


def checkpoint_on_disk(frame: "DataFrame") -> "DataFrame":
    """Compute a frame's rows once and write them to local disks.

    Spark 3.5 only writes if its memory is full.
    """
    if is_before_4():
        return frame.localCheckpoint()
    from pyspark import StorageLevel

    return frame.localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)


def frame_fields(frame: "DataFrame") -> "StructType":
    """A frame's columns.

    Raises UsageError for types without Python support, such as intervals in Spark 3.5.
    """
    from pyspark.errors import PySparkValueError

    try:
        return frame.schema
    except PySparkValueError as unknown:
        raise UsageError(
            "other-spark",
            "A column of the frame has a type without Python support in Spark 3.5, such as an interval.",
            "Cast it to a number or a string, or leave it out.",
        ) from unknown


def require_fields(number: int, what: str) -> None:
    """Raise UsageError for rows without columns, which Spark 3.5 cannot hold."""
    if is_before_4() and not number:
        raise UsageError(
            "other-spark",
            f"{what} have no column of their own, and Spark 3.5 cannot hold such rows.",
            "Give them a column, or use Spark 4.0 or 4.1.",
        )


def require_known_types(table: object, variants: Sequence[str]) -> None:
    """Raise UsageError for columns of type variant, which Spark 4 introduced."""
    if is_before_4() and variants:
        raise UsageError(
            "other-spark",
            f"{table} has columns of type variant, which Spark 3.5 does not read: {', '.join(variants)}.",
            "Use Spark 4.0 or 4.1 for this table.",
            variants,
        )


def metadata_column(frame: "DataFrame", name: str) -> "Column":
    """A metadata column of a source, even if a data column has the same name."""
    if not is_before_4():
        return frame.metadataColumn(name)
    return _column(frame._jdf.metadataColumn(name))  # noqa: SLF001 - Spark 4 has a method for it


def _column(of_java: Any) -> "Column":
    """A Python column for a Java column."""
    from pyspark.sql import Column

    made: Any = Column
    return made(of_java)


def persist_on_disk(rows: "DataFrame") -> "DataFrame":
    """Keep the rows of a frame on disk once they are computed, until the frame is unpersisted.

    In memory, the rows would take space that tasks need for sorting.
    """
    from pyspark import StorageLevel

    return rows.persist(StorageLevel.DISK_ONLY)
