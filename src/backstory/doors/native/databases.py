"""The rows of a database as a source.

The rows are copied into a file once, and the file is read as often as a plan needs. Spark reads JDBC
databases with one statement on one connection.
"""

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, types
from pyspark.sql.types import StructField

from backstory.doors.native.retyping import with_types
from backstory.doors.native.sources import LoadTable, SourceRows, rows_of_files, rows_of_frame, stage_source
from backstory.engine.staging import is_local
from backstory.errors import BackstoryError, Failed, Refused, TryAgain, UsageError
from backstory.formats.batch_file import stamp_of
from backstory.formats.options import CsvOptions
from backstory.formats.reading import as_files_of_a_user, rows_of
from backstory.formats.rows import arrow_type
from backstory.formats.source_files import SourceFile, SourceFiles
from backstory.formats.values.cells import decode_base64
from backstory.model.types import MAX_PRECISION, TEXT_KINDS, ColumnType, Kind
from backstory.sources.databases.address import Database, quote_name
from backstory.sources.databases.copies import Keys, catalog_error, copy_out, refuse_column, refuse_repeats
from backstory.spark.jars import fetch_jars
from backstory.stores.iceberg.literals import quote, text_literal
from backstory.stores.iceberg.schema import spark_type
from backstory.stores.iceberg.store import IcebergStore, IcebergTable
from backstory.stores.iceberg.workers import error_of_worker, error_text

# MariaDB's driver also connects to MySQL; Spark uses its MySQL dialect for both.
MARIADB: Final = "org.mariadb.jdbc:mariadb-java-client:3.5.6"
_DRIVER: Final = "org.mariadb.jdbc.Driver"
# Numbers stay numbers, and UUIDs are strings, because Spark does not know their type.
_EXACTLY: Final = "permitMysqlScheme&tinyInt1isBit=false&yearIsDateType=false&uuidAsString=true"
_IN_UTC: Final = "SET time_zone = '+00:00'"
_KEYS: Final = """
SELECT IF(t.TABLE_NAME LIKE '%.%', CONCAT(t.TABLE_SCHEMA, '.', t.TABLE_NAME), t.TABLE_NAME) AS name,
  k.COLUMN_NAME AS `key`, k.ORDINAL_POSITION AS place
FROM information_schema.TABLES t LEFT JOIN information_schema.KEY_COLUMN_USAGE k
  ON k.TABLE_SCHEMA = t.TABLE_SCHEMA AND k.TABLE_NAME = t.TABLE_NAME AND k.CONSTRAINT_NAME = 'PRIMARY'
WHERE t.TABLE_SCHEMA = DATABASE()
"""
_CONNECTION: Final = re.compile(r"^\(conn=\d+\) ")
_OF_MYSQL: Final = re.compile(r"(mysql|mariadb)://|jdbc:(mysql|mariadb):")
_ROWS_AT_ONCE: Final = 10_000
# Spark's metadata key for columns with times of day, which it would read as instants.
_TIME_OF_DAY: Final = "logical_time_type"
# Spark's metadata keys for strings of a fixed length, and for MySQL's bits.
_CHARACTERS: Final = "__CHAR_VARCHAR_TYPE_STRING"
_BITS: Final = "binarylong"
# Spark's error for a column whose type it does not know. It contains the type, but not the column.
_UNKNOWN_TYPE: Final = re.compile(r"\[UNRECOGNIZED_SQL_TYPE\].* name: (.*), id: ")
# The column, the value and the fault in an error of a file.
_OF_COLUMN: Final = re.compile(r"column `(.*?)`:? (?:(`.*`) )?(is .*)\.$", re.DOTALL)
# Prefixes of SQLSTATE: unreachable or locked, access denied, no such table, a wrong query.
_LATER: Final = ("08", "40", "HYT", "57", "53")
_DENIED: Final = ("28", "3D")
_ABSENT: Final = ("42S02", "42P01")
_SYNTAX: Final = ("42", "37", "22")


def _rows_by_jdbc(
    store: IcebergStore,
    database: Database,
    folder: Path,
    of_parquet: Callable[[Path], SourceRows],
    declared: Mapping[str, ColumnType],
) -> SourceRows:
    """The rows of a JDBC database, with their time. `of_parquet` returns the rows of a file in the folder.

    A column that is read as a string stays one if it is declared as one. Raises UsageError for a missing
    table, Refused for a column without an exact type, and TryAgain if the database does not respond.
    """
    spark = store.spark
    server = _server(spark, database)
    with translate_jdbc(database, server.password):
        instant = server.now(spark)
        described = server.rows(spark, f"SELECT * FROM {server.source}").schema.fields
        refuse_repeats(database, [field.name for field in described])
        values = [_select_column(database, server, field) for field in described]
        texts = {
            field.name: type_
            for field, (_, type_) in zip(described, values, strict=True)
            if type_ and declared.get(field.name, type_).kind not in TEXT_KINDS
        }
        frame = server.rows(spark, f"SELECT {', '.join(text for text, _ in values)} FROM {server.source}")
        frame = frame.selectExpr(*(_refuse_text(database, name, texts.get(name)) for name in frame.columns))
        # Spark reads the rows once: into a local file, or else into a checkpoint on the workers.
        if is_local(store):
            target = folder / "copy"
            # A limit of the session would divide the rows into several files.
            frame.write.option("maxRecordsPerFile", 0).parquet(str(target))
            (file,) = target.glob("part-*.parquet")
            rows = of_parquet(file)
        else:
            rows = rows_of_frame(frame.localCheckpoint())
    return replace(with_types(rows, texts), instant=instant)


def declared_keys_by_jdbc(store: IcebergStore, database: Database) -> Keys:
    """The tables of a MySQL or MariaDB database, each with its primary-key columns.

    Raises UsageError for other databases and a missing table, and TryAgain if the database does not respond.
    """
    if not _OF_MYSQL.match(database.url):
        raise catalog_error(database)
    server = _server(store.spark, database)
    with translate_jdbc(database, server.password):
        rows = server.rows(store.spark, _KEYS).collect()
    keys: dict[str, tuple[str, ...]] = {}
    for row in sorted(rows, key=lambda row: (row["name"], row["place"] or 0)):
        keys[row["name"]] = (*keys.get(row["name"], ()), *([row["key"]] if row["key"] else ()))
    return keys


@dataclass(frozen=True, slots=True)
class _Server:
    """Spark's connection to a database. `source` is the SQL after FROM."""

    url: str = field(repr=False)
    source: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    driver: str | None = None
    is_mysql: bool = False

    def rows(self, spark: SparkSession, query: str) -> DataFrame:
        reader = spark.read.format("jdbc").option("preferTimestampNTZ", "true")
        reader = reader.option("fetchsize", _ROWS_AT_ONCE).option("query", query)
        options = {"url": self.url, "user": self.user, "password": self.password, "driver": self.driver}
        options["sessionInitStatement"] = _IN_UTC if self.is_mysql else None
        return reader.options(**{name: value for name, value in options.items() if value is not None}).load()

    def now(self, spark: SparkSession) -> datetime:
        """The current time of a MySQL or MariaDB server, or this machine's time for other databases."""
        if not self.is_mysql:
            return datetime.now(UTC)
        (row,) = self.rows(spark, "SELECT CAST(UTC_TIMESTAMP(6) AS CHAR) AS now").collect()
        return datetime.fromisoformat(row["now"]).replace(tzinfo=UTC)


def _server(spark: SparkSession, database: Database) -> _Server:
    if not _OF_MYSQL.match(database.url):
        return _Server(database.url, database.source())
    # Resolving the driver takes seconds, so it is skipped for a session that has the driver.
    if not any(MARIADB.split(":")[1] in jar for (jar,) in spark.sql("LIST JARS").collect()):
        for jar in fetch_jars([MARIADB], dict(spark.sparkContext.getConf().getAll())):
            spark.sql(f"ADD JAR '{jar.as_uri()}'")
    parts = urlsplit(database.url.removeprefix("jdbc:"))
    host = parts.netloc.rpartition("@")[2]
    query = f"{parts.query}&{_EXACTLY}" if parts.query else _EXACTLY
    return _Server(
        f"jdbc:mysql://{host}{parts.path}?{query}",
        database.source("`"),
        None if parts.username is None else unquote(parts.username),
        None if parts.password is None else unquote(parts.password),
        _DRIVER,
        is_mysql=True,
    )


def _select_column(database: Database, server: _Server, column: StructField) -> tuple[str, ColumnType | None]:
    """The SELECT expression of a column, and the type of its values if they are read as strings.

    A column is read as a string if the driver or Spark would round, pad, shift or replace its values.
    """
    name, type_ = quote_name(column.name, "`" if server.is_mysql else '"'), column.dataType
    if isinstance(type_, types.DecimalType) and type_.precision >= MAX_PRECISION:
        raise refuse_column(database, column.name, "has numbers of 38 digits or more")
    padded = str(column.metadata.get(_CHARACTERS, "")).startswith("char")
    if server.is_mysql:
        text, kind = _select_mysql_column(name, column, padded=padded)
        return f"{text} AS {name}", None if kind is None else ColumnType(kind)
    if column.metadata.get(_TIME_OF_DAY):
        raise refuse_column(database, column.name, "has times of day, which are not read by JDBC")
    return (f"RTRIM({name}) AS {name}" if padded else name), None


def _refuse_text(database: Database, name: str, type_: ColumnType | None) -> str:
    """A column in Spark SQL. Reading a string that is no value of the type raises Refused.

    MariaDB and MySQL can hold dates without a year, a month or a day, and days that no calendar has.
    """
    if type_ is None:
        return quote(name)
    error = text_literal(error_text(refuse_column(database, name, f"has a value that does not fit {type_}")))
    is_value = (
        f"TRY_CAST({quote(name)} AS {spark_type(type_)}) IS NOT NULL AND {quote(name)} NOT LIKE '0000-%'"
    )
    return f"IF({quote(name)} IS NULL OR {is_value}, {quote(name)}, raise_error({error})) AS {quote(name)}"


def _select_mysql_column(name: str, column: StructField, *, padded: bool) -> tuple[str, Kind | None]:
    """The SELECT expression of a MySQL or MariaDB column, as in `_select_column`."""
    type_, text = column.dataType, f"CAST({name} AS CHAR)"
    if padded or column.metadata.get(_TIME_OF_DAY):
        return text, None
    if _BITS in column.metadata and isinstance(type_, types.BinaryType):
        return f"CAST({name} AS UNSIGNED)", None
    if isinstance(type_, types.FloatType):
        return f"CAST({name} AS DOUBLE)", None  # a cast to text rounds it
    if isinstance(type_, types.TimestampType):
        return f"CONCAT({text}, '+00:00')", Kind.UTC_DATETIME
    kinds: Sequence[tuple[Any, Kind]] = (
        (types.DateType, Kind.NAIVE_DATE),
        (types.TimestampNTZType, Kind.NAIVE_DATETIME),
    )
    kind = next((kind for of, kind in kinds if isinstance(type_, of)), None)
    return (name if kind is None else text), kind


@contextmanager
def translate_jdbc(database: Database, password: str | None) -> Iterator[None]:
    """Translate driver errors by their SQLSTATE, without the password, and restore our own errors."""
    try:
        yield
    except (Py4JJavaError, PySparkException) as fault:
        if own := error_of_worker(str(fault)):
            raise own from None
        error = _sql_error(fault)
        if error is None:
            raise
        state, message = error
        text = _CONNECTION.sub("", message.split("\n", 1)[0]).rstrip(".")
        text = text.replace(password, "***") if password else text
        raise _error(database, state, text) from None


def _error(database: Database, state: str, text: str) -> BackstoryError:
    where = f"{database.name}: {text}."
    if match := _UNKNOWN_TYPE.match(text):
        type_name = match[1]
        return Refused(
            "column-type",
            f"A column of {database.what} has the type {type_name}, which is not read by JDBC.",
            "Nothing was written; leave it out or cast it with `query=` and a `source` without `?table=`.",
        )
    if state in _ABSENT:
        return UsageError("no-table", where, "Check the name of the table and its case.")
    if state.startswith(_DENIED):
        return UsageError("no-database", where, "Fix the address, the user or the password.")
    if state.startswith(_SYNTAX):
        return UsageError("bad-query", where, "Fix the query or the rights.")
    if state.startswith(_LATER) or not state:
        return TryAgain("source-unreachable", where, "Try again.")
    return Failed("database-failed", where, "Check the database.")


def _sql_error(fault: Any) -> tuple[str, str] | None:
    """The state and message of the SQLException in the chain of causes, or None."""
    cause = getattr(fault, "java_exception", None) or getattr(fault, "_origin", None)
    while cause is not None:
        if hasattr(cause, "getSQLState") and "SQL" in cause.getClass().getSimpleName():
            return cause.getSQLState() or "", cause.getMessage() or ""
        cause = cause.getCause()
    return None


@contextmanager
def rows_of_database(
    store: IcebergStore,
    database: Database,
    stored: LoadTable,
    rename: Mapping[str, str],
    retype: Mapping[str, ColumnType],
    declared: Mapping[str, ColumnType],
) -> Iterator[SourceRows]:
    """The rows of a table or query, with their time. They can be read until the context ends.

    See also `rows_of_files`. Raises the errors of `copy_out`.
    """
    types = {**declared, **retype}
    with ExitStack() as resources:
        folder = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="backstory-database-")))

        def of_parquet(path: Path) -> SourceRows:
            files = SourceFiles([SourceFile(path, database.what, stamp_of(path))], "parquet")
            with _name_columns(database):
                return resources.enter_context(rows_of_files(store, files, stored, rename, types))

        if database.kind == "jdbc":
            yield with_types(_rows_by_jdbc(store, database, folder, of_parquet, declared), declared)
            return
        of_table = _stored_doubles(stored(), rename) if database.kind == "sqlite" else {}
        copy = copy_out(database, {**of_table, **types}, folder)
        if copy.types is None:
            rows = with_types(of_parquet(copy.path), declared)
        else:
            schema = pa.schema([(name, arrow_type(type_)) for name, type_ in copy.types.items()])
            file = SourceFile(copy.path, database.what, stamp_of(copy.path))
            with _name_columns(database), as_files_of_a_user():
                rows = stage_source(store, schema, _batches(file, schema), folder, resources)
        yield replace(rows, instant=copy.instant)


def _stored_doubles(table: IcebergTable | None, rename: Mapping[str, str]) -> Mapping[str, ColumnType]:
    """The table's columns of type DOUBLE, with their new names."""
    columns = () if table is None else table.shape.user_columns
    doubles = (column for column in columns if column.type.kind is Kind.DOUBLE)
    return {rename.get(column.name, column.name): column.type for column in doubles}


@contextmanager
def _name_columns(database: Database) -> Iterator[None]:
    """Replace errors in the file with the rows, which the user does not have, by errors in columns."""
    try:
        yield
    except Refused as stop:
        match = _OF_COLUMN.search(stop.message)
        if match is None or stop.code not in {"unreadable-value", "unsupported-type"}:
            raise
        name, value, why = match.groups()
        raise refuse_column(database, name, f"has the value {value}, which {why}" if value else why) from None


def _batches(file: SourceFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a CSV file in these columns. Binary cells are in base64."""
    encoded = [place for place, field in enumerate(schema) if pa.types.is_binary(field.type)]
    written = schema
    for place in encoded:
        written = written.set(place, schema.field(place).with_type(pa.string()))
    for batch in rows_of(file.path, file.name, CsvOptions(), written).batches:
        columns = list(batch.columns)
        for place in encoded:
            columns[place] = decode_base64(columns[place])
        yield pa.record_batch(columns, schema=schema)
