"""Iceberg's Java API: every class that backstory calls, by name. Only its scripts name other classes.

Some classes are not part of Iceberg's public API, so a session is checked for all of them before it is used.
The parameter `jvm` is py4j's view of the session's Java.
"""

import gzip
import json
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from backstory.spark.connect import NoJava, Py4JJavaError
from backstory.spark.process import hold_to_this_process
from backstory.spark.session import LateSpark
from backstory.spark.versions import rewrites_by_options, sessions_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ICEBERG: Final = "org.apache.iceberg"
SPARK_CATALOG: Final = f"{ICEBERG}.spark.SparkCatalog"
SPARK_SESSION_CATALOG: Final = f"{ICEBERG}.spark.SparkSessionCatalog"
EXTENSIONS: Final = f"{ICEBERG}.spark.extensions.IcebergSparkSessionExtensions"
ICEBERG_CATALOG: Final = f"{ICEBERG}.spark.source.HasIcebergCatalog"
PARQUET: Final = "org.apache.parquet"
_NEEDED: Final = """
BaseFileScanTask BaseTable CachingCatalog CatalogUtil ContentFile DataFile DataFiles DeleteFile
ExpireSnapshots
FileContent FileFormat FileMetadata FileScanTask HasTableOperations IcebergBuild ManifestContent ManifestFile
ManifestFiles MetricsConfig NullOrder PartitionSpec PartitionSpecParser
PartitionStatisticsFile SchemaParser Snapshot StaticTableOperations StatisticsFile Table
TableMetadata TableMetadataParser TableScan catalog.Catalog catalog.Namespace catalog.SupportsNamespaces
catalog.TableIdentifier catalog.ViewCatalog data.BaseDeleteLoader deletes.BaseDVFileWriter
deletes.PositionDeleteIndex expressions.Expressions
expressions.ResidualEvaluator io.CloseableIterable
io.FileIO io.OutputFileFactory parquet.ParquetUtil spark.FileRewriteCoordinator spark.ScanTaskSetManager
spark.Spark3Util spark.SparkTableCache spark.source.HasIcebergCatalog
spark.source.SparkRewriteTable spark.source.SparkTable
"""
NEEDED: Final = tuple(_NEEDED.split())
REWRITE_TABLE: Final = "spark.source.SparkRewriteTable"


def gateway(session: "SparkSession | LateSpark") -> Any:
    """The session's Java, the only way to Iceberg's commits."""
    from backstory.spark.java_names import remember_names

    jvm = session.jvm if isinstance(session, LateSpark) else session._jvm  # noqa: SLF001
    hold_to_this_process(jvm)
    return remember_names(jvm)


def version(jvm: Any) -> str:
    """Iceberg's own version."""
    return str(iceberg(jvm, "IcebergBuild").version())


def missing_classes(jvm: Any) -> list[str]:
    """The classes of `NEEDED` that this Iceberg lacks."""
    needed = (name for name in NEEDED if name != REWRITE_TABLE or not rewrites_by_options())
    return [name for name in needed if java_class_or_none(jvm, f"{ICEBERG}.{name}") is None]


def java_class_or_none(jvm: Any, name: str) -> Any:
    """The Java class with this name, or None if it does not exist."""
    with suppress(Py4JJavaError):
        return _class(jvm, name)
    return None


def catalog(spark: "SparkSession", name: str) -> Any:
    """Iceberg's object for a catalog of the session, which by default caches tables.

    Iceberg looks it up in the active session, which differs by thread.
    """
    session = spark._jsparkSession  # noqa: SLF001
    _java(gateway(spark), sessions_class()).setActiveSession(session)
    return iceberg(gateway(spark), "spark.Spark3Util").loadIcebergCatalog(session, name)


def loaded_catalog(spark: "SparkSession", name: str) -> Any:
    """The catalog, or None if the session has not loaded it yet. Nothing is loaded."""
    manager = spark._jsparkSession.sessionState().catalogManager()  # noqa: SLF001
    if not manager.listCatalogs(gateway(spark).scala.Option.empty()).contains(name):
        return None
    loaded = manager.catalog(name)
    kind = _class(gateway(spark), ICEBERG_CATALOG)
    return loaded.icebergCatalog() if kind.isInstance(loaded) else None


def is_caching(jvm: Any, catalog: Any) -> bool:
    """Whether a catalog caches tables in the state of their first load."""
    return bool(_class(jvm, f"{ICEBERG}.CachingCatalog").isInstance(catalog))


def uncached_catalog(jvm: Any, catalog: Any) -> Any:
    """The catalog inside a caching catalog. The inner catalog has schemas, views and newer tables."""
    if not is_caching(jvm, catalog):
        return catalog
    wrapped = _class(jvm, f"{ICEBERG}.CachingCatalog").getDeclaredField("catalog")
    wrapped.setAccessible(True)
    return wrapped.get(catalog)


def build_catalog(jvm: Any, name: str, properties: Mapping[str, str]) -> Any:
    """Iceberg's object for a catalog, built from a session's properties without the session."""
    settings = _java(jvm, "org.apache.hadoop.conf.Configuration")()
    hadoop, own = "spark.hadoop.", f"spark.sql.catalog.{name}."
    for key, value in properties.items():
        if key.startswith(hadoop):
            settings.set(key.removeprefix(hadoop), value)
    options = {key.removeprefix(own): value for key, value in properties.items() if key.startswith(own)}
    return iceberg(jvm, "CatalogUtil").buildIcebergCatalog(name, options, settings)


def holds_views(jvm: Any, catalog: Any) -> bool:
    """Whether Iceberg's catalog supports views."""
    return bool(_class(jvm, f"{ICEBERG}.catalog.ViewCatalog").isInstance(catalog))


def namespace(jvm: Any, *levels: str) -> Any:
    """Iceberg's name for a schema."""
    return iceberg(jvm, "catalog.Namespace").of(array(jvm, _class(jvm, "java.lang.String"), levels))


@lru_cache(maxsize=256)
def identifier(jvm: Any, schema: str, table: str) -> Any:
    """Iceberg's name for a table."""
    return iceberg(jvm, "catalog.TableIdentifier").of(namespace(jvm, schema), table)


def array(jvm: Any, of: Any, values: Sequence[object]) -> Any:
    """A Java array of objects. py4j converts neither lists to arrays nor small numbers to longs."""
    built = _java(jvm, "java.lang.reflect.Array").newInstance(of, len(values))
    for place, value in enumerate(values):
        built[place] = value
    return built


def schema_of(jvm: Any, text: str) -> Any:
    """The schema in a JSON string."""
    return iceberg(jvm, "SchemaParser").fromJson(text)


_ZIPPED_JSON: Final = f"""
java.io.ByteArrayOutputStream bytes = new java.io.ByteArrayOutputStream();
java.util.zip.GZIPOutputStream zipped = new java.util.zip.GZIPOutputStream(bytes);
zipped.write({ICEBERG}.TableMetadataParser.toJson(metadata).getBytes("UTF-8"));
zipped.close();
return new StringBuilder(java.util.Base64.getEncoder().encodeToString(bytes.toByteArray()));
"""
# An answer of Java that fills its buffer is sent in two packets, and the second one waits for 40 ms.
_ONE_PACKET: Final = 8000


def json_of_metadata(jvm: Any, metadata: Any) -> dict[str, Any]:
    """Iceberg's object for a table's metadata, in the JSON of Iceberg's specification."""
    answer = "java.lang.StringBuilder"
    zipped = script(jvm, _ZIPPED_JSON, answer, metadata=f"{ICEBERG}.TableMetadata")(metadata)
    length = int(zipped.length())
    parts = (
        zipped.substring(first, min(first + _ONE_PACKET, length)) for first in range(0, length, _ONE_PACKET)
    )
    return dict(json.loads(gzip.decompress(b64decode("".join(parts)))))


def table_of_json(jvm: Any, table: Any, json_: Mapping[str, Any]) -> Any:
    """A table with this metadata instead of its own. It accepts no commits."""
    operations = table.operations()
    location = operations.current().metadataFileLocation()
    metadata = iceberg(jvm, "TableMetadataParser").fromJson(location, json.dumps(json_))
    static = iceberg(jvm, "StaticTableOperations")(metadata, operations.io(), operations.locationProvider())
    return iceberg(jvm, "BaseTable")(static, table.name())


def partition_spec(jvm: Any, schema: Any) -> Any:
    """A builder of a table's partition spec."""
    return iceberg(jvm, "PartitionSpec").builderFor(schema)


def ascending(jvm: Any, order: Any, name: str) -> Any:
    """A builder of a sort order, with one more ascending column at the end."""
    first = iceberg(jvm, "NullOrder").NULLS_FIRST
    return order.asc(iceberg(jvm, "expressions.Expressions").ref(name), first)


def every_row(jvm: Any) -> Any:
    """The expression that is true for every row."""
    return iceberg(jvm, "expressions.Expressions").alwaysTrue()


def may_have_text(jvm: Any, table: Any, column: str, text: str) -> bool:
    """Whether a data file may contain this string in a column, according to the files' bounds.

    The result is True without Java, because the bounds are then unknown.
    """
    if isinstance(jvm, NoJava):
        return True
    equal = iceberg(jvm, "expressions.Expressions").equal(column, text)
    with closing(table.newScan().filter(equal).planFiles()) as tasks:
        return bool(tasks.iterator().hasNext())


def scan_of_values(jvm: Any, table: Any, column: str) -> Any:
    """A scan of the files that may have a value in a column."""
    return table.newScan().filter(iceberg(jvm, "expressions.Expressions").notNull(column))


@lru_cache
def scanned_bytes(relation: Any) -> int | None:
    """The size of all files in the Iceberg snapshot that a relation scans, or None if it is unknown."""
    table = relation.relation().table()
    if table.getClass().getName() != f"{ICEBERG}.spark.source.SparkTable":
        return None
    at, stored = table.snapshotId(), table.table()
    snapshot = stored.currentSnapshot() if at is None else stored.snapshot(at)
    size = "0" if snapshot is None else snapshot.summary().get("total-files-size")
    return None if size is None else int(size)


@lru_cache
def script(jvm: Any, source: str, answer: str, **parameters: str) -> Callable[..., Any]:
    """A function in Java, compiled once by Spark's own compiler, for loops over many files.

    `answer` is the class of its result, and `parameters` are the classes of its parameters by name.
    """
    evaluator, classes = jvm.org.codehaus.janino.ScriptEvaluator(), _class(jvm, "java.lang.Class")
    evaluator.setParentClassLoader(_loader(jvm))
    evaluator.setReturnType(_class(jvm, answer))
    types = array(jvm, classes, [_class(jvm, name) for name in parameters.values()])
    evaluator.setParameters(array(jvm, _class(jvm, "java.lang.String"), list(parameters)), types)
    evaluator.setThrownExceptions(array(jvm, classes, [_class(jvm, "java.lang.Exception")]))
    evaluator.cook(source)
    return lambda *arguments: evaluator.evaluate(array(jvm, _class(jvm, "java.lang.Object"), arguments))


def new_location(jvm: Any, table: Any, partition: str) -> str:
    """The location of a new file of rows in a partition, which is in its path form, or empty."""
    spec, locations, name = table.spec(), table.locationProvider(), f"{uuid4()}.parquet"
    if not partition:
        return str(locations.newDataLocation(name))
    return str(locations.newDataLocation(spec, iceberg(jvm, "DataFiles").data(spec, partition), name))


def data_file(jvm: Any, table: Any, location: str, size: int, footer: bytes, partition: str) -> Any:
    """Iceberg's object for a Parquet file of rows. `partition` is in its path form, or empty."""
    config = iceberg(jvm, "MetricsConfig").forTable(table)
    builder = iceberg(jvm, "DataFiles").builder(table.spec()).withPath(location).withFileSizeInBytes(size)
    builder = _with_footer(jvm, builder, footer, config)
    return (builder.withPartitionPath(partition) if partition else builder).build()


def position_deletes(jvm: Any, task: Any, location: str, size: int, footer: bytes) -> Any:
    """Iceberg's object for a Parquet file of deleted positions in the data file of a scan task."""
    builder = iceberg(jvm, "FileMetadata").deleteFileBuilder(task.spec()).ofPositionDeletes()
    builder = builder.withPath(location).withFileSizeInBytes(size).withPartition(task.file().partition())
    config = iceberg(jvm, "MetricsConfig").forPositionDelete()
    return _with_footer(jvm, builder, footer, config).build()


def _with_footer(jvm: Any, builder: Any, footer: bytes, config: Any) -> Any:
    """A builder with the metrics from a Parquet file's footer, so that Iceberg need not read the file."""
    (read, every), util = _parquet(jvm), iceberg(jvm, "parquet.ParquetUtil")
    metadata = read(jvm.java.io.ByteArrayInputStream(footer), every, None, False, len(footer))
    metrics = util.footerMetrics(metadata, _java(jvm, "java.util.stream.Stream").empty(), config)
    return builder.withFormat("parquet").withMetrics(metrics).withSplitOffsets(util.getSplitOffsets(metadata))


@lru_cache
def _parquet(jvm: Any) -> tuple[Callable[..., Any], Any]:
    own = f"{ICEBERG}.shaded.{PARQUET}"
    package = own if java_class_or_none(jvm, f"{own}.ParquetReadOptions") else PARQUET
    converter = _java(jvm, f"{package}.format.converter.ParquetMetadataConverter")
    options = _java(jvm, f"{package}.ParquetReadOptions").builder().build()
    return converter(options).readParquetMetadata, converter.NO_FILTER


@contextmanager
def rewrite_group(jvm: Any, table: Any) -> Iterator[tuple[str, Callable[[], list[Any]]]]:
    """A name for files that Spark writes for the table without a commit, and a function that returns them.

    Iceberg's own rewriting uses the same writer, which writes `_row_id` if the rows have it.
    """
    group = str(uuid4())
    cache, coordinator = _table_cache(jvm), iceberg(jvm, "spark.FileRewriteCoordinator").get()
    cache.add(group, table)
    try:
        yield group, lambda: list(coordinator.fetchNewFiles(table, group))
    finally:
        coordinator.clearRewrite(table, group)
        cache.remove(group)


def _table_cache(jvm: Any) -> Any:
    """Iceberg's cache in which Spark's writer finds tables. With py4j, `get` would call another method."""
    cache = _class(jvm, f"{ICEBERG}.spark.SparkTableCache")
    nothing = array(jvm, _class(jvm, "java.lang.Class"), [])
    return cache.getMethod("get", nothing).invoke(None, array(jvm, _class(jvm, "java.lang.Object"), []))


def iceberg(jvm: Any, name: str) -> Any:
    """The Iceberg class with this name, which must be in `NEEDED`."""
    assert name in NEEDED, name
    return _java(jvm, f"{ICEBERG}.{name}")


def set_properties(transaction: Any, properties: Mapping[str, str | None]) -> None:
    """Set properties of the table in a transaction. None removes a property."""
    update = transaction.updateProperties()
    for name, value in properties.items():
        if value is None:
            update.remove(name)
        else:
            update.set(name, value)
    update.commit()


def texts_of(texts: Any) -> dict[str, str]:
    """A Java map of strings, read in one call. py4j's own conversion needs three calls for each name."""
    mapper = _java(texts, "com.fasterxml.jackson.databind.ObjectMapper")()
    return dict(json.loads(mapper.writeValueAsString(texts)))


def _java(jvm: Any, name: str) -> Any:
    """The Java class with this full name, found without a request for each part of its name."""
    from backstory.spark.java_names import java_class

    return java_class(jvm, name)


@lru_cache(maxsize=64)
def _class(jvm: Any, name: str) -> Any:
    """The java.lang.Class with this name."""
    return _loader(jvm).loadClass(name)


def _loader(jvm: Any) -> Any:
    return _java(jvm, "java.lang.Thread").currentThread().getContextClassLoader()
